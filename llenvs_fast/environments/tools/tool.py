"""One tool: what the model is told of it, and what runs when it is called. A call never raises: it has a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from reprlib import repr as short_repr
from typing import Any

from llenvs_fast.core.errors import InvalidSettingError, LLEnvsError, describe
from llenvs_fast.core.tools import ToolCall, ToolDefinition, ToolResult, ToolResultStatus

MAX_RESULT_CHARS = 20_000

_FITS: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


class ToolError(LLEnvsError, ValueError):
    """A call went wrong in a way that the model should read about: the message is for the model."""

    kind = "tool_error"


@dataclass(frozen=True, slots=True)
class Tool:
    """A definition and a function from arguments, checked against the definition, to the text that the model reads.

    `run` raises ToolError with a message for the model. `run_batch`, where given, takes many calls at once and returns
    a text or an exception for each. `close` frees what the tool holds. The output of a terminal tool is the answer.
    Calls may come from several threads. A call that hangs is the tool's own to end, as `python` does.
    """

    definition: ToolDefinition
    run: Callable[[dict[str, Any]], str]
    run_batch: Callable[[Sequence[dict[str, Any]]], Sequence[str | Exception]] | None = None
    close: Callable[[], None] | None = None

    @classmethod
    def from_callable(cls, function: Callable[..., Any], is_terminal: bool = False) -> Tool:
        """A function as a tool: name, description and parameters are read off it; what it returns is shown as text."""
        definition = ToolDefinition.from_callable(function, is_terminal=is_terminal)
        return cls(definition, lambda arguments: str(function(**arguments)))

    @property
    def name(self) -> str:
        return self.definition.name

    def call_batch(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """One result for each call, whatever the calls are and whatever the tool does."""
        problems = [problem_with(call.arguments, self.definition) for call in calls]
        outputs = iter(self._run_all([c.arguments for c, problem in zip(calls, problems, strict=True) if not problem]))
        return [
            ToolResult.from_error(call.id, self.name, problem, ToolResultStatus.INVALID_ARGUMENTS)
            if problem
            else _result(call, next(outputs, None))
            for call, problem in zip(calls, problems, strict=True)
        ]

    def _run_all(self, arguments: list[dict[str, Any]]) -> Sequence[str | BaseException]:
        if self.run_batch is None or len(arguments) < 2:
            return [self._run_one(one) for one in arguments]
        try:
            return list(self.run_batch(arguments))
        except (Exception, SystemExit) as error:
            return [error] * len(arguments)

    def _run_one(self, arguments: dict[str, Any]) -> str | BaseException:
        try:
            return self.run(arguments)
        except (Exception, SystemExit) as error:  # a tool is anybody's code; what it raises is for the model to read
            return error


def _result(call: ToolCall, output: object) -> ToolResult:
    if isinstance(output, str):
        return ToolResult.success(call.id, call.name, shown(output))
    if isinstance(output, ToolError):
        return ToolResult.from_error(call.id, call.name, shown(str(output)))
    if isinstance(output, BaseException):
        return ToolResult.from_error(call.id, call.name, shown(f"{type(output).__name__}: {describe(output)}"))
    return ToolResult.from_error(call.id, call.name, f"the tool gave a {type(output).__name__} instead of text")


def result_text(result: ToolResult) -> str:
    """What the model reads of a result."""
    return f"Error: {result.error}" if result.is_error else str(result.output)


def shown(text: str, limit: int = MAX_RESULT_CHARS) -> str:
    """The text as a tokenizer takes it: half surrogate pairs replaced, cut to `limit` characters with a note of it."""
    cut = text[:limit].encode("utf-8", "replace").decode()
    return cut if len(text) <= limit else f"{cut}\n[cut: {len(text) - limit:,} more characters]"


def problem_with(arguments: dict[str, Any], definition: ToolDefinition) -> str | None:
    """What is wrong with a call's arguments, in words for the model; None where they fit the definition."""
    schema = definition.json_schema()
    properties = schema.get("properties", {})
    takes = f"{definition.name} takes {', '.join(properties) or 'no arguments'}"
    missing = [name for name in schema.get("required", ()) if name not in arguments]
    if missing:
        return f"missing argument {', '.join(missing)}: {takes}"
    open_ended = definition.raw_schema is not None and schema.get("additionalProperties", True)
    unknown = [] if open_ended else [name for name in arguments if name not in properties]
    if unknown:
        return f"unknown argument {shown(', '.join(unknown), 100)}: {takes}"
    for name, value in arguments.items():
        wanted = properties.get(name, {})
        kind, choices = wanted.get("type"), wanted.get("enum")
        if isinstance(kind, str) and kind in _FITS and not _FITS[kind](value):
            return f"argument {name} is {short_repr(value)}: it must be of type {kind}"
        if choices and value not in choices:
            return f"argument {name} is {short_repr(value)}: it must be one of {', '.join(map(repr, choices))}"
    return None


def by_name(tools: Sequence[Tool]) -> dict[str, Tool]:
    """The tools by name. Raises InvalidSettingError where there are none, or two of one name."""
    if not tools:
        raise InvalidSettingError("tools is empty: give at least one tool")
    names = [tool.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise InvalidSettingError(f"two tools are called {name!r}: give each its own name")
    return dict(zip(names, tools, strict=True))
