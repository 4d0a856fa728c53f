"""One trajectory as a state machine.

A `Rollout` is told what happened (reset, generated, stepped, failed) and says what it needs next (its `stage`). It has
no effects and no clock: whoever runs it passes facts in. It ends exactly once, as finished, truncated or failed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

from llenvs_fast.core.environment import StepResult
from llenvs_fast.core.errors import BadRewardError, Failure, Phase
from llenvs_fast.core.reward import RewardType, Signal, SignalBundle
from llenvs_fast.core.state import Action, Observation, State
from llenvs_fast.core.trajectory import Trajectory, Transition
from llenvs_fast.inference.protocol import ChatMessage, GenerationResult, StopReason
from llenvs_fast.results.record import Ending

DEFAULT_MAX_STEPS = 100


class Stage(Enum):
    """What a rollout waits for."""

    RESETTING = auto()
    READY = auto()
    GENERATING = auto()
    STEPPING = auto()
    ENDED = auto()


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """Which trajectory to run: the `sample`-th one of a task, at `position` in the run."""

    position: int
    task_index: int
    sample: int = 0
    episode_id: str | None = None

    def reset_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"task_index": self.task_index}
        if self.episode_id is not None:
            options["episode_id"] = self.episode_id
        return options


@dataclass(frozen=True, slots=True)
class Turn:
    """The model's side of one turn. `reuse_lost` counts earlier tokens that the new prompt could not keep."""

    messages: tuple[ChatMessage, ...]
    result: GenerationResult
    seed: int | None
    generation_s: float
    reuse_lost: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trajectory ended. `trajectory` is None where not even its reset succeeded; `error` is what failed it."""

    spec: RolloutSpec
    ending: Ending
    trajectory: Trajectory | None
    turns: tuple[Turn, ...]
    reset_info: dict[str, Any]
    failure: Failure | None
    error: Exception | None
    generation_s: float
    stepping_s: float


@dataclass(slots=True)
class Rollout:
    """A trajectory under way. `ids` is its token transcript: all that the model has read and sampled so far."""

    spec: RolloutSpec
    max_steps: int
    stage: Stage = Stage.RESETTING
    trajectory: Trajectory | None = None
    reset_info: dict[str, Any] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    messages: tuple[ChatMessage, ...] = ()
    ids: tuple[int, ...] = ()
    reuse_lost: int = 0
    seed: int | None = None
    ending: Ending | None = None
    failure: Failure | None = None
    error: Exception | None = None
    stepping_s: float = 0.0

    @property
    def state(self) -> State:
        assert self.trajectory is not None
        return self.trajectory.current_state

    @property
    def steps(self) -> int:
        return 0 if self.trajectory is None else len(self.trajectory)

    @property
    def on_last_turn(self) -> bool:
        """Whether the turn under way is the last one that the step limit allows."""
        return self.steps + 1 >= self.max_steps

    # what happened --------------------------------------------------------------------------------------------------

    def was_reset(self, state: State, info: dict[str, Any]) -> None:
        self.trajectory = Trajectory.create(state)
        self.reset_info = info
        self.stage = Stage.READY
        if state.metadata.is_terminal:
            self._end(Ending.FINISHED)

    def was_prompted(self, messages: tuple[ChatMessage, ...], ids: tuple[int, ...], reuse_lost: int = 0) -> None:
        """The next prompt stands ready."""
        self.messages = messages
        self.ids = ids
        self.reuse_lost = reuse_lost

    def was_submitted(self, seed: int | None) -> None:
        self.seed = seed
        self.stage = Stage.GENERATING

    def was_generated(self, result: GenerationResult, generation_s: float) -> Action:
        self.turns.append(Turn(self.messages, result, self.seed, generation_s, self.reuse_lost))
        if result.token_ids is not None:
            self.ids += tuple(result.token_ids)
        self.stage = Stage.STEPPING
        return result.to_agent_action()

    def was_stepped(self, action: Action, result: StepResult, stepping_s: float) -> None:
        if not isinstance(result, StepResult):
            raise TypeError(f"step returned a {type(result).__name__}: it must return a StepResult")
        if not isinstance(result.next_state, State) or not isinstance(result.info, dict):
            kinds = f"{type(result.next_state).__name__} as next_state and {type(result.info).__name__} as info"
            raise TypeError(f"step returned a StepResult with {kinds}: they must be a State and a dict")
        assert self.trajectory is not None
        transition = Transition(
            state=self.state,
            action=action,
            next_state=result.next_state,
            rewards=checked_rewards(result.rewards),
            info={"generation": generation_info(self.turns[-1].result), "step": result.info},
            extracted_action=result.extracted_action,
            resolved_action=result.resolved_action,
        )
        self.trajectory.add_transition(transition)
        self.stepping_s += stepping_s
        self.stage = Stage.READY
        if result.terminated or result.next_state.metadata.is_terminal:
            cut = self.turns[-1].result.finish_reason is StopReason.MAX_TOKENS
            self._end(Ending.TRUNCATED if cut else Ending.FINISHED)
        elif result.truncated or self.steps >= self.max_steps:
            self._end(Ending.TRUNCATED)

    def has_failed(self, error: Exception, phase: Phase) -> None:
        self.failure = Failure.from_exception(error, phase, self.steps)
        self.error = error
        self._end(Ending.FAILED)

    # how it ended ---------------------------------------------------------------------------------------------------

    def _end(self, ending: Ending) -> None:
        assert self.ending is None, f"trajectory {self.spec} ended twice"
        self.ending = ending
        self.stage = Stage.ENDED

    def outcome(self) -> Outcome:
        assert self.ending is not None, f"trajectory {self.spec} has not ended"
        return Outcome(
            spec=self.spec,
            ending=self.ending,
            trajectory=self.trajectory,
            turns=tuple(self.turns),
            reset_info=self.reset_info,
            failure=self.failure,
            error=self.error,
            generation_s=sum(t.generation_s for t in self.turns),
            stepping_s=self.stepping_s,
        )


def checked_reset(value: object) -> tuple[State, dict[str, Any]]:
    """What a reset returned. Raises TypeError where it isn't (State, dict)."""
    match value:
        case (State() as state, dict() as info) if isinstance(state.observation, Observation):
            return state, info
    raise TypeError(f"reset returned {value!r:.200}: it must return (State, dict), the state with an Observation")


