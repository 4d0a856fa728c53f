"""A backend without a model: every request is answered from a script. For tests, replays and bug reports.

It keeps the contract of any backend: each request ends exactly once, by its key, a bad one alone. With a renderer it
deals in token ids like an engine; with a capacity it also takes an engine's time, one token a step for each of the
sequences that fit into a simulated KV cache.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llenvs_fast.core.errors import (
    AbortedError,
    EmptyPromptError,
    InvalidSettingError,
    RecoverableInputError,
)
from llenvs_fast.inference.backend import ModelBackend, check_new_keys
from llenvs_fast.inference.backends.scripted_cache import ScriptedCache
from llenvs_fast.inference.backends.scripted_replies import Reply, Script, lookup_in, text_result, token_result
from llenvs_fast.inference.backends.scripted_tokens import byte_renderer
from llenvs_fast.inference.prompt_check import check_prompt
from llenvs_fast.inference.protocol import BackendCapabilities, Finished, GenerationRequest, KVCapacity
from llenvs_fast.inference.rendering import ChatRenderer

__all__ = ["Reply", "Script", "ScriptedBackend"]

_UNLIMITED = 1 << 31


@dataclass(slots=True)
class _Turn:
    """A request that takes time: so many engine steps once it runs, and until `ready_s` on the clock."""

    finished: Finished
    prompt_ids: tuple[int, ...]
    steps: int
    ready_s: float
    cached_tokens: int | None = None


class ScriptedBackend(ModelBackend):
    """Answers from `script`: a function of the request, a mapping from prompts to answers, a list of answers, or one.

    An answer is a `Reply`, a string or an exception (see `scripted_replies`). Without a `renderer` requests are read as
    messages and a token is a word. `capacity` needs a renderer, and makes `poll` one engine step. `record=True` keeps
    every request in `recorded`; `peak_in_flight` counts the most that were in flight at once.
    """

    def __init__(
        self,
        script: Script,
        *,
        renderer: ChatRenderer | None = None,
        capacity: KVCapacity | None = None,
        max_model_len: int | None = None,
        capabilities: BackendCapabilities | None = None,
        model_name: str = "scripted",
        record: bool = False,
    ) -> None:
        super().__init__()
        if renderer is None and (capacity is not None or max_model_len is not None):
            raise InvalidSettingError("capacity and max_model_len count tokens: give a renderer too")
        self.renderer = renderer
        self.capacity = capacity
        self.recorded: list[GenerationRequest] = []
        self.peak_in_flight = 0
        self._find_reply = lookup_in(script, renderer)
        self._context = max_model_len
        self._capabilities = capabilities or BackendCapabilities(
            supports_logprobs=renderer is not None,
            supports_batching=True,
            supports_function_calling=True,
            max_context_length=max_model_len,
        )
        self._name = model_name
        self._record = record
        self._cache = ScriptedCache(capacity) if capacity is not None else None
        if self._cache is not None:
            self.figures.cached_tokens = self.figures.engine_steps = self.figures.preemptions = 0
        self._keys: set[Hashable] = set()
        self._ended: list[Finished] = []
        self._step = 0
        self._order = itertools.count()
        self._waiting: deque[_Turn] = deque()
        self._running: dict[Hashable, _Turn] = {}
        self._due: list[tuple[int, int, _Turn]] = []  # a heap of (step, order, turn)
        self._timed: list[tuple[float, int, _Turn]] = []  # a heap of (ready_s, order, turn): those past their steps

    @classmethod
    def with_byte_tokens(cls, script: Script, **options: Any) -> ScriptedBackend:
        """A backend that deals in token ids, one for each byte. `options` are those of the constructor."""
        return cls(script, renderer=byte_renderer(), **options)

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._capabilities

    @property
    def model_name(self) -> str:
        return self._name

    @property
    def in_flight(self) -> int:
        return len(self._keys)

    # submit / poll / abort -------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        keys = {r.key for r in requests}
        if len(keys) < len(requests) or not keys.isdisjoint(self._keys):
            check_new_keys(requests, self._keys)
        self._keys |= keys
        self.peak_in_flight = max(self.peak_in_flight, len(self._keys))
        if self._record:
            self.recorded += [replace(r, prompt_ids=tuple(r.prompt_ids)) if r.prompt_ids else r for r in requests]
        for request in requests:
            try:
                self._start(request)
            except Exception as error:  # the request's fault or its script's: it ends alone
                self._ended.append(Finished(request.key, error=error))

    def poll(self, timeout_s: float = 0.0) -> list[Finished]:
        if self._running or self._waiting:
            self._advance(timeout_s)
        ended, self._ended = self._ended, []
        self._keys.difference_update([f.key for f in ended])
        figures = self.figures
        for finished in ended:
            if (result := finished.result) is not None:
                figures.requests += 1
                figures.prompt_tokens += result.prompt_tokens
                figures.completion_tokens += result.completion_tokens
                if result.cached_tokens is not None:
                    figures.cached_tokens = (figures.cached_tokens or 0) + result.cached_tokens
        return ended

    def abort(self, keys: Sequence[Hashable]) -> None:
        taken_back = {k for k in keys if k in self._keys} - {f.key for f in self._ended}
        for key in taken_back & self._running.keys():
            del self._running[key]
            if self._cache is not None:
                self._cache.release(key)
        self._waiting = deque(t for t in self._waiting if t.finished.key not in taken_back)
        self._ended += [Finished(k, error=AbortedError(f"request {k!r} was taken back")) for k in taken_back]

    # one request -----------------------------------------------------------------------------------------------------

    def _start(self, request: GenerationRequest) -> None:
        prompt_ids = self._checked_prompt(request)
        reply = self._find_reply(request)
        finished = self._finished(request, reply, prompt_ids)
        ready_s = time.monotonic() + reply.delay_s if reply.delay_s else 0.0
        if self._cache is not None:
            tokens = finished.result.completion_tokens if finished.result else 1
            if self._cache.blocks_of(len(prompt_ids) + tokens) > self._cache.capacity.blocks:
                raise RecoverableInputError(
                    f"the prompt of {len(prompt_ids)} tokens and its reply of {tokens} never fit into a KV cache of "
                    f"{self._cache.capacity.blocks} blocks of {self._cache.capacity.block_tokens}"
                )
            self._waiting.append(_Turn(finished, prompt_ids, max(0, tokens - 1) + reply.delay_steps, ready_s))
        elif reply.delay_steps or ready_s:
            self._run(_Turn(finished, prompt_ids, 1 + reply.delay_steps, ready_s))
        else:
            self._ended.append(finished)

    def _checked_prompt(self, request: GenerationRequest) -> tuple[int, ...]:
        if self.renderer is None:
            if not any(m.content or m.images for m in request.messages or ()):
                raise EmptyPromptError("the prompt has no text: send at least one message with content")
            return ()
        ids = request.prompt_ids
        if ids is None:
            tools = () if request.tool_choice == "none" else request.tools
            ids = self.renderer.render(request.messages or (), tools)
        check_prompt(ids, self._context or _UNLIMITED, _UNLIMITED)
        return tuple(ids)

    def _finished(self, request: GenerationRequest, reply: Reply, prompt_ids: tuple[int, ...]) -> Finished:
        if reply.error is not None:
            return Finished(request.key, error=reply.error)
        if self.renderer is None:
            return Finished(request.key, text_result(request, reply))
        room = None if self._context is None else self._context - len(prompt_ids)
        return Finished(request.key, token_result(request, reply, prompt_ids, room, self.renderer))

    # time ------------------------------------------------------------------------------------------------------------

    def _advance(self, timeout_s: float) -> None:
        self._step += 1
        if self._cache is not None:
            self.figures.engine_steps = (self.figures.engine_steps or 0) + 1
            self._admit(self._cache)
        while self._due and self._due[0][0] <= self._step:
            _, order, turn = heapq.heappop(self._due)
            heapq.heappush(self._timed, (turn.ready_s, order, turn))
        self._end_timed()
        if self._timed and not self._due and not self._ended:
            time.sleep(max(0.0, min(timeout_s, self._timed[0][0] - time.monotonic())))
            self._end_timed()

    def _admit(self, cache: ScriptedCache) -> None:
        """Start waiting turns, in order, while there is room for them from the first token to the last."""
        while self._waiting and len(self._running) < cache.capacity.max_sequences:
            turn = self._waiting[0]
            result = turn.finished.result
            total = len(turn.prompt_ids) + (result.completion_tokens if result else 1)
            turn.cached_tokens = cache.acquire(turn.finished.key, turn.prompt_ids, total)
            if turn.cached_tokens is None:
                return
            self._run(self._waiting.popleft())

    def _run(self, turn: _Turn) -> None:
        self._running[turn.finished.key] = turn
        heapq.heappush(self._due, (self._step + turn.steps, next(self._order), turn))

    def _end_timed(self) -> None:
        now = time.monotonic()
        while self._timed and self._timed[0][0] <= now:
            turn = heapq.heappop(self._timed)[2]
            if self._running.get(turn.finished.key) is turn:  # else it was taken back
                del self._running[turn.finished.key]
                self._ended.append(self._let_go(turn))

    def _let_go(self, turn: _Turn) -> Finished:
        result = turn.finished.result
        if self._cache is None:
            return turn.finished
        sampled = (result.token_ids or ()) if result else ()
        self._cache.release(turn.finished.key, (turn.prompt_ids + sampled)[:-1])  # the last one was never read
        if result is None:
            return turn.finished
        return Finished(turn.finished.key, replace(result, cached_tokens=turn.cached_tokens))
