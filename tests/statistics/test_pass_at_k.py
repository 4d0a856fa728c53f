from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llenvs_fast.statistics import mean_pass_at_k, pass_at_k
from llenvs_fast.statistics.pass_at_k import _pass_at_k
from tests import naive

tasks = st.integers(0, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))


@settings(deadline=None)
@given(tasks, st.integers(1, 12))
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(task: tuple[int, int], k: int) -> None:
    np.testing.assert_allclose(pass_at_k(*task, k), naive.pass_at_k(*task, k), rtol=1e-12, atol=1e-12)


@settings(deadline=None)
@given(st.lists(tasks, min_size=1, max_size=5), st.lists(st.integers(1, 10), min_size=1, max_size=4))
def test_the_compiled_kernel_agrees_with_its_python(rows: list[tuple[int, int]], ks: list[int]) -> None:
    n, c = np.array(rows, dtype=np.int64).T.copy()
    fast, slow = np.empty((2, len(rows), len(ks)))
    _pass_at_k(n, c, np.array(ks), fast)
    _pass_at_k.function(n, c, np.array(ks), slow)
    np.testing.assert_allclose(fast, slow, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize(("n", "c", "k"), [(2, 0, 5), (99, 0, 100), (3, 3, 4), (0, 0, 1)])
def test_more_than_n_samples_is_not_available(n: int, c: int, k: int) -> None:
    assert math.isnan(pass_at_k(n, c, k))


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [(10, 7, 1, 0.7), (10, 7, 2, 14 / 15), (4, 2, 1, 0.5), (4, 2, 2, 5 / 6), (5, 0, 5, 0.0)],
)
def test_pass_at_k_gives_the_known_values(n: int, c: int, k: int, expected: float) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-12)


def test_large_n_neither_overflows_nor_loses_the_answer() -> None:
    exact = 1 - math.comb(19_000, 5000) / math.comb(20_000, 5000)
    assert pass_at_k(20_000, 1000, 5000) == pytest.approx(exact, abs=1e-12)
    assert pass_at_k(10**6, 1, 1) == pytest.approx(1e-6, rel=1e-9)


def test_shapes_are_tasks_by_ks() -> None:
    values = pass_at_k([4, 2], [2, 1], [1, 2, 4])
    np.testing.assert_allclose(values, [[0.5, 5 / 6, 1.0], [0.5, 1.0, np.nan]])
    assert pass_at_k([4, 2], [2, 1], 1).shape == (2,)
    assert pass_at_k(4, 2, [1, 2]).shape == (2,)
    assert pass_at_k(4, 2, 1).shape == ()
    assert pass_at_k([], [], [1, 2]).shape == (0, 2)


def test_the_mean_counts_only_tasks_with_enough_samples_and_says_how_many() -> None:
    values, eligible = mean_pass_at_k([8, 4, 1, 2], [2, 4, 0, 1], [1, 2, 4, 16])
    np.testing.assert_allclose(values[1:3], [0.821429, 0.892857], atol=1e-6)
    assert eligible.tolist() == [4, 3, 2, 0]
    assert math.isnan(values[3])


@pytest.mark.parametrize(
    ("n", "c", "k"), [(2, 3, 1), (2, -1, 1), (2, 1, 0), (2.5, 1, 1), ([2], [1.0], 1), ([[2]], 1, 1)]
)
def test_pass_at_k_refuses_impossible_counts(n: object, c: object, k: object) -> None:
    with pytest.raises(ValueError, match="give"):
        pass_at_k(n, c, k)  # type: ignore[arg-type]
