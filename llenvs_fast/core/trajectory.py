"""Trajectories: the transitions from a first state on, with named checkpoints to branch from."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from llenvs_fast.core.reward import SignalBundle
from llenvs_fast.core.state import Action, State


@dataclass(frozen=True, slots=True)
class Transition:
    """One step. `info["generation"]` holds the model's side, `info["step"]` the environment's."""

    state: State
    action: Action
    next_state: State
    rewards: SignalBundle
    info: dict[str, Any] = field(default_factory=dict)
    extracted_action: str | None = None
    resolved_action: str | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    name: str
    trajectory_id: str
    step_index: int
    state: State


class Trajectory:
    """A growing list of transitions that starts at `initial_state`."""

    __slots__ = ("_checkpoints", "_transitions", "episode_id", "initial_state", "parent_id")

    def __init__(self, episode_id: str, initial_state: State) -> None:
        self.episode_id = episode_id
        self.initial_state = initial_state
        self.parent_id: str | None = None
        self._transitions: list[Transition] = []
        self._checkpoints: dict[str, Checkpoint] = {}

    @classmethod
    def create(cls, initial_state: State) -> Trajectory:
        return cls(initial_state.metadata.episode_id, initial_state)

    def add_transition(self, transition: Transition) -> None:
        self._transitions.append(transition)

    def checkpoint(self, name: str) -> Checkpoint:
        """Name the current state. Raises ValueError where the name is taken."""
        if name in self._checkpoints:
            raise ValueError(f"checkpoint {name!r} exists already in trajectory {self.episode_id!r}: use another name")
        self._checkpoints[name] = Checkpoint(name, self.episode_id, len(self), self.current_state)
        return self._checkpoints[name]

    def branch(self, name: str) -> Trajectory:
        """A new trajectory with the transitions up to the checkpoint. Raises KeyError for an unknown name."""
        if name not in self._checkpoints:
            raise KeyError(f"no checkpoint {name!r} in trajectory {self.episode_id!r}: it has {[*self._checkpoints]}")
        branch = Trajectory(str(uuid.uuid4()), self.initial_state)
        branch.parent_id = self.episode_id
        branch._transitions = self._transitions[: self._checkpoints[name].step_index]
        return branch

    def state_at(self, index: int) -> State:
        """State before step `index`; 0 is the initial state, `len(self)` the current one. Raises IndexError outside."""
        if not 0 <= index <= len(self):
            raise IndexError(f"state {index} of a trajectory with {len(self)} transitions: use 0 to {len(self)}")
        return self.initial_state if index == 0 else self._transitions[index - 1].next_state

    @property
    def current_state(self) -> State:
        return self._transitions[-1].next_state if self._transitions else self.initial_state

    @property
    def transitions(self) -> tuple[Transition, ...]:
        return tuple(self._transitions)

    @property
    def last_transition(self) -> Transition | None:
        return self._transitions[-1] if self._transitions else None

    @property
    def checkpoints(self) -> dict[str, Checkpoint]:
        return dict(self._checkpoints)

    @property
    def total_reward(self) -> float:
        """Sum over the transitions of `rewards.total`, undiscounted."""
        return float(sum(t.rewards.total for t in self._transitions))

    @property
    def is_terminal(self) -> bool:
        return self.current_state.metadata.is_terminal

    def __len__(self) -> int:
        return len(self._transitions)

    def __repr__(self) -> str:
        return f"Trajectory({self.episode_id!r}, {len(self)} transitions, total_reward={self.total_reward:g})"
