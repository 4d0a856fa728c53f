"""What a trajectory may use, and which limit ended it. Pure: numbers in, numbers out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from llenvs_fast.core.errors import InvalidSettingError, LLEnvsError


class Limit(StrEnum):
    """The limit that truncated a trajectory."""

    MAX_STEPS = "max_steps"
    MAX_TOKENS = "max_tokens"
    TRAJECTORY_TOKENS = "trajectory_tokens"
    CONTEXT = "context"
    TURN_TIMEOUT = "turn_timeout"
    TRAJECTORY_TIMEOUT = "trajectory_timeout"
    ENVIRONMENT = "environment"  # its own


class OverBudgetError(LLEnvsError):
    """A trajectory ran out of `limit` before its next turn, whose prompt has `tokens`: it is truncated, not failed."""

    kind = "over_budget"

    def __init__(self, limit: Limit, tokens: int) -> None:
        super().__init__(f"the trajectory has nothing left of {limit.value}")
        self.limit = limit
        self.tokens = tokens


@dataclass(frozen=True, slots=True)
class Budgets:
    """Tokens that may be sampled, in one turn and in a whole trajectory, and tokens that a context may hold.

    All are enforced before a turn is generated, so nothing generated is thrown away. None: no limit of that kind.
    """

    turn_tokens: int
    trajectory_tokens: int | None = None
    context_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("trajectory_tokens", "context_tokens"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InvalidSettingError(f"{name}={value!r}: give 1 or more, or None for no limit")

    def for_turn(self, sampled: int, context: int) -> int:
        """How many tokens the next turn may sample, after `sampled` ones in turns before, on a prompt of `context`.

        Raises OverBudgetError, naming the limit, where that is none.
        """
        room, _ = self._tightest(sampled, context)
        return room

    def cut_by(self, sampled: int, context: int) -> Limit:
        """The limit that cuts a turn which samples all that it may."""
        return self._tightest(sampled, context)[1]

    def _tightest(self, sampled: int, context: int) -> tuple[int, Limit]:
        left = [(self.turn_tokens, Limit.MAX_TOKENS)]
        if self.trajectory_tokens is not None:
            left.append((self.trajectory_tokens - sampled, Limit.TRAJECTORY_TOKENS))
        if self.context_tokens is not None:
            left.append((self.context_tokens - context, Limit.CONTEXT))
        room, limit = min(left, key=lambda pair: pair[0])
        if room < 1 and limit is not Limit.MAX_TOKENS:
            raise OverBudgetError(limit, context)
        return room, limit
