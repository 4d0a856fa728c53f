"""Stop strings: where a text is cut, whatever tokens the string was spread over. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    """The stop string that was found, and where in the text it starts."""

    start: int
    string: str


def find_stop(text: str, stop_sequences: Sequence[str]) -> StopMatch | None:
    """The match that is complete first; of those that end together, the longest."""
    found = [StopMatch(start, s) for s in stop_sequences if s and (start := text.find(s)) >= 0]
    return min(found, key=lambda m: (m.start + len(m.string), m.start), default=None)


class StopWatch:
    """Watches a growing list of sampled ids for stop strings, at a cost that does not grow with the list.

    Only as many of the last tokens are decoded as could hold a stop string that the newest token completes.
    """

    def __init__(self, stop_sequences: Sequence[str], decode: Callable[[Sequence[int]], str]) -> None:
        self._stops = tuple(stop_sequences)
        self._decode = decode
        # A token adds at least one byte; a few more tokens let the decoder find its feet in the middle of a character.
        self._window = max((len(s.encode()) for s in self._stops), default=0) + 8

    def completed(self, ids: Sequence[int]) -> StopMatch | None:
        """The match that the last of `ids` completes, placed in the text of all of them."""
        if not self._stops or find_stop(self._decode(ids[-self._window :]), self._stops) is None:
            return None
        return find_stop(self._decode(ids), self._stops)
