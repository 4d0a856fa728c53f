"""Rewards: named signals, and the bundle of them that one step returns.

A signal without a number (`reward=None`) carries feedback only: it is never counted as 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from llenvs_fast.core.extraction import AnswerExtractor
    from llenvs_fast.core.state import Action, State


class RewardType(Enum):
    """What a signal judges: the result, every step, the format of the answer, or the way it was reached."""

    OUTCOME = auto()
    STEP = auto()
    FORMAT = auto()
    PROCESS = auto()


@dataclass(frozen=True, slots=True)
class Signal:
    """One named reward or piece of feedback. `weight` scales it in `SignalBundle.total` only."""

    name: str
    reward_type: RewardType
    reward: float | None = None
    feedback: str | None = None
    metadata: dict[str, Any] | None = None
    weight: float = 1.0

    @property
    def value(self) -> float | None:
        """Older name of `reward`."""
        return self.reward


@dataclass(frozen=True, slots=True)
class SignalBundle:
    """All signals of one step, in the order in which the environment gave them."""

    signals: tuple[Signal, ...] = ()

    @classmethod
    def single(
        cls, reward: float | None, name: str = "reward", reward_type: RewardType = RewardType.OUTCOME
    ) -> SignalBundle:
        return cls((Signal(name=name, reward_type=reward_type, reward=reward),))

    @classmethod
    def empty(cls) -> SignalBundle:
        return cls()

    @property
    def total(self) -> float:
        """Sum of `reward * weight` over the signals that have a number; 0.0 where none has."""
        return float(sum(s.reward * s.weight for s in self.signals if s.reward is not None))

    def by_type(self, reward_type: RewardType) -> tuple[Signal, ...]:
        return tuple(s for s in self.signals if s.reward_type is reward_type)

    def by_name(self, name: str) -> Signal | None:
        """The first signal of that name, or None."""
        return next((s for s in self.signals if s.name == name), None)

    def numeric_signals(self) -> tuple[Signal, ...]:
        return tuple(s for s in self.signals if s.reward is not None)

    def feedback_texts(self) -> tuple[str, ...]:
        return tuple(s.feedback for s in self.signals if s.feedback is not None)


RewardSignal = Signal
RewardBundle = SignalBundle


@runtime_checkable
class RewardFunction(Protocol):
    """A reward computed from one step, added to an environment with `extra_rewards=(...)`."""

    @property
    def name(self) -> str: ...

    @property
    def reward_type(self) -> RewardType: ...

    def compute(self, state: State, action: Action, next_state: State) -> Signal: ...


@dataclass
class StepPenalty:
    """A small negative reward on every step, so that solving a task in fewer turns pays.

    `penalty` is positive and is negated in the signal.
    """

    penalty: float = 0.1
    _name: str = "step_penalty"
    _reward_type: RewardType = RewardType.STEP
    _weight: float = 1.0

    @property
    def name(self) -> str:
        return self._name

    @property
    def reward_type(self) -> RewardType:
        return self._reward_type

    def compute(self, state: State, action: Action, next_state: State) -> Signal:
        return Signal(
            name=self._name,
            reward_type=self._reward_type,
            reward=-self.penalty,
            metadata={"step": next_state.metadata.step},
            weight=self._weight,
        )


@dataclass
class FormatReward:
    """1.0 where the extractor finds an answer in the action's text, else 0.0."""

    answer_extractor: AnswerExtractor
    _name: str = "format"
    _reward_type: RewardType = RewardType.FORMAT
    _weight: float = 1.0

    @property
    def name(self) -> str:
        return self._name

    @property
    def reward_type(self) -> RewardType:
        return self._reward_type

    def compute(self, state: State, action: Action, next_state: State) -> Signal:
        answer, extraction = self.answer_extractor.extract(action.text or "")
        return Signal(
            name=self._name,
            reward_type=self._reward_type,
            reward=0.0 if answer is None else 1.0,
            metadata={"extraction": extraction},
            weight=self._weight,
        )
