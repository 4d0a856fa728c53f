"""Credit for RL: how much better a sample was than the other samples of its task.

Rewards are (P, K): K samples of each of P tasks. A missing reward (NaN, None, masked out) is missing: it has no
advantage (NaN) and moves no other. A group of one has nothing to be compared with, and advantage 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llenvs_fast.core.errors import InvalidSettingError, nearest
from llenvs_fast.statistics.observed import as_values, unmasked

METHODS = ("grpo", "rloo", "dr_grpo")


@dataclass(frozen=True, slots=True)
class Advantages:
    """`values` (P, K), NaN where the reward is missing; `n` and `missing` (P,) count the rewards of each group.

    `flat_groups` counts the groups of at least two whose rewards are all equal: their samples teach nothing.
    """

    values: NDArray[np.float64]
    n: NDArray[np.int64]
    missing: NDArray[np.int64]
    flat_groups: int


def group_advantages(
    rewards: ArrayLike, mask: ArrayLike | None = None, *, method: str = "grpo", epsilon: float = 1e-6
) -> Advantages:
    """Advantages of `rewards` (P, K) within each row; `mask` (P, K) is True where a sample counts.

    - "grpo": (r − mean) / (s + epsilon), s the sample deviation (n − 1) (Shao et al. 2024). Tasks that are nearly
      always solved, or nearly never, weigh as much as others.
    - "dr_grpo": r − mean (Liu et al. 2025), which leaves out the division and with it that bias.
    - "rloo": r − mean of the others = n / (n − 1) (r − mean) (Ahmadian et al. 2024), an unbiased baseline.

    Groups of one, and of equal rewards, have 0. Raises ValueError for other shapes and infinite rewards,
    InvalidSettingError for other methods and a negative epsilon.
    """
    if method not in METHODS:
        raise InvalidSettingError(f"method is {method!r}; {nearest(str(method), METHODS)}")
    if not epsilon >= 0:
        raise InvalidSettingError(f"epsilon is {epsilon!r}: give 0 or more")
    x = as_values(rewards, "rewards")
    if x.ndim != 2:
        raise ValueError(f"rewards have shape {x.shape}: give (P, K), the samples of each task in a row")
    if mask is not None:
        counted = unmasked(mask, "mask")
        if counted.shape != x.shape or counted.dtype != np.bool_:
            raise ValueError(f"mask is {counted.dtype} of shape {counted.shape}: give booleans of shape {x.shape}")
        x = np.where(counted, x, np.nan)
    there = ~np.isnan(x)
    n = np.count_nonzero(there, axis=1).astype(np.int64)
    count = np.maximum(n, 1)[:, None]
    shift = np.where(there, x, np.inf).min(axis=1, keepdims=True, initial=np.inf)  # equal rewards differ by exactly 0
    above = np.where(there, x - np.where(np.isfinite(shift), shift, 0.0), 0.0)
    centred = np.where(there, above - above.sum(axis=1, keepdims=True) / count, 0.0)
    flat = (above == 0).all(axis=1)
    others = np.maximum(n - 1, 1)[:, None]
    if method == "grpo":
        largest = np.abs(centred).max(axis=1, keepdims=True, initial=0.0)
        scaled = np.divide(centred, largest, out=np.zeros_like(x), where=largest > 0)  # squares of tiny ones are 0
        deviation = largest * np.sqrt((scaled**2).sum(axis=1, keepdims=True) / others)
        values = np.divide(centred, deviation + epsilon, out=np.zeros_like(x), where=~flat[:, None])
    else:
        values = np.where(flat[:, None], 0.0, centred * (count / others if method == "rloo" else 1.0))
    values = np.where(n[:, None] > 1, values, 0.0)
    return Advantages(np.where(there, values, np.nan), n, x.shape[1] - n, int((flat & (n > 1)).sum()))
