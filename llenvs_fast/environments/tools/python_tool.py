"""The tool `python`: a model's code in a process of its own, which the kernel lets compute and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.core.tools import ToolDefinition, ToolParameter, ToolParameterType
from llenvs_fast.environments.sandbox import Call, Limits, Outcome, SandboxPool, Status
from llenvs_fast.environments.tools.tool import Tool, ToolError

TIMEOUT_S = 5.0
MEMORY_BYTES = 2**30
MAX_CODE_CHARS = 50_000

PYTHON = ToolDefinition(
    name="python",
    description="Run Python code and return what it prints.",
    parameters=(ToolParameter("code", ToolParameterType.STRING, "The code to run."),),
)

_STOPPED = {
    Status.TIMEOUT: f"the code did not end in {TIMEOUT_S:g} s",
    Status.MEMORY: "the code used up its memory",
    Status.CRASHED: "the code crashed its interpreter or ended it",
}


def python() -> Tool:
    """Runs each call afresh: 5 s, 1 GiB, no files, no network, no processes or threads; 10,000 characters come back.

    The standard library's modules for computing can be imported, and numpy and sympy where they are installed. The
    same code gives the same text: random numbers begin with one seed. An exception's last line is part of the text.

    Raises InvalidSettingError where the kernel can't confine the code.
    """
    pool = SandboxPool("llenvs_fast.environments.tools.python_worker", limits=Limits(memory_bytes=MEMORY_BYTES))

    def run_batch(batch: Sequence[dict[str, Any]]) -> list[str | Exception]:
        codes = [arguments["code"] for arguments in batch]
        fit = [code for code in codes if len(code) <= MAX_CODE_CHARS]
        outcomes = iter(pool.call_batch([Call("run", (code,), TIMEOUT_S) for code in fit]))
        return [_text(next(outcomes)) if len(code) <= MAX_CODE_CHARS else _too_long(code) for code in codes]

    def run(arguments: dict[str, Any]) -> str:
        ended = run_batch([arguments])[0]
        if isinstance(ended, Exception):
            raise ended
        return ended

    try:
        run({"code": "1"})
    except ToolError as error:
        pool.close()
        raise InvalidSettingError(
            f"the tool python can't run here: {error}; it needs Linux with seccomp, on x86_64 or aarch64"
        ) from error
    return Tool(PYTHON, run, run_batch, pool.close)


def _too_long(code: str) -> ToolError:
    return ToolError(f"the code has {len(code):,} characters: give at most {MAX_CODE_CHARS:,}")


def _text(outcome: Outcome) -> str | ToolError:
    """What the model reads of a run."""
    if outcome.status is not Status.VALUE:  # the worker itself went
        return ToolError(_STOPPED.get(outcome.status, outcome.message))
    printed, raised, stopped, why = (outcome.value[name] for name in ("printed", "raised", "stopped", "why"))
    if stopped is not None:
        reason = _STOPPED.get(stopped, why)
        return ToolError(f"{reason}; it had printed:\n{printed}" if printed else reason)
    return "\n".join(part for part in (printed, raised) if part)
