"""Bootstrap intervals: scipy's within noise, seeded, independent of order and threads, and they cover."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.statistics import _jit, bootstrap, bootstrap_mean, clustered_standard_error, resampled_means
from llenvs_fast.statistics.draws import _resampled_sums, resampled_indices, resampled_sums, streams

JIT_OFF = os.environ.get("NUMBA_DISABLE_JIT") == "1"
values_ = st.lists(st.floats(-100, 100), min_size=2, max_size=30)


def test_draws_are_uniform_and_streams_differ() -> None:
    drawn = resampled_indices(streams(3, 0, 2_000), 7)
    assert drawn.shape == (2_000, 7)
    counts = np.bincount(drawn.ravel(), minlength=7)
    assert scipy.stats.chisquare(counts).pvalue > 1e-4
    assert not np.array_equal(drawn, resampled_indices(streams(4, 0, 2_000), 7))
    np.testing.assert_array_equal(drawn[500:900], resampled_indices(streams(3, 500, 900), 7))


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_the_kernel_draws_what_numpy_draws(n: int) -> None:
    x = np.arange(n, dtype=np.float64) ** 2
    starts = streams(9, 0, 50)
    fast, slow = np.empty((2, 50))
    with np.errstate(over="ignore"):
        _resampled_sums(x, starts, fast)
        _resampled_sums.function(x, starts.copy(), slow)
    np.testing.assert_allclose(fast, x[resampled_indices(starts, n)].sum(axis=1))
    np.testing.assert_allclose(fast, slow)


def test_large_work_in_threads_is_the_same_as_small() -> None:
    x = np.random.default_rng(0).normal(size=5_000)
    many = resampled_sums(x, 1_000, 5)
    np.testing.assert_allclose(many[:20], resampled_sums(x, 20, 5))


@pytest.mark.parametrize("method", ["percentile", "bca"])
@pytest.mark.parametrize("skewed", [False, True])
def test_intervals_are_scipys_within_the_noise_of_resampling(method: str, skewed: bool) -> None:
    rng = np.random.default_rng(1)
    x = rng.exponential(size=60) if skewed else rng.normal(size=60)
    theirs = scipy.stats.bootstrap((x,), np.mean, n_resamples=20_000, method=method, rng=rng)
    ours = bootstrap_mean(x, method=method, resamples=20_000)
    any_statistic = bootstrap(x, lambda a: a.mean(axis=-1), method=method, resamples=20_000)
    tolerance = 0.06 * theirs.standard_error * 2
    for found in (ours, any_statistic):
        assert found.value == pytest.approx(x.mean())
        assert found.low == pytest.approx(theirs.confidence_interval.low, abs=tolerance)
        assert found.high == pytest.approx(theirs.confidence_interval.high, abs=tolerance)
        assert found.standard_error == pytest.approx(theirs.standard_error, rel=0.05)


@settings(deadline=None, max_examples=30)
@given(values_, st.randoms(), st.floats(-50, 50))
def test_order_does_not_matter_and_a_shift_shifts(values: list[float], random: object, shift: float) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    a = bootstrap_mean(values, resamples=200)
    b = bootstrap_mean(shuffled, resamples=200)
    c = bootstrap_mean([v + shift for v in values], resamples=200)
    assert a.low <= a.high
    assert (b.low, b.high) == pytest.approx((a.low, a.high), abs=1e-9)
    assert (c.low, c.high) == pytest.approx((a.low + shift, a.high + shift), abs=1e-6)


def test_clusters_are_drawn_whole() -> None:
    """Ten clusters of ten equal outcomes: as wide as for ten values."""
    clusters = np.repeat(np.arange(10), 10)
    x = np.repeat([1.0, 0.0] * 5, 10)
    by_task = bootstrap_mean(x, clusters, resamples=20_000)
    assert by_task.standard_error == pytest.approx(0.1581, rel=0.03)
    assert bootstrap_mean(x, resamples=20_000).standard_error == pytest.approx(0.05, rel=0.03)
    few = bootstrap_mean(x[::10], resamples=20_000)
    assert by_task.standard_error == pytest.approx(few.standard_error, rel=0.03)


def test_unequal_clusters_agree_with_the_formula() -> None:
    rng = np.random.default_rng(2)
    sizes = rng.integers(1, 6, 200)
    clusters = np.repeat(np.arange(200), sizes)
    x = rng.normal(size=200)[clusters] + rng.normal(size=len(clusters))
    found = bootstrap_mean(x, clusters, resamples=5_000)
    assert found.standard_error == pytest.approx(clustered_standard_error(x, clusters), rel=0.06)


def test_ends_missing_values_and_bad_settings() -> None:
    assert math.isnan(bootstrap_mean([]).value)
    one = bootstrap_mean([2.0, None, np.nan])  # type: ignore[list-item]
    assert (one.value, one.n, one.missing) == (2.0, 1, 2)
    assert math.isnan(one.low)
    same = bootstrap_mean([0.1] * 5, resamples=50)
    assert same.low == same.value == same.high == 0.1
    for wrong in ({"method": "basic"}, {"confidence": 1.0}, {"resamples": 0}, {"seed": -1}):
        with pytest.raises(InvalidSettingError):
            bootstrap_mean([1.0, 2.0], **wrong)  # type: ignore[arg-type]
    for resamples in (1.5e3, True, "100"):
        with pytest.raises(InvalidSettingError, match="give an integer"):
            bootstrap_mean([1.0, 2.0], resamples=resamples)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="masked"):
        bootstrap_mean([1.0, 2.0, 3.0], np.ma.MaskedArray([1, 2, 3], [False, True, False]))
    with pytest.raises(ValueError, match="give one count"):
        resampled_means([1.0, 2.0], [1.0])


def test_the_percentile_interval_covers() -> None:
    """95 % nominal, normal values, n = 40: at least 0.91 of 400 simulated intervals hold the mean, at most 0.98."""
    rng = np.random.default_rng(4)
    held = 0
    for _ in range(400):
        found = bootstrap_mean(rng.normal(size=40), resamples=400)
        held += found.low <= 0.0 <= found.high
    assert 0.91 <= held / 400 <= 0.98


def test_the_bca_interval_covers_skewed_values_better_than_percentiles() -> None:
    """95 % nominal, exponential values, n = 30, 500 simulations: at least 0.90, and no worse than percentiles."""
    rng = np.random.default_rng(6)
    held = {"bca": 0, "percentile": 0}
    for _ in range(500):
        x = rng.exponential(size=30)
        for method in held:
            found = bootstrap_mean(x, method=method, resamples=500)
            held[method] += found.low <= 1.0 <= found.high
    assert 0.90 <= held["bca"] / 500 <= 0.98
    assert held["bca"] >= held["percentile"] - 2


def test_the_cluster_interval_covers_where_the_plain_one_does_not() -> None:
    """95 % nominal, 40 tasks of 8 samples that are alike, 300 simulations: 0.89 to 0.98, against less than 0.75."""
    rng = np.random.default_rng(7)
    tasks = np.repeat(np.arange(40), 8)
    by_task = plain = 0
    for _ in range(300):
        x = rng.normal(size=40)[tasks] + 0.5 * rng.normal(size=320)
        for clusters in (tasks, None):
            found = bootstrap_mean(x, clusters, resamples=300)
            held = found.low <= 0.0 <= found.high
            by_task, plain = (by_task + held, plain) if clusters is not None else (by_task, plain + held)
    assert 0.89 <= by_task / 300 <= 0.98
    assert plain / 300 < 0.75


def test_threads_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(8).normal(size=20_001)
    found = []
    for cores in (1, 2, 5):
        monkeypatch.setattr(_jit, "_cores", lambda cores=cores: cores)
        found.append(resampled_sums(x, 400, 11) if not JIT_OFF else resampled_sums(x[:99], 400, 11))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
