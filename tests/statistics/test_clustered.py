from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llenvs_fast.statistics import clustered_error_of_rate, clustered_standard_error
from tests import naive

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
