"""vLLM, in this process: every poll runs one engine step, which advances all running requests by one token.

Prompts go in and samples come out as token ids. Each request is checked before the engine sees it, so that a bad one
ends alone; each ends exactly once, by its caller's key. This is the only file that imports vllm.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import sys
import time
import warnings
import weakref
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llenvs_fast.core.errors import (
    AbortedError,
    EngineDeadError,
    GenerationError,
    InvalidSettingError,
    LLEnvsError,
    MissingPackageError,
)
from llenvs_fast.inference.backend import ModelBackend, check_new_keys
from llenvs_fast.inference.backends.vllm_translation import sampling_options, to_result
from llenvs_fast.inference.interrupts import children_deaf_to_interrupts, held_interrupts
from llenvs_fast.inference.models import resolve_model
from llenvs_fast.inference.prompt_check import check_prompt
from llenvs_fast.inference.protocol import BackendCapabilities, Finished, GenerationRequest, KVCapacity
from llenvs_fast.inference.rendering import ChatRenderer

if TYPE_CHECKING:
    import vllm

CPU_CONTEXT_TOKENS = 8192
CPU_BLOCK_TOKENS = 32
CPU_KV_BYTES = 1 << 30
PROCESS_POLL_S = 0.01

_QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # stdout belongs to the caller
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
_engines_in_process: weakref.WeakSet[VLLMBackend] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class _Running:
    key: Hashable
    prompt_ids: tuple[int, ...]
    with_tools: bool


class VLLMBackend(ModelBackend):
    """Generates with vLLM. `model_path` is a directory, a Hugging Face id or a name that `resolve_model` knows.

    `max_model_len` is the context in tokens, `kv_cache_memory_bytes` the size of the KV cache; on a GPU vLLM's own
    defaults hold, on a CPU the context is at most 8,192 and the cache at most 1 GiB unless given, and `dtype="auto"` is
    float32 where the CPU has no instructions for bfloat16. `engine_process` runs the engine in a process of its own.
    `vllm_kwargs` go to `vllm.LLM` as they are.
    """

    def __init__(
        self,
        model_path: str | Path,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        max_model_len: int | None = None,
        gpu_memory_utilization: float = 0.9,
        seed: int = 42,
        chat_template_kwargs: dict[str, Any] | None = None,
        kv_cache_memory_bytes: int | None = None,
        block_size: int | None = None,
        enable_prefix_caching: bool = True,
        engine_process: bool = False,
        **vllm_kwargs: Any,
    ) -> None:
        super().__init__()
        for name, value in _QUIET.items():  # before torch is loaded, which reads its part then
            os.environ.setdefault(name, value)
        model = resolve_model(str(model_path))
        self._name = model.display_name
        settings: dict[str, Any] = {
            "model": str(model.path),
            "tensor_parallel_size": tensor_parallel_size,
            "dtype": dtype,
            "max_model_len": max_model_len,
            "gpu_memory_utilization": gpu_memory_utilization,
            "seed": seed,
            "kv_cache_memory_bytes": kv_cache_memory_bytes,
            "block_size": block_size,
            "enable_prefix_caching": enable_prefix_caching,
        }
        self.renderer: ChatRenderer = ChatRenderer.from_model(
            model.path, chat_template_kwargs, trust_remote_code=vllm_kwargs.get("trust_remote_code", False)
        )
        self.llm: vllm.LLM | None = _start(settings | vllm_kwargs, engine_process)
        self._engine: Any = self.llm.llm_engine
        self._in_process = not engine_process
        if self._in_process:
            _engines_in_process.add(self)
        config: Any = self._engine.vllm_config
        self._context: int = config.model_config.max_model_len
        self._vocabulary: int = config.model_config.get_vocab_size()
        self.capacity = KVCapacity(
            block_tokens=config.cache_config.block_size,
            blocks=config.cache_config.num_gpu_blocks - 1,  # vLLM keeps one empty block for itself
            max_sequences=config.scheduler_config.max_num_seqs,
            prefix_caching=bool(config.cache_config.enable_prefix_caching),
        )
        self.figures.cached_tokens = 0
        self.figures.engine_steps = 0
        self.figures.preemptions = 0 if self._in_process else None
        self._ids = itertools.count()
        self._running: dict[str, _Running] = {}
        self._ended: list[Finished] = []
        self._keys: dict[Hashable, str] = {}
        self._preempted: set[tuple[str, int]] = set()
        self._death: EngineDeadError | None = None

    @property
    def capabilities(self) -> BackendCapabilities:
        return BackendCapabilities(
            supports_logprobs=True,
            supports_prefix_continuation=True,
            supports_batching=True,
            supports_function_calling=True,
            supports_seed=True,
            max_context_length=self._context,
        )

    @property
    def model_name(self) -> str:
        return self._name

    @property
    def in_flight(self) -> int:
        return len(self._keys)

    # submit / poll / abort -----------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        if self._death is not None:
            raise self._death
        check_new_keys(requests, self._keys)
        with held_interrupts():
            self._keys |= {request.key: str(next(self._ids)) for request in requests}
            for request in requests:
                try:
                    self._add(request)
                except Exception as error:  # the request's own fault: an engine that is dead fails its next step
                    ours = _ours(error, InvalidSettingError, "vLLM refuses the request")
                    self._ended.append(Finished(request.key, error=ours))

    def poll(self, timeout_s: float = 0.0) -> list[Finished]:
        if self._running and (self._in_process or self._has_sent(timeout_s)):
            self._step()
        with held_interrupts():
            ended, self._ended = self._ended, []
            for finished in ended:
                del self._keys[finished.key]
        return ended

    def abort(self, keys: Sequence[Hashable]) -> None:
        ids = [self._keys[key] for key in keys if key in self._keys]
        running = [engine_id for engine_id in ids if engine_id in self._running]
        if running and self._death is None:
            self._engine.abort_request(running)
        for engine_id in running:
            key = self._running.pop(engine_id).key
            error = AbortedError(f"request {key!r} was taken back before it finished")
            self._ended.append(Finished(key, error=error))

    def _step(self) -> None:
        with held_interrupts():  # an engine stopped in the middle of a step can't go on
            try:
                outputs = self._engine.step()
            except BaseException as error:
                self._die(error)
                if not isinstance(error, Exception):
                    raise
                return
            self._count_step()
            for output in outputs:
                self._finish(output)

    def _has_sent(self, timeout_s: float) -> bool:
        """Wait for the engine's process to send something. vLLM's own wait would not notice that process die."""
        client = self._engine.engine_core
        end = time.monotonic() + max(timeout_s, PROCESS_POLL_S)
        while client.outputs_queue.empty():
            if client.resources.engine_dead:
                self._die(RuntimeError("its process ended"))
                return False
            if time.monotonic() > end:
                return False
            time.sleep(PROCESS_POLL_S / 20)
        return True

    def _count_step(self) -> None:
        self.figures.engine_steps = (self.figures.engine_steps or 0) + 1
        if self._in_process:
            for waiting in self._engine.engine_core.engine_core.scheduler.waiting:
                if not waiting.num_preemptions:
                    break  # preempted requests wait in front
                self._preempted.add((waiting.request_id, waiting.num_preemptions))
            self.figures.preemptions = len(self._preempted)

    def _finish(self, output: vllm.RequestOutput) -> None:
        running = self._running.pop(output.request_id, None)
        if running is None:
            return  # taken back meanwhile
        try:
            result = to_result(output, running.prompt_ids, self.renderer, with_tools=running.with_tools)
        except Exception as error:
            self._ended.append(Finished(running.key, error=_ours(error, GenerationError, "its output can't be read")))
            return
        self.figures.requests += 1
        self.figures.prompt_tokens += result.prompt_tokens
        self.figures.completion_tokens += result.completion_tokens
        self.figures.cached_tokens = (self.figures.cached_tokens or 0) + (result.cached_tokens or 0)
        self._ended.append(Finished(running.key, result))

    def _die(self, error: BaseException) -> None:
        """End all requests: the engine failed, and nothing more comes from it."""
        death = EngineDeadError(f"vLLM failed ({type(error).__name__}: {error}): make a new backend to go on")
        death.__cause__ = error
        self._death = death
        self._running.clear()
        ended = {finished.key for finished in self._ended}
        self._ended += [Finished(key, error=death) for key in self._keys if key not in ended]

    # one request ---------------------------------------------------------------------------------------------------

    def _add(self, request: GenerationRequest) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        if request.tools and request.tool_choice not in ("auto", "none"):
            raise InvalidSettingError(f"tool_choice={request.tool_choice!r}: this backend knows 'auto' and 'none'")
        with_tools = bool(request.tools) and request.tool_choice == "auto"
        ids = request.prompt_ids
        if ids is None:
            ids = self.renderer.render(request.messages or (), request.tools if with_tools else ())
        check_prompt(ids, self._context, self._vocabulary)
        options = sampling_options(request, self._context - len(ids), self.renderer.end_of_turn_ids)
        engine_id = self._keys[request.key]
        params = SamplingParams(**options, output_kind=RequestOutputKind.FINAL_ONLY)
        self._engine.add_request(engine_id, {"prompt_token_ids": list(ids)}, params)
        self._running[engine_id] = _Running(request.key, tuple(ids), with_tools)

    # life ----------------------------------------------------------------------------------------------------------

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes, as after a change of weights. Raises GenerationError while requests run."""
        if self._death is not None:
            raise self._death
        if not self._engine.reset_prefix_cache():
            raise GenerationError(f"the prefix cache is in use by {len(self._running)} requests: abort or finish them")

    def close(self) -> None:
        if self.llm is None:
            return
        self.abort(list(self._keys))
        self._death = EngineDeadError("the backend is closed: make a new one")
        _engines_in_process.discard(self)
        with _process_groups_kept() if _engines_in_process else nullcontext():
            self._engine.engine_core.shutdown()
        self._engine = self.llm = None
        gc.collect()
        if self._in_process and not _engines_in_process:
            from vllm.distributed import cleanup_dist_env_and_memory

            cleanup_dist_env_and_memory()


