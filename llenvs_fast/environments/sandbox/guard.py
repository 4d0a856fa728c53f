"""The interpreter's part of the sandbox: an audit hook that refuses harmful acts and remembers which.

The kernel's filter says no without a word; this hook says what was tried ("answer tried os.system"), even where the
code that tried it swallows the exception. It stands in two strengths: SERVING, for trusted work such as generating
items, and ANSWERING, while text that a model wrote is in play. A hook can't be removed; the strength is only set here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, NoReturn


class Strength(IntEnum):
    OFF = 0
    SERVING = 1
    ANSWERING = 2


class RefusedError(PermissionError):
    """What the answer asked for is not done."""


_REFUSED_GROUPS = frozenset({
    "subprocess", "socket", "ctypes", "shutil", "tempfile", "pty", "ftplib", "http", "imaplib", "nntplib", "poplib",
    "smtplib", "telnetlib", "urllib", "webbrowser", "sqlite3", "syslog", "fcntl", "signal",
})  # fmt: skip
_READING = frozenset(f"os.{name}" for name in ("listdir", "scandir", "walk", "fwalk", "getxattr", "listxattr"))
_WHILE_SERVING = frozenset({"os.fork", "os.kill", "resource.setrlimit"})
_WHILE_ANSWERING = frozenset({"resource.setrlimit", "resource.prlimit", "pickle.find_class", "sys.addaudithook"})
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_strength = Strength.OFF
_refusals: list[str] = []


def install(strength: Strength) -> None:
    """Put the hook in place, once a process."""
    global _strength
    sys.addaudithook(_hook)
    _strength = strength


@contextmanager
def strength(wanted: Strength) -> Iterator[None]:
    """Work at another strength for a while."""
    global _strength
    before, _strength = _strength, wanted
    try:
        yield
    finally:
        _strength = before


def refuse(reason: str) -> NoReturn:
    """Remember why and raise RefusedError."""
    _refusals.append(reason)
    raise RefusedError(reason)


def take_refusal() -> str | None:
    """The first refusal since the last call, or None."""
    first = _refusals[0] if _refusals else None
    _refusals.clear()
    return first


def _needed_strength(event: str) -> Strength | None:
    """The strength from which on an event is refused; None if never."""
    if event in _READING:
        return None
    if event in _WHILE_SERVING or event in _WHILE_ANSWERING:
        return Strength.ANSWERING
    group = event.partition(".")[0]
    return Strength.SERVING if group == "os" or group in _REFUSED_GROUPS else None


_needed: dict[str, Strength | None] = {}


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _strength is Strength.OFF:
        return
    if event == "open":
        _check_open(*args)
    elif event == "import":
        if _strength is Strength.ANSWERING and args[0].partition(".")[0] not in sys.modules:
            refuse(f"answer tried to import {args[0]}")
    else:
        if event not in _needed:
            _needed[event] = _needed_strength(event)
        needed = _needed[event]
        if needed is not None and _strength >= needed:
            refuse(f"answer tried {event}")


def _check_open(path: Any, mode: Any, flags: Any) -> None:
    writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool((flags or 0) & _WRITE_FLAGS)
    if writes:
        refuse(f"answer tried to open {str(path)[:100]!r} for writing")
