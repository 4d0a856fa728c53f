"""Confidence intervals of rates."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llenvs_fast.statistics.critical_values import normal_quantile


def wilson_interval(
    successes: ArrayLike, n: ArrayLike, confidence: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Wilson score interval of a binary rate: (low, high), with the shape that the arguments broadcast to.

    With p = successes / n: ((p + z²/2n) ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n). Never leaves [0, 1], and has width at
    0 and n successes. The n trials have to be independent: not for averages of pass@k, and too narrow for several
    samples per task. 0 of 0 gives (NaN, NaN). Raises ValueError unless 0 ≤ successes ≤ n.
    """
    z2 = normal_quantile(confidence) ** 2
    s, n = np.broadcast_arrays(np.asarray(successes, dtype=np.float64), np.asarray(n, dtype=np.float64))
    outside = ~((s >= 0) & (s <= n))
    if outside.any():
        raise ValueError(f"{s[outside][0]:g} successes of {n[outside][0]:g}: give 0 ≤ successes ≤ n")
    with np.errstate(invalid="ignore", divide="ignore"):
        p = s / n
        centre = (p + z2 / (2 * n)) / (1 + z2 / n)
        half = np.sqrt(z2 * (p * (1 - p) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    low = np.where((s == 0) & (n > 0), 0.0, centre - half)
    high = np.where((s == n) & (n > 0), 1.0, centre + half)
    return _scalar_if_0d(low), _scalar_if_0d(high)


def _scalar_if_0d(values: NDArray[np.float64]) -> Any:
    return values[()]
