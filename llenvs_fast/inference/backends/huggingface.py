"""A transformers model in this process: for models and machines that vLLM does not take.

Requests are generated in batches of up to `max_batch_size`; each poll advances the batch by one token, and a reply is
returned as soon as it ends. Counts, reasons and text are those of the reply alone, whatever it was padded with. Without
prefix caching every turn reads its whole prompt: prefer `VLLMBackend` where it runs.
"""

from __future__ import annotations

import gc
import random
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llenvs_fast.core.errors import (
    AbortedError,
    EngineDeadError,
    GenerationError,
    InvalidSettingError,
)
from llenvs_fast.inference.backend import ModelBackend, check_new_keys
from llenvs_fast.inference.backends.huggingface_loading import load_model
from llenvs_fast.inference.interrupts import held_interrupts
from llenvs_fast.inference.models import resolve_model
from llenvs_fast.inference.prompt_check import check_prompt
from llenvs_fast.inference.protocol import (
    BackendCapabilities,
    Finished,
    GenerationRequest,
    GenerationResult,
    StopReason,
    TokenLogprob,
)
from llenvs_fast.inference.rendering import ChatRenderer
from llenvs_fast.inference.stopping import StopMatch, StopWatch
from llenvs_fast.inference.tool_calls import with_tool_calls

if TYPE_CHECKING:
    from llenvs_fast.inference.backends.huggingface_batch import Batch
    from llenvs_fast.inference.backends.huggingface_sampling import Sampler

_UNLIMITED = 1 << 31


@dataclass(slots=True)
class _Row:
    """A request under way."""

    key: Hashable
    prompt_ids: tuple[int, ...]
    sampler: Sampler
    watch: StopWatch
    max_tokens: int
    eos_token_ids: frozenset[int]
    with_tools: bool

    def ended(self) -> tuple[StopReason, StopMatch | None] | None:
        """Why the newest token is the last one; None where it is not."""
        ids = self.sampler.ids
        if ids[-1] in self.eos_token_ids:
            return StopReason.END_OF_TEXT, None
        if match := self.watch.completed(ids):
            return StopReason.STOP_SEQUENCE, match
        return (StopReason.MAX_TOKENS, None) if len(ids) >= self.max_tokens else None


