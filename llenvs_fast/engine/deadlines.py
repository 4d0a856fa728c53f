"""Turns in the backend, and which of them have run for too long. Pure: the clock comes in as an argument."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.engine.budgets import Limit
from llenvs_fast.engine.rollout import Rollout

_LOOK_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class InFlight:
    """A turn in the backend: whose it is, and when it was submitted, on the clock and in engine steps.

    `reusable` is how many tokens of its prompt the prefix cache could at most have.
    """

    rollout: Rollout
    submitted_at: float
    submitted_step: int
    reusable: int


class Deadlines:
    """Seconds that one generation, and a trajectory from its first generation on, may take. None: for ever."""

    def __init__(self, turn_timeout_s: float | None, trajectory_timeout_s: float | None) -> None:
        for name, value in (("turn_timeout_s", turn_timeout_s), ("trajectory_timeout_s", trajectory_timeout_s)):
            if value is not None and not value > 0:
                raise InvalidSettingError(f"{name}={value!r}: give seconds above 0, or None")
        self.turn_timeout_s = turn_timeout_s
        self.trajectory_timeout_s = trajectory_timeout_s
        self._late: dict[Hashable, Limit] = {}
        self._next_look = 0.0

    def has_passed(self, rollout: Rollout, now: float) -> bool:
        """Whether the trajectory may not begin another turn."""
        limit = self.trajectory_timeout_s
        return limit is not None and rollout.opened_at > 0.0 and now - rollout.opened_at > limit

    def late(self, generating: Mapping[Hashable, InFlight], now: float) -> list[Hashable]:
        """Keys of the turns to take back, each once. Looks a few times a second, however often it is called."""
        if (self.turn_timeout_s is None and self.trajectory_timeout_s is None) or now < self._next_look:
            return []
        self._next_look = now + _LOOK_EVERY_S
        found: dict[Hashable, Limit] = {}
        for key, turn in generating.items():
            if self.turn_timeout_s is not None and now - turn.submitted_at > self.turn_timeout_s:
                found[key] = Limit.TURN_TIMEOUT
            elif self.has_passed(turn.rollout, now):
                found[key] = Limit.TRAJECTORY_TIMEOUT
        new = [key for key in found if key not in self._late]
        self._late |= {key: found[key] for key in new}
        return new

    def limit_of(self, key: Hashable) -> Limit | None:
        """The deadline for which a turn was taken back; asked once, when it comes back."""
        return self._late.pop(key, None)
