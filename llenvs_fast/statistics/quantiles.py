"""Quantiles: of values, of weighted values, and of many groups of values at once.

A median says what is typical where a few values are far off, and q25 and q75 how much is usual; of binary outcomes, and
of few values, they say little: the q95 of 10 values is next to their maximum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.statistics._jit import compiled, worth_compiling
from llenvs_fast.statistics.groups import group_codes
from llenvs_fast.statistics.observed import as_values, observed

_TINY = 24  # values that are sorted by insertion sooner than NumPy is called


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The quantiles asked for, in the shape they were asked in, of `n` values; `missing` more had no value."""

    values: NDArray[np.float64]
    n: int
    missing: int


@dataclass(frozen=True, slots=True)
class GroupQuantiles:
    """Quantiles `values` (G, Q) of each group, in the order of `groups`, the labels (G,); `n`, `missing`: (G,)."""

    groups: NDArray[Any]
    values: NDArray[np.float64]
    n: NDArray[np.int64]
    missing: NDArray[np.int64]


def quantiles(values: ArrayLike, q: ArrayLike, weights: ArrayLike | None = None) -> Quantiles:
    """Quantiles `q`, a number or (Q,), each 0 … 1, of `values` (N,).

    Linear between neighbours, as NumPy: at q (n − 1) of the sorted values (type 7 of Hyndman and Fan 1996). With
    `weights` (N,), the same with (Σw)² / Σw² for n and each value as wide as its weight (Akinshin 2023, arXiv
    2304.07265), so that equal weights change nothing and values of weight 0 don't count. NaN for no values.
    Raises ValueError for other shapes and for weights that are missing or below 0, InvalidSettingError for other q.
    """
    shares = _shares(q)
    if weights is None:
        x, missing = observed(values)
        found = np.quantile(x, shares) if len(x) else np.full(shares.shape, np.nan)
        return Quantiles(np.asarray(found), len(x), missing)
    w = as_values(weights, "weights")
    if not (w >= 0).all():
        raise ValueError("weights are missing or below 0: give one ≥ 0 per value")
    x, w, missing = observed(values, w)
    x, w = x[w > 0], w[w > 0]
    order = np.argsort(x, kind="stable")
    return Quantiles(_weighted(x[order], w[order], shares), len(x), missing)


def grouped_quantiles(values: ArrayLike, groups: ArrayLike, q: ArrayLike) -> GroupQuantiles:
    """Quantiles `q` (Q,) of the values of each group: `values` and `groups`, labels of any one type, are (N,).

    As `quantiles`, for all groups at once. Missing values are left out and counted in their group; a group of nothing
    else stays, with n = 0 and NaN. Integer labels that lie close together are fastest. Raises ValueError for other
    shapes and missing labels, InvalidSettingError for other q.
    """
    shares = np.atleast_1d(_shares(q))
    labels, codes = group_codes(groups)
    x = as_values(values)
    if x.shape != codes.shape:
        raise ValueError(f"values have shape {x.shape}, groups {codes.shape}: give one group per value")
    if worth_compiling(len(x)):
        ordered, n, missing = _sorted_by_kernels(x, codes, len(labels))
    else:
        ordered, n, missing = _sorted_by_numpy(x, codes, len(labels))
    seen = n + missing > 0
    if not seen.all():
        labels, n, missing = labels[seen], n[seen], missing[seen]
    return GroupQuantiles(labels, _linear(ordered, n, shares), n, missing)


def _shares(q: ArrayLike) -> NDArray[np.float64]:
    shares = np.asarray(q, dtype=np.float64)
    if shares.ndim > 1 or not ((shares >= 0) & (shares <= 1)).all():
        raise InvalidSettingError(f"q is {q!r}: give shares from 0 to 1, e.g. [0.25, 0.5, 0.75]")
    return shares


def _linear(x: NDArray[np.float64], n: NDArray[np.int64], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Quantiles (G, Q) where x is the sorted values of one group of n after the other. Rounds as NumPy does."""
    out = np.full((len(n), len(shares)), np.nan)
    full = n > 0
    start, last = (np.cumsum(n) - n)[full, None], n[full, None] - 1
    position = last * shares
    below = np.floor(position).astype(np.int64)
    low, high = x[start + below], x[start + np.minimum(below + 1, last)]
    part, gap = position - below, high - low
    between = np.where(part < 0.5, low + gap * part, high - gap * (1 - part))
    out[full] = np.where(gap == 0, low, between)
    return out


def _weighted(x: NDArray[np.float64], w: NDArray[np.float64], shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Quantiles of sorted x: each value counts with the part of its weight that lies in a window of 1 / n* around q."""
    if not len(x):
        return np.full(shares.shape, np.nan)
    w = w / w.max()
    n = w.sum() ** 2 / (w * w).sum()
    edges = np.concatenate([[0.0], np.cumsum(w) / w.sum()])
    edges[-1] = 1.0
    reached = np.clip(edges * n - (n - 1) * shares[..., None], 0.0, 1.0)
    return np.asarray(x[0] + np.diff(reached, axis=-1) @ (x - x[0]))


def _sorted_by_numpy(
    x: NDArray[np.float64], codes: NDArray[np.int64], size: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """(values sorted by group and value, n (G,), missing (G,))."""
    there = ~np.isnan(x)
    n = np.bincount(codes[there], minlength=size)
    missing = np.bincount(codes[~there], minlength=size)
    return x[there][np.lexsort((x[there], codes[there]))], n, missing


def _sorted_by_kernels(
    x: NDArray[np.float64], codes: NDArray[np.int64], size: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """The same by counting: values go to the place of their group, where each group is sorted on its own."""
    x, codes = np.require(x, np.float64, ("C", "W")), np.require(codes, np.int64, ("C", "W"))
    n, missing = np.zeros((2, size), dtype=np.int64)
    _count(x, codes, n, missing)
    ends = np.cumsum(n)
    starts = ends - n
    ordered = np.empty(int(n.sum()))
    _gather(x, codes, starts.copy(), ordered)
    _sort_tiny(ordered, starts, ends, _TINY)
    large = n > _TINY
    for start, end in zip(starts[large].tolist(), ends[large].tolist(), strict=True):
        ordered[start:end].sort()
    return ordered, n, missing


@compiled("void(float64[::1], int64[::1], int64[::1], int64[::1])")
def _count(x: Any, codes: Any, n: Any, missing: Any) -> None:
    """x, codes: (N,); n, missing: (G,), zeros."""
    for i in range(len(x)):
        if x[i] == x[i]:
            n[np.uint64(codes[i])] += 1
        else:
            missing[np.uint64(codes[i])] += 1


@compiled("void(float64[::1], int64[::1], int64[::1], float64[::1])")
def _gather(x: Any, codes: Any, place: Any, out: Any) -> None:
    """x, codes: (N,); place: (G,), where the next value of a group goes; out: as many as are not missing."""
    for i in range(len(x)):
        if x[i] == x[i]:
            group = np.uint64(codes[i])
            out[np.uint64(place[group])] = x[i]
            place[group] += 1


@compiled("void(float64[::1], int64[::1], int64[::1], int64)")
def _sort_tiny(x: Any, starts: Any, ends: Any, tiny: Any) -> None:
    """Sort x[start:end] by insertion where it has at most `tiny` values."""
    for g in range(len(starts)):
        start, end = starts[g], ends[g]
        if end - start <= tiny:
            for i in range(start + 1, end):
                value = x[i]
                j = i
                while j > start and x[j - 1] > value:
                    x[j] = x[j - 1]
                    j -= 1
                x[j] = value
