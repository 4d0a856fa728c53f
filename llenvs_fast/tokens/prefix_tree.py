"""Which KV blocks the live trajectories share: the C++ prefix tree behind a face that takes any integer ids.

A full block of `block_tokens` ids is identified by its content and the blocks before it, as in the engine's prefix
cache, so trajectories whose first b * block_tokens ids agree share b blocks. The partial block at a trajectory's end is
its own. Answers are exact: content is compared, no hash is trusted. Memory follows the most blocks that were ever live
at once.

The tree knows what is live, not what an engine has cached. It is not thread-safe: each call holds the interpreter lock,
which makes single calls from several threads safe, and nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llenvs_fast import _native
from llenvs_fast._native import LiveTrajectoryError, UnknownTrajectoryError

__all__ = ["LiveTrajectoryError", "PrefixTree", "UnknownTrajectoryError", "as_ids"]

MAX_ID = np.iinfo(np.int32).max


class PrefixTree(_native.PrefixTree):
    """`PrefixTree(block_tokens)`: block counts of live trajectories, keyed by int64 numbers of the caller's choice.

    `insert`, `fork`, `append`, `append_many`, `truncate` and `release` change the live set; `match`, `blocks_needed`
    and `growth` say what a change would cost; `blocks`, `own_blocks`, `length` and `tokens` look at one trajectory;
    `distinct_blocks`, `live` and `memory_bytes` at all. Tokens and blocks are counts.

    A key that isn't live raises UnknownTrajectoryError, one that is live already LiveTrajectoryError (both KeyErrors);
    an id or a count out of range ValueError; ids that aren't integers TypeError. A rejected call changes nothing.

    Costs: O(ids given) to insert, append and match; O(blocks dropped) to truncate; O(blocks freed) to release; O(own
    blocks) for `own_blocks`; O(blocks cut from the parent) to fork. Nothing depends on how much is live.
    """

    def insert(self, trajectory: int, ids: NDArray[np.integer] | Sequence[int]) -> int:
        """Add a trajectory. Returns how many of its first tokens were resident before: a multiple of block_tokens."""
        return super().insert(trajectory, as_ids(ids))

    def append(self, trajectory: int, ids: NDArray[np.integer] | Sequence[int]) -> None:
        """Let `ids` follow. A partial block that fills up may turn out to be shared."""
        super().append(trajectory, as_ids(ids))

    def append_many(
        self,
        trajectories: NDArray[np.integer] | Sequence[int],
        ids: NDArray[np.integer] | Sequence[int],
        offsets: NDArray[np.integer] | Sequence[int],
    ) -> None:
        """Append ids[offsets[i]:offsets[i + 1]] to trajectories[i], for every i in order.

        Shapes: trajectories (N,), ids (T,), offsets (N + 1,) rising from 0 to T.
        """
        super().append_many(_as_int64("trajectories", trajectories), as_ids(ids), _as_int64("offsets", offsets))

    def match(self, ids: NDArray[np.integer] | Sequence[int]) -> int:
        """How many of the first `ids` are resident: a multiple of block_tokens."""
        return super().match(as_ids(ids))

    def blocks_needed(self, ids: NDArray[np.integer] | Sequence[int]) -> int:
        """How many blocks inserting `ids` would add: full ones that aren't resident, and one for a partial end."""
        return super().blocks_needed(as_ids(ids))


def as_ids(ids: NDArray[np.integer] | Sequence[int]) -> NDArray[np.int32]:
    """Token ids as a contiguous int32 array (T,); the same array where it is one already.

    Raises TypeError for values that aren't integers, ValueError for another shape or an id that int32 can't hold.
    """
    array = np.asarray(ids)
    if array.ndim != 1:
        raise ValueError(f"token ids of shape {array.shape}: give one sequence of ids, shape (T,)")
    if array.dtype == np.int32:
        return np.ascontiguousarray(array)
    if array.size == 0:
        return np.empty(0, dtype=np.int32)
    if array.dtype.kind not in "iu":
        raise TypeError(f"token ids of type {array.dtype}: give integers from 0 to {MAX_ID}")
    bad = np.flatnonzero((array < 0) | (array > MAX_ID))
    if bad.size:
        raise ValueError(f"token id {array[bad[0]]} at position {bad[0]}: ids are 0 to {MAX_ID}")
    return array.astype(np.int32)


def _as_int64(name: str, values: NDArray[np.integer] | Sequence[int]) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.size and not (array.dtype.kind in "iu" and np.can_cast(array.dtype, np.int64)):
        raise TypeError(f"{name} of type {array.dtype}: give integers that fit in int64")
    return np.ascontiguousarray(array, dtype=np.int64)
