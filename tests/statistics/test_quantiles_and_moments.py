"""Quantiles, means and variances: NumPy's, for many groups at once, without cancellation, nothing filled in."""

from __future__ import annotations

import math
import statistics as stdlib
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.statistics import grouped_moments, grouped_quantiles, moments, quantiles
from llenvs_fast.statistics.quantiles import _sorted_by_kernels, _sorted_by_numpy

numbers = st.floats(-1e6, 1e6)
rows = st.lists(st.tuples(st.integers(0, 5), numbers | st.just(math.nan)), min_size=1, max_size=60)
Q = [0.0, 0.25, 0.5, 0.75, 0.99, 1.0]


def columns(table: list[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([g for g, _ in table]), np.array([x for _, x in table])


@settings(deadline=None)
@given(rows)
def test_grouped_quantiles_are_numpys_group_by_group(table: list[tuple[int, float]]) -> None:
    groups, x = columns(table)
    found = grouped_quantiles(x, groups, Q)
    assert found.groups.tolist() == sorted(set(groups.tolist()))
    for i, g in enumerate(found.groups):
        own = x[(groups == g) & ~np.isnan(x)]
        assert found.n[i] == len(own)
        assert found.missing[i] == (groups == g).sum() - len(own)
        np.testing.assert_array_equal(found.values[i], np.quantile(own, Q) if len(own) else [math.nan] * len(Q))


@settings(deadline=None)
@given(rows)
def test_kernels_sort_as_numpy_does(table: list[tuple[int, float]]) -> None:
    groups, x = columns(table)
    for fast, slow in zip(_sorted_by_kernels(x, groups, 6), _sorted_by_numpy(x, groups, 6), strict=True):
        np.testing.assert_array_equal(fast, slow)


def test_large_inputs_take_the_kernels_to_the_same_result() -> None:
    rng = np.random.default_rng(0)
    x, groups = rng.normal(size=600_000), rng.integers(0, 9_000, 600_000)
    groups[:200_000] = 7  # one large group
    x[::1000] = np.nan
    found = grouped_quantiles(x, groups, Q)
    for g in (0, 7, 8_999):
        np.testing.assert_array_equal(found.values[g], np.nanquantile(x[groups == g], Q))
    assert found.missing.sum() == 600
    assert found.n.sum() + 600 == len(x)


@given(st.lists(numbers, min_size=1, max_size=30), st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_quantiles_are_numpys_and_equal_weights_change_nothing(values: list[float], q: list[float]) -> None:
    expected = np.quantile(values, q)
    np.testing.assert_array_equal(quantiles(values, q).values, expected)
    weighted = quantiles(values, q, weights=[0.3] * len(values)).values
    np.testing.assert_allclose(weighted, expected, rtol=1e-9, atol=1e-9 * (1 + np.ptp(values)))


@given(st.lists(st.tuples(numbers, st.floats(0, 10)), min_size=1, max_size=20))
def test_weighted_quantiles_rise_within_the_values_and_ignore_weight_zero(pairs: list[tuple[float, float]]) -> None:
    x, w = [p[0] for p in pairs], [p[1] for p in pairs]
    found = quantiles(x, Q, weights=w).values
    counted = [a for a, b in pairs if b > 0]
    if not counted:
        assert np.isnan(found).all()
        return
    slack = 1e-9 * (1 + max(map(abs, counted)))
    assert (np.diff(found) >= -slack).all()
    assert min(counted) - slack <= found.min()
    assert found.max() <= max(counted) + slack
    np.testing.assert_array_equal(quantiles([*x, 123.0], Q, weights=[*w, 0.0]).values, found)


@given(st.lists(numbers, min_size=1, max_size=40))
def test_moments_are_exact_ones(values: list[float]) -> None:
    m = moments(values)
    exact = [Fraction(v) for v in values]
    assert m.mean == pytest.approx(float(sum(exact) / len(exact)), rel=1e-12, abs=1e-9)
    if len(values) == 1:
        assert math.isnan(m.variance)
    else:
        assert m.variance == pytest.approx(float(stdlib.variance(exact)), rel=1e-9, abs=1e-12)
    assert (m.n, m.missing, m.effective_n) == (len(values), 0, pytest.approx(len(values)))


def test_an_offset_of_a_billion_costs_no_digits_and_equal_values_do_not_vary() -> None:
    values = np.array([1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16])
    assert moments(values).variance == 30.0
    assert moments([0.1] * 10).variance == 0.0
    assert moments([0.1] * 10).mean == 0.1


@settings(deadline=None)
@given(rows)
def test_grouped_moments_are_those_of_each_group(table: list[tuple[int, float]]) -> None:
    groups, x = columns(table)
    found = grouped_moments(x, groups)
    for i, g in enumerate(found.groups):
        own = x[(groups == g) & ~np.isnan(x)]
        assert (found.n[i], found.missing[i]) == (len(own), (groups == g).sum() - len(own))
        np.testing.assert_allclose(found.mean[i], own.mean() if len(own) else math.nan, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(
            found.variance[i], own.var(ddof=1) if len(own) > 1 else math.nan, rtol=1e-7, atol=1e-6
        )


@given(st.lists(st.tuples(numbers, st.integers(1, 4)), min_size=2, max_size=10))
def test_the_weighted_mean_is_that_of_repeated_values(pairs: list[tuple[float, int]]) -> None:
    x, w = [p[0] for p in pairs], [p[1] for p in pairs]
    repeated = [a for a, times in pairs for _ in range(times)]
    assert moments(x, w).mean == pytest.approx(moments(repeated).mean, rel=1e-9, abs=1e-6)


def test_no_values_and_strange_ones() -> None:
    assert math.isnan(moments([]).mean)
    assert math.isnan(float(quantiles([], 0.5).values))
    masked = np.ma.MaskedArray([1.0, 99.0, 3.0], [False, True, False])
    assert (moments(masked).mean, moments(masked).missing) == (2.0, 1)
    for wrong in ([1.0, math.inf], ["a"], [[1.0]]):
        with pytest.raises(ValueError, match="give"):
            moments(wrong)
    with pytest.raises(InvalidSettingError, match="shares from 0 to 1"):
        quantiles([1.0], 1.5)
    with pytest.raises(ValueError, match="missing label"):
        grouped_moments([1.0], [math.nan])


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1.0, 1e150])
def test_only_the_ratios_of_weights_matter(scale: float) -> None:
    """Also where one group has weights of 1 and another of next to nothing: their squares would be 0."""
    m = moments([1.0, 2.0, 4.0], [scale, 2 * scale, scale])
    one = moments([1.0, 2.0, 4.0], [1, 2, 1])
    assert (m.mean, m.variance, m.effective_n) == pytest.approx((one.mean, one.variance, one.effective_n), rel=1e-12)
    both = grouped_moments([1.0, 2.0, 1.0, 2.0], [0, 0, 1, 1], [1, 1, scale, scale])
    np.testing.assert_allclose(both.variance, [0.5, 0.5])
    np.testing.assert_allclose(both.effective_n, [2, 2])
    np.testing.assert_allclose(quantiles([1.0, 2.0, 4.0], Q, [scale] * 3).values, np.quantile([1, 2, 4], Q))


@given(st.lists(st.tuples(numbers, st.integers(0, 3)), min_size=1, max_size=30), st.randoms())
def test_order_does_not_matter(table: list[tuple[float, int]], random: Any) -> None:
    shuffled = list(table)
    random.shuffle(shuffled)
    (x, g), (y, h) = (np.array(t, dtype=np.float64).T for t in (table, shuffled))
    np.testing.assert_array_equal(grouped_quantiles(x, g, Q).values, grouped_quantiles(y, h, Q).values)
    np.testing.assert_allclose(grouped_moments(x, g).mean, grouped_moments(y, h).mean, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(grouped_moments(x, g).variance, grouped_moments(y, h).variance, rtol=1e-9, atol=1e-9)


def test_labels_of_any_type_and_read_only_columns() -> None:
    names = ["b", "a", "b"]
    for labels in (names, np.array(names), np.array(names, dtype=object), pd.Series(names)):
        found = grouped_quantiles([1.0, 2.0, 3.0], labels, [0.5])
        assert found.groups.tolist() == ["a", "b"]
        assert found.values.tolist() == [[2.0], [2.0]]
    x, groups = np.arange(600_000.0), np.arange(600_000) % 1_000
    x.flags.writeable = groups.flags.writeable = False
    np.testing.assert_array_equal(grouped_quantiles(x, groups, [0.0]).values[:, 0], np.arange(1_000.0))
    assert moments(pd.array([1.0, None, 3.0], dtype="Float64")).missing == 1
    with pytest.raises(ValueError, match="no number"):
        moments(np.array([1.0, pd.NA], dtype=object))
    for labels in (np.ma.MaskedArray([1, 2], [False, True]), ["a", None]):
        with pytest.raises(ValueError, match=r"masked|mix types"):
            grouped_quantiles([1.0, 2.0], labels, [0.5])
