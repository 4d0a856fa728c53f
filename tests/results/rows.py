"""Small records that the tests of this room share."""

from __future__ import annotations

from typing import Any

from llenvs_fast.results import Ending, TrajectoryRecord

SETTINGS = {
    "env_id": "gsm8k",
    "model": "owner/model",
    "num_examples": 40,
    "rollouts_per_example": 4,
    "sampling_args": {"temperature": 0.7, "stop": ["\n\n"]},
}


def record(task_index: int = 0, sample: int = 0, **fields: Any) -> TrajectoryRecord:
    defaults: dict[str, Any] = {
        "episode_id": f"{task_index}-{sample}",
        "status": Ending.FINISHED,
        "reward": 1.0,
        "success": True,
        "prompt": [{"role": "user", "content": "What is 2+2?"}],
        "completion": [{"role": "assistant", "content": "4"}],
        "metrics": {"accuracy": 1.0},
        "task": {"question": "What is 2+2?", "answer": "4"},
        "timing": {"generation_ms": 123.0, "scoring_ms": 45.0},
        "turns": 1,
        "prompt_tokens": 12,
        "completion_tokens": 1,
        "finish_reason": "STOP",
        "seed": 2**63 - 1,
    }
    return TrajectoryRecord(task_index=task_index, sample=sample, **(defaults | fields))


def failed(task_index: int = 0, sample: int = 0, kind: str = "step_error") -> TrajectoryRecord:
    failure = {"kind": kind, "message": "boom", "phase": "step", "step": 1, "error_type": "KeyError", "traceback": None}
    return record(task_index, sample, status=Ending.FAILED, reward=None, success=None, metrics={}, failure=failure)
