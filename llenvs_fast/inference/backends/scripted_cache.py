"""A KV cache of blocks, simulated: which prompt tokens an engine with prefix caching would not compute again.

A running sequence holds its blocks. Full blocks that nobody holds are kept until room is needed; then the least
recently used one goes. The blocks held and the blocks kept never exceed the capacity. Knows no engine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from llenvs_fast.inference.protocol import KVCapacity


@dataclass(slots=True)
class _Held:
    chain: list[int]  # hashes of the full blocks that are shared with whoever needs them
    private: int  # blocks that are not full yet, or not written yet


class ScriptedCache:
    def __init__(self, capacity: KVCapacity) -> None:
        self.capacity = capacity
        self._holders: dict[int, int] = {}  # block hash -> how many running sequences hold it
        self._idle: OrderedDict[int, None] = OrderedDict()  # kept blocks that nobody holds, oldest first
        self._private = 0
        self._sequences: dict[Hashable, _Held] = {}

    @property
    def free_blocks(self) -> int:
        return self.capacity.blocks - len(self._holders) - len(self._idle) - self._private

    def blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.capacity.block_tokens)

    def acquire(self, key: Hashable, prompt_ids: Sequence[int], total_tokens: int) -> int | None:
        """Hold the blocks of a sequence that starts with `prompt_ids` and will have `total_tokens`.

        Returns how many prompt tokens were there already, in full blocks and never all of them: the last token is
        always computed, for its logits. None where there is no room now.
        """
        chain = list(self._chain(prompt_ids))
        reusable = chain[: (len(prompt_ids) - 1) // self.capacity.block_tokens] if self.capacity.prefix_caching else []
        hits = next((n for n, block in enumerate(reusable) if not self._knows(block)), len(reusable))
        revived = sum(block in self._idle for block in chain[:hits])
        needed = self.blocks_of(total_tokens) - hits
        if needed > self.free_blocks + len(self._idle) - revived:
            return None
        for block in chain[:hits]:
            self._hold(block)
        self._make_room(needed)
        held = _Held(chain[:hits], needed)
        self._private += needed
        self._publish(held, chain[hits:])
        self._sequences[key] = held
        return hits * self.capacity.block_tokens

    def release(self, key: Hashable, ids: Sequence[int] = ()) -> None:
        """Let go of a sequence's blocks. `ids` are all its tokens, whose full blocks stay for others to find."""
        held = self._sequences.pop(key)
        self._publish(held, list(self._chain(ids))[len(held.chain) :])
        self._private -= held.private
        for block in reversed(held.chain):  # the end of a sequence is forgotten before its beginning
            self._holders[block] -= 1
            if not self._holders[block]:
                del self._holders[block]
                self._idle[block] = None

    def _chain(self, ids: Sequence[int]) -> Iterator[int]:
        """A hash for each full block, of its tokens and all before them."""
        parent, size = 0, self.capacity.block_tokens
        for start in range(0, len(ids) - size + 1, size):
            parent = hash((parent, tuple(ids[start : start + size])))
            yield parent

    def _knows(self, block: int) -> bool:
        return block in self._holders or block in self._idle

    def _hold(self, block: int) -> None:
        self._idle.pop(block, None)
        self._holders[block] = self._holders.get(block, 0) + 1

    def _publish(self, held: _Held, blocks: Sequence[int]) -> None:
        """Turn private blocks into known ones; one that was computed twice is kept once."""
        if not self.capacity.prefix_caching:
            return
        for block in blocks[: held.private]:
            self._hold(block)
            held.chain.append(block)
            held.private -= 1
            self._private -= 1

    def _make_room(self, blocks: int) -> None:
        while self.free_blocks < blocks:
            self._idle.popitem(last=False)
