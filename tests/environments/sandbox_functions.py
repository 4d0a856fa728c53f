"""Functions for the sandbox's tests, well and badly behaved; they run in a worker."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import time
from typing import Any

from llenvs_fast.environments.sandbox import guard
from llenvs_fast.environments.sandbox.inside import isolated, setting_up

poison = 0


def echo(value: Any) -> Any:
    return value


def fail(message: str) -> None:
    raise KeyError(message)


def nan() -> float:
    return float("nan")


def thing() -> object:
    return object()


def loop() -> None:
    while True:
        pass


def sleep(seconds: float) -> str:
    time.sleep(seconds)
    return "slept"


def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    loop()


def backtrack() -> None:
    re.match(r"(a+)+$", "a" * 64 + "b")


def hold_gil() -> None:
    # one bytecode instruction that the interpreter can't interrupt
    print(9**9**9)


def eat_memory() -> int:
    return len([bytearray(2**26) for _ in range(10**4)])


def exit_now() -> None:
    os._exit(3)


def abort() -> None:
    os.abort()


def segfault() -> None:
    with guard.strength(guard.Strength.OFF):
        ctypes.string_at(0)


def flood() -> str:
    for _ in range(64):
        os.write(1, b"x" * 2**20)
        os.write(2, b"x" * 2**20)
        print("y" * 2**20)
    return "done"


def read_input() -> str:
    return sys.stdin.read()


def slow_setup(seconds: float) -> str:
    with setting_up():
        time.sleep(seconds)
    return "set up"


def bad_setup() -> None:
    with setting_up():
        fail("no data")


def endless_after_setup() -> None:
    with setting_up():
        pass
    loop()


def try_all(code: str, hooked: bool) -> str:
    """Run code; with `hooked` off only the kernel stands in its way."""
    strength = guard.Strength.ANSWERING if hooked else guard.Strength.OFF
    with guard.strength(strength):
        try:
            exec(code, {"os": os})
        except OSError as error:
            return f"{type(error).__name__} {error.errno}"
    return "done"


def environment() -> dict[str, str]:
    return dict(os.environ)


def alone(function: str, *args: Any) -> float | None:
    return isolated(globals()[function], *args)


def set_poison() -> int:
    global poison
    poison = 1
    return poison


def get_poison() -> int:
    return poison
