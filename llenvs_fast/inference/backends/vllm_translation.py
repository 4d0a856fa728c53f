"""Between vLLM's words and ours: sampling options out of a request, a result out of an output.

Pure, and without an import of vllm: its objects come in as arguments and are read by their attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llenvs_fast.core.errors import (
    GenerationError,
    InvalidSettingError,
)
from llenvs_fast.inference.protocol import GenerationRequest, GenerationResult, StopReason, TokenLogprob
from llenvs_fast.inference.rendering import ChatRenderer
from llenvs_fast.inference.tool_calls import with_tool_calls


def sampling_options(request: GenerationRequest, room: int, end_of_turn_ids: Sequence[int]) -> dict[str, Any]:
    """Keywords of `vllm.SamplingParams`. `room` is how many tokens the context can still take.

    A stop string needs vLLM to detokenize as it goes; without one the text is made once, at the end.
    """
    given, extra = request.params, request.params.extra
    if extra.get("n", 1) != 1:
        raise InvalidSettingError(f"n={extra['n']!r} in extra: send samples as requests of their own, with a seed each")
    if "seed" in extra:
        raise InvalidSettingError(f"seed={extra['seed']!r} in extra: it would be every sample's; seed the run")
    max_tokens = given.max_tokens if request.max_tokens is None else request.max_tokens
    options: dict[str, Any] = {
        "max_tokens": min(max_tokens, room),
        "temperature": given.temperature,
        "top_p": given.top_p,
        "top_k": given.top_k,
        "presence_penalty": given.presence_penalty,
        "frequency_penalty": given.frequency_penalty,
        "stop": list(given.stop_sequences),
        "seed": request.seed,
        "logprobs": given.num_logprobs if given.logprobs else None,
        "flat_logprobs": given.logprobs,
    } | extra
    options["detokenize"] = bool(options["stop"])
    options["skip_special_tokens"] = options["spaces_between_special_tokens"] = False
    if not options.get("ignore_eos"):
        options["stop_token_ids"] = [*(options.get("stop_token_ids") or ()), *end_of_turn_ids]
    return options


def to_result(
    output: Any, prompt_ids: tuple[int, ...], renderer: ChatRenderer, *, with_tools: bool
) -> GenerationResult:
    """The result in a finished `vllm.RequestOutput`. Raises GenerationError for one that vLLM gave up."""
    completion = output.outputs[0]
    reason, match = _stop(completion.finish_reason, completion.stop_reason, renderer)
    ids = tuple(completion.token_ids)
    result = GenerationResult(
        text=completion.text if isinstance(match, str) else renderer.decode(ids),
        finish_reason=reason,
        token_logprobs=None if completion.logprobs is None else _logprobs(ids, completion.logprobs, renderer),
        prompt_tokens=len(prompt_ids),
        completion_tokens=len(ids),
        prompt_ids=prompt_ids,
        token_ids=ids,
        cached_tokens=output.num_cached_tokens,
        stop_match=match,
    )
    return with_tool_calls(result) if with_tools else result


def _stop(
    finish_reason: str | None, stop_reason: str | int | None, renderer: ChatRenderer
) -> tuple[StopReason, str | int | None]:
    """vLLM says "stop" for the model's own end (with the id, or None), for a stop string and for a stop token."""
    if finish_reason == "length":
        return StopReason.MAX_TOKENS, None
    if finish_reason != "stop":
        raise GenerationError(f"vLLM ended the request with {finish_reason!r}")
    if stop_reason is None or stop_reason in renderer.eos_token_ids or stop_reason in renderer.end_of_turn_ids:
        return StopReason.END_OF_TEXT, None
    return StopReason.STOP_SEQUENCE, stop_reason


def _logprobs(ids: tuple[int, ...], flat: Any, renderer: ChatRenderer) -> tuple[TokenLogprob, ...]:
    """One entry for each sampled token, found by its id: vLLM lists it beside the likeliest ones."""
    text = renderer.token_text
    entries = []
    for sampled, start, end in zip(ids, flat.start_indices, flat.end_indices, strict=True):
        there = flat.token_ids[start:end]
        values = flat.logprobs[start:end]
        top: dict[str, float] = {}
        for token, value in sorted(zip(there, values, strict=True), key=lambda pair: -pair[1]):
            top.setdefault(text(token), value)
        entries.append(TokenLogprob(text(sampled), sampled, values[there.index(sampled)], top))
    return tuple(entries)
