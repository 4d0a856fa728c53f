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
from llenvs_fast.inference.history import (
    HistoryEntry,
    HistoryFn,
    TurnInfoConfig,
    full_history,
    last_n_history,
    no_history,
    sliding_window_history,
)

__all__ = [
    "BatchResult",
    "BinaryStatistics",
    "ContinuousStatistics",
    "HistoryEntry",
    "HistoryFn",
    "Metric",
    "MetricsBundle",
    "TrajectoryResult",
    "TrajectoryRunner",
    "TurnInfoConfig",
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
    "full_history",
    "last_n_history",
    "no_history",
    "run_evaluation",
    "sliding_window_history",
]
