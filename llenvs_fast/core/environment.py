"""The contract between an environment and everything that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from llenvs_fast.core.reward import RewardFunction, SignalBundle

if TYPE_CHECKING:
    from llenvs_fast.core.state import Action, State
    from llenvs_fast.core.tools import ToolDefinition


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """What an environment says of itself.

    `max_steps=None` means that the environment sets no limit of its own. `pure_step` promises that `step` is a function
    of (state, action) alone, so any earlier state may be stepped, from any thread, any number of times.
    """

    name: str
    adapter: str = ""
    max_steps: int | None = None
    observation_type: type | None = None
    action_type: type | None = None
    is_multi_turn: bool = False
    supports_task_index: bool = True
    supports_len: bool = True
    supports_seed: bool = True
    pure_step: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one action led to.

    `extracted_action` is the text that the answer extractor pulled out of the action, `resolved_action` the native
    action that the environment really executed; None where there is no such thing.
    """

    next_state: State
    rewards: SignalBundle
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    extracted_action: str | None = None
    resolved_action: str | None = None

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


@runtime_checkable
class Environment(Protocol):
    """A stateless world: `reset` makes a first state, `step` maps (state, action) to a result.

    `reset` honours the options `task_index` (int) and `episode_id` (str). Optional methods, used where they exist:
    `__len__`; `close()`; `reset_batch(options)` and `step_batch(states, actions)` (see `BatchEnvironment`).
    """

    @property
    def spec(self) -> EnvironmentSpec: ...

    @property
    def reward_functions(self) -> tuple[RewardFunction, ...]: ...

    @property
    def available_tools(self) -> tuple[ToolDefinition, ...]: ...

    @property
    def prompts(self) -> dict[str, str]: ...

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[State, dict[str, Any]]: ...

    def step(self, state: State, action: Action) -> StepResult: ...

    def compute_rewards(self, state: State, action: Action, next_state: State) -> SignalBundle: ...


@runtime_checkable
class BatchEnvironment(Protocol):
    """An environment that takes many resets or steps in one call.

    The returned lists are aligned with the arguments. A slot that failed holds the exception instead of a result, so
    that one bad action costs nobody else anything.
    """

    def reset_batch(
        self, options: Sequence[dict[str, Any]]
    ) -> list[tuple[State, dict[str, Any]] | Exception]: ...

    def step_batch(self, states: Sequence[State], actions: Sequence[Action]) -> list[StepResult | Exception]: ...
