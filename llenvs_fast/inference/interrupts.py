"""Ctrl+C at a moment of our choosing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from types import FrameType


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Hold SIGINT back while the block runs, so that it can't stop half-way; then hand it to its own handler.

    A second SIGINT goes through at once: the block may hang. Signals reach the main thread only, so that in any other
    thread there is nothing to hold.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # ignored, left to the system, or not Python's
        yield
        return
    held: list[tuple[int, FrameType | None]] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if held:
            handler(number, frame)
        held.append((number, frame))

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if held:
        handler(*held[0])


@contextmanager
def children_deaf_to_interrupts() -> Iterator[None]:
    """Block SIGINT for the processes started in the block, and here until its end.

    Ctrl+C in a terminal reaches all of its processes, and is for the first of them to act on.
    """
    resource_tracker.ensure_running()  # started later, it would unblock SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
