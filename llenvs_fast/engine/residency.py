"""Who may be live at once: the KV cache's blocks, counted before they are used.

vLLM evicts least-recently-used blocks, so with more live trajectories than the cache holds it recomputes nearly
everything each turn. The planner knows the *distinct* blocks of all live trajectories (shared prompts counted once, by
the prefix tree) and keeps two sums under the capacity: those blocks with what the running turns may still sample, and,
turn by turn into the future, what all live trajectories are expected to have grown to by then. It decides only; no
engine is touched.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llenvs_fast.engine.growth import GrowthEstimate, LifeForecast
from llenvs_fast.inference.protocol import KVCapacity
from llenvs_fast.tokens.prefix_tree import PrefixTree

Ids = Sequence[int]


class ResidencyPlanner:
    """Admits trajectories while the KV cache holds everyone that is live, now and later.

    A resident trajectory owns its blocks from `admit` to `release` or `park`. While a turn of it runs, the planner also
    reserves what that may sample. `admit` looks ahead; `resume` needs room for its own turn only.
    """

    def __init__(self, capacity: KVCapacity, max_turns: int | None = None) -> None:
        self.capacity = capacity
        self.tree = PrefixTree(capacity.block_tokens)
        self.growth = GrowthEstimate()
        self.life = LifeForecast(max_turns)
        self._running: dict[int, int] = {}  # reserved blocks of running turns
        self._reserved = 0
        self._turns: dict[int, int] = {}  # turns behind each resident trajectory
        self._had: dict[int, int] = {}  # and the blocks that it counts for below
        self._count = np.zeros(self.life.max_turns, dtype=np.int64)
        self._blocks = np.zeros(self.life.max_turns, dtype=np.int64)
        self._expected: NDArray[np.float64] | None = None  # by turns from now; None: not known since the last change

    @property
    def planned_blocks(self) -> int:
        """Distinct blocks of the resident trajectories plus the growth reserved for their running turns."""
        return self.tree.distinct_blocks + self.reserved_blocks

    @property
    def reserved_blocks(self) -> int:
        """What the running turns may still need: each its own share, or less where many make up for one another."""
        together = self.growth.tokens_of_many(len(self._running)) / self.capacity.block_tokens
        return min(self._reserved, int(min(together, self._reserved)) + len(self._running))

    @property
    def resident(self) -> int:
        return len(self.tree)

    def is_resident(self, position: int) -> bool:
        return position in self._turns

    def admit(self, position: int, ids: Ids, max_tokens: int, oldest_running: int = 0, turns: int = 0) -> bool:
        """Make a trajectory resident where it fits, to run its next turn; True where it does.

        The first one always is: alone it can't disturb anybody. `turns` are behind it already where it was parked.
        """
        growth = self._growth_blocks(len(ids), max_tokens, oldest_running)
        if self.resident:
            new = self.tree.blocks_needed(ids)
            if self.planned_blocks + new + growth > self.capacity.blocks:
                return False
            if not self._fits_later(new, turns, max_tokens):
                return False
        self.tree.insert(position, ids)
        self._reserve(position, growth)
        self._counts(position, turns)
        return True

    def resume(
        self, position: int, kept: int, ids: Ids, max_tokens: int, oldest_running: int = 0, force: bool = False
    ) -> bool:
        """Run the next turn of a resident trajectory where there is room for it, or by `force`; True where it does.

        `ids` is its whole next prompt, of which `kept` tokens stood in its context before.
        """
        growth = self._growth_blocks(len(ids), max_tokens, oldest_running)
        blocks = -(-len(ids) // self.capacity.block_tokens) - self.tree.blocks(position)
        if not force and self.planned_blocks + max(blocks, 0) + growth > self.capacity.blocks:
            return False
        if kept < self.tree.length(position):
            self.tree.truncate(position, kept)
        self.tree.append(position, ids[kept:] if isinstance(ids, array) else np.asarray(ids[kept:], dtype=np.int32))
        self._reserve(position, growth)
        self._counts(position, self._turns[position])
        return True

    def turn_ended(self, position: int, token_ids: Ids) -> None:
        """The running turn sampled `token_ids`; its reservation is over."""
        self._reserve(position, None)
        self.tree.append(position, np.asarray(token_ids, dtype=np.int32))
        self._counts(position, self._turns[position] + 1)

    def release(self, position: int) -> None:
        """The trajectory needs its blocks no longer. Safe for one that is not resident."""
        if position in self._turns:
            self._reserve(position, None)
            self._counts(position, None)
            self.tree.release(position)

    # inside ----------------------------------------------------------------------------------------------------------

    def _growth_blocks(self, length: int, max_tokens: int, oldest_running: int) -> int:
        size = self.capacity.block_tokens
        tokens = self.growth.tokens(max_tokens, oldest_running)
        return -(-(length + tokens) // size) - -(-length // size)

    def _reserve(self, position: int, blocks: int | None) -> None:
        self._reserved += (blocks or 0) - self._running.pop(position, 0)
        if blocks is not None:
            self._running[position] = blocks

    def _counts(self, position: int, turns: int | None) -> None:
        """Count a resident trajectory under its turns, with its blocks as they are now; None: no longer."""
        before = self._turns.pop(position, None)
        if before is not None:
            row = min(before, self.life.max_turns - 1)
            self._count[row] -= 1
            self._blocks[row] -= self._had.pop(position)
        if turns is not None:
            row = min(turns, self.life.max_turns - 1)
            self._turns[position] = turns
            self._had[position] = blocks = self.tree.blocks(position)
            self._count[row] += 1
            self._blocks[row] += blocks
        self._expected = None

    def _fits_later(self, new_blocks: int, turns: int, max_tokens: int) -> bool:
        """Whether the expected blocks of all, the new one among them, stay under the capacity turn after turn."""
        alive = self.life.alive()
        a_turn = self.life.added_tokens(max_tokens) / self.capacity.block_tokens
        added = a_turn * np.arange(1, self.life.max_turns + 1)
        if self._expected is None:
            counted = int(self._blocks.sum())
            shared = self.tree.distinct_blocks / counted if counted else 1.0  # siblings hold some of them together
            self._expected = shared * (self._blocks @ alive) + (self._count @ alive) * added
        its_own = alive[min(turns, self.life.max_turns - 1)] * (new_blocks + added)
        later = self._expected[1:] + its_own[1:]
        return not later.size or float(later.max()) <= self.capacity.blocks
