"""Bootstrap intervals: how far a figure would move if other values, or other tasks, had been drawn from the same place.

Sampling from the values with replacement stands for sampling anew from where they came from (Efron 1979). It needs no
formula for the standard error and no normal distribution, but enough values: with fewer than about 20, or with heavy
tails, the intervals are too narrow. Values that belong together (samples of one task) have to be drawn together.

A seed gives the same interval on any number of threads, and in any order of the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.statistics.critical_values import normal_quantile
from llenvs_fast.statistics.draws import resampled_indices, resampled_sums, streams
from llenvs_fast.statistics.groups import group_codes
from llenvs_fast.statistics.moments import moments
from llenvs_fast.statistics.observed import Estimate, observed

METHODS = ("percentile", "bca")
_CHUNK = 1 << 20


def bootstrap_mean(
    values: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    method: str = "percentile",
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Estimate:
    """Bootstrap interval of the mean of `values` (N,).

    With `clusters` (N,), labels such as the task of each sample, whole clusters are drawn, and the mean is over all the
    values drawn (Davison and Hinkley 1997, section 3.8): for several samples per task, which are more alike than
    samples of different tasks. Without, the values have to be independent.

    `method` is "percentile", the quantiles of the resampled means (Efron and Tibshirani 1993, chapter 13), or "bca",
    which corrects them for bias and skewness (chapter 14) and is better for skewed values.

    Missing values are left out. Interval and standard error are NaN for fewer than two values or clusters; where all
    means are the same, low = value = high. Raises ValueError for other shapes, InvalidSettingError for other settings.
    """
    _check(method, confidence, resamples)
    if clusters is None:
        x, missing = observed(values)
        of, counts = None, None
    else:
        x, labels, missing = observed(values, clusters)
        of = group_codes(labels)[1]
        counts = np.bincount(of)
    centre = moments(x).mean
    residuals = x - centre
    if counts is not None and of is not None:
        residuals = np.bincount(of, weights=residuals)[counts > 0]
        counts = counts[counts > 0]
    if len(residuals) < 2:
        return Estimate(centre, math.nan, math.nan, math.nan, len(x), missing)
    shifts = resampled_means(residuals, counts, resamples=resamples, seed=seed)
    left = len(x) - (1 if counts is None else counts)
    low, high = _interval(shifts, 0.0, -residuals / left, method, confidence)
    return Estimate(centre, centre + low, centre + high, float(shifts.std(ddof=1)), len(x), missing)


def bootstrap(
    values: ArrayLike,
    statistic: Callable[[NDArray[np.float64]], ArrayLike],
    *,
    method: str = "percentile",
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Estimate:
    """Bootstrap interval of any statistic of independent `values` (N,), e.g. `lambda x: np.median(x, axis=-1)`.

    `statistic` reduces the last axis: it is called with (b, N) resamples at once, for some b, and gives (b,). Methods,
    missing values and results are those of `bootstrap_mean`. Misleads for what depends on few values, such as a maximum
    or an extreme quantile: a resample can't hold anything more extreme. Raises ValueError too where the statistic
    doesn't give one number per resample, or gives NaN.
    """
    _check(method, confidence, resamples)
    x, missing = observed(values)
    if not len(x):
        return Estimate(math.nan, math.nan, math.nan, math.nan, 0, missing)
    x = np.sort(x)
    value = float(_figures(statistic, x[None, :])[0])
    if len(x) < 2:
        return Estimate(value, math.nan, math.nan, math.nan, len(x), missing)
    rows = max(1, _CHUNK // len(x))
    figures = np.empty(resamples)
    for b in range(0, resamples, rows):
        starts = streams(seed, b, min(b + rows, resamples))
        figures[b : b + rows] = _figures(statistic, x[resampled_indices(starts, len(x))])
    left_out = _without_each(statistic, x) if method == "bca" else x
    low, high = _interval(figures, value, left_out, method, confidence)
    return Estimate(value, low, high, float(figures.std(ddof=1)), len(x), missing)


def resampled_means(
    totals: ArrayLike, counts: ArrayLike | None = None, *, resamples: int = 10_000, seed: int = 0
) -> NDArray[np.float64]:
    """Means of `resamples` resamples of the values `totals` (G,), each of G draws with replacement.

    With `counts` (G,), `totals` and `counts` are the sum and the number of the values of each cluster. Nothing may be
    missing. Raises ValueError for other shapes and for no values.
    """
    x, missing = observed(totals, name="totals")
    n = np.ones(len(x)) if counts is None else observed(counts, name="counts")[0].astype(np.float64)
    if missing or n.shape != x.shape or not len(x) or not (n > 0).all():
        raise ValueError(f"{missing} totals missing of {x.shape}, counts {n.shape}: give one count ≥ 1 per total")
    order = np.lexsort((n, x))  # so that the order of the values does not matter
    sums = resampled_sums(x[order], resamples, seed)
    return sums / (len(x) if counts is None else resampled_sums(n[order], resamples, seed))


def _interval(
    figures: NDArray[np.float64], value: float, left_out: NDArray[np.float64], method: str, confidence: float
) -> tuple[float, float]:
    """Bounds from the resampled `figures`; for BCa also from the figures with each value `left_out`."""
    tail = (1.0 - confidence) / 2
    shares = [tail, 1.0 - tail]
    if method == "bca":
        shares = _corrected(figures, value, left_out, confidence)
    low, high = np.quantile(figures, shares)
    return float(low), float(high)


def _corrected(
    figures: NDArray[np.float64], value: float, left_out: NDArray[np.float64], confidence: float
) -> list[float]:
    """BCa: which shares of the resampled figures to cut at, Φ(z₀ + (z₀ ± z) / (1 − a (z₀ ± z))).

    z₀ is Φ⁻¹ of the share of figures below the value, of which ties are half; a share of 0 or 1 counts as half a
    resample from there. a is the skewness of the jackknife, Σ l³ / 6 (Σ l²)^1.5, and 0 where nothing varies.
    """
    same = np.isclose(figures, value, rtol=1e-12, atol=1e-12 * float(np.ptp(figures)))
    below = float(np.mean((figures < value) & ~same) + np.mean(same) / 2)
    edge = 0.5 / len(figures)
    z0 = NormalDist().inv_cdf(min(max(below, edge), 1.0 - edge))
    influence = left_out.mean() - left_out
    spread = float(np.sum(influence**2))
    a = float(np.sum(influence**3)) / (6 * spread**1.5) if spread**1.5 > 0 else 0.0
    shares = []
    for z in (-normal_quantile(confidence), normal_quantile(confidence)):
        room = 1 - a * (z0 + z)
        shares.append(NormalDist().cdf(z0 + (z0 + z) / room) if room > 0 else float(z0 + z > 0))
    return shares


def _figures(
    statistic: Callable[[NDArray[np.float64]], ArrayLike], resamples: NDArray[np.float64]
) -> NDArray[np.float64]:
    figures = np.asarray(statistic(resamples), dtype=np.float64)
    if figures.shape != resamples.shape[:1]:
        raise ValueError(f"the statistic of {resamples.shape} has shape {figures.shape}: let it reduce the last axis")
    if np.isnan(figures).any():
        raise ValueError("the statistic of a resample is NaN: let it give a number for any values drawn")
    return figures


def _without_each(
    statistic: Callable[[NDArray[np.float64]], ArrayLike], x: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The statistic without each value in turn: (N,)."""
    figures = np.empty(len(x))
    rows = max(1, _CHUNK // len(x))
    kept = np.arange(len(x) - 1)
    for i in range(0, len(x), rows):
        out = np.arange(i, min(i + rows, len(x)))[:, None]
        figures[i : i + rows] = _figures(statistic, x[kept + (kept >= out)])
    return figures


def _check(method: str, confidence: float, resamples: int) -> None:
    normal_quantile(confidence)
    if method not in METHODS:
        raise InvalidSettingError(f"method is {method!r}: choose from {', '.join(METHODS)}")
    if isinstance(resamples, bool) or not isinstance(resamples, int | np.integer) or resamples < 2:
        raise InvalidSettingError(f"resamples is {resamples!r}: give an integer, at least 2, better 10,000")
