"""The tool `submit_answer`, which ends the task with its argument as the answer."""

from __future__ import annotations

from llenvs_fast.core.tools import ToolDefinition, ToolParameter, ToolParameterType
from llenvs_fast.environments.tools.tool import Tool

SUBMIT_ANSWER = ToolDefinition(
    name="submit_answer",
    description="Submit the final answer. This ends the task.",
    parameters=(ToolParameter("answer", ToolParameterType.STRING, "The final answer."),),
    is_terminal=True,
)


def submit_answer() -> Tool:
    return Tool(SUBMIT_ANSWER, lambda arguments: str(arguments["answer"]))
