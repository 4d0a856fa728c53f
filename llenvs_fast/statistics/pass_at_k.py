"""pass@k: the chance that at least one of k samples of a task is correct."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llenvs_fast.statistics._jit import compiled


@compiled("void(int64[::1], int64[::1], int64[::1], float64[:, ::1])")
def _pass_at_k(n: Any, c: Any, ks: Any, out: Any) -> None:
    """n, c: (P,); ks: (J,); out: (P, J)."""
    for i in range(len(n)):
        for j in range(len(ks)):
            k = ks[j]
            if k > n[i]:
                out[i, j] = np.nan
            elif n[i] - c[i] < k:  # some sample of any k is correct
                out[i, j] = 1.0
            else:
                none_correct = 1.0
                for m in range(n[i] - c[i] + 1, n[i] + 1):
                    none_correct *= 1.0 - k / m
                out[i, j] = 1.0 - none_correct


def pass_at_k(n: ArrayLike, c: ArrayLike, k: ArrayLike) -> Any:
    """Unbiased pass@k of tasks with n samples, c of them correct.

    1 − C(n − c, k) / C(n, k), computed as 1 − Π (1 − k/m) for m = n − c + 1 … n, which never overflows. NaN, for "not
    available", where k > n. `n` and `c` are ints or (P,) (n may differ between tasks), `k` is an int or (J,); the
    result is a float, (P,), (J,) or (P, J) float64. Raises ValueError for anything but integers with 0 ≤ c ≤ n, k ≥ 1.
    """
    n_array, c_array, k_array = _integers("n", n), _integers("c", c), _integers("k", k)
    tasks = np.broadcast_shapes(n_array.shape, c_array.shape)
    if len(tasks) > 1 or k_array.ndim > 1:
        raise ValueError(f"n and c have shape {tasks} and k {k_array.shape}: give numbers or one-dimensional arrays")
    flat_n = np.array(np.broadcast_to(n_array, tasks), order="C").reshape(-1)  # copies: kernels want writable arrays
    flat_c = np.array(np.broadcast_to(c_array, tasks), order="C").reshape(-1)
    flat_k = np.array(k_array, order="C").reshape(-1)
    wrong = (flat_c < 0) | (flat_c > flat_n)
    if wrong.any():
        raise ValueError(f"{flat_c[wrong][0]} correct of {flat_n[wrong][0]} samples: give 0 ≤ c ≤ n")
    if (flat_k < 1).any():
        raise ValueError(f"k is {flat_k.min()}: give k ≥ 1")
    out = np.empty((len(flat_n), len(flat_k)))
    _pass_at_k(flat_n, flat_c, flat_k, out)
    return out.reshape(tasks + k_array.shape)[()]


def mean_pass_at_k(n: ArrayLike, c: ArrayLike, ks: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """pass@k averaged over the tasks with at least k samples, and the number of these: both (J,).

    `n` and `c` are (P,), `ks` is (J,). The mean is NaN where no task has k samples. Errors as `pass_at_k`.
    """
    values = pass_at_k(np.atleast_1d(n), np.atleast_1d(c), np.atleast_1d(ks))
    available = ~np.isnan(values)
    eligible = available.sum(axis=0)
    total = np.where(available, values, 0.0).sum(axis=0)
    return np.divide(total, eligible, out=np.full(len(eligible), np.nan), where=eligible > 0), eligible


def _integers(name: str, values: ArrayLike) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} has type {array.dtype}: give integers")
    return array.astype(np.int64)
