"""pass@k and pass^k: the chance that at least one, and that every one, of k samples of a task is correct.

Both are estimated without bias from n ≥ k samples, over all subsets of k of them. The naive 1 − (1 − c/n)^k is biased.
pass@k says what a model can do when something picks the right answer, pass^k what can be relied on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llenvs_fast.statistics._jit import compiled, in_chunks, worth_compiling
from llenvs_fast.statistics.observed import eligible_mean, unmasked

_NEGLIGIBLE = 2.0**-55


def pass_at_k(n: ArrayLike, c: ArrayLike, k: ArrayLike) -> Any:
    """Unbiased pass@k of tasks with n samples, c of them correct: 1 − C(n − c, k) / C(n, k) (Chen et al. 2021).

    `n` and `c` are ints or (P,) (n may differ between tasks), `k` is an int or (J,); the result is a float, (P,), (J,)
    or (P, J) float64. NaN, for "not available", where k > n. Right to a few units of 1e-13 of itself, also where it is
    tiny, for n up to 10⁶ and more: nothing is subtracted and nothing overflows.

    Misleads where nothing tells the correct sample from the others, and between models that were sampled at different
    temperatures. Raises ValueError for anything but integers with 0 ≤ c ≤ n, k ≥ 1.
    """
    n, c, k, shape = _checked(n, c, k)
    return _by_task(n, n - c, k, at_least_one=True).reshape(shape)[()]


def pass_hat_k(n: ArrayLike, c: ArrayLike, k: ArrayLike) -> Any:
    """Unbiased pass^k: the chance that k samples are all correct, C(c, k) / C(n, k) (Yao et al. 2024, τ-bench).

    Arguments, shapes, NaN and errors as `pass_at_k`.
    """
    n, c, k, shape = _checked(n, c, k)
    return _by_task(n, c, k, at_least_one=False).reshape(shape)[()]


def mean_pass_at_k(n: ArrayLike, c: ArrayLike, ks: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """pass@k averaged over the tasks with at least k samples, and the number of these: both (J,).

    `n` and `c` are (P,), `ks` is (J,). The mean is NaN where no task has k samples. Errors as `pass_at_k`.
    """
    return eligible_mean(pass_at_k(np.atleast_1d(n), np.atleast_1d(c), np.atleast_1d(ks)))


def _by_task(
    n: NDArray[np.int64], m: NDArray[np.int64], ks: NDArray[np.int64], at_least_one: bool
) -> NDArray[np.float64]:
    """(P, J). Tasks of the same n and m have the same figures: where there are many tasks, these are found once."""
    side = int(n.max(initial=0)) + 1
    if side * side > len(n):
        return _all_from(n, m, ks, at_least_one)
    code = n * side + m
    occurs = np.zeros(side * side, dtype=bool)
    occurs[code] = True
    distinct = np.flatnonzero(occurs)
    row = np.empty(side * side, dtype=np.int64)
    row[distinct] = np.arange(len(distinct))
    figures: NDArray[np.float64] = _all_from(distinct // side, distinct % side, ks, at_least_one)[row[code]]
    return figures


def _all_from(
    n: NDArray[np.int64], m: NDArray[np.int64], ks: NDArray[np.int64], at_least_one: bool
) -> NDArray[np.float64]:
    """The chance that k of n samples are all among m of them, or that one at least is not: (P, J)."""
    steps = min(int(ks.max(initial=0)), int((n - m).max(initial=0)))
    if not worth_compiling(len(n) * len(ks) * (steps + 1)):
        return _all_from_numpy(n[:, None], m[:, None], ks[None, :], at_least_one)
    n, m, ks = (np.require(array, np.int64, ("C", "W")) for array in (n, m, ks))
    out = np.empty((len(n), len(ks)))

    def work(begin: int, end: int) -> None:
        _all_from_kernel(n[begin:end], m[begin:end], ks, at_least_one, out[begin:end])

    in_chunks(work, len(n), grain=1 + 200_000 // (len(ks) * (steps + 1)))
    return out


def _all_from_numpy(
    n: NDArray[np.int64], m: NDArray[np.int64], k: NDArray[np.int64], at_least_one: bool
) -> NDArray[np.float64]:
    """The steps of the kernel, each for all tasks and ks: the same numbers to the last bit."""
    n, m, k = np.broadcast_arrays(n, m, k)
    short, long = np.minimum(k, n - m), np.maximum(k, n - m)
    all_from, some_not = np.ones(n.shape), np.zeros(n.shape)
    negligible = _NEGLIGIBLE if at_least_one else 0.0
    for i in range(int(short.max(initial=0))):
        on = (i < short) & (k <= n) & (all_from > negligible * some_not)
        if not on.any():
            break
        left = np.where(on, n - i, 1)
        some_not += all_from * (np.where(on, long, 0) / left)
        all_from *= np.maximum(np.where(on, left - long, left), 0) / left
    figure = np.minimum(np.where(m < k, 1.0, some_not), 1.0) if at_least_one else np.where(m < k, 0.0, all_from)
    return np.where(k > n, np.nan, figure)


@compiled("void(int64[::1], int64[::1], int64[::1], boolean, float64[:, ::1])")
def _all_from_kernel(n: Any, m: Any, ks: Any, at_least_one: Any, out: Any) -> None:
    """n, m: (P,); ks: (J,); out: (P, J).

    C(m, k) / C(n, k) = Π (1 − long / (n − i)) over i < short, the larger and the smaller of k and n − m. What each
    factor takes away adds up to the complement, without cancellation.
    """
    for p in range(len(n)):
        for j in range(len(ks)):
            k, rest = ks[j], n[p] - m[p]
            if k > n[p]:
                out[p, j] = np.nan
            elif m[p] < k:
                out[p, j] = 1.0 if at_least_one else 0.0
            else:
                all_from, some_not = 1.0, 0.0
                negligible = _NEGLIGIBLE if at_least_one else 0.0
                long = max(k, rest)
                for i in range(min(k, rest)):
                    if not all_from > negligible * some_not:
                        break
                    left = n[p] - i
                    some_not += all_from * (long / left)
                    all_from *= (left - long) / left
                out[p, j] = min(some_not, 1.0) if at_least_one else all_from


def _checked(
    n: ArrayLike, c: ArrayLike, k: ArrayLike
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], tuple[int, ...]]:
    """n (P,), c (P,), k (J,) and the shape of the result."""
    n_array, c_array, k_array = _integers("n", n), _integers("c", c), _integers("k", k)
    tasks = np.broadcast_shapes(n_array.shape, c_array.shape)
    if len(tasks) > 1 or k_array.ndim > 1:
        raise ValueError(f"n and c have shape {tasks} and k {k_array.shape}: give numbers or one-dimensional arrays")
    n_tasks, c_tasks = np.broadcast_to(n_array, tasks).reshape(-1), np.broadcast_to(c_array, tasks).reshape(-1)
    wrong = (c_tasks < 0) | (c_tasks > n_tasks)
    if wrong.any():
        raise ValueError(f"{c_tasks[wrong][0]} correct of {n_tasks[wrong][0]} samples: give 0 ≤ c ≤ n")
    if (k_array < 1).any():
        raise ValueError(f"k is {k_array.min()}: give k ≥ 1")
    return n_tasks, c_tasks, k_array.reshape(-1), tasks + k_array.shape


def _integers(name: str, values: ArrayLike) -> NDArray[np.int64]:
    array = unmasked(values, name)
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"{name} has type {array.dtype}: give integers")
    return array.astype(np.int64, copy=False)
