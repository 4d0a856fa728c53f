"""Who generates next. Pure: facts come in, positions come out.

`packed` admits whenever there is room: trajectories that return from their environment first (their KV blocks are
resident), then parked ones, then new ones in order, so that samples of one task start together and share their prompt.
`lockstep` is turn-synchronous: it waits until every live trajectory is ready and then lets all of them generate at
once.

Where those that return don't fit (they have grown more than was foreseen), they wait for others to end; where too few
run for that, the shortest of them is parked: it gives up its blocks, and returns before any new one is admitted.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from llenvs_fast.engine.residency import ResidencyPlanner
from llenvs_fast.engine.rollout import Rollout

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
    """A trajectory whose next prompt stands ready: `ids`, of which its context had the first `kept` before.

    `turns` are behind it; with none it is new. The turn may sample `max_tokens`; the prompt is `grown` tokens longer
    than the last one.
    """

    position: int
    ids: array[int] | Sequence[int]
    max_tokens: int
    turns: int = 0
    kept: int = 0
    grown: int = 0


def candidate_of(rollout: Rollout) -> Candidate:
    """The rollout's next prompt, which stands ready. `ids` is its context itself, not a copy."""
    return Candidate(
        position=rollout.spec.position,
        ids=rollout.tokens.context,
        max_tokens=rollout.max_tokens,
        turns=len(rollout.turns),
        kept=rollout.kept,
        grown=rollout.grown,
    )


class Scheduler:
    """Queues of ready trajectories and the rule that picks from them.

    `max_live` bounds live trajectories, from their first prompt to their end; None leaves it to the planner and to the
    number of sequences that the engine runs at once. `parkings` counts trajectories that had to give up their blocks,
    `parked_tokens` those blocks' tokens.
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
        self.parkings = 0
        self.parked_tokens = 0
        self._returning: deque[Candidate] = deque()
        self._parked: deque[Candidate] = deque()
        self._new: deque[Candidate] = deque()
        self._live: set[int] = set()
        self._refused = False  # nobody new fitted, and nothing has changed since

    @property
    def waiting(self) -> int:
        return len(self._returning) + len(self._parked) + len(self._new)

    @property
    def parked(self) -> int:
        return len(self._parked)

    @property
    def live(self) -> int:
        return len(self._live)

    def offer(self, candidate: Candidate) -> None:
        (self._returning if candidate.turns else self._new).append(candidate)
        if candidate.turns and self.planner is not None:
            self.planner.life.went_on(candidate.turns, max(candidate.grown, 0))

    def pick(self, facts: Facts) -> list[int]:
        """Positions to submit now."""
        if self.schedule is Schedule.LOCKSTEP:
            return self._pick_all(facts)
        room = self._sequences() - facts.generating
        picked: list[int] = []
        blocked = False
        while self._returning and room > len(picked) and not blocked:
            blocked = not self._resumes(self._returning[0], facts)
            if not blocked:
                picked.append(self._returning.popleft().position)
        if blocked:
            return [*picked, *self._unblocked(facts.generating + len(picked), facts)]
        while self._parked and room > len(picked) and self._admits(self._parked[0], facts):
            picked.append(self._parked.popleft().position)
        while not self._parked and self._new and room > len(picked) and self._admits(self._new[0], facts):
            picked.append(self._new.popleft().position)
        return picked

    def turn_ended(self, position: int, token_ids: Sequence[int], last: bool) -> None:
        """A turn was generated. After the `last` one the trajectory needs its cache no longer."""
        self._refused = False
        if self.planner is None:
            return
        self.planner.growth.turn_ended(len(token_ids))
        if last:
            self.planner.release(position)
        else:
            self.planner.turn_ended(position, token_ids)

    def ended(self, position: int, turns: int = 0) -> None:
        """The trajectory has ended, wherever it stood, after so many turns."""
        self._live.discard(position)
        self._refused = False
        if self.planner is not None:
            self.planner.release(position)
            if turns:
                self.planner.life.is_over(turns)

    # inside ----------------------------------------------------------------------------------------------------------

    def _pick_all(self, facts: Facts) -> list[int]:
        if facts.generating or facts.resetting or facts.stepping:
            return []
        picked = [c.position for c in self._returning]
        for candidate in self._returning:
            self._resumes(candidate, facts, force=True)
        self._returning.clear()
        while self._new and self._admits(self._new[0], facts):
            picked.append(self._new.popleft().position)
        return picked

    def _sequences(self) -> int:
        limits = [self.max_live, self.planner.capacity.max_sequences if self.planner else None]
        return min((n for n in limits if n is not None), default=_NO_LIMIT)

    def _resumes(self, c: Candidate, facts: Facts, force: bool = False) -> bool:
        if self.planner is None:
            return True
        return self.planner.resume(c.position, c.kept, c.ids, c.max_tokens, facts.oldest_running_tokens, force)

    def _unblocked(self, running: int, facts: Facts) -> list[int]:
        """Make room for those that return where too few run for others to do so: park, or run the only one alone."""
        assert self.planner is not None
        while len(self._returning) > 1 and 2 * running < len(self._returning):
            shortest = min(range(1, len(self._returning)), key=lambda i: len(self._returning[i].ids))
            candidate = self._returning[shortest]
            del self._returning[shortest]
            self.parkings += 1
            self.parked_tokens += candidate.kept
            self.planner.release(candidate.position)
            self._parked.append(candidate)
            if self._resumes(self._returning[0], facts):
                return [self._returning.popleft().position]
        if not running and not facts.stepping:
            self._resumes(self._returning[0], facts, force=True)
            return [self._returning.popleft().position]
        return []

    def _admits(self, c: Candidate, facts: Facts) -> bool:
        parked = bool(c.turns)
        if not parked and self.max_live is not None and self.live >= self.max_live:
            return False
        if self.planner is not None:
            if self._refused and self.planner.resident:
                return False
            if not self.planner.admit(c.position, c.ids, c.max_tokens, facts.oldest_running_tokens, c.turns):
                self._refused = True
                return False
        self._live.add(c.position)
        return True
