"""The words between whoever wants text and whoever generates it.

Requests and results are matched by the caller's key, never by position or order.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

from llenvs_fast.core.state import Action, ImageContent
from llenvs_fast.core.tools import ToolCall, ToolDefinition, ToolResult


class StopReason(Enum):
    """Why a generation ended. END_OF_TEXT is the model's own end of turn, STOP_SEQUENCE a string the caller gave."""

    MAX_TOKENS = auto()
    STOP_SEQUENCE = auto()
    END_OF_TEXT = auto()
    TOOL_USE = auto()
    ERROR = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample. `max_tokens` bounds one turn; `temperature=0` is greedy; `top_k=0` is off.

    With `logprobs` each sampled token keeps its log-probability under the model (raw: before temperature, top-p and
    penalties), and `num_logprobs` alternatives where the backend has them. `extra` is passed to the engine as it is
    and wins over the fields above.
    """

    max_tokens: int = 2048
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    stop_sequences: tuple[str, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    n: int = 1
    logprobs: bool = False
    num_logprobs: int = 5
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    role: str
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    images: tuple[ImageContent, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """OpenAI's wire shape; tool-call arguments are a JSON string there."""
        calls = [(c.id, {"name": c.name, "arguments": json.dumps(c.arguments)}) for c in self.tool_calls]
        return self._as_dict([{"id": i, "type": "function", "function": f} for i, f in calls])

    def to_template_dict(self) -> dict[str, Any]:
        """What chat templates read; tool-call arguments are an object there."""
        calls = [{"name": c.name, "arguments": c.arguments} for c in self.tool_calls]
        return self._as_dict([{"type": "function", "function": f} for f in calls])

    def _as_dict(self, tool_calls: list[dict[str, Any]]) -> dict[str, Any]:
        content: Any = self.content
        if self.images:
            content = [{"type": "text", "text": self.content or ""}]
            content += [
                {"type": "image_url", "image_url": {"url": f"data:{i.media_type};base64,{i.data}"}} for i in self.images
            ]
        message: dict[str, Any] = {"role": self.role, "content": "" if content is None else content}
        if tool_calls:
            message["tool_calls"] = tool_calls
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            message["name"] = self.name
        return message

    @classmethod
    def tool_result(cls, result: ToolResult) -> ChatMessage:
        content = result.error if result.is_error else result.output
        text = content if isinstance(content, str) else json.dumps(content)
        return cls(role="tool", content=text, tool_call_id=result.call_id, name=result.tool_name)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One sampled token. `logprob` is raw (see `SamplingParams`)."""

    token: str
    token_id: int
    logprob: float
    top_logprobs: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """What one request led to.

    `text` is what a reader sees: without the end-of-turn token, cut before a stop string. `token_ids` are the ids as
    sampled, end-of-turn and stop string included, and `prompt_ids` what the model read; both None where a backend
    deals in text only. `cached_tokens` counts prompt tokens served from the prefix cache, None where unknown.
    """

    text: str | None = None
    finish_reason: StopReason = StopReason.UNKNOWN
    tool_calls: tuple[ToolCall, ...] = ()
    token_logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    prompt_ids: tuple[int, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    cached_tokens: int | None = None
    stop_match: str | int | None = None

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def has_tool_calls(self) -> bool:
        return bool(self.tool_calls)

    def to_agent_action(self) -> Action:
        errors = tuple(self.metadata.get("tool_call_errors", ()))
        return Action(text=self.text, tool_calls=self.tool_calls, tool_call_errors=errors)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One turn to generate.

    Backends with a `renderer` read `prompt_ids`, which may be an array that grows once the request has ended: a backend
    that needs them after that copies them. The others read `messages`. `seed=None` leaves the draw to the engine.
    `max_tokens`, where given, replaces `params.max_tokens` for this request.
    """

    key: Hashable
    params: SamplingParams
    prompt_ids: Sequence[int] | None = None
    messages: tuple[ChatMessage, ...] | None = None
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: str = "auto"
    seed: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of one request: a result, or the error that ended it. Exactly one of the two is set."""

    key: Hashable
    result: GenerationResult | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class BackendCapabilities:
    supports_logprobs: bool = False
    supports_prefix_continuation: bool = False
    supports_batching: bool = False
    supports_streaming: bool = False
    supports_chat: bool = True
    supports_function_calling: bool = False
    supports_vision: bool = False
    supports_full_scoring: bool = False
    supports_seed: bool = False
    max_batch_size: int | None = None
    max_context_length: int | None = None
    max_concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class KVCapacity:
    """Size of an engine's KV cache: `blocks` of `block_tokens` tokens each, and how many sequences run at once."""

    block_tokens: int
    blocks: int
    max_sequences: int
    prefix_caching: bool = True


@dataclass(slots=True)
class EngineFigures:
    """Counts since the backend was made. None: the backend can't know."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    engine_steps: int | None = None
    preemptions: int | None = None

    def copy(self) -> EngineFigures:
        return replace(self)

    def since(self, earlier: EngineFigures) -> EngineFigures:
        """The counts that were added after `earlier` was copied."""

        def less(now: int | None, then: int | None) -> int | None:
            return None if now is None else now - (then or 0)

        return EngineFigures(
            requests=self.requests - earlier.requests,
            prompt_tokens=self.prompt_tokens - earlier.prompt_tokens,
            completion_tokens=self.completion_tokens - earlier.completion_tokens,
            cached_tokens=less(self.cached_tokens, earlier.cached_tokens),
            engine_steps=less(self.engine_steps, earlier.engine_steps),
            preemptions=less(self.preemptions, earlier.preemptions),
        )
