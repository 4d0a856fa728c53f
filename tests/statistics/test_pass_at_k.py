"""pass@k and pass^k: exact, monotone, the same by every path."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llenvs_fast.statistics import mean_pass_at_k, pass_at_k, pass_hat_k
from llenvs_fast.statistics.pass_at_k import _all_from_kernel, _all_from_numpy
from tests import naive

tasks = st.integers(0, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))


@settings(deadline=None)
@given(tasks, st.integers(1, 12))
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(task: tuple[int, int], k: int) -> None:
    np.testing.assert_allclose(pass_at_k(*task, k), naive.pass_at_k(*task, k), rtol=1e-12, atol=1e-12)


@settings(deadline=None)
@given(tasks, st.integers(1, 12))
def test_pass_hat_k_is_the_share_of_subsets_that_are_all_correct(task: tuple[int, int], k: int) -> None:
    n, c = task
    subsets = list(itertools.combinations(range(n), k))
    expected = sum(max(s) < c for s in subsets) / len(subsets) if subsets else math.nan
    np.testing.assert_allclose(pass_hat_k(n, c, k), expected, rtol=1e-12, atol=1e-12)


@settings(deadline=None)
@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_they_agree_with_exact_arithmetic(task: tuple[int, int, int]) -> None:
    n, c, k = task
    none, all_ = (Fraction(math.comb(m, k), math.comb(n, k)) for m in (n - c, c))
    assert pass_at_k(n, c, k) == pytest.approx(float(1 - none), rel=1e-12, abs=1e-300)
    assert pass_hat_k(n, c, k) == pytest.approx(float(all_), rel=1e-12, abs=1e-300)


@settings(deadline=None)
@given(tasks, st.integers(1, 8))
def test_pass_at_k_rises_with_k_and_c_and_pass_hat_k_falls_with_k(task: tuple[int, int], k: int) -> None:
    n, c = task
    if k + 1 <= n:
        assert 0 <= pass_at_k(n, c, k) <= pass_at_k(n, c, k + 1) <= 1
        assert 1 >= pass_hat_k(n, c, k) >= pass_hat_k(n, c, k + 1) >= 0
        assert pass_at_k(n, c, 1) == pytest.approx(c / n)
    if c < n and k <= n:
        assert pass_at_k(n, c, k) <= pass_at_k(n, c + 1, k)
        assert pass_hat_k(n, c, k) <= pass_hat_k(n, c + 1, k)


@settings(deadline=None)
@given(st.lists(tasks, min_size=1, max_size=5), st.lists(st.integers(1, 10), min_size=1, max_size=4), st.booleans())
def test_kernel_its_python_and_numpy_agree_to_the_bit(
    rows: list[tuple[int, int]], ks: list[int], at_least_one: bool
) -> None:
    n, m = np.array(rows, dtype=np.int64).T.copy()
    k = np.array(ks)
    fast, slow = np.empty((2, len(rows), len(ks)))
    _all_from_kernel(n, m, k, at_least_one, fast)
    _all_from_kernel.function(n, m, k, at_least_one, slow)
    np.testing.assert_array_equal(fast, slow)
    np.testing.assert_array_equal(fast, _all_from_numpy(n[:, None], m[:, None], k[None, :], at_least_one))


def test_many_tasks_are_as_one_by_one_and_in_any_order() -> None:
    """Enough work for the kernels, in threads, and enough tasks for the table of distinct ones."""
    rng = np.random.default_rng(0)
    n = rng.integers(1, 2_000, 3_000)
    c = rng.integers(0, n + 1)
    ks = [1, 7, 100, 1_500]
    many = pass_at_k(n, c, ks)
    one_by_one = np.array([[pass_at_k(int(a), int(b), k) for k in ks] for a, b in zip(n[:200], c[:200], strict=True)])
    np.testing.assert_array_equal(many[:200], one_by_one)
    order = rng.permutation(len(n))
    np.testing.assert_array_equal(pass_at_k(n[order], c[order], ks), many[order])
    few = rng.integers(0, 17, 100_000)
    table = pass_at_k(16, np.arange(17), [1, 4, 16])
    np.testing.assert_array_equal(pass_at_k(np.full(100_000, 16), few, [1, 4, 16]), table[few])


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


@pytest.mark.parametrize(
    ("n", "c", "k"),
    [(10**6, 1, 1), (10**6, 3, 10**5), (10**6, 1000, 1000), (10**6, 500, 999_000), (10**6, 2000, 1500)],
)
def test_a_million_samples_cost_no_digits(n: int, c: int, k: int) -> None:
    none_of_k = Fraction(1)
    for i in range(min(c, k)):
        none_of_k *= Fraction(n - i - max(c, k), n - i)
    assert pass_at_k(n, c, k) == pytest.approx(float(1 - none_of_k), rel=1e-12)


def test_masked_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="masked"):
        pass_at_k(np.ma.MaskedArray([4, 4], [False, True]), 2, 1)
