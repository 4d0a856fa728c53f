"""What runs inside a worker: one call, the signs it gives while setting up, and children for a single answer.

A reply is one row of strict JSON: [status, value, message, error type]. Functions that a pool calls use `setting_up`
for work that sees no answer, `isolated` for work on text that may run as code, and `guard.refuse` to turn text away.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from llenvs_fast.environments.sandbox import guard, seccomp
from llenvs_fast.environments.sandbox.calls import SET_UP, SETTING_UP, Status

MESSAGE_CHARS = 1000
_REPLY_BYTES = 65536
_PR_SET_PDEATHSIG = 1

Row = tuple[Status, Any, str, str]


class Encoded(str):
    """A value that is JSON text already."""


class CallFailedError(Exception):
    """A call that ended in a way of its own; `row` is its reply."""

    def __init__(self, status: Status, message: str, error_type: str = "") -> None:
        super().__init__(message)
        self.row: Row = (status, None, message, error_type)


class Clock:
    """The wall limit of the call that runs, and the pipe on which its signs go to the parent."""

    def __init__(self) -> None:
        self.reply_fd = -1
        self.timeout_s = 0.0


clock = Clock()


@contextmanager
def setting_up() -> Iterator[None]:
    """Trusted work within a call: `setup_timeout_s` holds, and the call's own clock starts anew afterwards.

    An error here is no fault of the answer: the call ends as crashed, not as raised.
    """
    write_all(clock.reply_fd, SETTING_UP + b"\n")
    try:
        with guard.strength(guard.Strength.SERVING):
            yield
    except Exception as error:
        raise CallFailedError(Status.CRASHED, f"setting up failed: {type(error).__name__}: {_text(error)}") from error
    guard.take_refusal()  # no answer has been seen yet
    write_all(clock.reply_fd, SET_UP + b"\n")


def perform(function: Callable[..., Any], args: list[Any]) -> bytes:
    """Run one call and encode its reply; whatever the function raises is part of the reply."""
    guard.take_refusal()
    row: Row
    try:
        with guard.strength(guard.Strength.ANSWERING):
            row = (Status.VALUE, function(*args), "", "")
    except CallFailedError as failed:
        row = failed.row
    except MemoryError:
        row = (Status.MEMORY, None, "answer used up the worker's memory", "MemoryError")
    except BaseException as error:  # SystemExit and the like too: they come from the answer
        row = (Status.RAISED, None, _text(error), type(error).__name__)
    if reason := guard.take_refusal():
        row = (Status.REFUSED, None, reason, "")
    return encode(row)


def encode(row: Row) -> bytes:
    if isinstance(row[1], Encoded):
        return f'["{row[0]}", {row[1]}, "", ""]\n'.encode()
    try:
        return json.dumps(row, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError, RecursionError):
        message = f"no number, text or other JSON value: {_text(row[1])!r}"
        return json.dumps((Status.BAD_VALUE, None, message, type(row[1]).__name__)).encode() + b"\n"


def isolated(function: Callable[..., Any], *args: Any) -> float | None:
    """`function(*args)` in a child forked for this one call: what it breaks, breaks with the child.

    The child may not write files, start or signal processes, or open sockets. Only a number or None is believed of its
    reply. Raises CallFailedError where the child failed.
    """
    read_fd, write_fd = os.pipe()
    try:
        with guard.strength(guard.Strength.SERVING):
            child = os.fork()
    except OSError as error:
        os.close(read_fd)
        os.close(write_fd)
        raise CallFailedError(Status.CRASHED, f"no process to score the answer in: {error.strerror}") from error
    if child == 0:
        _live_as_child(write_fd, function, list(args))
    os.close(write_fd)
    reply, in_time = _read_reply(read_fd, time.monotonic() + clock.timeout_s)
    os.close(read_fd)
    with guard.strength(guard.Strength.SERVING):
        os.kill(child, signal.SIGKILL)
    _, wait_status = os.waitpid(child, 0)
    if not in_time or (os.WIFSIGNALED(wait_status) and os.WTERMSIG(wait_status) == signal.SIGXCPU):
        raise CallFailedError(Status.TIMEOUT, f"answer was not scored in {clock.timeout_s:g} s")
    return _believe(reply, wait_status)


def _live_as_child(write_fd: int, function: Callable[..., Any], args: list[Any]) -> NoReturn:
    try:
        with guard.strength(guard.Strength.OFF):  # ctypes is needed once more
            os.dup2(write_fd, 3)
            os.closerange(4, 256)
            seconds = math.ceil(clock.timeout_s) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            die_with_parent()
            filter_calls(allow_processes=False)
        write_all(3, perform(function, args))
    finally:
        os._exit(0)


def _read_reply(fd: int, deadline: float) -> tuple[bytes, bool]:
    """All that the child writes, up to a bound, and whether it was done in time."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    reply = b""
    while len(reply) <= _REPLY_BYTES:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1e3):
            return reply, False
        chunk = os.read(fd, _REPLY_BYTES)
        if not chunk:
            break
        reply += chunk
    return reply, True


def _believe(reply: bytes, wait_status: int) -> float | None:
    """The number in a child's reply. Raises CallFailedError for anything else."""
    try:
        status, value, message, error_type = json.loads(reply)
        status = Status(status)
        if not all(isinstance(text, str) and len(text) <= 2 * MESSAGE_CHARS for text in (message, error_type)):
            raise ValueError(f"strange texts in {reply[:80]!r}")
    except (ValueError, TypeError, RecursionError):
        code = os.waitstatus_to_exitcode(wait_status)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code} and no readable reply"
        raise CallFailedError(Status.CRASHED, f"scoring the answer ended by {how}") from None
    if status is not Status.VALUE:
        raise CallFailedError(status, message, error_type)
    if value is not None and not isinstance(value, int | float):
        raise CallFailedError(Status.BAD_VALUE, f"not a number: {str(value)[:MESSAGE_CHARS]}")
    return value


def filter_calls(*, allow_processes: bool) -> str:
    """Install the kernel's filter; one line that says what protects this process."""
    try:
        seccomp.install(allow_processes=allow_processes)
    except OSError as error:
        return f"audit hook and resource limits only: seccomp is not available ({error.strerror})"
    return "seccomp filter, audit hook and resource limits"


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends. Linux only, elsewhere nothing."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _text(value: Any) -> str:
    """A short text of any value or exception, even one whose repr raises."""
    try:
        return str(value)[:MESSAGE_CHARS]
    except Exception as error:
        return f"a {type(value).__name__} without a text ({type(error).__name__})"
