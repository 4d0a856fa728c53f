"""The evaluation guide's metrics (what is measured) and statistics (how it is summarised).

At 90, 95 and 99 % confidence the normal quantile is the guide's rounded one (1.645, 1.96, 2.576), so that its figures
are met to the last digit; any other level takes the exact quantile. `llenvs_fast.statistics` has what these leave out:
samples of one task are not independent, and intervals here take them as if they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from llenvs_fast.evaluation.outcomes import BatchResult, TrajectoryResult
from llenvs_fast.statistics import mean_pass_at_k, moments, normal_quantile, pass_at_k

_ROUNDED = {0.90: 1.645, 0.95: 1.96, 0.99: 2.576}


@dataclass(frozen=True, slots=True)
class ContinuousStatistics:
    """Of `n` values, their sample deviation (n − 1) and the standard error of the mean with a normal interval.

    Quantiles are linear between neighbours, as NumPy's. Of one value `std_dev` and `std_error` are 0.0; bounds are None
    where there is no error. Of no values `mean` is 0.0 and the rest None.
    """

    n: int
    mean: float
    std_dev: float | None = None
    std_error: float | None = None
    min: float | None = None
    max: float | None = None
    median: float | None = None
    q25: float | None = None
    q75: float | None = None
    ci_lower: float | None = None
    ci_upper: float | None = None


@dataclass(frozen=True, slots=True)
class BinaryStatistics:
    """`count` successes of `n`, `mean` their share, with the standard error √(p(1 − p)/n) and the Wilson interval.

    `std_error` is None for fewer than two trials, bounds for none.
    """

    n: int
    mean: float
    count: int
    std_error: float | None = None
    ci_lower: float | None = None
    ci_upper: float | None = None

    def pass_at_k(self, k: int) -> float:
        """1 − C(n − c, k) / C(n, k), with all trials as samples of one task. Raises ValueError unless 1 ≤ k ≤ n.

        Of several tasks this is another number than their mean pass@k: see `compute_pass_at_k`.
        """
        if not 1 <= k <= self.n:
            raise ValueError(f"k is {k} of {self.n} samples: give 1 ≤ k ≤ n")
        return float(pass_at_k(self.n, self.count, k))


Statistics = ContinuousStatistics | BinaryStatistics


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    statistics: Statistics


@dataclass(slots=True)
class MetricsBundle:
    """Metrics by name."""

    metrics: dict[str, Metric] = field(default_factory=dict)

    def add(self, metric: Metric) -> None:
        self.metrics[metric.name] = metric

    def get(self, name: str) -> Metric | None:
        return self.metrics.get(name)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """All fields of each metric's statistics."""
        return {name: asdict(metric.statistics) for name, metric in self.metrics.items()}


# statistics of values -----------------------------------------------------------------------------------------------


def compute_continuous_statistics(values: Iterable[float], confidence_level: float = 0.95) -> ContinuousStatistics:
    """Statistics of any numbers. Raises ValueError for NaN and infinite ones."""
    x = np.asarray(list(values), dtype=np.float64)
    if not np.isfinite(x).all():
        raise ValueError("values have a NaN or an infinite entry: leave out what is missing, and say how many")
    z = _normal(confidence_level)
    n = len(x)
    if n == 0:
        return ContinuousStatistics(n=0, mean=0.0)
    found = moments(x)
    deviation = math.sqrt(found.variance) if n > 1 else 0.0
    error = deviation / math.sqrt(n)
    q25, median, q75 = np.quantile(x, [0.25, 0.5, 0.75]).tolist()
    return ContinuousStatistics(
        n=n,
        mean=found.mean,
        std_dev=deviation,
        std_error=error,
        min=float(x.min()),
        max=float(x.max()),
        median=median,
        q25=q25,
        q75=q75,
        ci_lower=found.mean - z * error if error > 0 else None,
        ci_upper=found.mean + z * error if error > 0 else None,
    )


def compute_binary_statistics(values: Iterable[object], confidence_level: float = 0.95) -> BinaryStatistics:
    """Statistics of any trials; those that are true count as successes."""
    outcomes = [bool(value) for value in values]
    return _binary(sum(outcomes), len(outcomes), confidence_level)


def _binary(count: int, n: int, confidence_level: float) -> BinaryStatistics:
    z = _normal(confidence_level)
    if n == 0:
        return BinaryStatistics(n=0, mean=0.0, count=0)
    p = count / n
    spread = 1 + z * z / n
    centre = (p + z * z / (2 * n)) / spread
    half = z * math.sqrt((p * (1 - p) + z * z / (4 * n)) / n) / spread
    return BinaryStatistics(
        n=n,
        mean=p,
        count=count,
        std_error=math.sqrt(p * (1 - p) / n) if n > 1 else None,
        ci_lower=0.0 if count == 0 else max(0.0, centre - half),
        ci_upper=1.0 if count == n else min(1.0, centre + half),
    )


def _normal(confidence_level: float) -> float:
    return _ROUNDED.get(confidence_level) or normal_quantile(confidence_level)


# metrics of trajectories --------------------------------------------------------------------------------------------


