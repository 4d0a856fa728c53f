"""Tools for environments: `ToolEnvironment(inner, make_tools(["calculator"]))` gives them to any single-turn one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llenvs_fast.core.errors import InvalidSettingError, nearest
from llenvs_fast.environments.tools.calculator import calculator
from llenvs_fast.environments.tools.environment import ToolEnvironment, ToolState
from llenvs_fast.environments.tools.python_tool import python
from llenvs_fast.environments.tools.submit import submit_answer
from llenvs_fast.environments.tools.tool import Tool, ToolError

TOOLS: dict[str, Callable[[], Tool]] = {"calculator": calculator, "python": python, "submit_answer": submit_answer}


def check_tool_types(names: Sequence[str]) -> tuple[str, ...]:
    """The names as they are. Raises InvalidSettingError for anything but different names of `TOOLS`."""
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        hint = f'["{names}"]' if isinstance(names, str) else '["calculator"]'
        raise InvalidSettingError(f"tool_types={names!r}: give a list of names, like {hint}")
    for name in names:
        if name not in TOOLS:
            raise InvalidSettingError(f"tool_types has no tool {name!r}; {nearest(name, TOOLS)}")
        if names.count(name) > 1:
            raise InvalidSettingError(f"tool_types={list(names)!r}: {name!r} is there twice")
    return tuple(names)


def make_tools(names: Sequence[str]) -> tuple[Tool, ...]:
    """New tools by name. Raises InvalidSettingError for what `check_tool_types` refuses, or a tool can't run here."""
    return tuple(TOOLS[name]() for name in check_tool_types(names))


__all__ = [
    "TOOLS",
    "Tool",
    "ToolEnvironment",
    "ToolError",
    "ToolState",
    "calculator",
    "check_tool_types",
    "make_tools",
    "python",
    "submit_answer",
]
