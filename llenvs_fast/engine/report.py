"""What a run did, and how it stands: its report and its pulse."""

from __future__ import annotations

from dataclasses import dataclass, field

from llenvs_fast.engine.rollout import Rollout, Stage
from llenvs_fast.inference.protocol import EngineFigures


@dataclass(slots=True)
class LoopReport:
    """What the loop did and where its time went.

    `generating_s` is time inside the backend, `stepping_s` time with nothing to do but wait for environments,
    `environment_s` the workers' own busy time (beside the engine), `host_s` the rest of `wall_s`, of which
    `planning_s` went to scheduler, planner and prefix tree.

    Of the turns after the first: `later_prompt_tokens` were read, `later_cached_tokens` of them came from the prefix
    cache (None where the backend doesn't tell), and `later_reusable_tokens` is what whole blocks of the earlier context
    could at most have given. `lost_tokens` counts tokens of earlier context that were not kept, by cause.
    """

    reported: int = 0
    wall_s: float = 0.0
    generating_s: float = 0.0
    stepping_s: float = 0.0
    environment_s: float = 0.0
    planning_s: float = 0.0
    later_prompt_tokens: int = 0
    later_cached_tokens: int | None = None
    later_reusable_tokens: int = 0
    lost_tokens: dict[str, int] = field(default_factory=dict)
    peak_live: int = 0
    parkings: int = 0
    interrupted: bool = False
    engine_error: Exception | None = None
    figures: EngineFigures = field(default_factory=EngineFigures)

    @property
    def host_s(self) -> float:
        return max(0.0, self.wall_s - self.generating_s - self.stepping_s)

    @property
    def reuse_lost_tokens(self) -> int:
        return sum(self.lost_tokens.values())

    @property
    def hit_rate_of_bound(self) -> float | None:
        """Cached tokens of later turns over what block arithmetic allows; None where nothing could be had."""
        if self.later_cached_tokens is None or not self.later_reusable_tokens:
            return None
        return self.later_cached_tokens / self.later_reusable_tokens

    def lost(self, cause: str, tokens: int) -> None:
        if tokens:
            self.lost_tokens[cause] = self.lost_tokens.get(cause, 0) + tokens

    def later_turn(self, prompt: int, cached: int | None, reusable: int) -> None:
        """Count a turn after the first."""
        self.later_prompt_tokens += prompt
        self.later_reusable_tokens += reusable
        if cached is not None:
            self.later_cached_tokens = (self.later_cached_tokens or 0) + cached


@dataclass(frozen=True, slots=True)
class Oldest:
    """The trajectory that has been live the longest: which, at which turn (from 1), what it is doing, since when."""

    task_index: int
    sample: int
    turn: int
    stage: Stage
    live_s: float

    @classmethod
    def of(cls, rollout: Rollout, now: float) -> Oldest:
        spec = rollout.spec
        turn = len(rollout.turns) + (rollout.stage in (Stage.READY, Stage.GENERATING))
        return cls(spec.task_index, spec.sample, turn, rollout.stage, now - rollout.opened_at)

    def __str__(self) -> str:
        doing = self.stage.name.lower()
        return f"task {self.task_index}/{self.sample} in turn {self.turn}, {doing}, live for {self.live_s:,.0f} s"


@dataclass(frozen=True, slots=True)
class Pulse:
    """The moment, for whoever watches: counts of trajectories by stage, and the oldest live one."""

    reported: int
    resetting: int
    ready: int
    generating: int
    stepping: int
    completion_tokens: int
    parked: int = 0
    oldest: Oldest | None = None
