"""Means and variances of values, and of many groups of values at once, with weights or without.

Each group is shifted by one of its own values, and the second pass corrects the first (Chan, Golub and LeVeque 1983):
an offset of 1e9 costs no digits, and equal values have a variance of exactly 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llenvs_fast.statistics.groups import group_codes
from llenvs_fast.statistics.observed import as_values, observed


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and sample variance of `n` values; `missing` more had no value.

    `effective_n`, (Σw)² / Σw² (Kish 1965), is how many values of equal weight would tell the mean as well: n without
    weights. NaN: the mean of no values, the variance of fewer than two. Values of weight 0 don't count.
    """

    mean: float
    variance: float
    effective_n: float
    n: int
    missing: int


@dataclass(frozen=True, slots=True)
class GroupMoments:
    """`Moments` of each group, in the order of `groups`, the labels: all (G,)."""

    groups: NDArray[Any]
    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    effective_n: NDArray[np.float64]
    n: NDArray[np.int64]
    missing: NDArray[np.int64]


def moments(values: ArrayLike, weights: ArrayLike | None = None) -> Moments:
    """Mean and variance of `values` (N,), with `weights` (N,) or without. See `grouped_moments`."""
    x = as_values(values)
    if x.ndim != 1:
        raise ValueError(f"values have shape {x.shape}: give (N,)")
    if not len(x):
        return Moments(float("nan"), float("nan"), 0.0, 0, 0)
    m = grouped_moments(x, np.zeros(len(x), dtype=np.int64), weights)
    return Moments(float(m.mean[0]), float(m.variance[0]), float(m.effective_n[0]), int(m.n[0]), int(m.missing[0]))


def grouped_moments(values: ArrayLike, groups: ArrayLike, weights: ArrayLike | None = None) -> GroupMoments:
    """Mean and variance of the values of each group: `values`, `groups` (labels) and `weights` are (N,).

    Mean Σwx / Σw; variance Σw(x − mean)² / (Σw − Σw² / Σw), which is the usual Σ(x − mean)² / (n − 1) for equal weights
    and unbiased where weights say how much a value counts, up to a common factor (not how often it was seen: repeat it
    then). The mean of means of groups is another number than the mean of all values where groups differ in size.

    Missing values are left out and counted in their group; a group of nothing else stays, with n = 0. Raises ValueError
    for other shapes, missing labels, and weights that are missing or below 0.
    """
    labels, codes = group_codes(groups)
    size = len(labels)
    x, codes_of, w = _with_weights(values, codes, weights, size)
    there = np.bincount(codes_of[w > 0], minlength=size)
    rows = np.bincount(codes, minlength=size)
    n = np.bincount(codes_of, minlength=size)
    m = _moments(x, codes_of, w, there)
    seen = rows > 0
    mean, variance, effective = (column[seen] for column in m)
    return GroupMoments(labels[seen], mean, variance, effective, there[seen], (rows - n)[seen])


def _moments(
    x: NDArray[np.float64], codes: NDArray[np.int64], w: NDArray[np.float64], there: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(mean, variance, effective n) by group."""
    size = len(there)

    def total(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.bincount(codes, weights=values, minlength=size), dtype=np.float64)

    shift = np.zeros(size)
    shift[codes] = x  # any value of the group
    d = x - shift[codes]
    weight, squares = total(w), total(w * w)
    with np.errstate(invalid="ignore", divide="ignore"):
        first = total(w * d) / weight
        r = d - first[codes]
        rest = total(w * r)
        mean = shift + (first + rest / weight)
        variance = (total(w * r * r) - rest * rest / weight) / (weight - squares / weight)
        effective = np.where(weight > 0, weight * weight / squares, 0.0)
    return mean, np.where(there > 1, np.maximum(variance, 0.0), np.nan), effective


def _with_weights(
    values: ArrayLike, codes: NDArray[np.int64], weights: ArrayLike | None, size: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Values, codes and weights, each weight over the largest of its group: else squares of small ones are 0."""
    if weights is None:
        x, kept, _ = observed(values, codes)
        return x, kept, np.ones(len(x))
    w = as_values(weights, "weights")
    if not (w >= 0).all():
        raise ValueError("weights are missing or below 0: give one ≥ 0 per value")
    x, kept, w, _ = observed(values, codes, w)
    largest = np.zeros(size)
    np.maximum.at(largest, kept, w)
    return x, kept, w / np.where(largest > 0, largest, 1.0)[kept]
