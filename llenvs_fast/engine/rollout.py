"""One trajectory as a state machine.

A `Rollout` is told what happened (reset, generated, stepped, failed) and says what it needs next (its `stage`). It has
no effects and no clock: whoever runs it passes facts in. It ends exactly once, as finished, truncated or failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum, auto
from typing import Any

import numpy as np

from llenvs_fast.core.environment import StepResult
from llenvs_fast.core.errors import Failure, Phase
from llenvs_fast.core.state import Action, State
from llenvs_fast.core.trajectory import Trajectory, Transition
from llenvs_fast.engine.budgets import Budgets, Limit
from llenvs_fast.engine.checks import checked_rewards, generation_info
from llenvs_fast.inference.protocol import ChatMessage, GenerationResult, StopReason
from llenvs_fast.results.record import Ending
from llenvs_fast.tokens.trajectory_tokens import TrajectoryTokens


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


class LossCause(StrEnum):
    """Why tokens that the cache may hold could not be used again: what the next prompt no longer begins with."""

    TEMPLATE = "template"  # the chat template shows earlier turns otherwise once the conversation has moved on
    REPLY = "reply"  # the history shows a reply otherwise than it was sampled, such as without its reasoning
    HISTORY = "history"  # a window over the history moved
    TURN_INFO = "turn_info"
    PROMPT = "prompt"  # a template, a pipeline or the environment changed an earlier message


@dataclass(frozen=True, slots=True)
class Turn:
    """The model's side of one turn.

    `messages` are those that it was newly shown: the first turn's whole prompt, then what came after its last reply.
    `lost_tokens` counts tokens of its context that the prompt could not keep, for the reason `loss`. The exact tokens
    are in the trajectory's columns; `result` holds no copy of them, and `token_logprobs` only with alternatives.
    """

    messages: tuple[ChatMessage, ...]
    result: GenerationResult
    seed: int | None
    generation_s: float
    lost_tokens: int
    loss: LossCause | None
    tokens: TrajectoryTokens | None
    index: int

    @property
    def prompt_ids(self) -> tuple[int, ...] | None:
        """All that the model read. None where the backend deals in text."""
        return None if self.tokens is None else tuple(self.tokens.prompt_ids(self.index).tolist())

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        """What it sampled, end of turn included. None where the backend deals in text."""
        return None if self.tokens is None else tuple(self.tokens.sampled_ids(self.index).tolist())

    @property
    def logprobs(self) -> tuple[float, ...] | None:
        """Raw log-probabilities of the sampled tokens. None where they were not asked for."""
        if self.tokens is None:
            return None
        values = self.tokens.sampled_logprobs(self.index)
        return None if np.isnan(values).any() else tuple(values.tolist())


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trajectory ended. `trajectory` is None where not even its reset succeeded; `error` is what failed it.

    `truncated_by` names the limit of a truncated one. `tokens` has its exact tokens; None for a backend of texts.
    """

    spec: RolloutSpec
    ending: Ending
    trajectory: Trajectory | None
    turns: tuple[Turn, ...]
    reset_info: dict[str, Any]
    failure: Failure | None
    error: Exception | None
    generation_s: float
    stepping_s: float
    truncated_by: Limit | None = None
    tokens: TrajectoryTokens | None = None


