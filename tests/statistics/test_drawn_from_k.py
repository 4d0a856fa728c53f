"""best-of-k and maj@k: against all subsets of k."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llenvs_fast.statistics import best_of_k, eligible_mean, maj_at_k, pass_at_k
from tests import naive_statistics as naive

rewards = st.lists(st.floats(-100, 100), min_size=1, max_size=8)
votes = st.lists(st.sampled_from("abcd"), min_size=1, max_size=8)


@settings(deadline=None)
@given(rewards, st.integers(1, 9))
def test_best_of_k_is_the_mean_maximum_of_all_subsets(values: list[float], k: int) -> None:
    found = best_of_k([values], k)
    np.testing.assert_allclose(found.values, [[naive.best_of_k(values, k)]], rtol=1e-10, atol=1e-10)
    assert (found.n.tolist(), found.missing.tolist()) == ([len(values)], [0])


@settings(deadline=None)
@given(rewards, st.integers(1, 7), st.randoms())
def test_best_of_k_rises_with_k_and_knows_no_order(values: list[float], k: int, random: object) -> None:
    ks = [k, k + 1]
    a, b = best_of_k([values], ks).values[0]
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    np.testing.assert_allclose(best_of_k([shuffled], ks).values[0], [a, b])
    if k + 1 <= len(values):
        assert a <= b + 1e-9
        assert min(values) - 1e-9 <= a
        assert b <= max(values) + 1e-9


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 12))
def test_of_right_and_wrong_best_of_k_is_pass_at_k(outcomes: list[bool], k: int) -> None:
    found = best_of_k([[float(o) for o in outcomes]], k).values[0, 0]
    np.testing.assert_allclose(found, pass_at_k(len(outcomes), sum(outcomes), k), atol=1e-12)


def test_missing_rewards_are_counted_and_never_filled_in() -> None:
    found = best_of_k([[1.0, None, 3.0], [np.nan, np.nan, 2.0]], [1, 2, 3])  # type: ignore[list-item]
    np.testing.assert_allclose(found.values, [[2.0, 3.0, np.nan], [2.0, np.nan, np.nan]])
    assert found.n.tolist() == [2, 1]
    assert found.missing.tolist() == [1, 2]
    mean, eligible = eligible_mean(found.values)
    assert eligible.tolist() == [2, 1, 0]
    np.testing.assert_allclose(mean, [2.0, 3.0, np.nan])


@settings(deadline=None)
@given(votes, st.integers(1, 9))
def test_maj_at_k_is_the_mean_share_over_all_subsets(answers: list[str], k: int) -> None:
    for correct in "abz":
        found = maj_at_k([answers], [correct], k).values[0, 0]
        np.testing.assert_allclose(found, naive.maj_at_k(answers, correct, k), rtol=1e-10, atol=1e-12)


def test_maj_at_k_at_its_ends() -> None:
    found = maj_at_k([["a"] * 700 + ["b"] * 300, ["a", None, float("nan")]], ["a", "a"], [1, 1000, 5])
    assert found.values[0, 0] == pytest.approx(0.7)
    assert found.values[0, 1] == 1.0
    assert found.values[1, 0] == 1.0
    assert math.isnan(found.values[1, 2])
    assert found.missing.tolist() == [0, 2]


@pytest.mark.parametrize("k", [0, -1, 1.5])
def test_strange_k_are_refused(k: float) -> None:
    with pytest.raises(ValueError, match="give"):
        best_of_k([[1.0]], k)
    with pytest.raises(ValueError, match="give"):
        maj_at_k([["a"]], ["a"], k)
