"""Trials that come in clusters, such as samples of one task or questions on one text: errors, and where variance lies.

Samples of one task share the task's difficulty, so N of them say less than N independent trials. Everything here takes
the values (N,) and the label of the cluster of each (N,): ints or strings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llenvs_fast.core.errors import InvalidSettingError, nearest
from llenvs_fast.statistics.critical_values import normal_quantile, student_quantile
from llenvs_fast.statistics.groups import group_codes
from llenvs_fast.statistics.observed import Estimate, observed

Correction = Literal["CR0", "CR1", "CR2"]


def clustered_standard_error(values: ArrayLike, clusters: ArrayLike, *, correction: Correction = "CR1") -> float:
    """How far may the mean be off, where values are independent between clusters but not within them?

    √(c · Σ_g S_g²) / N with S_g = Σ_{i∈g} (x_i − x̄), over G clusters. The small-sample correction c, since residuals
    are smaller than errors: `CR0` c = 1 (Liang & Zeger 1986; the clustered error of Miller 2024, "Adding Error Bars to
    Evals"); `CR1` c = G/(G − 1) (Stata's and statsmodels', Cameron & Miller 2015, eq. 12); `CR2` each S_g² over
    1 − n_g/N (Bell & McCaffrey 2002), which differs from CR1 only where clusters differ in size.

    Misleads with few clusters (below about 40, use `clustered_mean`, whose t interval allows for it), where one cluster
    holds most values, and where clusters aren't independent of one another. Values that are missing are left out, fewer
    than two clusters give NaN. Raises ValueError for other shapes and for labels that are missing.
    """
    grouped = _group(values, clusters)
    return _standard_error(grouped.residuals, grouped.sizes, correction)


def clustered_error_of_rate(totals: ArrayLike, counts: ArrayLike, *, correction: Correction = "CR1") -> float:
    """The same from the sum and the number of the values of each cluster: (G,) and (G,). Empty clusters don't count."""
    n: NDArray[np.float64] = np.asarray(counts, dtype=np.float64)
    total: NDArray[np.float64] = np.asarray(totals, dtype=np.float64)
    if n.ndim != 1 or total.shape != n.shape:
        raise ValueError(f"totals have shape {total.shape}, counts {n.shape}: give one of each per cluster")
    total, n = total[n > 0], n[n > 0]
    rate = total.sum() / n.sum() if len(n) else math.nan
    return _standard_error(total - n * rate, n, correction)


def clustered_mean(
    values: ArrayLike, clusters: ArrayLike, confidence: float = 0.95, *, correction: Correction = "CR1"
) -> Estimate:
    """What is the mean, and where may it be, when the clusters are a sample of those that we care about?

    x̄ ± t · clustered standard error, with Student's t for G − 1 degrees of freedom (Cameron & Miller 2015,
    section VI.D), and for `CR2` those of Bell & McCaffrey 2002, which are fewer where sizes differ. Every value weighs
    the same, so clusters with more values weigh more. Misleads where the figure is about exactly these clusters (no new
    tasks), for which it's too wide. Bounds and standard error are NaN with fewer than two clusters, all is NaN with no
    value.
    """
    normal_quantile(confidence)
    grouped = _group(values, clusters)
    mean, error = grouped.mean, _standard_error(grouped.residuals, grouped.sizes, correction)
    half = math.nan
    if not math.isnan(error):
        half = error * student_quantile(confidence, _degrees_of_freedom(grouped.sizes, correction))
    return Estimate(mean, mean - half, mean + half, error, int(grouped.sizes.sum()), grouped.missing)


@dataclass(frozen=True, slots=True)
class VarianceComponents:
    """Where the variance of values (N,) in G clusters lies: see `variance_components`.

    `between` and `within` are variances, `icc` is the share of the first in their sum. `samples_per_cluster` is the
    effective one, n₀, which equals K where every cluster has K values. NaN: not available.
    """

    between: float
    within: float
    icc: float
    design_effect: float
    mean_square_between: float
    mean_square_within: float
    samples_per_cluster: float
    clusters: int
    n: int
    missing: int


def variance_components(values: ArrayLike, clusters: ArrayLike) -> VarianceComponents:
    """Do the values differ because the tasks differ, or because samples of one task do?

    The model is x = μ + task + sample with variances `between` and `within`. One-way random-effects analysis of
    variance (Searle, Casella & McCulloch 1992, section 3.6; unequal sizes allowed): `within` = MSW,
    `between` = max(0, (MSB − MSW) / n₀), n₀ = (N − Σ n_g²/N) / (G − 1), `icc` = between / (between + within).
    `design_effect` = 1 + (m − 1) · icc, m = Σ n_g²/N (Kish 1965): N clustered values say as much about the mean as
    N / design_effect independent ones.

    Misleads with few clusters, where `between` is all but unknown; a `between` of 0 means that it couldn't be told from
    0 (the mean squares say by how much). `within` needs a cluster with two values, `between` two clusters as well;
    `icc` is NaN where nothing varies. Errors as `clustered_standard_error`.
    """
    grouped = _group(values, clusters)
    squares = np.bincount(grouped.cluster, weights=grouped.deviations**2, minlength=len(grouped.sizes))
    return components_of_groups(grouped.sizes, grouped.residuals / grouped.sizes, squares, grouped.missing)


def components_of_groups(
    sizes: NDArray[np.integer], means: NDArray[np.float64], squares: NDArray[Any], missing: int = 0
) -> VarianceComponents:
    """`variance_components` from the number of values of each cluster (all ≥ 1), their mean and Σ (x − mean)²: (G,)."""
    n, g = int(sizes.sum()), len(sizes)
    grand_mean = float(sizes @ means) / n if n else math.nan
    between_squares, within_squares = float(sizes @ (means - grand_mean) ** 2), float(squares.sum())
    msb = between_squares / (g - 1) if g > 1 else math.nan
    msw = within_squares / (n - g) if n > g else math.nan
    mean_size = float(sizes @ sizes) / n if n else math.nan
    n0 = (n - mean_size) / (g - 1) if g > 1 else math.nan
    between = (msb - msw) / n0 if g > 1 else math.nan
    between = max(0.0, between) if between == between else math.nan
    total = between + msw
    icc = between / total if total > 0 else math.nan
    return VarianceComponents(between, msw, icc, 1 + (mean_size - 1) * icc, msb, msw, n0, g, n, missing)


def projected_standard_error(between: ArrayLike, within: ArrayLike, tasks: ArrayLike, samples: ArrayLike) -> Any:
    """What would more tasks, or more samples of each task, buy?

    √((between + within / K) / P) for P tasks of K samples (Miller 2024, section 3; Cochran 1977, eq. 10.14), with the
    variances of `variance_components`. Arguments broadcast; `samples` may be infinite: what then remains is due to the
    choice of tasks, and only more tasks lower it. Misleads where new tasks are harder or easier than those measured.
    Raises InvalidSettingError for negative variances and less than one task or sample.
    """
    b, w, p, k = (np.asarray(a, dtype=np.float64) for a in (between, within, tasks, samples))
    if (b < 0).any() or (w < 0).any():
        raise InvalidSettingError(f"variances are {between!r} between and {within!r} within tasks: give none below 0")
    if (p < 1).any() or (k < 1).any():
        raise InvalidSettingError(f"{tasks!r} tasks of {samples!r} samples: give at least 1 of each")
    return np.sqrt((b + w / k) / p)[()]


@dataclass(frozen=True, slots=True)
class _Grouped:
    """Values by cluster, without those missing. `residuals` (G,) are sums of x − x̄, `deviations` (N,) x − own mean."""

    mean: float
    cluster: NDArray[np.intp]
    sizes: NDArray[np.int64]
    residuals: NDArray[Any]
    deviations: NDArray[np.float64]
    missing: int


def _group(values: ArrayLike, clusters: ArrayLike) -> _Grouped:
    if np.shape(values) != np.shape(clusters):
        raise ValueError(
            f"values have shape {np.shape(values)}, clusters {np.shape(clusters)}: give one cluster per value"
        )
    x, cluster, missing = observed(values, group_codes(clusters)[1])
    sizes = np.bincount(cluster)
    if (sizes == 0).any():
        cluster, sizes = (np.cumsum(sizes > 0) - 1)[cluster], sizes[sizes > 0]
    if not len(x):
        return _Grouped(math.nan, cluster, sizes, x, x, missing)
    offset = float(x.min())
    x = x - offset  # so that sums lose nothing far from 0, and equal values have no variance
    mean = float(x.mean())
    x -= mean
    residuals = np.bincount(cluster, weights=x)
    return _Grouped(offset + mean, cluster, sizes, residuals, x - (residuals / sizes)[cluster], missing)


def _standard_error(residuals: NDArray[np.float64], sizes: NDArray[Any], correction: Correction) -> float:
    if correction not in get_args(Correction):
        raise InvalidSettingError(f"correction is {correction!r}; {nearest(str(correction), get_args(Correction))}")
    g, n = len(sizes), sizes.sum()
    if g < 2:
        return math.nan
    squares = residuals**2
    if correction == "CR1":
        squares *= g / (g - 1)
    elif correction == "CR2":
        squares /= 1 - sizes / n
    return float(np.sqrt(squares.sum()) / n)


def _degrees_of_freedom(sizes: NDArray[np.int64], correction: Correction) -> float:
    """G − 1, or for CR2 Satterthwaite's (Bell & McCaffrey 2002), in closed form since there is only a mean."""
    if correction != "CR2":
        return len(sizes) - 1.0
    n = float(sizes.sum())
    size2 = sizes.astype(np.float64) ** 2
    scaled = size2 / (1 - sizes / n)
    return n * n / float(size2.sum() + (scaled.sum() ** 2 - (scaled**2).sum()) / n**2)
