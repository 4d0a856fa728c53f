"""Who may be live at once: the KV cache's blocks, counted before they are used.

vLLM evicts least-recently-used blocks, so with more live trajectories than the cache holds it recomputes nearly
everything each turn. The planner keeps the sum of *distinct* blocks of all live trajectories (shared prompts counted
once, by the prefix tree) and of the growth still to come under the capacity. It decides only; no engine is touched.
"""

from __future__ import annotations

import bisect

import numpy as np

from llenvs_fast.inference.protocol import KVCapacity
from llenvs_fast.tokens.prefix_tree import PrefixTree


class GrowthEstimate:
    """How many tokens a turn adds, learned from the turns that ended.

    Safe at the start: `max_tokens` is assumed until `SAFE_TURNS` turns have ended. Short turns end first, so an
    estimate is never less than the age (in generated tokens) of the oldest turn still running.
    """

    SAFE_TURNS = 32
    QUANTILE = 0.95
    WINDOW = 4096

    def __init__(self) -> None:
        self._sorted: list[int] = []
        self._order: list[int] = []

    def turn_ended(self, tokens: int) -> None:
        bisect.insort(self._sorted, tokens)
        self._order.append(tokens)
        if len(self._order) > 2 * self.WINDOW:  # forget the older half at once: amortised O(log n) a turn
            self._order = self._order[-self.WINDOW :]
            self._sorted = sorted(self._order)

    def tokens(self, max_tokens: int, oldest_running: int = 0) -> int:
        if len(self._sorted) < self.SAFE_TURNS:
            return max_tokens
        likely = self._sorted[int(self.QUANTILE * (len(self._sorted) - 1))]
        return min(max_tokens, max(likely, oldest_running) + 1)


class ResidencyPlanner:
    """Admits trajectories while the KV cache holds everyone that is live.

    A live trajectory owns its blocks from `admit` to `release`; while it generates, it also reserves the blocks that
    its turn may grow by.
    """

    def __init__(self, capacity: KVCapacity) -> None:
        self.capacity = capacity
        self.tree = PrefixTree(capacity.block_tokens)
        self._growth: dict[int, int] = {}
        self._reserved = 0

    @property
    def planned_blocks(self) -> int:
        """Distinct blocks of the live trajectories plus the growth reserved for their running turns."""
        return self.tree.distinct_blocks + self._reserved

    @property
    def live(self) -> int:
        return len(self.tree)

    def admit(self, position: int, ids: tuple[int, ...], growth_tokens: int) -> bool:
        """Make a trajectory live where it fits. The first one always does: alone it can't disturb anybody."""
        array = np.asarray(ids, dtype=np.int32)
        growth = self._growth_blocks(len(ids), growth_tokens)
        if self.live and self.planned_blocks + self.tree.blocks_needed(array) + growth > self.capacity.blocks:
            return False
        self.tree.insert(position, array)
        self._reserve(position, growth)
        return True

    def resume(self, position: int, ids: tuple[int, ...], growth_tokens: int) -> None:
        """The next turn of a live trajectory starts with `ids`."""
        array = np.asarray(ids, dtype=np.int32)
        known = self.tree.length(position)
        if known <= len(ids) and np.array_equal(self.tree.tokens(position), array[:known]):
            self.tree.append(position, array[known:])
        else:
            self.tree.release(position)
            self.tree.insert(position, array)
        self._reserve(position, self._growth_blocks(len(ids), growth_tokens))

    def turn_ended(self, position: int, token_ids: tuple[int, ...]) -> None:
        """The running turn sampled `token_ids`; its reservation is over."""
        self._reserve(position, 0)
        self.tree.append(position, np.asarray(token_ids, dtype=np.int32))

    def release(self, position: int) -> None:
        """The trajectory needs its blocks no longer. Safe for one that is not live."""
        if position in self.tree:
            self._reserve(position, 0)
            self.tree.release(position)

    def _growth_blocks(self, length: int, tokens: int) -> int:
        size = self.capacity.block_tokens
        return -(-(length + tokens) // size) - -(-length // size)

    def _reserve(self, position: int, blocks: int) -> None:
        self._reserved += blocks - self._growth.pop(position, 0)
        if blocks:
            self._growth[position] = blocks
