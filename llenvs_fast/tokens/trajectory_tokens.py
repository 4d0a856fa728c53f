"""The exact tokens of trajectories, as flat columns: nine bytes a token, and a few numbers a turn.

A trajectory under way grows in `TrajectoryTokens`; `TokenTable` holds those of a whole run one behind the other. Only
new tokens are stored. A turn's prompt is `kept` tokens of the context before it and the new prompt tokens that follow;
while a conversation only grows, `kept` is that whole context, and where its history was rewritten it is less: a fork.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_NAN = math.nan


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens that were read and sampled in one go, without a fork: one training sequence.

    Shapes (T,). `sampled` is True for tokens that the model sampled in this segment; those it only read, whoever wrote
    them, are False, so that over all segments each sampled token is True once. `logprobs` is NaN where there is none.
    """

    ids: NDArray[np.int32]
    sampled: NDArray[np.bool_]
    logprobs: NDArray[np.float32]


class TrajectoryTokens:
    """The tokens of one trajectory under way: `begin_turn`, `end_turn`, and so on.

    `context` is all that the model reads next, or has read and sampled so far, as an array of C ints. It grows in
    place: whoever needs it after the next call must copy it.
    """

    __slots__ = ("_context", "ids", "kept", "logprobs", "prompt_starts", "sampled_starts", "weight_versions")

    def __init__(self) -> None:
        self.ids = array("i")
        self.logprobs = array("f")  # as long as `ids`: NaN where a token was not sampled, or came without one
        self.prompt_starts = array("q")  # a turn's first new prompt token, in `ids`
        self.sampled_starts = array("q")  # and its first sampled one
        self.kept = array("q")
        self.weight_versions = array("i")
        self._context: array[int] | None = None  # other than `ids` from the first fork on

    @property
    def context(self) -> array[int]:
        return self.ids if self._context is None else self._context

    @property
    def turns(self) -> int:
        """Turns that have begun."""
        return len(self.kept)

    @property
    def sampled_tokens(self) -> int:
        """Tokens that were sampled, over all turns."""
        return sum(end - start for start, end in self._sampled_spans())

    def begin_turn(self, new_ids: Sequence[int], kept: int | None = None) -> None:
        """The next prompt is the first `kept` tokens of the context (None: all of them), then `new_ids`.

        Raises ValueError for a `kept` beyond the context, OverflowError for an id that no 32 bits hold.
        """
        context = self.context
        length = len(context)
        kept = length if kept is None else kept
        if not 0 <= kept <= length:
            raise ValueError(f"kept={kept}: the context has {length} tokens")
        new = new_ids if isinstance(new_ids, array) else array("i", new_ids)
        self.prompt_starts.append(len(self.ids))
        self.kept.append(kept)
        self.weight_versions.append(0)
        if kept < length:
            self._context = context[:kept]
        self._extend(new)
        self.sampled_starts.append(len(self.ids))
        self.logprobs.extend([_NAN] * len(new))

    def end_turn(
        self, sampled_ids: Sequence[int], logprobs: Sequence[float] | None = None, weight_version: int = 0
    ) -> None:
        """The model sampled these. Raises ValueError for another number of logprobs than of ids."""
        if logprobs is not None and len(logprobs) != len(sampled_ids):
            raise ValueError(f"{len(logprobs)} logprobs for {len(sampled_ids)} sampled tokens: give one for each")
        self._extend(array("i", sampled_ids))
        self.logprobs.extend(logprobs if logprobs is not None else [_NAN] * len(sampled_ids))
        self.weight_versions[-1] = weight_version

    def _extend(self, new: array[int]) -> None:
        self.ids.extend(new)
        if self._context is not None:
            self._context.extend(new)

    # looking back ----------------------------------------------------------------------------------------------------

    def sampled_ids(self, turn: int) -> NDArray[np.int32]:
        start, end = self._sampled_span(turn)
        return np.array(self.ids[start:end], dtype=np.int32)

    def sampled_logprobs(self, turn: int) -> NDArray[np.float32]:
        start, end = self._sampled_span(turn)
        return np.array(self.logprobs[start:end], dtype=np.float32)

    def prompt_ids(self, turn: int) -> NDArray[np.int32]:
        """All that the model read before it sampled this turn. O(tokens up to it)."""
        context = array("i")
        for t in range(turn + 1):
            del context[self.kept[t] :]
            end = self.sampled_starts[t] if t == turn else self._end(t)
            context.extend(self.ids[self.prompt_starts[t] : end])
        return np.array(context, dtype=np.int32)

    def segments(self) -> list[Segment]:
        """The trajectory as sequences without forks; a single one where its history was never rewritten."""
        ids, logprobs, sampled = array("i"), array("f"), array("b")
        done: list[Segment] = []
        for t in range(self.turns):
            if self.kept[t] < len(ids):
                done.append(_segment(ids, sampled, logprobs))
                ids, logprobs = ids[: self.kept[t]], array("f", [_NAN] * self.kept[t])
                sampled = array("b", bytes(self.kept[t]))
            begin, middle, end = self.prompt_starts[t], self.sampled_starts[t], self._end(t)
            ids.extend(self.ids[begin:end])
            logprobs.extend(self.logprobs[begin:end])
            sampled.extend([0] * (middle - begin) + [1] * (end - middle))
        return [*done, _segment(ids, sampled, logprobs)] if self.turns else []

    @property
    def nbytes(self) -> int:
        """Memory of the columns, the room that they keep for growth included."""
        names = ("ids", "logprobs", "prompt_starts", "sampled_starts", "kept", "weight_versions")
        columns = [getattr(self, name) for name in names] + ([self._context] if self._context is not None else [])
        return sum(column.__sizeof__() for column in columns)

    def _end(self, turn: int) -> int:
        return self.prompt_starts[turn + 1] if turn + 1 < self.turns else len(self.ids)

    def _sampled_span(self, turn: int) -> tuple[int, int]:
        if not 0 <= turn < self.turns:
            raise IndexError(f"turn {turn} of a trajectory with {self.turns} turns")
        return self.sampled_starts[turn], self._end(turn)

    def _sampled_spans(self) -> Iterator[tuple[int, int]]:
        return (self._sampled_span(t) for t in range(self.turns))


