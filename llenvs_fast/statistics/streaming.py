"""Figures of more rows than fit in memory: accumulators that take arrays as they come and can be merged.

Merging accumulators of parts gives what one accumulator of the whole gives: counts to the bit, means and variances to
rounding (Chan, Golub and LeVeque 1983), quantiles within the sketch's error. Missing values (NaN, None, masked) are
counted and left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llenvs_fast.core.errors import MissingPackageError
from llenvs_fast.statistics.moments import Moments, moments
from llenvs_fast.statistics.observed import as_values, success_counts


@dataclass(slots=True)
class MomentsAccumulator:
    """Mean and variance of values that come in batches. `squares` is Σ (x − mean)²."""

    n: int = 0
    missing: int = 0
    mean: float = 0.0
    squares: float = 0.0
    lowest: float = math.inf
    highest: float = -math.inf

    def add(self, values: ArrayLike) -> None:
        """Take a batch (N,). Errors as `moments`, and then nothing is taken."""
        x = as_values(values).reshape(-1)
        found = moments(x)
        batch = MomentsAccumulator(found.n, found.missing)
        if found.n:
            there = x[~np.isnan(x)]
            batch.mean, batch.lowest, batch.highest = found.mean, float(there.min()), float(there.max())
            batch.squares = found.variance * (found.n - 1) if found.n > 1 else 0.0
        self.merge(batch)

    def merge(self, other: MomentsAccumulator) -> None:
        """Take all that another one has taken."""
        n = self.n + other.n
        self.missing += other.missing
        if other.n:
            apart = other.mean - self.mean if self.n else 0.0
            self.mean = self.mean + apart * other.n / n if self.n else other.mean
            self.squares += other.squares + apart * apart * self.n * other.n / n
        self.n = n
        self.lowest, self.highest = min(self.lowest, other.lowest), max(self.highest, other.highest)

    def result(self) -> Moments:
        """NaN for the mean of no values and the variance of fewer than two."""
        mean = self.mean if self.n else math.nan
        variance = self.squares / (self.n - 1) if self.n > 1 else math.nan
        return Moments(mean, variance, float(self.n), self.n, self.missing)


@dataclass(slots=True)
class TaskCountsAccumulator:
    """Samples, successes and missing outcomes of each task, 0 … P − 1: what pass@k and clustered errors start from.

    Memory goes with the largest task number, not with the rows.
    """

    n: NDArray[np.int64]
    successes: NDArray[np.int64]
    missing: NDArray[np.int64]

    @classmethod
    def empty(cls) -> TaskCountsAccumulator:
        return cls(*np.zeros((3, 0), dtype=np.int64))

    def add(self, tasks: ArrayLike, outcomes: ArrayLike) -> None:
        """Take rows: `tasks` (N,) numbers from 0, `outcomes` (N,) each 0, 1 or missing; ValueError for others."""
        task = np.asarray(tasks)
        if task.ndim != 1 or (task.size and (task.dtype.kind not in "iu" or task.min() < 0)):
            raise ValueError(f"tasks are {task.dtype} of shape {task.shape}: give (N,) whole numbers from 0")
        x = as_values(outcomes, "outcomes")
        if x.shape != task.shape:
            raise ValueError(f"tasks have shape {task.shape}, outcomes {x.shape}: give one outcome per task number")
        success_counts(x)  # refuses what is no outcome
        if not task.size:
            return
        size, there = int(task.max()) + 1, ~np.isnan(x)
        columns = (task[there], task[x == 1], task[~there])
        self.merge(TaskCountsAccumulator(*(np.bincount(c, minlength=size).astype(np.int64) for c in columns)))

    def merge(self, other: TaskCountsAccumulator) -> None:
        """Take all that another one has taken."""
        size = max(len(self.n), len(other.n))

        def both(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
            total = np.zeros(size, dtype=np.int64)
            total[: len(a)] += a
            total[: len(b)] += b
            return total

        self.n, self.successes = both(self.n, other.n), both(self.successes, other.successes)
        self.missing = both(self.missing, other.missing)


class QuantileSketch:
    """Approximate quantiles: a KLL sketch (Karnin, Lang and Liberty 2016) of the package `datasketches`.

    At the default `k` = 200 ranks are off by less than about 1.33 % with a chance of 99 %, whatever the number of
    values, in a few kilobytes; the lowest and the highest are exact. Raises MissingPackageError without the package.
    """

    def __init__(self, k: int = 200) -> None:
        try:
            from datasketches import kll_doubles_sketch
        except ImportError as error:
            raise MissingPackageError(
                "quantile sketches need datasketches: pip install 'llenvs-fast[sketch]'"
            ) from error
        self._sketch: Any = kll_doubles_sketch(k)
        self.missing = 0

    @property
    def n(self) -> int:
        return int(self._sketch.n)

    def add(self, values: ArrayLike) -> None:
        """Take a batch of values, of any shape."""
        x = as_values(values).reshape(-1)
        there = x[~np.isnan(x)]
        self.missing += len(x) - len(there)
        if len(there):
            self._sketch.update(np.ascontiguousarray(there))

    def merge(self, other: QuantileSketch) -> None:
        """Take all that another one has taken."""
        self._sketch.merge(other._sketch)
        self.missing += other.missing

    def quantiles(self, q: ArrayLike) -> NDArray[np.float64]:
        """Approximate quantiles `q` (Q,), each 0 … 1; NaN of no values."""
        shares = np.atleast_1d(np.asarray(q, dtype=np.float64))
        if not self.n:
            return np.full(shares.shape, math.nan)
        found = np.asarray(self._sketch.get_quantiles(shares.tolist()), dtype=np.float64)
        found[shares == 0.0] = self._sketch.get_min_value()
        found[shares == 1.0] = self._sketch.get_max_value()
        return found
