"""Errors, and failures as data.

Code raises typed errors whose message names the thing, the value and the remedy. At the boundary of a trajectory the
engine turns any exception into a `Failure`, which says what failed, in which phase and at which step: one trajectory
pays, its neighbours go on.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class LLEnvsError(Exception):
    """Base of the errors that this package raises on purpose. `kind` names the failure in results."""

    kind = "error"

    def __str__(self) -> str:  # KeyError would show the message in quotes
        return str(self.args[0]) if self.args else type(self).__name__


class UnknownAdapterError(LLEnvsError, KeyError):
    """No environment source of that name."""

    kind = "unknown_adapter"


class UnknownEnvironmentError(LLEnvsError, ValueError):
    """The source has no environment of that name."""

    kind = "unknown_environment"


class UnknownModelError(LLEnvsError, ValueError):
    """No model of that name or path."""

    kind = "unknown_model"


class InvalidSettingError(LLEnvsError, ValueError):
    """An option has a value that it can't have."""

    kind = "invalid_setting"


class MissingPackageError(LLEnvsError, ImportError):
    """An optional package is needed; the message names the extra that brings it."""

    kind = "missing_package"


class ChatTemplateError(LLEnvsError, ValueError):
    """The model's tokenizer has no chat template, or the template rejects the messages."""

    kind = "chat_template"


class RecoverableInputError(LLEnvsError, ValueError):
    """This input can never be generated from; other inputs can."""

    kind = "bad_input"


class PromptTooLongError(RecoverableInputError):
    """The prompt leaves no room for a single new token in the model's context."""

    kind = "prompt_too_long"


class EmptyPromptError(RecoverableInputError):
    """The prompt has no tokens."""

    kind = "empty_prompt"


class GenerationError(LLEnvsError, RuntimeError):
    """The backend gave no usable result for one request."""

    kind = "generation_error"


class AbortedError(GenerationError):
    """The request was taken back before it finished."""

    kind = "aborted"


class BackendProtocolError(GenerationError):
    """A backend broke its contract: an unknown key, a key twice, a key missing, a wrong number of outputs."""

    kind = "backend_protocol"


class BackendBusyError(LLEnvsError, RuntimeError):
    """The backend is in use by another run."""

    kind = "backend_busy"


class EngineStartError(LLEnvsError, RuntimeError):
    """The engine could not be started with this model and these options."""

    kind = "engine_start"


class EngineDeadError(LLEnvsError, RuntimeError):
    """The engine itself failed; nothing more can be generated with it."""

    kind = "engine_dead"


class ScoringError(LLEnvsError, RuntimeError):
    """An answer could not be scored. `kind` says how: score_timeout, score_crashed, score_refused, score_memory."""

    def __init__(self, message: str, kind: str = "score_error") -> None:
        super().__init__(message)
        self.kind = kind

    def __reduce__(self) -> tuple[type[ScoringError], tuple[str, str]]:
        return type(self), (str(self), self.kind)


class BadRewardError(LLEnvsError, ValueError):
    """A reward is not one finite number (or None)."""

    kind = "bad_reward"


class JournalError(LLEnvsError, RuntimeError):
    """The journal of a run can't be written, read or resumed."""

    kind = "journal"


class SettingsMismatchError(JournalError):
    """A run is resumed with settings other than its own; the message lists the changed fields."""

    kind = "settings_mismatch"


class Phase(StrEnum):
    """What a trajectory was doing."""

    RESET = "reset"
    RENDER = "render"
    GENERATE = "generate"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a trajectory ended without a result.

    `step` is the number of transitions that the trajectory had by then. `traceback` is None for errors that this
    package raised on purpose: their message says it all.
    """

    kind: str
    message: str
    phase: Phase
    step: int
    error_type: str
    traceback: str | None = None

    @classmethod
    def from_exception(cls, error: BaseException, phase: Phase, step: int) -> Failure:
        ours = isinstance(error, LLEnvsError)
        return cls(
            kind=getattr(error, "kind", "error") if ours else f"{phase.value}_error",
            message=describe(error),
            phase=phase,
            step=step,
            error_type=type(error).__name__,
            traceback=None if ours else "".join(traceback.format_exception(error)),
        )


def describe(error: BaseException) -> str:
    """What an error says, or its type where it says nothing. Never raises, whatever the error's own `__str__` does."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """A clause for the end of an error message: the nearest known names, or all of them where none is near."""
    known = sorted(set(known))
    near = difflib.get_close_matches(name, known, n=count, cutoff=0.5)
    if near:
        return f"nearest: {', '.join(near)}"
    listed = ", ".join(known[:20]) + (f", … ({len(known)} in all)" if len(known) > 20 else "")
    return f"known: {listed}" if known else "none exist"
