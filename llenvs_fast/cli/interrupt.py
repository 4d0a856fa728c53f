"""Ctrl+C: the first press stops a run in good order, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType, TracebackType

EXIT_STATUS = 130


class Interrupt:
    """While entered, SIGINT and SIGTERM set `stop`; a second one exits at once. Files stay valid: they only grow.

    Before `arm` is called (while the model loads) there is nothing to stop in good order, so the first press raises
    KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._pressed = False
        self._armed = False
        self._before: dict[int, object] = {}

    def arm(self) -> None:
        self._armed = True

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._pressed:
            os._exit(EXIT_STATUS)
        self._pressed = True
        self.stop.set()
        text = "stopping: no new rollouts are started (once more to exit at once)" if self._armed else "stopping"
        os.write(sys.stderr.fileno(), f"\n{text}\n".encode())
        if not self._armed:
            raise KeyboardInterrupt
