"""Runs inside a sandbox worker: a model's code in a child forked for one call, and what it printed.

The child can compute and nothing else (see `seccomp.confine`): the modules that it may import are loaded beforehand.
What it prints goes to memory that it shares with the worker, so it is there even where the child had to be killed.
"""

from __future__ import annotations

import ast
import importlib
import io
import mmap
import os
import random
import struct
import sys
import traceback
from contextlib import suppress
from types import ModuleType
from typing import Any

from llenvs_fast.environments.sandbox import guard
from llenvs_fast.environments.sandbox.inside import CallFailedError, isolated
from llenvs_fast.environments.sandbox.seccomp import confine

MAX_PRINTED_CHARS = 10_000
MAX_RAISED_CHARS = 1000

# What can be imported: modules for computing, and those that they load only when they are used.
_LOADED = (
    "_strptime", "abc", "array", "base64", "binascii", "bisect", "calendar", "cmath", "collections", "collections.abc",
    "contextlib", "copy", "csv", "dataclasses", "datetime", "decimal", "difflib", "enum", "fractions", "functools",
    "graphlib", "hashlib", "heapq", "hmac", "inspect", "io", "itertools", "json", "keyword", "locale", "math",
    "numbers", "operator", "os", "pprint", "queue", "random", "re", "secrets", "statistics", "string", "struct", "sys",
    "textwrap", "threading", "time", "timeit", "types", "typing", "unicodedata", "uuid", "warnings", "zlib",
    "zoneinfo", "numpy", "numpy.fft", "numpy.linalg", "numpy.ma", "numpy.polynomial", "numpy.random", "sympy",
    "sympy.codegen.ast", "sympy.combinatorics", "sympy.concrete.delta", "sympy.integrals.heurisch",
    "sympy.integrals.manualintegrate", "sympy.integrals.risch", "sympy.physics.matrices", "sympy.physics.units",
    "sympy.polys.domains.old_fractionfield", "sympy.polys.domains.old_polynomialring",
    "sympy.sets.handlers.functions", "sympy.sets.setexpr", "sympy.stats", "sympy.tensor.tensor",
)  # fmt: skip
for _name in _LOADED:
    with suppress(ImportError):  # not every package is installed
        importlib.import_module(_name)


class SharedText(io.TextIOBase):
    """A text stream of bounded length in memory that a process shares with its children."""

    _HEADER = struct.Struct("QQ")  # bytes kept, characters dropped

    def __init__(self, max_chars: int) -> None:
        self._memory = mmap.mmap(-1, self._HEADER.size + 4 * max_chars)
        self._max_chars = self._room = max_chars
        self._kept = self._dropped = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        kept = text[: self._room]
        encoded = kept.encode("utf-8", "replace")
        start = self._HEADER.size + self._kept
        self._memory[start : start + len(encoded)] = encoded
        self._room -= len(kept)
        self._kept += len(encoded)
        self._dropped += len(text) - len(kept)
        self._HEADER.pack_into(self._memory, 0, self._kept, self._dropped)
        return len(text)

    def text(self) -> str:
        """What was written, with a note of what did not fit. Believes nothing of a writer that it can't hold."""
        kept, dropped = self._HEADER.unpack_from(self._memory)
        start = self._HEADER.size
        text = self._memory[start : start + kept].decode("utf-8", "replace")
        text = text[: self._max_chars].rstrip("\n")
        return f"{text}\n[cut: {dropped:,} more characters]" if dropped else text


def run(code: str) -> dict[str, str | None]:
    """What the code `printed`, and the last line of the exception that it `raised`, if any.

    Where it did not end by itself, `stopped` is the status that says how, and `why` its message.
    """
    printed, raised = SharedText(MAX_PRINTED_CHARS), SharedText(MAX_RAISED_CHARS)
    stopped, why = None, ""
    try:
        isolated(_execute, code, printed, raised)
    except CallFailedError as failed:
        stopped, _, why, _ = failed.row
    return {"printed": printed.text(), "raised": raised.text() or None, "stopped": stopped, "why": why}


def _execute(code: str, printed: SharedText, raised: SharedText) -> None:
    """In the child: run the code as a program; the value of an expression at its end is printed as notebooks do.

    The interpreter's hook is off, so that code reads the errors that the kernel's filter gives, and may go on.
    """
    with guard.strength(guard.Strength.OFF):
        confine()
        os.environ.clear()
        random.seed(0)
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed(0)
        sys.stdout = printed
        main = sys.modules["__main__"] = ModuleType("__main__")
        try:
            body, last = _parsed(code)
            exec(body, main.__dict__)
            if last is not None and (value := eval(last, main.__dict__)) is not None:
                print(repr(value))
        except SystemExit:
            pass
        except BaseException as error:
            raised.write(traceback.format_exception_only(error)[-1].strip())


def _parsed(code: str) -> tuple[Any, Any]:
    """The program, and the expression at its end or None."""
    tree = ast.parse(code)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = compile(ast.Expression(tree.body[-1].value), "<code>", "eval")
        del tree.body[-1]
    return compile(tree, "<code>", "exec"), last
