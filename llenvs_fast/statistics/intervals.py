"""Confidence intervals of rates and of means, for independent trials.

None of these knows that samples of one task are alike: for several samples per task see `clustered_mean`, or the
bootstrap with clusters.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llenvs_fast.statistics._jit import compiled, in_chunks, worth_compiling
from llenvs_fast.statistics.critical_values import normal_quantile, student_quantile
from llenvs_fast.statistics.moments import moments
from llenvs_fast.statistics.observed import Estimate, unmasked

Bounds = tuple[NDArray[np.float64], NDArray[np.float64]]


def wilson_interval(successes: ArrayLike, n: ArrayLike, confidence: float = 0.95) -> Bounds:
    """Wilson score interval of a binary rate (Wilson 1927): (low, high), in the shape that the arguments broadcast to.

    With p = successes / n: ((p + z²/2n) ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n). Never leaves [0, 1], and has width at
    0 and n successes. The n trials have to be independent: not for averages of pass@k, and too narrow for several
    samples per task. 0 of 0 gives (NaN, NaN). Raises ValueError unless 0 ≤ successes ≤ n.
    """
    z2 = normal_quantile(confidence) ** 2
    s, n = _counts(successes, n)
    if worth_compiling(s.size):
        return _wilson_in_chunks(s, n, z2)
    _refuse_impossible(s, n)
    s, n = s.astype(np.float64), n.astype(np.float64)
    with np.errstate(invalid="ignore"):
        centre = (s + z2 / 2) / (n + z2)
        half = np.sqrt(z2 * (s * (n - s) / n + z2 / 4)) / (n + z2)
    low = np.where((s == 0) & (n > 0), 0.0, centre - half)
    high = np.where((s == n) & (n > 0), 1.0, centre + half)
    return low[()], high[()]


def _wilson_in_chunks(s: NDArray[Any], n: NDArray[Any], z2: float) -> Bounds:
    flat_s, flat_n = (np.require(array, requirements=("C", "W")).reshape(-1) for array in (s, n))
    low, high = np.empty(s.size), np.empty(s.size)
    impossible: list[int] = []

    def work(begin: int, end: int) -> None:
        with np.errstate(invalid="ignore"):  # with the JIT off
            impossible.append(_wilson(flat_s[begin:end], flat_n[begin:end], z2, low[begin:end], high[begin:end]))

    in_chunks(work, s.size, grain=100_000)
    if any(impossible):
        _refuse_impossible(s, n)
    return low.reshape(s.shape), high.reshape(s.shape)


@compiled(
    "int64(int64[::1], int64[::1], float64, float64[::1], float64[::1])",
    "int64(float64[::1], float64[::1], float64, float64[::1], float64[::1])",
)
def _wilson(successes: Any, trials: Any, z2: Any, low: Any, high: Any) -> Any:
    """All (N,). The steps of the NumPy path. Returns how many counts are impossible."""
    impossible = 0
    for i in range(len(successes)):
        s, n = np.float64(successes[i]), np.float64(trials[i])
        impossible += 0 if (s >= 0) & (s <= n) & (n < np.inf) else 1
        width = n + z2
        centre = (s + z2 / 2) / width
        half = np.sqrt(z2 * (s * (n - s) / n + z2 / 4)) / width
        low[i] = 0.0 if (s == 0) & (n > 0) else centre - half  # & keeps the loop free of branches
        high[i] = 1.0 if (s == n) & (n > 0) else centre + half
    return impossible


def clopper_pearson_interval(successes: ArrayLike, n: ArrayLike, confidence: float = 0.95) -> Bounds:
    """The exact interval of a binary rate (Clopper and Pearson 1934): (low, high), shapes as `wilson_interval`.

    Quantiles of beta distributions: B(α/2; s, n − s + 1) and B(1 − α/2; s + 1, n − s). It covers at least as often as
    it says whatever the rate, and mostly more: it is wider than Wilson's. For guarantees, not for comparing runs. 0
    at 0 successes, 1 at n, and 0 of 0 gives (0, 1): nothing is known. Errors as `wilson_interval`.
    """
    from scipy.special import betaincinv

    normal_quantile(confidence)
    tail = (1.0 - confidence) / 2
    s, n = _counts(successes, n)
    _refuse_impossible(s, n)
    low = np.where(s > 0, betaincinv(np.maximum(s, 1), n - s + 1, tail), 0.0)
    high = np.where(s < n, betaincinv(s + 1, np.maximum(n - s, 1), 1.0 - tail), 1.0)
    return low[()], high[()]


def mean_interval(values: ArrayLike, confidence: float = 0.95, *, method: str = "t") -> Estimate:
    """The mean of independent `values` (N,) with its standard error s/√N and Student's or the normal interval.

    `method` "t" (Student 1908) allows for the deviation being estimated too; "normal" is too narrow for fewer than
    about 30 values. Misleads for few and very skewed values: see `bootstrap_mean`. Missing values are left out. Error
    and bounds are NaN for fewer than two values; where all are equal, low = value = high. Raises ValueError for other
    shapes and methods.
    """
    if method not in ("t", "normal"):
        raise ValueError(f"method is {method!r}: give 't' or 'normal'")
    found = moments(values)
    error = math.sqrt(found.variance / found.n) if found.n > 1 else math.nan
    z = normal_quantile(confidence)
    width = student_quantile(confidence, found.n - 1) if method == "t" and found.n > 1 else z
    half = width * error
    return Estimate(found.mean, found.mean - half, found.mean + half, error, found.n, found.missing)


def _counts(successes: ArrayLike, n: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    """Both broadcast, as int64, or as float64 where one of them is neither integer nor bool."""
    arrays = unmasked(successes, "successes"), unmasked(n, "n")
    whole = all(array.dtype.kind in "bi" for array in arrays)
    s, n = np.broadcast_arrays(*(array.astype(np.int64 if whole else np.float64, copy=False) for array in arrays))
    return s, n


def _refuse_impossible(s: NDArray[Any], n: NDArray[Any]) -> None:
    outside = ~((s >= 0) & (s <= n) & (n < np.inf))
    if outside.any():
        raise ValueError(f"{s[outside][0]:g} successes of {n[outside][0]:g}: give 0 ≤ successes ≤ n")
