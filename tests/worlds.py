"""Small real environments for tests: the simplest worlds in which the behaviour under test can be seen."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

from llenvs_fast.core.environment import EnvironmentSpec, StepResult
from llenvs_fast.core.reward import RewardType, Signal, SignalBundle
from llenvs_fast.core.state import Action, Observation, ObservationContent, State, StateMetadata


class World:
    """What the worlds below share: no tools, no prompts of their own, rewards given by `step`."""

    reward_functions = ()
    available_tools = ()
    prompts: ClassVar[dict[str, str]] = {}

    def compute_rewards(self, state: State, action: Action, next_state: State) -> SignalBundle:
        return SignalBundle.empty()


def first_state(prompt: str, hidden: Any, options: dict[str, Any], **observed: Any) -> State:
    episode = options.get("episode_id") or f"task-{options['task_index']}"
    return State(Observation(prompt, **observed), hidden, StateMetadata(0, episode))


def next_state(state: State, terminal: bool, observation: Observation | None = None) -> State:
    moved = State(observation or state.observation, state.hidden, state.metadata)
    return moved.with_metadata(step=state.metadata.step + 1, is_terminal=terminal)


@dataclass
class EchoWorld(World):
    """Task i asks to echo the number i; the reply is right where it is just that."""

    size: int = 10
    prompt: str = "echo {i}"

    @property
    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec("echo", max_steps=1, pure_step=True)

    def __len__(self) -> int:
        return self.size

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[State, dict[str, Any]]:
        i = (options or {})["task_index"]
        return first_state(self.prompt.format(i=i), i, options or {}), {"task_index": i}

    def step(self, state: State, action: Action) -> StepResult:
        right = (action.text or "").strip() == str(state.hidden)
        rewards = SignalBundle.single(float(right), name="correctness")
        return StepResult(next_state(state, terminal=True), rewards, terminated=True)


@dataclass
class LadderWorld(World):
    """`turns` turns; each observation names the next rung; every reply must repeat the rung it was shown."""

    turns: int = 3
    size: int = 10
    structured: bool = True

    @property
    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec("ladder", max_steps=self.turns + 5, is_multi_turn=True, pure_step=True)

    def __len__(self) -> int:
        return self.size

    def _observed(self, task: int, step: int, transcript: tuple[dict[str, Any], ...]) -> Observation:
        prompt, rung = f"climb ladder {task}", f"rung {step}"
        if self.structured:
            return Observation(prompt, task=ObservationContent(prompt), state=ObservationContent(rung))
        return Observation(f"{prompt}\n{rung}" if step == 0 else prompt + "\nrung 0", messages=transcript)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[State, dict[str, Any]]:
        i = (options or {})["task_index"]
        state = first_state("", i, options or {})
        return State(self._observed(i, 0, ()), i, state.metadata), {}

    def step(self, state: State, action: Action) -> StepResult:
        step = state.metadata.step + 1
        done = step >= self.turns
        said = {"role": "assistant", "content": action.text}
        seen = {"role": "user", "content": f"rung {step}"}
        observation = self._observed(state.hidden, step, (*state.observation.messages, said, seen))
        right = f"rung {state.metadata.step}" in (action.text or "")
        signal = Signal("climbed", RewardType.OUTCOME if done else RewardType.STEP, float(right))
        return StepResult(next_state(state, done, observation), SignalBundle((signal,)), terminated=done)


@dataclass
class FaultyWorld(EchoWorld):
    """An EchoWorld that does to some tasks what `resets` and `steps` say: raise an exception, call a function, or
    give the value as the reward."""

    resets: dict[int, Any] = field(default_factory=dict)
    steps: dict[int, Any] = field(default_factory=dict)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[State, dict[str, Any]]:
        fault = self.resets.get((options or {})["task_index"])
        if isinstance(fault, BaseException):
            raise fault
        return super().reset(seed=seed, options=options)

    def step(self, state: State, action: Action) -> StepResult:
        if state.hidden not in self.steps:
            return super().step(state, action)
        fault = self.steps[state.hidden]
        if isinstance(fault, BaseException):
            raise fault
        if callable(fault):
            return fault(state, action)
        return StepResult(next_state(state, terminal=True), SignalBundle.single(fault), terminated=True)


@dataclass
class SlowWorld(EchoWorld):
    """An EchoWorld whose step of task `slow` waits until `release` is set; counts steps that run at once."""

    slow: int = 0
    release: threading.Event = field(default_factory=threading.Event)
    stepped: list[int] = field(default_factory=list)

    def step(self, state: State, action: Action) -> StepResult:
        if state.hidden == self.slow:
            self.release.wait(30)
        self.stepped.append(state.hidden)
        return super().step(state, action)


@dataclass
class SleepyWorld(EchoWorld):
    """An EchoWorld whose every step takes `seconds`."""

    seconds: float = 0.01

    def step(self, state: State, action: Action) -> StepResult:
        time.sleep(self.seconds)
        return super().step(state, action)
