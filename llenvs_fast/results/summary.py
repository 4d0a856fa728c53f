"""A run in numbers, computed in one pass over its records with memory for the tasks, not for the rows.

Counts are never lost: a failed trajectory stays in the denominator of `accuracy` as wrong and is left out of
`scored_accuracy`, and both are there. What isn't known is None, never 0.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from llenvs_fast.results.record import Ending, TrajectoryRecord
from llenvs_fast.statistics import clustered_error_of_rate, mean_pass_at_k, wilson_interval


@dataclass(frozen=True, slots=True)
class Rate:
    """`successes` of `n`, with the Wilson interval at 95 %, which takes the n trials as independent."""

    successes: int
    n: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over `n` values: trajectories with a number, or tasks with enough samples."""

    value: float | None
    n: int


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What came out of a run.

    `accuracy` counts failed trajectories as wrong, `scored_accuracy` leaves them out; trajectories that the environment
    doesn't judge are in neither. Both are None where nothing was judged. `accuracy_cluster_se` is the standard error of
    `accuracy` with tasks as clusters, since samples of one task aren't independent; None with fewer than two tasks.
    `pass_at_k` maps k to the mean over the tasks with at least k counted samples. `samples_per_task` is (fewest, most).
    `cached_tokens` is None where no trajectory knew it.
    """

    tasks: int
    rollouts: int
    finished: int
    truncated: int
    failed: int
    failure_kinds: dict[str, int]
    samples_per_task: tuple[int, int]
    accuracy: Rate | None
    scored_accuracy: Rate | None
    accuracy_cluster_se: float | None
    pass_at_k: dict[int, Mean]
    reward: Mean
    metrics: dict[str, Mean]
    turns: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None

    @property
    def mean_reward(self) -> float | None:
        return self.reward.value


@dataclass(slots=True)
class _Sum:
    """A sum that keeps small terms beside large ones (Neumaier's), and the count of its terms."""

    total: float = 0.0
    lost: float = 0.0
    n: int = 0

    def add(self, value: float) -> None:
        total = self.total + value
        large, small = (self.total, value) if abs(self.total) >= abs(value) else (value, self.total)
        self.lost += (large - total) + small
        self.total = total
        self.n += 1

    def mean(self) -> Mean:
        return Mean((self.total + self.lost) / self.n if self.n else None, self.n)


@dataclass(slots=True)
class _Tasks:
    """Counts by task, in columns: the position of a task is the order in which it first came."""

    position: dict[int, int] = field(default_factory=dict)
    rollouts: array[int] = field(default_factory=lambda: array("q"))
    counted: array[int] = field(default_factory=lambda: array("q"))
    successes: array[int] = field(default_factory=lambda: array("q"))

    def add(self, task_index: int, counted: bool, success: bool) -> None:
        at = self.position.setdefault(task_index, len(self.position))
        if at == len(self.rollouts):
            for column in (self.rollouts, self.counted, self.successes):
                column.append(0)
        self.rollouts[at] += 1
        self.counted[at] += counted
        self.successes[at] += success

    def columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """rollouts, counted, successes: (P,) each, by task index, so that no figure depends on the order of records."""
        order = np.argsort(np.fromiter(self.position, dtype=np.int64, count=len(self.position)))
        rollouts, counted, successes = (
            np.array(column, dtype=np.int64)[order] for column in (self.rollouts, self.counted, self.successes)
        )
        return rollouts, counted, successes


class SummaryAccumulator:
    """Takes records one by one, each (task_index, sample) once, in any order."""

    def __init__(self) -> None:
        self._tasks = _Tasks()
        self._endings: Counter[Ending] = Counter()
        self._failure_kinds: Counter[str] = Counter()
        self._scored = 0
        self._reward = _Sum()
        self._metrics: defaultdict[str, _Sum] = defaultdict(_Sum)
        self._tokens: Counter[str] = Counter()

    def add(self, record: TrajectoryRecord) -> None:
        failed = record.status == Ending.FAILED
        scored = record.success is not None and not failed
        self._endings[record.status] += 1
        if failed:
            self._failure_kinds[str((record.failure or {}).get("kind", "unknown"))] += 1
        self._scored += scored
        self._tasks.add(record.task_index, scored or failed, scored and bool(record.success))
        if _is_number(record.reward):
            self._reward.add(float(record.reward))
        for name, value in record.metrics.items():
            metric = self._metrics[name]
            if _is_number(value):
                metric.add(float(value))
        for name in ("turns", "prompt_tokens", "completion_tokens"):
            self._tokens[name] += getattr(record, name)
        if record.cached_tokens is not None:
            self._tokens["cached_tokens"] += record.cached_tokens

    def summary(self) -> RunSummary:
        """The numbers so far; more records may follow."""
        rollouts, counted, successes = self._tasks.columns()
        correct, failed = int(successes.sum()), self._endings[Ending.FAILED]
        judged = self._scored > 0
        cluster_se = clustered_error_of_rate(successes, counted)
        return RunSummary(
            tasks=len(rollouts),
            rollouts=int(rollouts.sum()),
            finished=self._endings[Ending.FINISHED],
            truncated=self._endings[Ending.TRUNCATED],
            failed=failed,
            failure_kinds=dict(sorted(self._failure_kinds.items(), key=lambda item: (-item[1], item[0]))),
            samples_per_task=(int(rollouts.min()), int(rollouts.max())) if len(rollouts) else (0, 0),
            accuracy=_rate(correct, self._scored + failed) if judged else None,
            scored_accuracy=_rate(correct, self._scored) if judged else None,
            accuracy_cluster_se=cluster_se if judged and not math.isnan(cluster_se) else None,
            pass_at_k=_pass_at_powers_of_two(counted, successes) if judged else {},
            reward=self._reward.mean(),
            metrics={name: self._metrics[name].mean() for name in sorted(self._metrics)},
            turns=self._tokens["turns"],
            prompt_tokens=self._tokens["prompt_tokens"],
            completion_tokens=self._tokens["completion_tokens"],
            cached_tokens=self._tokens.get("cached_tokens"),
        )


def summarize(records: Iterable[TrajectoryRecord]) -> RunSummary:
    """The summary of a run, e.g. of `read_records(directory)`."""
    accumulator = SummaryAccumulator()
    for record in records:
        accumulator.add(record)
    return accumulator.summary()


def _is_number(value: Any) -> TypeGuard[float]:
    return value is not None and not isinstance(value, str) and math.isfinite(value)


def _rate(successes: int, n: int) -> Rate:
    low, high = wilson_interval(successes, n)
    return Rate(successes, n, successes / n, float(low), float(high))


def _pass_at_powers_of_two(n: NDArray[np.int64], c: NDArray[np.int64]) -> dict[int, Mean]:
    ks = [1 << i for i in range(int(n.max()).bit_length())]
    values, eligible = mean_pass_at_k(n, c, ks)
    return {k: Mean(float(value), int(count)) for k, value, count in zip(ks, values, eligible, strict=True)}
