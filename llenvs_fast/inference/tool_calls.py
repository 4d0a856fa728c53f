"""Tool calls in a model's text, in the Hermes convention: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

A call that can't be read is an error with its text in it, never a call with arguments that the model did not give.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any, NamedTuple

from llenvs_fast.core.tools import ToolCall
from llenvs_fast.inference.protocol import GenerationResult, StopReason

_BLOCK = re.compile(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_SHOWN_CHARACTERS = 200


class ParsedText(NamedTuple):
    """`text` is what stands outside the calls, None where nothing does. One error for each call that can't be read."""

    text: str | None
    tool_calls: tuple[ToolCall, ...]
    errors: tuple[str, ...]


def parse_hermes(text: str) -> ParsedText:
    """Split a reply into its text, its calls (ids `call_0`, `call_1`, … in order) and what went wrong."""
    calls: list[ToolCall] = []
    errors: list[str] = []
    for n, block in enumerate(_BLOCK.finditer(text)):
        body, end = block.groups()
        try:
            name, arguments = _read_call(body, complete=bool(end))
            calls.append(ToolCall(f"call_{n}", name, arguments))
        except ValueError as error:
            errors.append(f"tool call {n} can't be read: {error}; it says {body.strip()[:_SHOWN_CHARACTERS]!r}")
    return ParsedText(_BLOCK.sub("", text).strip() or None, tuple(calls), tuple(errors))


def _read_call(body: str, complete: bool) -> tuple[str, dict[str, Any]]:
    if not complete:
        raise ValueError("it has no closing </tool_call>")
    try:
        call = json.loads(body)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"it is no JSON ({error})") from error
    if not isinstance(call, dict):
        raise ValueError(f"it is a JSON {type(call).__name__}, not an object")
    name, arguments = call.get("name"), call.get("arguments")
    if not isinstance(name, str) or not name:
        raise ValueError('it has no "name"')
    if not isinstance(arguments, dict):
        raise ValueError(f'its "arguments" are {json.dumps(arguments)}, not an object')
    return name, arguments


def with_tool_calls(result: GenerationResult) -> GenerationResult:
    """The result with the tool calls in its text taken out of it; those that can't be read go to the metadata."""
    parsed = parse_hermes(result.text or "")
    metadata = result.metadata | ({"tool_call_errors": parsed.errors} if parsed.errors else {})
    if not parsed.tool_calls:
        return replace(result, metadata=metadata)
    return replace(
        result, text=parsed.text, tool_calls=parsed.tool_calls, finish_reason=StopReason.TOOL_USE, metadata=metadata
    )
