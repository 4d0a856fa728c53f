"""The worker process: `python -m llenvs_fast.environments.sandbox.worker MODULE MEMORY_BYTES`.

It imports MODULE, locks itself down, and then answers calls, one line of JSON each, in order, until its input ends.
Lines come on the standard input and replies leave on the standard output; both move to other descriptors first, so
that nothing a function prints or reads can reach them. The first line out says that the worker is ready, or why not.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import warnings
from typing import Any

from llenvs_fast.environments.sandbox import guard, inside
from llenvs_fast.environments.sandbox.calls import PROTECTION, Status


def main(module_name: str, memory_bytes: int) -> None:
    requests, inside.clock.reply_fd = _take_pipes()
    inside.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        row = (Status.RAISED, None, f"{type(error).__name__}: {error}", type(error).__name__)
        inside.write_all(inside.clock.reply_fd, inside.encode(row))
        return
    protection = _lock_down(memory_bytes)
    inside.write_all(inside.clock.reply_fd, inside.encode((Status.VALUE, protection, "", "")))
    for line in requests:
        function, args, inside.clock.timeout_s = json.loads(line)
        reply = _reply(module, function, args, protection)
        inside.write_all(inside.clock.reply_fd, reply)


def _reply(module: Any, function: str, args: list[Any], protection: str) -> bytes:
    if function == PROTECTION:
        return inside.encode((Status.VALUE, protection, "", ""))
    if not hasattr(module, function):
        return inside.encode((Status.RAISED, None, f"{module.__name__} has no function {function!r}", "AttributeError"))
    return inside.perform(getattr(module, function), args)


def _take_pipes() -> tuple[Any, int]:
    """The request stream and the reply descriptor, away from 0, 1 and 2, which lead nowhere from now on."""
    requests, reply_fd = os.fdopen(os.dup(0), "rb"), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
    return requests, reply_fd


def _lock_down(memory_bytes: int) -> str:
    """Limits, filter, hook, in this order: each needs something that the next one takes away."""
    for limit, amount in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (amount, amount))
    protection = inside.filter_calls(allow_processes=True)
    guard.install(guard.Strength.SERVING)
    return protection


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