def generation_info(result: GenerationResult) -> dict[str, Any]:
    """What a transition keeps of its generation."""
    info: dict[str, Any] = {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.completion_tokens,
        "finish_reason": result.finish_reason.name,
    }
    if result.tool_calls:
        info |= {"has_tool_calls": True, "num_tool_calls": len(result.tool_calls)}
    return info


def checked_rewards(rewards: SignalBundle) -> SignalBundle:
    """The bundle with every reward a finite float or None. Raises BadRewardError naming the signal otherwise."""
    if not isinstance(rewards, SignalBundle):
        raise BadRewardError(f"rewards is {rewards!r:.200}: a step returns a SignalBundle")
    signals = rewards.signals
    if not isinstance(signals, tuple) or not all(
        isinstance(s, Signal) and isinstance(s.name, str) and isinstance(s.reward_type, RewardType) for s in signals
    ):
        raise BadRewardError(
            f"the signals are {signals!r:.200}: a SignalBundle holds a tuple of Signal with name and RewardType"
        )
    if not all(s.reward is None or (type(s.reward) is float and math.isfinite(s.reward)) for s in signals):
        rewards = SignalBundle(tuple(replace(s, reward=_checked(s)) for s in signals))
    if not math.isfinite(rewards.total):
        raise BadRewardError(f"the rewards add up to {rewards.total}: give numbers and weights whose sum is finite")
    return rewards


def _checked(signal: Signal) -> float | None:
    if signal.reward is None:
        return None
    shape = getattr(signal.reward, "shape", ())
    try:
        reward = math.nan if shape or isinstance(signal.reward, str | bytes) else float(signal.reward)
    except (TypeError, ValueError, OverflowError):
        reward = math.nan
    if math.isfinite(reward):
        return reward
    what = f"an array of shape {shape}" if shape else f"{signal.reward!r:.200}"
    raise BadRewardError(
        f"signal {signal.name!r} has {what} as its reward: give one finite number, or None where there is no score"
    )
