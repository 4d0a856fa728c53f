"""Tools that a model may call: their definitions, calls and results."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, get_type_hints


class ToolParameterType(StrEnum):
    """JSON Schema's names."""

    STRING = "string"
    NUMBER = "number"
    INTEGER = "integer"
    BOOLEAN = "boolean"
    ARRAY = "array"
    OBJECT = "object"


_PYTHON_TYPES: dict[Any, ToolParameterType] = {
    str: ToolParameterType.STRING,
    float: ToolParameterType.NUMBER,
    int: ToolParameterType.INTEGER,
    bool: ToolParameterType.BOOLEAN,
    list: ToolParameterType.ARRAY,
    dict: ToolParameterType.OBJECT,
}


@dataclass(frozen=True, slots=True)
class ToolParameter:
    name: str
    type: ToolParameterType
    description: str
    required: bool = True
    enum: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool as the model sees it. `raw_schema`, where given, is used as it is instead of `parameters`."""

    name: str
    description: str
    parameters: tuple[ToolParameter, ...] = ()
    is_terminal: bool = False
    raw_schema: dict[str, Any] | None = None

    def json_schema(self) -> dict[str, Any]:
        if self.raw_schema is not None:
            return self.raw_schema
        properties = {
            p.name: {"type": p.type.value, "description": p.description} | ({"enum": list(p.enum)} if p.enum else {})
            for p in self.parameters
        }
        return {
            "type": "object",
            "properties": properties,
            "required": [p.name for p in self.parameters if p.required],
        }

    def to_openai_schema(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": self.json_schema()}
        return {"type": "function", "function": function}

    def to_anthropic_schema(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, "input_schema": self.json_schema()}

    @classmethod
    def from_callable(
        cls,
        func: Callable[..., Any],
        *,
        is_terminal: bool = False,
        name: str | None = None,
        description: str | None = None,
    ) -> ToolDefinition:
        """Read a definition off a function: its signature, type hints and Google-style docstring."""
        summary, arguments = _read_docstring(inspect.getdoc(func) or "")
        hints = get_type_hints(func)
        parameters = tuple(
            ToolParameter(
                name=p.name,
                type=_PYTHON_TYPES.get(_origin(hints.get(p.name, str)), ToolParameterType.STRING),
                description=arguments.get(p.name, ""),
                required=p.default is inspect.Parameter.empty,
            )
            for p in inspect.signature(func).parameters.values()
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        )
        return cls(name or func.__name__, description or summary, parameters, is_terminal)


def _origin(hint: Any) -> Any:
    return getattr(hint, "__origin__", hint)


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    head, _, tail = text.partition("Args:")
    arguments: dict[str, str] = {}
    for line in tail.partition("Returns:")[0].splitlines():
        name, colon, description = line.strip().partition(":")
        if colon and name:
            arguments[name.split("(")[0].strip()] = description.strip()
    return head.strip(), arguments


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


class ToolResultStatus(StrEnum):
    SUCCESS = "success"
    ERROR = "error"
    INVALID_TOOL = "invalid_tool"
    INVALID_ARGUMENTS = "invalid_arguments"


@dataclass(frozen=True, slots=True)
class ToolResult:
    call_id: str
    tool_name: str
    status: ToolResultStatus
    output: str | dict[str, Any] = ""
    error: str | None = None

    @classmethod
    def success(cls, call_id: str, tool_name: str, output: str | dict[str, Any]) -> ToolResult:
        return cls(call_id, tool_name, ToolResultStatus.SUCCESS, output)

    @classmethod
    def from_error(
        cls, call_id: str, tool_name: str, error: str, status: ToolResultStatus = ToolResultStatus.ERROR
    ) -> ToolResult:
        return cls(call_id, tool_name, status, error=error)

    @property
    def is_success(self) -> bool:
        return self.status is ToolResultStatus.SUCCESS

    @property
    def is_error(self) -> bool:
        return not self.is_success
