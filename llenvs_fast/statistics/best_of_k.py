"""best-of-k: the reward to expect when the best of k samples of a task is kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llenvs_fast.statistics.observed import as_values
from llenvs_fast.statistics.pass_at_k import _integers


@dataclass(frozen=True, slots=True)
class BestOfK:
    """`values`: (P, J), NaN where k > n. `n` and `missing`: (P,), the samples with and without a value."""

    values: NDArray[np.float64]
    n: NDArray[np.int64]
    missing: NDArray[np.int64]


def best_of_k(values: ArrayLike, ks: ArrayLike) -> BestOfK:
    """Expected maximum of k of the samples of each task, drawn without replacement: exact, over all subsets.

    `values` (P, K) are rewards, with NaN or None for missing ones and to fill up the rows of tasks with fewer samples;
    `ks` is an int or (J,). Σ x₍ᵢ₎ C(i − 1, k − 1) / C(n, k) over the values in ascending order. For 0 and 1 that is
    pass@k; for the worst of k negate the values and the result. Averages over tasks: `eligible_mean(result.values)`.

    Misleads as a promise: the best one is known here by its true reward; where a noisy judge picks, the reward is
    lower, and may fall with k. Raises ValueError for other shapes and k < 1.
    """
    x = as_values(values)
    k_array = np.atleast_1d(_integers("k", ks))
    if x.ndim != 2 or k_array.ndim != 1 or (k_array < 1).any():
        raise ValueError(f"values have shape {x.shape}, k is {ks!r}: give (P, K), and k ≥ 1 as an integer or (J,)")
    x = np.sort(x, axis=1)  # NaN last
    n = np.count_nonzero(~np.isnan(x), axis=1).astype(np.int64)
    out = np.full((len(x), len(k_array)), np.nan)
    for count in np.unique(n):
        rows, available = np.flatnonzero(n == count), np.flatnonzero(k_array <= count)
        weights = np.stack([_chances_to_be_best(int(count), int(k)) for k in k_array[available]] or [np.zeros(count)])
        if len(available):
            out[np.ix_(rows, available)] = x[rows, :count] @ weights.T
    return BestOfK(out, n, x.shape[1] - n)


def _chances_to_be_best(n: int, k: int) -> NDArray[np.float64]:
    """Chance of each of n values in ascending order to be the highest of k: C(i − 1, k − 1) / C(n, k), by recursion."""
    chances = np.zeros(n)
    below = np.arange(n - 1, k - 1, -1)  # how many are lower than each value but the lowest that can win
    chances[k - 1 :] = (k / n * np.cumprod(np.concatenate([[1.0], (below - k + 1) / below])))[::-1]
    return chances