def _segment(ids: array[int], sampled: array[int], logprobs: array[float]) -> Segment:
    return Segment(
        np.array(ids, dtype=np.int32), np.array(sampled, dtype=np.bool_), np.array(logprobs, dtype=np.float32)
    )


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The tokens of N trajectories with R turns and T tokens in all, one behind the other.

    A column for tokens: `ids`, `sampled`, `logprobs` (T,). For turns: `prompt_starts` and `sampled_starts` (indices of
    tokens), `kept`, `weight_versions` (R,). `token_offsets` and `turn_offsets` (N + 1,) say where a trajectory begins.
    `logprobs_are` is "raw" (of the model, before temperature and filters) or "sampled" (of what was drawn from).
    """

    ids: NDArray[np.int32]
    sampled: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    prompt_starts: NDArray[np.int64]
    sampled_starts: NDArray[np.int64]
    kept: NDArray[np.int64]
    weight_versions: NDArray[np.int32]
    token_offsets: NDArray[np.int64]
    turn_offsets: NDArray[np.int64]
    logprobs_are: str = "raw"

    @classmethod
    def from_trajectories(cls, trajectories: Iterable[TrajectoryTokens], logprobs_are: str = "raw") -> TokenTable:
        ids, logprobs = array("i"), array("f")
        starts, sampled_starts, kept, versions = array("q"), array("q"), array("q"), array("i")
        tokens, turns = array("q", [0]), array("q", [0])
        for one in trajectories:
            begin = len(ids)
            ids.extend(one.ids)
            logprobs.extend(one.logprobs)
            starts.extend(begin + s for s in one.prompt_starts)
            sampled_starts.extend(begin + s for s in one.sampled_starts)
            kept.extend(one.kept)
            versions.extend(one.weight_versions)
            tokens.append(len(ids))
            turns.append(len(kept))
        prompt_starts, sampled = np.array(starts, dtype=np.int64), np.array(sampled_starts, dtype=np.int64)
        return cls(
            ids=np.array(ids, dtype=np.int32),
            sampled=_sampled_mask(len(ids), prompt_starts, sampled),
            logprobs=np.array(logprobs, dtype=np.float32),
            prompt_starts=prompt_starts,
            sampled_starts=sampled,
            kept=np.array(kept, dtype=np.int64),
            weight_versions=np.array(versions, dtype=np.int32),
            token_offsets=np.array(tokens, dtype=np.int64),
            turn_offsets=np.array(turns, dtype=np.int64),
            logprobs_are=logprobs_are,
        )

    def __len__(self) -> int:
        return len(self.token_offsets) - 1

    def trajectory(self, n: int) -> TrajectoryTokens:
        """A copy of the n-th trajectory."""
        if not 0 <= n < len(self):
            raise IndexError(f"trajectory {n} of a table with {len(self)}")
        tokens = slice(self.token_offsets[n], self.token_offsets[n + 1])
        turns = slice(self.turn_offsets[n], self.turn_offsets[n + 1])
        one = TrajectoryTokens()
        begin = self.token_offsets[n]
        for t in range(turns.start, turns.stop):
            end = self.prompt_starts[t + 1] if t + 1 < turns.stop else tokens.stop
            start, middle = self.prompt_starts[t], self.sampled_starts[t]
            one.begin_turn(self.ids[start:middle].tolist(), int(self.kept[t]))
            one.end_turn(
                self.ids[middle:end].tolist(), self.logprobs[middle:end].tolist(), int(self.weight_versions[t])
            )
        assert len(one.ids) == tokens.stop - begin
        return one

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in self.__slots__ if name != "logprobs_are")


def _sampled_mask(
    tokens: int, prompt_starts: NDArray[np.int64], sampled_starts: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """True from a turn's first sampled token to the next turn's first prompt token."""
    change = np.zeros(tokens + 1, dtype=np.int8)
    np.add.at(change, sampled_starts, 1)
    np.add.at(change, prompt_starts[1:], -1)
    return np.cumsum(change[:tokens], dtype=np.int8).astype(np.bool_)