class HuggingFaceBackend(ModelBackend):
    """Generates with `AutoModelForCausalLM`. `model_path` is a directory, a Hugging Face id or a name that
    `resolve_model` knows.

    `max_model_len` is the context in tokens, by default the model's own. `device="auto"` takes a GPU where there is
    one; `device_map` places parts of the model instead. On a GPU, flash-attention is used where it is installed and the
    model is in half precision, unless `attn_implementation` says otherwise. `seed` draws the seeds of requests without
    one. `model_kwargs` go to `from_pretrained` as they are.
    """

    def __init__(
        self,
        model_path: str | Path,
        device: str = "auto",
        dtype: str = "auto",
        device_map: str | dict[str, Any] | None = None,
        torch_compile: bool = False,
        chat_template_kwargs: dict[str, Any] | None = None,
        max_batch_size: int = 64,
        max_model_len: int | None = None,
        seed: int = 42,
        attn_implementation: str | None = None,
        **model_kwargs: Any,
    ) -> None:
        super().__init__()
        if max_batch_size < 1:
            raise InvalidSettingError(f"max_batch_size is {max_batch_size}: at least one request is generated at once")
        found = resolve_model(str(model_path))
        self._name = found.display_name
        self.renderer: ChatRenderer = ChatRenderer.from_model(
            found.path, chat_template_kwargs, trust_remote_code=model_kwargs.get("trust_remote_code", False)
        )
        options = {"dtype": dtype, "device_map": device_map, "attn_implementation": attn_implementation}
        self.model: Any = load_model(found.path, device, options | model_kwargs)
        if torch_compile:
            self.model.compile(dynamic=True)
        trained = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        self._context = max_model_len or trained or _UNLIMITED
        self._vocabulary: int = self.model.get_input_embeddings().num_embeddings
        self._eos_token_ids = frozenset((*self.renderer.eos_token_ids, *self.renderer.end_of_turn_ids))
        self._max_batch_size = max_batch_size
        self._seeds = random.Random(seed)
        self.figures.engine_steps = 0
        self._keys: set[Hashable] = set()
        self._queue: deque[_Row] = deque()
        self._rows: list[_Row] = []
        self._decoding: Batch | None = None
        self._ended: list[Finished] = []

    @property
    def capabilities(self) -> BackendCapabilities:
        return BackendCapabilities(
            supports_logprobs=True,
            supports_prefix_continuation=True,
            supports_batching=True,
            supports_function_calling=True,
            supports_seed=True,
            max_batch_size=self._max_batch_size,
            max_context_length=None if self._context == _UNLIMITED else self._context,
        )

    @property
    def model_name(self) -> str:
        return self._name

    @property
    def in_flight(self) -> int:
        return len(self._keys)

    # submit / poll / abort -------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        if self.model is None:
            raise EngineDeadError("the backend is closed: make a new one")
        check_new_keys(requests, self._keys)
        for request in requests:
            self._keys.add(request.key)
            try:
                self._queue.append(self._row(request))
            except (ValueError, TypeError) as error:  # this request's fault
                self._ended.append(Finished(request.key, error=error))

    def poll(self, timeout_s: float = 0.0) -> list[Finished]:
        if self._rows or self._queue:
            with held_interrupts():  # a step that stops half-way leaves the cache one token ahead
                self._advance()
        ended, self._ended = self._ended, []
        self._keys.difference_update([f.key for f in ended])
        return ended

    def abort(self, keys: Sequence[Hashable]) -> None:
        taken_back = set(keys)
        aborted = [row for row in (*self._rows, *self._queue) if row.key in taken_back]
        self._queue = deque(row for row in self._queue if row.key not in taken_back)
        self._leave([row for row in self._rows if row.key in taken_back])
        self._ended += [Finished(r.key, error=AbortedError(f"request {r.key!r} was taken back")) for r in aborted]

    def _advance(self) -> None:
        try:
            if self._decoding is None:
                self._start_batch()
            assert self._decoding is not None
            self._decoding.step()
        except Exception as error:
            self._fail(error)
            return
        self.figures.engine_steps = (self.figures.engine_steps or 0) + 1
        ended = [(row, end) for row in self._rows if (end := row.ended()) is not None]
        self._ended += [Finished(row.key, self._result(row, *end)) for row, end in ended]
        self._leave([row for row, _ in ended])

    def _start_batch(self) -> None:
        from llenvs_fast.inference.backends.huggingface_batch import Batch

        self._rows = [self._queue.popleft() for _ in range(min(self._max_batch_size, len(self._queue)))]
        pad_id = self.renderer.tokenizer.pad_token_id or 0
        self._decoding = Batch(self.model, [r.prompt_ids for r in self._rows], [r.sampler for r in self._rows], pad_id)

    def _leave(self, rows: Sequence[_Row]) -> None:
        """Take rows out of the batch; its cache goes with the last of them."""
        if self._decoding is None or not rows:
            return
        self._decoding.end([row.sampler for row in rows])
        gone = {row.key for row in rows}
        self._rows = [row for row in self._rows if row.key not in gone]
        if not self._rows:
            self._decoding = None

    def _fail(self, error: Exception) -> None:
        """The model raised: the requests of this batch end with it, those in the queue go on."""
        for row in self._rows:
            failed = GenerationError(
                f"the model failed in a batch of {len(self._rows)} ({type(error).__name__}: {error}); "
                f"where memory ran out, lower max_batch_size={self._max_batch_size}"
            )
            failed.__cause__ = error.with_traceback(None)  # whose frames would keep the cache in memory
            self._ended.append(Finished(row.key, error=failed))
        self._rows, self._decoding = [], None

    # one request -----------------------------------------------------------------------------------------------------

    def _row(self, request: GenerationRequest) -> _Row:
        from llenvs_fast.inference.backends.huggingface_sampling import Sampler, checked_params

        if request.tools and request.tool_choice not in ("auto", "none"):
            raise InvalidSettingError(f"tool_choice={request.tool_choice!r}: this backend knows 'auto' and 'none'")
        with_tools = bool(request.tools) and request.tool_choice == "auto"
        ids = request.prompt_ids
        if ids is None:
            ids = self.renderer.render(request.messages or (), request.tools if with_tools else ())
        check_prompt(ids, self._context, self._vocabulary)
        params, ignore_eos = checked_params(request.params)
        max_tokens = params.max_tokens if request.max_tokens is None else request.max_tokens
        if max_tokens < 1:
            raise InvalidSettingError(f"max_tokens is {max_tokens}: at least one token is generated")
        seed = self._seeds.getrandbits(63) if request.seed is None else request.seed
        return _Row(
            key=request.key,
            prompt_ids=tuple(ids),
            sampler=Sampler(params, random.Random(seed)),
            watch=StopWatch(params.stop_sequences, self.renderer.decode),
            max_tokens=min(max_tokens, self._context - len(ids)),
            eos_token_ids=frozenset() if ignore_eos else self._eos_token_ids,
            with_tools=with_tools,
        )

    def _result(self, row: _Row, reason: StopReason, match: StopMatch | None) -> GenerationResult:
        ids = tuple(row.sampler.ids)
        text = self.renderer.decode(ids)
        result = GenerationResult(
            text=text if match is None else text[: match.start],
            finish_reason=reason,
            token_logprobs=self._logprobs(row.sampler) if row.sampler.params.logprobs else None,
            prompt_tokens=len(row.prompt_ids),
            completion_tokens=len(ids),
            prompt_ids=row.prompt_ids,
            token_ids=ids,
            stop_match=None if match is None else match.string,
        )
        self.figures.requests += 1
        self.figures.prompt_tokens += result.prompt_tokens
        self.figures.completion_tokens += result.completion_tokens
        return with_tool_calls(result) if row.with_tools else result

    def _logprobs(self, sampler: Sampler) -> tuple[TokenLogprob, ...]:
        text = self.renderer.token_text
        entries = []
        for token, (sampled, likeliest) in zip(sampler.ids, sampler.logprobs, strict=True):
            top: dict[str, float] = {}
            for other, value in likeliest.items():
                top.setdefault(text(other), value)  # two tokens may read the same: the likelier one is shown
            entries.append(TokenLogprob(text(token), token, sampled, top))
        return tuple(entries)

    # life ------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self.model is None:
            return
        import torch

        self.abort(list(self._keys))
        self.model = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
