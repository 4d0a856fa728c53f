"""Run evaluations and look at what came out."""

from llenvs_fast.evaluation.metrics import (
    BinaryStatistics,
    ContinuousStatistics,
    Metric,
    MetricsBundle,
    aggregate_binary_metrics,
    aggregate_continuous_metrics,
    compute_accuracy,
    compute_action_reward,
    compute_all_metrics,
    compute_binary_statistics,
    compute_continuous_statistics,
    compute_format_compliance,
    compute_pass_at_k,
    compute_trajectory_reward,
)
from llenvs_fast.evaluation.outcomes import BatchResult, TrajectoryResult
from llenvs_fast.evaluation.runner import TrajectoryRunner, run_evaluation

__all__ = [
    "BatchResult",
    "BinaryStatistics",
    "ContinuousStatistics",
    "Metric",
    "MetricsBundle",
    "TrajectoryResult",
    "TrajectoryRunner",
    "aggregate_binary_metrics",
    "aggregate_continuous_metrics",
    "compute_accuracy",
    "compute_action_reward",
    "compute_all_metrics",
    "compute_binary_statistics",
    "compute_continuous_statistics",
    "compute_format_compliance",
    "compute_pass_at_k",
    "compute_trajectory_reward",
    "run_evaluation",
]
