"""What was observed and what is missing: one convention for every function of `llenvs_fast.statistics`.

NaN, None and masked entries are missing: left out, counted, never filled in. A result says how many values it used
(`n`) and how many were missing. NaN in a result means "not available" and nothing else; each function says when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its confidence interval and standard error, from `n` values; `missing` more had no value."""

    value: float
    low: float
    high: float
    standard_error: float
    n: int
    missing: int


@dataclass(frozen=True, slots=True)
class SuccessCounts:
    """Binary outcomes counted along their last axis: how many there were, were successes, were missing. int64."""

    n: NDArray[np.int64]
    successes: NDArray[np.int64]
    missing: NDArray[np.int64]


def as_values(values: ArrayLike, name: str = "values") -> NDArray[np.float64]:
    """`values` as float64 with NaN for what is missing, not copied where it needn't be.

    Raises ValueError for text, for complex numbers and for ±inf, which is an error upstream and not a value.
    """
    masked = isinstance(values, np.ma.MaskedArray)
    array = np.asarray(np.ma.getdata(values) if masked else values)  # type: ignore[no-untyped-call]
    text = array.dtype.kind == "O" and any(isinstance(value, str | bytes) for value in array.flat)
    if text or (array.size and array.dtype.kind not in "biufO"):
        kind = "text" if text else array.dtype
        raise ValueError(f"{name} are {kind}: give numbers, with NaN or None for missing ones")
    try:
        x = array.astype(np.float64, copy=masked)
    except TypeError as error:
        remedy = "give numbers, with NaN or None for missing ones"
        raise ValueError(f"{name} have what is no number ({error}): {remedy}") from None
    if masked:
        x[np.ma.getmaskarray(values)] = np.nan  # type: ignore[no-untyped-call]
    if np.isinf(x).any():
        raise ValueError(f"{name} have an infinite entry: give finite numbers, with NaN or None for missing ones")
    return x


def unmasked(array: ArrayLike, name: str) -> NDArray[Any]:
    """`array` as an array, where nothing may be missing: counts, labels. Raises ValueError for a masked entry."""
    if isinstance(array, np.ma.MaskedArray) and np.ma.getmaskarray(array).any():  # type: ignore[no-untyped-call]
        raise ValueError(f"{name} have a masked entry, and none may be missing: leave out what belongs to it")
    return np.asarray(array)


def observed(values: ArrayLike, *beside: ArrayLike, name: str = "values") -> tuple[Any, ...]:
    """(x, *beside, missing): the values (N,) that are there, what stands beside them, and how many were left out.

    Raises ValueError as `as_values`, and where something beside the values doesn't have their shape.
    """
    x = as_values(values, name)
    others = [unmasked(other, f"labels or weights of {name}") for other in beside]
    if x.ndim != 1 or any(other.shape != x.shape for other in others):
        shapes = ", ".join(str(other.shape) for other in others)
        raise ValueError(f"{name} have shape {x.shape}{shapes and ', beside them ' + shapes}: give (N,), one per value")
    there = ~np.isnan(x)
    missing = len(x) - int(np.count_nonzero(there))
    return (*((x, *others) if not missing else (kept[there] for kept in (x, *others))), missing)


def success_counts(outcomes: ArrayLike) -> SuccessCounts:
    """Counts of `outcomes` (…, K), each 0, 1 or missing, over their last axis: what pass@k and intervals start from.

    A missing outcome is no failure: it makes n smaller. Count it as a 0 yourself where it should be one. Raises
    ValueError for any other number: a reward of 0.3 is no outcome before someone draws the line.
    """
    x = np.atleast_1d(as_values(outcomes, "outcomes"))
    there = ~np.isnan(x)
    strange = there & (x != 0) & (x != 1)
    if strange.any():
        raise ValueError(f"outcomes have {x[strange][0]:g}: give 0, 1, or NaN or None for missing ones")
    n = np.count_nonzero(there, axis=-1)
    return SuccessCounts(
        *(np.asarray(count, dtype=np.int64) for count in (n, np.count_nonzero(x == 1, axis=-1), x.shape[-1] - n))
    )


def eligible_mean(values: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Mean of `values` (P, J) over the tasks where they are available, and the number of these: both (J,).

    For results per task and k: not available (NaN) is k > n. The mean is NaN where no task is eligible. It compares
    runs, or different k, fairly only where the same tasks are eligible: look at the numbers.
    """
    x = as_values(values)
    if x.ndim != 2:
        raise ValueError(f"values have shape {x.shape}: give (P, J), tasks by k")
    there = ~np.isnan(x)
    eligible = np.asarray(there.sum(axis=0), dtype=np.int64)
    total = np.where(there, x, 0.0).sum(axis=0)
    return np.divide(total, eligible, out=np.full(len(eligible), np.nan), where=eligible > 0), eligible
