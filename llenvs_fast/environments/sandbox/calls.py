"""What goes into the sandbox and what comes out: calls, outcomes, limits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from llenvs_fast.core.errors import LLEnvsError, ScoringError

PROTECTION = "protection"  # the one function that is the worker's own
SETTING_UP = b"s"  # a worker's signs that the call at its head begins and ends setting up
SET_UP = b"r"


class SandboxError(LLEnvsError, RuntimeError):
    """The sandbox itself failed: a worker can't start, or the pool was closed under a caller."""

    kind = "sandbox"


class Status(StrEnum):
    """How a call ended. `VALUE` and `RAISED` are the function's own doing, the rest is the sandbox's."""

    VALUE = "value"
    RAISED = "raised"
    BAD_VALUE = "bad_value"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    MEMORY = "memory"
    REFUSED = "refused"


FAILURE_KINDS = {
    Status.TIMEOUT: "score_timeout",
    Status.CRASHED: "score_crashed",
    Status.MEMORY: "score_memory",
    Status.REFUSED: "score_refused",
    Status.BAD_VALUE: "bad_reward",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one worker may use: address space (code and libraries included), and time to start."""

    memory_bytes: int = 4 * 2**30
    start_timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Call:
    """One function of the pool's module with arguments that JSON can carry.

    `timeout_s` is wall time. `setup_timeout_s` holds instead while the function declares that it is setting up.
    """

    function: str
    args: tuple[Any, ...] = ()
    timeout_s: float = 10.0
    setup_timeout_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one call ended: `value` is what the function returned, by way of strict JSON; `message` what went wrong."""

    status: Status
    value: Any = None
    message: str = ""
    error_type: str = ""

    def failure(self) -> ScoringError | None:
        """The error of a call that was cut off or gave no JSON value; None where the function returned or raised."""
        kind = FAILURE_KINDS.get(self.status)
        return None if kind is None else ScoringError(self.message, kind)
