"""Labels of groups (tasks, clusters) as numbers 0 … G − 1, in the order of the labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llenvs_fast.statistics.observed import unmasked


def group_codes(groups: ArrayLike) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """(labels (G,) sorted, codes (N,)) with labels[codes] == groups. Labels are of any one type that can be sorted.

    Integers that lie close together are not sorted, and may come with labels that no entry has.
    Raises ValueError for a missing label: whose group an entry is has to be known.
    """
    array = unmasked(groups, "groups")
    if array.ndim != 1:
        raise ValueError(f"groups have shape {array.shape}: give (N,), one label per value")
    if array.dtype.kind in "fcmM" and np.isnan(array).any():
        raise ValueError("groups have a missing label: give one per value")
    if array.dtype.kind in "iu" and len(array):
        low, high = int(array.min()), int(array.max())
        if high - low <= 2 * len(array) and high < 2**62:
            codes = array.astype(np.int64, copy=False)
            return np.arange(low, high + 1), codes - low if low else codes
    try:
        labels, codes = np.unique(array, return_inverse=True)
    except TypeError:
        raise ValueError("groups mix types, or have a None: give labels of one type, one per value") from None
    return labels, codes.astype(np.int64, copy=False)