def compute_accuracy(results: Sequence[TrajectoryResult], confidence_level: float = 0.95) -> Metric:
    """How many trajectories succeeded; failed ones count as wrong."""
    return Metric("accuracy", compute_binary_statistics((r.success for r in results), confidence_level))


def compute_trajectory_reward(results: Sequence[TrajectoryResult], confidence_level: float = 0.95) -> Metric:
    """The total reward of each trajectory."""
    rewards = (r.total_reward for r in results)
    return Metric("trajectory_reward", compute_continuous_statistics(rewards, confidence_level))


def compute_action_reward(results: Sequence[TrajectoryResult], confidence_level: float = 0.95) -> Metric:
    """The total reward of each action; a failed trajectory has those that it took."""
    rewards = [t.rewards.total for r in results if r.trajectory is not None for t in r.trajectory.transitions]
    return Metric("action_reward", compute_continuous_statistics(rewards, confidence_level))


def compute_format_compliance(results: Sequence[TrajectoryResult], confidence_level: float = 0.95) -> Metric:
    """How many actions had a signal named `format` of at least 1.0. Where no environment gives one, that is none."""
    kept = []
    for result in results:
        for transition in result.trajectory.transitions if result.trajectory is not None else ():
            signal = transition.rewards.by_name("format")
            kept.append(signal is not None and signal.reward is not None and signal.reward >= 1.0)
    return Metric("format_compliance", compute_binary_statistics(kept, confidence_level))


def compute_all_metrics(batch_result: BatchResult) -> MetricsBundle:
    """accuracy, trajectory_reward, action_reward and format_compliance, in this order."""
    bundle = MetricsBundle()
    computed: tuple[Callable[[Sequence[TrajectoryResult]], Metric], ...] = (
        compute_accuracy,
        compute_trajectory_reward,
        compute_action_reward,
        compute_format_compliance,
    )
    for compute in computed:
        bundle.add(compute(batch_result.trajectory_results))
    return bundle


def compute_pass_at_k(results: Sequence[TrajectoryResult], ks: Sequence[int]) -> dict[int, tuple[float | None, int]]:
    """pass@k by task: k → (mean over the tasks with at least k samples, how many tasks these are).

    The mean is None where no task has k samples. Failed trajectories count as wrong.
    """
    n: dict[int, int] = {}
    c: dict[int, int] = {}
    for result in results:
        task = result.metadata["task_index"]
        n[task] = n.get(task, 0) + 1
        c[task] = c.get(task, 0) + result.success
    if not n:
        return dict.fromkeys(ks, (None, 0))
    values, eligible = mean_pass_at_k(list(n.values()), [c[task] for task in n], list(ks))
    return {
        k: (float(value) if tasks else None, int(tasks))
        for k, value, tasks in zip(ks, values, eligible, strict=True)
    }


# metrics of several evaluations -------------------------------------------------------------------------------------


def aggregate_continuous_metrics(metrics: Sequence[Metric], name: str | None = None) -> Metric:
    """Metrics of several evaluations as if their values had been in one; the quantiles, which can't be known, are None.

    Raises ValueError for no metrics, TypeError for binary ones.
    """
    parts = [_of_kind(metric, ContinuousStatistics) for metric in _some(metrics)]
    name = name or metrics[0].name
    n = sum(part.n for part in parts)
    if n == 0:
        return Metric(name, ContinuousStatistics(n=0, mean=0.0))
    mean = math.fsum(part.n * part.mean for part in parts) / n
    lowest = min((part.min for part in parts if part.min is not None), default=None)
    highest = max((part.max for part in parts if part.max is not None), default=None)
    known = all(part.std_dev is not None for part in parts if part.n > 1)
    if n == 1 or not known:
        return Metric(name, ContinuousStatistics(n=n, mean=mean, min=lowest, max=highest))
    within = math.fsum((part.n - 1) * (part.std_dev or 0.0) ** 2 for part in parts if part.n > 1)
    between = math.fsum(part.n * (part.mean - mean) ** 2 for part in parts)
    deviation = math.sqrt((within + between) / (n - 1))
    error = deviation / math.sqrt(n)
    half = _ROUNDED[0.95] * error
    return Metric(
        name,
        ContinuousStatistics(
            n=n, mean=mean, std_dev=deviation, std_error=error, min=lowest, max=highest,
            ci_lower=mean - half, ci_upper=mean + half,
        ),
    )  # fmt: skip


def aggregate_binary_metrics(
    metrics: Sequence[Metric], name: str | None = None, confidence_level: float = 0.95
) -> Metric:
    """Counts of several evaluations added up. Raises ValueError for no metrics, TypeError for continuous ones."""
    parts = [_of_kind(metric, BinaryStatistics) for metric in _some(metrics)]
    total = _binary(sum(part.count for part in parts), sum(part.n for part in parts), confidence_level)
    return Metric(name or metrics[0].name, total)


def _some(metrics: Sequence[Metric]) -> Sequence[Metric]:
    if not metrics:
        raise ValueError("there are no metrics to aggregate: give at least one")
    return metrics


def _of_kind(metric: Metric, kind: type[Any]) -> Any:
    if not isinstance(metric.statistics, kind):
        has = type(metric.statistics).__name__
        raise TypeError(f"metric {metric.name!r} has {has}: give metrics of {kind.__name__}")
    return metric.statistics
