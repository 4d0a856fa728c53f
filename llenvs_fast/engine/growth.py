"""How long turns and trajectories become, learned from those that have ended. Pure: numbers in, numbers out.

Both estimates are safe at the start, when nothing is known, and wary of what is known first: short ones end first.
"""

from __future__ import annotations

import bisect
import math

import numpy as np
from numpy.typing import NDArray

HORIZON_TURNS = 256


class GrowthEstimate:
    """How many tokens a turn samples.

    `max_tokens` is assumed until `SAFE_TURNS` turns have ended, and never less than the age (in generated tokens) of
    the oldest turn still running.
    """

    SAFE_TURNS = 32
    QUANTILE = 0.95
    WINDOW = 4096
    SPREAD = 4.0  # standard deviations that the sum over many turns is held to

    def __init__(self) -> None:
        self._sorted: list[int] = []
        self._order: list[int] = []
        self._sum = 0
        self._squares = 0

    def turn_ended(self, tokens: int) -> None:
        bisect.insort(self._sorted, tokens)
        self._order.append(tokens)
        self._sum += tokens
        self._squares += tokens * tokens
        if len(self._order) > 2 * self.WINDOW:  # forget the older half at once: amortised O(log n) a turn
            self._order = self._order[-self.WINDOW :]
            self._sorted = sorted(self._order)
            self._sum, self._squares = sum(self._order), sum(n * n for n in self._order)

    @property
    def is_known(self) -> bool:
        return len(self._sorted) >= self.SAFE_TURNS

    @property
    def mean(self) -> float:
        return self._sum / max(len(self._order), 1)

    def tokens(self, max_tokens: int, oldest_running: int = 0) -> int:
        """What one turn is to be given room for."""
        if not self.is_known:
            return max_tokens
        likely = self._sorted[int(self.QUANTILE * (len(self._sorted) - 1))]
        return min(max_tokens, max(likely, oldest_running) + 1)

    def tokens_of_many(self, turns: int) -> float:
        """What so many running turns are likely to sample together, or infinity where too few have ended to say.

        The sum of n independent lengths: n times the mean, and `SPREAD` times the standard deviation of the sum.
        """
        n = len(self._order)
        if n < max(4 * turns, 4 * self.SAFE_TURNS):
            return math.inf
        variance = max(self._squares / n - self.mean**2, 0.0)
        return turns * self.mean + self.SPREAD * math.sqrt(turns * variance)


class LifeForecast:
    """How many turns a trajectory goes on for, and how many tokens each adds.

    `hazard[j]` is the chance that a trajectory which has had j turns is over, from the counts of those that were over
    and those that went on (the product-limit estimate: Kaplan and Meier 1958), held to a prior where counts are few:
    none ends before `PRIOR_TURNS` turns, then one in `PRIOR_TURNS`, and all do at `max_turns`.
    """

    PRIOR_TURNS = 8
    PRIOR_WEIGHT = 4.0
    SAFE_TURNS = 32
    REFRESH = 64  # events between two looks at the counts

    def __init__(self, max_turns: int | None = None) -> None:
        self.max_turns = HORIZON_TURNS if max_turns is None else max(1, min(max_turns, HORIZON_TURNS))
        self._over = np.zeros(self.max_turns + 1)
        self._went_on = np.zeros(self.max_turns + 1)
        turns = np.arange(self.max_turns + 1)
        self._prior = np.where(turns < min(self.PRIOR_TURNS, self.max_turns), 0.0, 1.0 / self.PRIOR_TURNS)
        self._added = 0
        self._added_turns = 0
        self._events = 0
        self._looked = -1
        self._survival = self._alive = np.empty(0)

    def went_on(self, turns: int, added_tokens: int) -> None:
        """A trajectory goes on after so many turns; its context grew by so many tokens since the turn before."""
        self._went_on[min(turns, self.max_turns)] += 1
        self._added += added_tokens
        self._added_turns += 1
        self._events += 1

    def is_over(self, turns: int) -> None:
        """A trajectory was over after so many turns."""
        self._over[min(turns, self.max_turns)] += 1
        self._events += 1

    def added_tokens(self, prior: int) -> float:
        """Tokens that a turn adds to the context on average; `prior` while too few are known."""
        return prior if self._added_turns < self.SAFE_TURNS else self._added / self._added_turns

    def alive(self) -> NDArray[np.float64]:
        """Shape (max_turns, max_turns): the chance that a trajectory with t turns behind it is there for the s-th next.

        The next one (s = 0) is certain: it runs, or is about to.
        """
        if self._looked < 0 or self._events - self._looked >= self.REFRESH:
            self._look()
        return self._alive

    def _look(self) -> None:
        self._looked = self._events
        seen = self._over + self._went_on
        hazard = (self._over + self.PRIOR_WEIGHT * self._prior) / (seen + self.PRIOR_WEIGHT)
        hazard[self.max_turns] = 1.0
        survival = np.ones(2 * self.max_turns + 1)
        survival[2 : self.max_turns + 2] = np.cumprod(1.0 - hazard[1:])
        survival[self.max_turns + 2 :] = 0.0
        turns = np.arange(self.max_turns)
        reached = survival[turns + 1]
        later = survival[turns[:, None] + 1 + turns[None, :]]
        with np.errstate(invalid="ignore", divide="ignore"):
            alive = np.where(reached[:, None] > 0.0, later / reached[:, None], 0.0)
        alive[:, 0] = 1.0
        self._alive = alive
