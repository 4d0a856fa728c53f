"""Clustered errors and variance components, against twins, statsmodels and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.statistics import (
    clustered_error_of_rate,
    clustered_mean,
    clustered_standard_error,
    projected_standard_error,
    student_quantile,
    variance_components,
)
from tests import naive, naive_statistics

number = st.floats(-100, 100) | st.just(float("nan"))
rows = st.lists(st.tuples(number, st.integers(0, 5)), max_size=30)


@settings(deadline=None)
@given(rows)
def test_the_clustered_error_agrees_with_its_twin(pairs: list[tuple[float, int]]) -> None:
    values, clusters = [v for v, _ in pairs], [g for _, g in pairs]
    expected = naive.clustered_standard_error(values, clusters)
    np.testing.assert_allclose(clustered_standard_error(values, clusters), expected, rtol=1e-6, atol=1e-9)


@settings(deadline=None)
@given(rows)
def test_labels_of_clusters_do_not_matter(pairs: list[tuple[float, int]]) -> None:
    values, clusters = [v for v, _ in pairs], [g for _, g in pairs]
    named = clustered_standard_error(values, [f"task {g}" for g in clusters])
    np.testing.assert_equal(clustered_standard_error(values, clusters), named)


def test_ten_tasks_of_ten_equal_samples_are_ten_trials_not_a_hundred() -> None:
    values, clusters = np.repeat([0.0, 1.0], 50), np.repeat(np.arange(10), 10)
    assert math.sqrt(values.var() / 100) == pytest.approx(0.0500)  # as if the trials were independent
    assert clustered_standard_error(values, clusters, correction="CR0") == pytest.approx(0.1581, abs=5e-5)
    assert clustered_standard_error(values, clusters) == pytest.approx(1 / 6)
    assert clustered_error_of_rate([0] * 5 + [10] * 5, [10] * 10) == pytest.approx(1 / 6)


def test_clusters_of_one_give_the_usual_standard_error() -> None:
    values = np.array([1.0, 0.0, 0.0, 1.0, 1.0])
    usual = values.std(ddof=1) / math.sqrt(5)
    assert clustered_standard_error(values, np.arange(5)) == pytest.approx(usual)


def test_fewer_than_two_clusters_have_no_error() -> None:
    assert math.isnan(clustered_standard_error([1.0, 0.0], [3, 3]))
    assert math.isnan(clustered_standard_error([], []))
    assert math.isnan(clustered_error_of_rate([1, 0], [2, 0]))


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="one cluster per value"):
        clustered_standard_error([1.0, 0.0], [1])
    with pytest.raises(ValueError, match="one of each per cluster"):
        clustered_error_of_rate([1, 2], [3])


def test_statsmodels_agrees() -> None:
    import statsmodels.api as sm

    rng = np.random.default_rng(0)
    clusters = rng.integers(0, 30, 200)
    x = rng.normal(size=200) + rng.normal(size=30)[clusters]
    theirs = sm.OLS(x, np.ones(200)).fit(cov_type="cluster", cov_kwds={"groups": clusters, "use_correction": False})
    assert clustered_standard_error(x, clusters, correction="CR0") == pytest.approx(theirs.bse[0])
    ours = clustered_mean(x, clusters)
    assert ours.value == pytest.approx(x.mean())
    assert ours.standard_error == pytest.approx(theirs.bse[0] * np.sqrt(30 / 29))
    t = scipy.stats.t.ppf(0.975, 29)
    assert ours.high - ours.value == pytest.approx(t * ours.standard_error)


def test_variance_components_of_a_balanced_table() -> None:
    """Searle's estimators: MSB, MSW and their difference over K, against scipy's one-way analysis of variance."""
    rng = np.random.default_rng(1)
    table = rng.normal(size=(40, 6)) + 2 * rng.normal(size=(40, 1))
    clusters = np.repeat(np.arange(40), 6)
    found = variance_components(table.ravel(), clusters)
    f = scipy.stats.f_oneway(*table).statistic
    assert found.mean_square_between / found.mean_square_within == pytest.approx(f)
    assert found.within == pytest.approx(table.var(axis=1, ddof=1).mean())
    assert found.between == pytest.approx((found.mean_square_between - found.mean_square_within) / 6)
    assert found.samples_per_cluster == pytest.approx(6)
    assert found.design_effect == pytest.approx(1 + 5 * found.icc)
    error = projected_standard_error(found.between, found.within, 40, 6)
    assert error == pytest.approx(clustered_standard_error(table.ravel(), clusters), rel=1e-9)
    assert projected_standard_error(1.0, 1.0, 4, np.inf) == 0.5


@given(st.floats(0.5, 0.999), st.floats(0.3, 5_000))
def test_students_quantile_is_scipys(confidence: float, df: float) -> None:
    expected = scipy.stats.t.ppf(0.5 + confidence / 2, df)
    assert student_quantile(confidence, df) == pytest.approx(expected, rel=1e-9)


def test_missing_values_and_labels() -> None:
    found = clustered_mean([1.0, None, 0.0, 1.0], ["a", "a", "b", "c"])  # type: ignore[list-item]
    assert (found.n, found.missing) == (3, 1)
    assert np.isnan(clustered_standard_error([1.0, 2.0], ["a", "a"]))
    with pytest.raises(ValueError, match="missing label"):
        clustered_standard_error([1.0, 2.0], [1.0, np.nan])
    with pytest.raises(InvalidSettingError, match="CR3"):
        clustered_standard_error([1.0, 2.0], ["a", "b"], correction="CR3")  # type: ignore[arg-type]


def test_cr2_is_bell_and_mccaffreys_written_as_matrices() -> None:
    rng = np.random.default_rng(2)
    sizes = rng.integers(1, 9, 12)
    clusters, n = np.repeat(np.arange(12), sizes), int(sizes.sum())
    x = rng.normal(size=n) + rng.normal(size=12)[clusters]
    rest = np.eye(n) - np.full((n, n), 1 / n)
    squares, columns = 0.0, []
    for g in range(12):
        own = clusters == g
        values, vectors = np.linalg.eigh(rest[np.ix_(own, own)])
        adjusted = vectors @ np.diag(values**-0.5) @ vectors.T @ np.ones(int(own.sum()))
        squares += float(adjusted @ (rest @ x)[own]) ** 2
        columns.append(rest[own].T @ adjusted)
    weights = np.linalg.eigvalsh(np.array(columns) @ np.array(columns).T)
    df = weights.sum() ** 2 / (weights**2).sum()
    found = clustered_mean(x, clusters, correction="CR2")
    assert found.standard_error == pytest.approx(math.sqrt(squares) / n)
    assert found.high - found.value == pytest.approx(scipy.stats.t.ppf(0.975, df) * found.standard_error)


def test_the_intervals_cover_the_mean() -> None:
    """Nominally 95 %, 12 clusters of 1 to 8 values: CR2 0.93 to 0.97 of 2,000 simulations, CR1 at least 0.91."""
    rng = np.random.default_rng(3)
    clusters = np.repeat(np.arange(12), rng.integers(1, 9, 12))
    covered = {"CR1": 0, "CR2": 0}
    for _ in range(2_000):
        x = rng.normal(size=len(clusters)) + rng.normal(size=12)[clusters]
        for correction in ("CR1", "CR2"):
            found = clustered_mean(x, clusters, correction=correction)
            covered[correction] += found.low <= 0 <= found.high
    assert 0.93 <= covered["CR2"] / 2_000 <= 0.97
    assert covered["CR1"] / 2_000 >= 0.91


@settings(deadline=None)
@given(rows.filter(lambda r: len(r) > 1), st.randoms())
def test_variance_components_agree_with_their_twin_in_any_order(pairs: list[tuple[float, int]], random: object) -> None:
    expected = naive_statistics.variance_components([v for v, _ in pairs], [g for _, g in pairs])
    random.shuffle(pairs)  # type: ignore[attr-defined]
    found = variance_components([v for v, _ in pairs], [g for _, g in pairs])
    np.testing.assert_allclose((found.between, found.within), expected, rtol=1e-6, atol=1e-6)
