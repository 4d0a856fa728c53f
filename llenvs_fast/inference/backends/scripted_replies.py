"""From a script to the result of a request. Pure but for the count of how often each prompt was asked."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from llenvs_fast.core.errors import GenerationError, InvalidSettingError, nearest
from llenvs_fast.core.tools import ToolCall
from llenvs_fast.inference.protocol import GenerationRequest, GenerationResult, StopReason, TokenLogprob
from llenvs_fast.inference.rendering import ChatRenderer
from llenvs_fast.inference.stopping import StopWatch, find_stop
from llenvs_fast.inference.tool_calls import with_tool_calls


@dataclass(frozen=True, slots=True)
class Reply:
    """What a scripted backend answers: a text or token ids, or an error in their place.

    `token_ids` are taken as sampled; without them the ids are those of `text`, and an end of turn for END_OF_TEXT.
    `logprobs` holds one raw log-probability for each of the ids (0.0 where None). The reply comes `delay_steps` polls
    and `delay_s` seconds later than it would.
    """

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    finish_reason: StopReason = StopReason.END_OF_TEXT
    delay_steps: int = 0
    delay_s: float = 0.0
    error: Exception | None = None
    tool_calls: tuple[ToolCall, ...] = ()


Answer = Reply | str | Exception
Script = Callable[[GenerationRequest], Answer] | Mapping[str, Answer | Sequence[Answer]] | Sequence[Answer] | Answer
Lookup = Callable[[GenerationRequest], Reply]


def reply_of(answer: Answer) -> Reply:
    if isinstance(answer, str):
        return Reply(answer)
    if isinstance(answer, Reply):
        return answer
    if isinstance(answer, Exception):
        return Reply(error=answer)
    raise InvalidSettingError(
        f"the script answers with a {type(answer).__name__}: it must be a Reply, a string or an exception"
    )


def lookup_in(script: Script, renderer: ChatRenderer | None) -> Lookup:
    """What finds the reply to a request.

    A mapping is asked for the last user message, or the whole prompt's text where a request has ids alone. Several
    answers go round, in the order of the requests for the same prompt (mapping) or of all requests.
    """
    if isinstance(script, Mapping):
        return _lookup_by_prompt(script, renderer)
    if callable(script):
        return lambda request: reply_of(script(request))
    answers = _cycle(script)
    return lambda request: next(answers)


def _cycle(answers: Answer | Sequence[Answer]) -> itertools.cycle[Reply]:
    several = answers if isinstance(answers, Sequence) and not isinstance(answers, str) else [answers]
    if not several:
        raise InvalidSettingError("the script has an empty list of answers: give at least one")
    return itertools.cycle([reply_of(a) for a in several])


def _lookup_by_prompt(script: Mapping[str, Answer | Sequence[Answer]], renderer: ChatRenderer | None) -> Lookup:
    replies = {prompt: _cycle(answers) for prompt, answers in script.items()}

    def find(request: GenerationRequest) -> Reply:
        prompt = prompt_text(request, renderer)
        if prompt not in replies:
            raise GenerationError(f"the script has no reply to {prompt[:200]!r}; {nearest(prompt, replies)}")
        return next(replies[prompt])

    return find


def prompt_text(request: GenerationRequest, renderer: ChatRenderer | None) -> str:
    """The last user message, or the decoded prompt of a request without messages."""
    if request.messages:
        return next((m.content or "" for m in reversed(request.messages) if m.role == "user"), "")
    return renderer.decode(request.prompt_ids, skip_special=False) if renderer and request.prompt_ids else ""


# results -------------------------------------------------------------------------------------------------------------


def max_tokens_of(request: GenerationRequest) -> int:
    limit = request.params.max_tokens if request.max_tokens is None else request.max_tokens
    if limit < 1:
        raise InvalidSettingError(f"max_tokens is {limit}: at least one token is generated")
    return limit


_WORD = re.compile(r"\s*\S+")


def text_result(request: GenerationRequest, reply: Reply) -> GenerationResult:
    """The result of a backend that deals in text; a token is a word there."""
    text, reason, match = reply.text or "", _reason(reply), None
    if request.params.stop_sequences and (stop := find_stop(text, request.params.stop_sequences)):
        text, reason, match = text[: stop.start], StopReason.STOP_SEQUENCE, stop.string
    limit = max_tokens_of(request)
    tokens = len(text.split())
    if tokens > limit:
        text = "".join(m[0] for m in itertools.islice(_WORD.finditer(text), limit))
        tokens, reason, match = limit, StopReason.MAX_TOKENS, None
    prompt_tokens = sum(len(m.content.split()) for m in request.messages or () if m.content)
    return GenerationResult(text, reason, reply.tool_calls, None, prompt_tokens, tokens, stop_match=match)


def token_result(
    request: GenerationRequest, reply: Reply, prompt_ids: tuple[int, ...], room: int | None, renderer: ChatRenderer
) -> GenerationResult:
    """The result of a backend that deals in token ids. `room` is how many the context can still take."""
    limit = max_tokens_of(request) if room is None else min(max_tokens_of(request), room)
    ids, reason, match, text, calls = _sampled_ids(reply, renderer), _reason(reply), None, reply.text, reply.tool_calls
    if stop := _first_stop(ids[:limit], request.params.stop_sequences, renderer):
        count, text, match = stop
        ids, reason, calls = ids[:count], StopReason.STOP_SEQUENCE, ()
    elif len(ids) > limit:
        ids, reason, text, calls = ids[:limit], StopReason.MAX_TOKENS, None, ()
    if text is None and not calls:
        text = renderer.decode(ids)
    result = GenerationResult(
        text=text,
        finish_reason=reason,
        tool_calls=calls,
        token_logprobs=_logprobs(ids, reply, renderer) if request.params.logprobs else None,
        prompt_tokens=len(prompt_ids),
        completion_tokens=len(ids),
        prompt_ids=prompt_ids,
        token_ids=ids,
        stop_match=match,
    )
    reads_calls = request.tools and request.tool_choice != "none" and not calls
    return with_tool_calls(result) if reads_calls else result


def _reason(reply: Reply) -> StopReason:
    return StopReason.TOOL_USE if reply.tool_calls else reply.finish_reason


def _sampled_ids(reply: Reply, renderer: ChatRenderer) -> tuple[int, ...]:
    if reply.token_ids is not None:
        return tuple(reply.token_ids)
    calls = (json.dumps({"name": c.name, "arguments": c.arguments}) for c in reply.tool_calls)
    said = (reply.text or "") + "".join(f"<tool_call>{call}</tool_call>" for call in calls)
    ids = tuple(renderer.tokenizer(said, add_special_tokens=False)["input_ids"])
    end = (renderer.end_of_turn_ids or renderer.eos_token_ids)[:1]
    return ids + end if reply.finish_reason is StopReason.END_OF_TEXT else ids


def _first_stop(
    ids: tuple[int, ...], stop_sequences: Sequence[str], renderer: ChatRenderer
) -> tuple[int, str, str] | None:
    """How many ids it takes to complete the first stop string, the text before it, and the string."""
    if not stop_sequences or find_stop(renderer.decode(ids), stop_sequences) is None:
        return None
    watch = StopWatch(stop_sequences, renderer.decode)
    for count in range(1, len(ids) + 1):
        if match := watch.completed(ids[:count]):
            return count, renderer.decode(ids[:count])[: match.start], match.string
    return None


def _logprobs(ids: tuple[int, ...], reply: Reply, renderer: ChatRenderer) -> tuple[TokenLogprob, ...]:
    values = reply.logprobs if reply.logprobs is not None else (0.0,) * len(ids)
    if len(values) < len(ids):
        raise InvalidSettingError(f"the reply has {len(values)} logprobs for {len(ids)} tokens: give one for each")
    texts = [renderer.token_text(i) for i in ids]
    return tuple(TokenLogprob(t, i, v, {t: v}) for t, i, v in zip(texts, ids, values, strict=False))
