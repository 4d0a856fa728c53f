"""Standard errors where trials come in clusters, such as samples of one task or questions on one text."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def clustered_standard_error(values: ArrayLike, clusters: ArrayLike) -> float:
    """Standard error of the mean of `values` (N,), whose errors may be correlated within `clusters` (N,), any labels.

    √(G/(G − 1) · Σ_g (Σ_{i∈g} (x_i − x̄))²) / N over G clusters. NaN values are unscored and left out; fewer than two
    clusters give NaN. Raises ValueError for other shapes.
    """
    x, labels = np.asarray(values, dtype=np.float64), np.asarray(clusters)
    if x.ndim != 1 or labels.shape != x.shape:
        raise ValueError(f"values have shape {x.shape}, clusters {labels.shape}: give one cluster per value")
    scored = ~np.isnan(x)
    names, cluster = np.unique(labels[scored], return_inverse=True)
    totals = np.bincount(cluster, weights=x[scored], minlength=len(names))
    return clustered_error_of_rate(totals, np.bincount(cluster, minlength=len(names)))


def clustered_error_of_rate(totals: ArrayLike, counts: ArrayLike) -> float:
    """The same from the sum and the number of the values of each cluster: (G,) and (G,). Empty clusters don't count."""
    n: NDArray[np.float64] = np.asarray(counts, dtype=np.float64)
    total: NDArray[np.float64] = np.asarray(totals, dtype=np.float64)
    if n.ndim != 1 or total.shape != n.shape:
        raise ValueError(f"totals have shape {total.shape}, counts {n.shape}: give one of each per cluster")
    g = int((n > 0).sum())
    if g < 2:
        return float("nan")
    residuals = total - n * (total.sum() / n.sum())
    return float(np.sqrt(g / (g - 1) * (residuals @ residuals)) / n.sum())