@contextmanager
def _process_groups_kept() -> Iterator[None]:
    """An engine that shuts down takes the process groups along, which all engines of a process share."""
    from vllm.v1.engine import core

    name = "cleanup_dist_env_and_memory"
    kept = core.__dict__.get(name)
    if kept is not None:
        setattr(core, name, lambda *args, **kwargs: None)
    try:
        yield
    finally:
        if kept is not None:
            setattr(core, name, kept)


def _ours(error: Exception, kind: type[LLEnvsError], what: str) -> LLEnvsError:
    """The error itself where it is one of this package, else one of `kind` that it caused."""
    if isinstance(error, LLEnvsError):
        return error
    ours = kind(f"{what}: {error or type(error).__name__}")
    ours.__cause__ = error
    return ours


def _start(settings: dict[str, Any], engine_process: bool) -> vllm.LLM:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int(engine_process))
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"].upper())  # it speaks before it reads that
    has_children = engine_process or settings["tensor_parallel_size"] > 1
    deaf = children_deaf_to_interrupts() if has_children else nullcontext()
    with _stdout_kept_clean(), deaf, warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch, to vLLM
        try:
            from vllm import LLM, envs
            from vllm.platforms import current_platform
        except ImportError as error:
            raise MissingPackageError(
                "vLLM can't be imported: install llenvs-fast[gpu], or llenvs-fast[cpu] without a GPU"
            ) from error
        _let_vllm_read_any_module()
        envs.disable_envs_cache()  # an engine that started earlier has frozen what it read of the environment
        if current_platform.is_cpu():
            settings = _on_cpu(settings)
        return LLM(**{"use_tqdm_on_load": False} | {k: v for k, v in settings.items() if v is not None})


