"""From the engine's outcomes to results: the guide's objects in memory, and the rows of the journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from llenvs_fast.core.errors import Failure, Phase
from llenvs_fast.core.reward import RewardType
from llenvs_fast.core.trajectory import Trajectory
from llenvs_fast.engine.report import LoopReport
from llenvs_fast.engine.rollout import Outcome, Turn
from llenvs_fast.inference.protocol import ChatMessage
from llenvs_fast.results.record import Ending, TrajectoryRecord


@dataclass
class TrajectoryResult:
    """One trajectory. `trajectory` is None where not even its reset succeeded; `turns` hold its exact tokens."""

    trajectory: Trajectory | None
    total_reward: float
    success: bool
    metadata: dict[str, Any] = field(default_factory=dict)
    turns: tuple[Turn, ...] = ()


@dataclass
class BatchResult:
    """Results in the order of the tasks asked for. Failed trajectories count as failures in both rates.

    `report` says what the engine did and where the time went.
    """

    trajectory_results: list[TrajectoryResult]
    success_rate: float
    mean_reward: float
    metadata: dict[str, Any] = field(default_factory=dict)
    report: LoopReport | None = None


def is_success(trajectory: Trajectory | None) -> bool | None:
    """Whether the last OUTCOME signal of the last transition reached 1.0.

    None where that transition has OUTCOME signals and none of them has a number; False where it has none at all.
    """
    last = trajectory.last_transition if trajectory is not None else None
    outcomes = last.rewards.by_type(RewardType.OUTCOME) if last is not None else ()
    if not outcomes:
        return False
    rewards = [s.reward for s in outcomes if s.reward is not None]
    return rewards[-1] >= 1.0 if rewards else None


def trajectory_result(outcome: Outcome) -> TrajectoryResult:
    trajectory = outcome.trajectory
    metadata: dict[str, Any] = {"task_index": outcome.spec.task_index}
    failure = outcome.failure
    if failure is not None:
        metadata["error"] = failure.message
        metadata |= {"kind": failure.kind, "phase": failure.phase.value, "step": failure.step}
        metadata["traceback"] = failure.traceback
    else:
        metadata["num_steps"] = 0 if trajectory is None else len(trajectory)
        metadata["reset_info"] = outcome.reset_info
        if outcome.truncated_by is not None:
            metadata["truncated_by"] = outcome.truncated_by.value
    return TrajectoryResult(
        trajectory=trajectory,
        total_reward=0.0 if trajectory is None else trajectory.total_reward,
        success=failure is None and bool(is_success(trajectory)),
        metadata=metadata,
        turns=outcome.turns,
    )


def batch_result(results: list[TrajectoryResult], report: LoopReport | None = None) -> BatchResult:
    n = len(results)
    successful = sum(r.success for r in results)
    return BatchResult(
        trajectory_results=results,
        success_rate=successful / n if n else 0.0,
        mean_reward=sum(r.total_reward for r in results) / n if n else 0.0,
        metadata={"num_trajectories": n, "num_successful": successful},
        report=report,
    )


def record_of(outcome: Outcome, keep_tokens: bool = False) -> TrajectoryRecord:
    """The journal's row of a trajectory. `keep_tokens` adds the exact ids and log-probabilities of every turn.

    A trajectory that can't be written down (its environment's objects raise when they are read) gives a failed row.
    """
    try:
        return _record(outcome, keep_tokens)
    except Exception as error:
        failure = Failure.from_exception(error, Phase.STEP, len(outcome.turns))
        return TrajectoryRecord(
            task_index=outcome.spec.task_index,
            sample=outcome.spec.sample,
            episode_id="",
            status=Ending.FAILED,
            failure=asdict(failure) | {"kind": "record_error"},
        )


def _record(outcome: Outcome, keep_tokens: bool) -> TrajectoryRecord:
    trajectory, turns = outcome.trajectory, outcome.turns
    transitions = trajectory.transitions if trajectory is not None else ()
    rewards = [s.reward for t in transitions for s in t.rewards.numeric_signals()]
    last = turns[-1].result if turns else None
    cached = [t.result.cached_tokens for t in turns]
    return TrajectoryRecord(
        task_index=outcome.spec.task_index,
        sample=outcome.spec.sample,
        episode_id=trajectory.episode_id if trajectory is not None else "",
        status=outcome.ending,
        reward=trajectory.total_reward if trajectory is not None and rewards and outcome.failure is None else None,
        success=None if outcome.failure is not None else is_success(trajectory),
        prompt=[m.to_dict() for m in turns[0].messages] if turns else [],
        completion=_completion(turns),
        metrics={s.name: s.reward for t in transitions for s in t.rewards.signals},
        task=_task(outcome),
        info=dict(transitions[-1].info["step"]) if transitions else {},
        timing={"generation_ms": 1e3 * outcome.generation_s, "scoring_ms": 1e3 * outcome.stepping_s},
        turns=len(turns),
        prompt_tokens=sum(t.result.prompt_tokens for t in turns),
        completion_tokens=sum(t.result.completion_tokens for t in turns),
        cached_tokens=sum(c for c in cached if c is not None) if cached and None not in cached else None,
        finish_reason=last.finish_reason.name if last is not None else None,
        seed=turns[0].seed if turns else None,
        truncated_by=outcome.truncated_by,
        failure=asdict(outcome.failure) if outcome.failure is not None else None,
        tokens=_tokens(turns) if keep_tokens else None,
    )


def _completion(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """All messages after the first prompt: the model's replies, and what it was shown in between."""
    said: list[ChatMessage] = []
    for n, turn in enumerate(turns):
        said += turn.messages if n else ()
        said.append(ChatMessage("assistant", turn.result.text or "", tool_calls=turn.result.tool_calls))
    return [m.to_dict() for m in said]


def _task(outcome: Outcome) -> dict[str, Any]:
    if outcome.trajectory is None:
        return {}
    state = outcome.trajectory.initial_state
    answer = getattr(state.hidden, "expected_answer", None)
    question = state.observation.task.text if state.observation.task is not None else state.observation.prompt
    return {"question": outcome.reset_info.get("question", question), "answer": answer}


def _tokens(turns: Sequence[Turn]) -> dict[str, Any]:
    return {
        "turns": [
            {
                "prompt_ids": t.prompt_ids,
                "token_ids": t.token_ids,
                "logprobs": t.logprobs,
                "logprobs_are": "raw",
                "seed": t.seed,
            }
            for t in turns
        ]
    }