@dataclass(slots=True)
class Rollout:
    """A trajectory under way. `tokens` is its token transcript: all that the model has read and sampled so far.

    `messages` is the conversation of the last prompt, `new_messages` what of it stands after the last reply. The
    prompt that stands ready keeps the first `kept` tokens of the context before it. `opened_at` is on the caller's
    clock.
    """

    spec: RolloutSpec
    max_steps: int
    budgets: Budgets = field(default_factory=lambda: Budgets(2048))
    opened_at: float = 0.0
    stage: Stage = Stage.RESETTING
    trajectory: Trajectory | None = None
    reset_info: dict[str, Any] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    messages: tuple[ChatMessage, ...] = ()
    new_messages: tuple[ChatMessage, ...] = ()
    tokens: TrajectoryTokens = field(default_factory=TrajectoryTokens)
    kept: int = 0
    grown: int = 0
    lost_tokens: int = 0
    loss: LossCause | None = None
    max_tokens: int = 0
    sampled_tokens: int = 0
    seed: int | None = None
    ending: Ending | None = None
    truncated_by: Limit | None = None
    failure: Failure | None = None
    error: Exception | None = None
    stepping_s: float = 0.0
    prompt_length: int = 0

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

    def was_prompted(
        self,
        messages: tuple[ChatMessage, ...],
        new_ids: Sequence[int] | None,
        kept: int | None = None,
        loss: LossCause | None = None,
        new_messages: tuple[ChatMessage, ...] | None = None,
    ) -> None:
        """The next prompt stands ready: the first `kept` tokens of the context (None: all), and `new_ids`.

        `new_ids` is None for a backend that deals in text. Raises OverBudgetError, with nothing changed, where the
        turn could sample no token.
        """
        context = len(self.tokens.context)
        kept = context if kept is None else kept
        length = 0 if new_ids is None else kept + len(new_ids)
        self.max_tokens = self.budgets.for_turn(self.sampled_tokens, length)
        if new_ids is not None:
            self.tokens.begin_turn(new_ids, kept)
        self.kept = kept
        self.grown, self.prompt_length = length - self.prompt_length, length
        self.lost_tokens, self.loss = context - kept, loss if kept < context else None
        self.messages = messages
        self.new_messages = messages if new_messages is None else new_messages

    def was_submitted(self, seed: int | None) -> None:
        self.seed = seed
        self.stage = Stage.GENERATING

    def was_generated(self, result: GenerationResult, generation_s: float) -> Action:
        has_tokens = result.token_ids is not None and self.tokens.turns > len(self.turns)
        if has_tokens:
            logprobs = None if result.token_logprobs is None else [p.logprob for p in result.token_logprobs]
            self.tokens.end_turn(result.token_ids or (), logprobs)
        self.sampled_tokens += result.completion_tokens
        self.turns.append(
            Turn(
                messages=self.new_messages,
                result=_without_tokens(result) if has_tokens else result,
                seed=self.seed,
                generation_s=generation_s,
                lost_tokens=self.lost_tokens,
                loss=self.loss,
                tokens=self.tokens if has_tokens else None,
                index=len(self.turns),
            )
        )
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
            if self.turns[-1].result.finish_reason is StopReason.MAX_TOKENS:
                self.was_truncated(self._cut_by())
            else:
                self._end(Ending.FINISHED)
        elif result.truncated:
            self.was_truncated(Limit.MAX_STEPS if self.steps >= self.max_steps else Limit.ENVIRONMENT)
        elif self.steps >= self.max_steps:
            self.was_truncated(Limit.MAX_STEPS)

    def was_truncated(self, limit: Limit) -> None:
        """The trajectory may not go on; it keeps its turns and what they earned."""
        self.truncated_by = limit
        self._end(Ending.TRUNCATED)

    def has_failed(self, error: Exception, phase: Phase) -> None:
        self.failure = Failure.from_exception(error, phase, self.steps)
        self.error = error
        self._end(Ending.FAILED)

    def _cut_by(self) -> Limit:
        """The limit that the last turn, which sampled all that it might, ran into."""
        result = self.turns[-1].result
        return self.budgets.cut_by(self.sampled_tokens - result.completion_tokens, self.prompt_length)

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
            truncated_by=self.truncated_by,
            tokens=self.tokens if self.tokens.turns else None,
        )


def _without_tokens(result: GenerationResult) -> GenerationResult:
    """The result without what the columns hold. Log-probabilities stay where they have alternatives."""
    entries = result.token_logprobs
    alternatives = bool(entries) and any(len(e.top_logprobs or ()) > 1 for e in entries or ())
    return replace(result, prompt_ids=None, token_ids=None, token_logprobs=entries if alternatives else None)
