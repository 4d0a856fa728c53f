"""A backend that breaks the contract on purpose, to see that whoever uses backends finds out."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

from llenvs_fast.inference.backend import ModelBackend
from llenvs_fast.inference.protocol import BackendCapabilities, Finished, GenerationRequest, GenerationResult


class FaultyBackend(ModelBackend):
    """Another backend, with faults in how requests end.

    `lose` and `duplicate` name requests by the order of their submission, from 0: they never end, or end twice.
    `unknown_keys` are ended by the first poll though nobody submitted them. `raise_at_poll` maps the number of a poll,
    from 1, to what it raises.
    """

    def __init__(
        self,
        backend: ModelBackend,
        *,
        lose: Collection[int] = (),
        duplicate: Collection[int] = (),
        unknown_keys: Sequence[Hashable] = (),
        raise_at_poll: Mapping[int, Exception] | None = None,
    ) -> None:
        super().__init__()
        self.backend = backend
        self.renderer = backend.renderer
        self.capacity = backend.capacity
        self.figures = backend.figures
        self._lose = lose
        self._duplicate = duplicate
        self._unknown_keys = list(unknown_keys)
        self._raise_at_poll = dict(raise_at_poll or {})
        self._number_of: dict[Hashable, int] = {}
        self._submitted = 0
        self._polls = 0

    @property
    def capabilities(self) -> BackendCapabilities:
        return self.backend.capabilities

    @property
    def model_name(self) -> str:
        return self.backend.model_name

    @property
    def in_flight(self) -> int:
        return self.backend.in_flight

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        self.backend.submit(requests)
        for request in requests:
            self._number_of[request.key] = self._submitted
            self._submitted += 1

    def poll(self, timeout_s: float = 0.0) -> list[Finished]:
        self._polls += 1
        if self._polls in self._raise_at_poll:
            raise self._raise_at_poll[self._polls]
        ended = [Finished(key, GenerationResult("nobody asked for this")) for key in self._unknown_keys]
        self._unknown_keys.clear()
        for finished in self.backend.poll(timeout_s):
            number = self._number_of.pop(finished.key)
            ended += [finished] * (0 if number in self._lose else 2 if number in self._duplicate else 1)
        return ended

    def abort(self, keys: Sequence[Hashable]) -> None:
        self.backend.abort(keys)

    def close(self) -> None:
        self.backend.close()
