"""Intervals of rates and means: known values, statsmodels and scipy, ends, coverage."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.proportion import proportion_confint

from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.statistics import (
    _jit,
    clopper_pearson_interval,
    mean_interval,
    normal_quantile,
    student_quantile,
    wilson_interval,
)
from tests import naive

counts = st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (0, 5, 0.0, 0.4345),
        (5, 5, 0.5655, 1.0),
        (9, 10, 0.5959, 0.9821),
        (17, 20, 0.6396, 0.9476),
        (850, 1000, 0.8265, 0.8708),
        (2, 8, 0.0715, 0.5907),
        (2, 6, 0.0968, 0.7000),
        (85, 100, 0.7672, 0.9069),
        (7, 10, 0.3968, 0.8922),
    ],
)
def test_wilson_gives_the_known_values(successes: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=6e-5)


@settings(deadline=None)
@given(counts, st.floats(0.01, 0.999))
def test_wilson_agrees_with_statsmodels(count: tuple[int, int], confidence: float) -> None:
    expected = proportion_confint(*count, alpha=1 - confidence, method="wilson")
    np.testing.assert_allclose(wilson_interval(*count, confidence), expected, rtol=1e-9, atol=1e-12)


@settings(deadline=None)
@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_agrees_with_its_definition(count: tuple[int, int]) -> None:
    expected = naive.wilson_interval(*count, normal_quantile(0.95))
    np.testing.assert_allclose(wilson_interval(*count), expected, rtol=1e-6, atol=1e-7)


@settings(deadline=None)
@given(counts)
def test_wilson_holds_the_rate_and_never_leaves_0_to_1(count: tuple[int, int]) -> None:
    low, high = wilson_interval(*count)
    assert 0.0 <= low <= count[0] / count[1] <= high <= 1.0
    assert low < high


def test_wilson_ends_exactly_at_the_boundary() -> None:
    assert wilson_interval(0, 3)[0] == 0.0
    assert wilson_interval(3, 3)[1] == 1.0


def test_wilson_of_nothing_is_undefined() -> None:
    assert all(math.isnan(bound) for bound in wilson_interval(0, 0))


def test_wilson_takes_arrays_and_broadcasts() -> None:
    low, high = wilson_interval([[0], [1]], [1, 2, 4])
    assert low.shape == high.shape == (2, 3)
    assert (low[1, 2], high[1, 2]) == wilson_interval(1, 4)


@pytest.mark.parametrize(("successes", "n"), [(-1, 5), (6, 5), (float("nan"), 5)])
def test_wilson_refuses_what_is_no_count(successes: float, n: int) -> None:
    with pytest.raises(ValueError, match="give 0 ≤ successes ≤ n"):
        wilson_interval(successes, n)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95, float("nan")])
def test_confidence_is_a_share(confidence: float) -> None:
    with pytest.raises(InvalidSettingError, match="between 0 and 1"):
        wilson_interval(1, 2, confidence)


def test_many_intervals_take_the_kernel_to_the_same_values() -> None:
    rng = np.random.default_rng(0)
    n = rng.integers(0, 50, 600_000)
    s = rng.integers(0, n + 1)
    low, high = wilson_interval(s, n)
    few_low, few_high = wilson_interval(s[:5_000], n[:5_000])
    np.testing.assert_allclose(low[:5_000], few_low, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(high[:5_000], few_high, rtol=1e-12, atol=1e-15)
    assert np.isnan(low[n == 0]).all()
    shaped = wilson_interval(s.reshape(600, 1000), n.reshape(600, 1000))
    np.testing.assert_array_equal(shaped[0].ravel(), low)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_clopper_pearson_is_statsmodels_and_wider_than_wilson(confidence: float) -> None:
    s, n = np.array([(s, n) for n in (1, 2, 7, 50) for s in range(n + 1)]).T
    ours = clopper_pearson_interval(s, n, confidence)
    theirs = proportion_confint(s, n, 1 - confidence, method="beta")
    np.testing.assert_allclose(ours[0], np.where(s == 0, 0.0, theirs[0]), atol=1e-9)
    np.testing.assert_allclose(ours[1], np.where(s == n, 1.0, theirs[1]), atol=1e-9)
    assert clopper_pearson_interval(0, 0) == (0.0, 1.0)


def test_clopper_pearson_covers_at_least_as_often_as_it_says() -> None:
    """Exactly, over all outcomes of 20 trials, for many rates."""
    low, high = clopper_pearson_interval(np.arange(21), 20)
    for rate in np.linspace(0.01, 0.99, 50):
        chances = scipy.stats.binom.pmf(np.arange(21), 20, rate)
        assert chances[(low <= rate) & (rate <= high)].sum() >= 0.95


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=30), st.floats(0.5, 0.99))
def test_the_interval_of_a_mean_is_scipys(values: list[float], confidence: float) -> None:
    found = mean_interval(values, confidence)
    error = scipy.stats.sem(values)
    assert found.value == pytest.approx(np.mean(values), abs=1e-9)
    assert found.standard_error == pytest.approx(error, rel=1e-6, abs=1e-9)
    half = scipy.stats.t.ppf(0.5 + confidence / 2, len(values) - 1) * error
    assert found.high - found.value == pytest.approx(half, rel=1e-6, abs=1e-6)
    normal = mean_interval(values, confidence, method="normal")
    assert normal.high <= found.high + 1e-12


def test_means_at_their_ends() -> None:
    assert math.isnan(mean_interval([]).value)
    one = mean_interval([2.0, None])  # type: ignore[list-item]
    assert (one.value, one.n, one.missing) == (2.0, 1, 1)
    assert math.isnan(one.low)
    same = mean_interval([0.1] * 4)
    assert (same.low, same.value, same.high) == (0.1, 0.1, 0.1)
    with pytest.raises(ValueError, match="'t' or 'normal'"):
        mean_interval([1.0, 2.0], method="z")


def test_the_t_interval_covers_as_often_as_it_says() -> None:
    """95 % nominal, n = 5, 4,000 simulations: within 0.935 to 0.965."""
    rng = np.random.default_rng(5)
    held = [e.low <= 0 <= e.high for e in (mean_interval(rng.normal(size=5)) for _ in range(4_000))]
    assert 0.935 <= np.mean(held) <= 0.965


def test_whole_numbers_and_floats_give_the_same_bits_by_either_path(monkeypatch: pytest.MonkeyPatch) -> None:
    n = np.repeat([0, 1, 3, 50, 10**6, 10**9], 4)
    s = n * np.tile([0, 1, 2, 3], 6) // 3
    expected = wilson_interval(s, n)
    for small in (_jit.SMALL, -1):
        monkeypatch.setattr(_jit, "SMALL", small)
        for dtype in (np.int64, np.int32, np.float64):
            np.testing.assert_array_equal(wilson_interval(s.astype(dtype), n.astype(np.float64)), expected)
            np.testing.assert_array_equal(wilson_interval(s.astype(dtype), n), expected)
        with pytest.raises(ValueError, match="5 successes of 3"):
            wilson_interval([1, 5], 3)


@settings(deadline=None)
@given(counts, st.floats(0.5, 0.999))
def test_wilson_rises_with_successes_is_symmetric_and_widens_with_confidence(
    count: tuple[int, int], confidence: float
) -> None:
    s, n = count
    low, high = wilson_interval(s, n, confidence)
    np.testing.assert_allclose(wilson_interval(n - s, n, confidence), (1 - high, 1 - low), rtol=1e-9, atol=1e-12)
    wider = wilson_interval(s, n, (1 + confidence) / 2)
    assert wider[0] <= low
    assert high <= wider[1]
    if s < n:
        more = wilson_interval(s + 1, n, confidence)
        assert low < more[0] + 1e-15
        assert high < more[1] + 1e-15


def test_wilson_covers_about_as_often_as_it_says() -> None:
    """Exactly, over all outcomes of 50 trials: 0.945 to 0.965 on average over rates of 0.1 to 0.9, all above 0.91."""
    low, high = wilson_interval(np.arange(51), 50)
    rates = np.linspace(0.1, 0.9, 401)
    chances = scipy.stats.binom.pmf(np.arange(51), 50, rates[:, None])
    held = (chances * ((low <= rates[:, None]) & (rates[:, None] <= high))).sum(axis=1)
    assert 0.945 <= held.mean() <= 0.965
    assert held.min() > 0.91


@pytest.mark.parametrize("interval", [wilson_interval, clopper_pearson_interval])
def test_counts_that_are_masked_or_infinite_are_refused(interval: Any) -> None:
    for s, n in (
        (np.ma.MaskedArray([1, 1], [False, True]), 2),
        ([1, 1], np.ma.MaskedArray([2, 2], [False, True])),
        (1, math.inf),
        (None, 2),
    ):
        with pytest.raises(ValueError, match=r"masked|give 0"):
            interval(s, n)


@given(st.floats(0.01, 0.9999), st.floats(0.5, 1e7))
def test_student_quantiles_are_scipys(confidence: float, df: float) -> None:
    expected = scipy.special.stdtrit(df, 0.5 + confidence / 2)
    assert student_quantile(confidence, df) == pytest.approx(expected, rel=1e-9)


def test_the_mean_interval_knows_no_order_and_moves_with_the_values() -> None:
    x = np.random.default_rng(9).normal(size=50)
    a, b, c = mean_interval(x), mean_interval(x[::-1]), mean_interval(3 * x + 1e6)
    assert (b.low, b.high) == pytest.approx((a.low, a.high), rel=1e-12)
    assert (c.low, c.high) == pytest.approx((3 * a.low + 1e6, 3 * a.high + 1e6), rel=1e-12)
