"""Who generates next. Pure: facts come in, positions come out.

`packed` admits whenever there is room: trajectories that return from their environment first (their KV blocks are
resident), then new ones in order, so that samples of one task start together and share their prompt. `lockstep` is
turn-synchronous: it waits until every live trajectory is ready and then lets all of them generate at once.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from llenvs_fast.engine.residency import GrowthEstimate, ResidencyPlanner

_NO_LIMIT = 1 << 60


class Schedule(StrEnum):
    PACKED = "packed"
    LOCKSTEP = "lockstep"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the scheduler may know of the moment: counts of trajectories by stage, and tokens of the oldest turn."""

    generating: int
    resetting: int
    stepping: int
    oldest_running_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A trajectory whose next prompt stands ready. `live` ones have generated before."""

    position: int
    ids: tuple[int, ...]
    max_tokens: int
    live: bool


class Scheduler:
    """Queues of ready trajectories and the rule that picks from them.

    `max_live` bounds live trajectories, from their first prompt to their end; None leaves it to the planner and to the
    number of sequences that the engine runs at once.
    """

    def __init__(
        self,
        schedule: Schedule = Schedule.PACKED,
        max_live: int | None = None,
        planner: ResidencyPlanner | None = None,
    ) -> None:
        self.schedule = schedule
        self.max_live = max_live
        self.planner = planner
        self.growth = GrowthEstimate()
        self._returning: deque[Candidate] = deque()
        self._new: deque[Candidate] = deque()
        self._live: set[int] = set()

    @property
    def waiting(self) -> int:
        return len(self._returning) + len(self._new)

    @property
    def live(self) -> int:
        return len(self._live)

    def offer(self, candidate: Candidate) -> None:
        (self._returning if candidate.live else self._new).append(candidate)

    def pick(self, facts: Facts) -> list[int]:
        """Positions to submit now."""
        lockstep = self.schedule is Schedule.LOCKSTEP
        if lockstep and (facts.generating or facts.resetting or facts.stepping):
            return []
        room = _NO_LIMIT if lockstep else self._sequences() - facts.generating
        picked: list[int] = []
        while self._returning and room > len(picked):
            candidate = self._returning.popleft()
            if self.planner is not None:
                self.planner.resume(candidate.position, candidate.ids, self._growth_of(candidate, facts))
            picked.append(candidate.position)
        while self._new and room > len(picked) and self._admits(self._new[0], facts):
            picked.append(self._new.popleft().position)
        return picked

    def turn_ended(self, position: int, token_ids: tuple[int, ...], last: bool) -> None:
        """A turn was generated. After the `last` one the trajectory needs its cache no longer."""
        self.growth.turn_ended(len(token_ids))
        if self.planner is not None:
            if last:
                self.planner.release(position)
            else:
                self.planner.turn_ended(position, token_ids)

    def ended(self, position: int) -> None:
        """The trajectory has ended, wherever it stood."""
        self._live.discard(position)
        if self.planner is not None:
            self.planner.release(position)

    def _sequences(self) -> int:
        limits = [self.max_live, self.planner.capacity.max_sequences if self.planner else None]
        return min((n for n in limits if n is not None), default=_NO_LIMIT)

    def _admits(self, candidate: Candidate, facts: Facts) -> bool:
        if self.max_live is not None and self.live >= self.max_live:
            return False
        if self.planner is not None and not self.planner.admit(
            candidate.position, candidate.ids, self._growth_of(candidate, facts)
        ):
            return False
        self._live.add(candidate.position)
        return True

    def _growth_of(self, candidate: Candidate, facts: Facts) -> int:
        return self.growth.tokens(candidate.max_tokens, facts.oldest_running_tokens)
