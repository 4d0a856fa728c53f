"""Run evaluations and look at what came out."""

from llenvs_fast.evaluation.outcomes import BatchResult, TrajectoryResult
from llenvs_fast.evaluation.runner import TrajectoryRunner, run_evaluation

__all__ = ["BatchResult", "TrajectoryResult", "TrajectoryRunner", "run_evaluation"]
