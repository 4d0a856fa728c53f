"""What a trajectory sees and does: observations, states, actions.

The model sees only `State.observation`; ground truth lives in `State.hidden`. All types are frozen, so a state can be
stepped again or shared between samples. Freezing is shallow: treat dictionaries inside as read-only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from llenvs_fast.core.tools import ToolCall, ToolDefinition, ToolResult


@dataclass(frozen=True, slots=True)
class ImageContent:
    """One image, base64 in `data`."""

    data: str
    media_type: str = "image/png"
    source: str = ""


@dataclass(frozen=True, slots=True)
class ObservationContent:
    """Text, images and structured data of one part of an observation."""

    text: str = ""
    images: tuple[ImageContent, ...] = ()
    data: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """What the model is shown.

    `prompt` and `messages` are the legacy form: a first user message and the transcript after it. An environment that
    sets `task` (and `state`, the part that changes every turn) speaks the structured form, in which the runner
    controls the history.
    """

    prompt: str
    messages: tuple[dict[str, Any], ...] = ()
    tool_results: tuple[ToolResult, ...] = ()
    available_tools: tuple[ToolDefinition, ...] = ()
    task: ObservationContent | None = None
    state: ObservationContent | None = None
    images: tuple[ImageContent, ...] = ()


@dataclass(frozen=True, slots=True)
class StateMetadata:
    """Where in its trajectory a state stands; `step` counts from 0."""

    step: int
    episode_id: str
    is_terminal: bool = False
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class State:
    """An observation, the hidden part that the model never sees, and the position in the trajectory."""

    observation: Observation
    hidden: Any
    metadata: StateMetadata

    def with_metadata(self, **fields: Any) -> State:
        """A copy with the named metadata fields replaced."""
        return replace(self, metadata=replace(self.metadata, **fields))


@dataclass(frozen=True, slots=True)
class Action:
    """What the model did in one turn: text, tool calls, or both.

    `tool_call_errors` says what is wrong with calls that the model began and that can't be read; they stand in no call.
    """

    text: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_errors: tuple[str, ...] = ()

    @classmethod
    def from_text(cls, text: str) -> Action:
        return cls(text=text)

    @classmethod
    def from_tool_call(cls, call: ToolCall) -> Action:
        return cls(tool_calls=(call,))

    @classmethod
    def from_tool_calls(cls, calls: tuple[ToolCall, ...] | list[ToolCall]) -> Action:
        return cls(tool_calls=tuple(calls))

    @property
    def has_text(self) -> bool:
        return self.text is not None

    @property
    def has_tool_calls(self) -> bool:
        return bool(self.tool_calls)

    @property
    def is_text_only(self) -> bool:
        return self.has_text and not self.has_tool_calls