def _let_vllm_read_any_module() -> None:
    """On a CPU, vLLM looks through all loaded modules for its kernels, and takes every `vars(x)` for a mapping.

    It is none for an object of numba's compiler, so that no engine would start once numba had been used.
    """
    with suppress(ImportError):  # other releases of vLLM don't look
        from vllm.triton_utils import dispatcher

        def mapping_of(value: Any) -> Mapping[str, Any]:
            found = vars(value)
            return found if isinstance(found, Mapping) else {}

        dispatcher.__dict__["vars"] = mapping_of


def _lacks_bfloat16(torch: Any) -> bool:
    """Whether bfloat16 would be emulated, several times slower than float32."""
    capability: str = torch.backends.cpu.get_cpu_capability()
    return capability in ("AVX2", "DEFAULT")


def _on_cpu(settings: dict[str, Any]) -> dict[str, Any]:
    """vLLM's own defaults take most of the machine's memory, and seeded sampling fails with chunked prefill there."""
    import psutil
    import torch

    context = settings["max_model_len"] or min(_trained_context(settings), CPU_CONTEXT_TOKENS)
    kv_bytes = settings["kv_cache_memory_bytes"] or min(CPU_KV_BYTES, psutil.virtual_memory().available // 4)
    changed = {
        "max_model_len": context,
        "kv_cache_memory_bytes": kv_bytes,
        "dtype": "float32" if settings["dtype"] == "auto" and _lacks_bfloat16(torch) else settings["dtype"],
        "block_size": settings["block_size"] or CPU_BLOCK_TOKENS,
        "gpu_memory_utilization": 0.05,  # of the machine's memory: not used beside kv_cache_memory_bytes, but checked
    }
    defaults = {
        "enforce_eager": True,  # compiling takes longer than most runs on a CPU, for a fifth of speed
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(context, 2048),
    }
    return defaults | settings | changed


def _trained_context(settings: dict[str, Any]) -> int:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(settings["model"], trust_remote_code=settings.get("trust_remote_code", False))
    return getattr(config.get_text_config(), "max_position_embeddings", None) or CPU_CONTEXT_TOKENS


@contextmanager
def _stdout_kept_clean() -> Iterator[None]:
    """Send what libraries print while they load to stderr, native code included."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)
