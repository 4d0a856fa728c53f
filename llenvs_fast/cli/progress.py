"""Progress on stderr: a bar on a terminal, else one plain line every few seconds. stdout stays clean."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from llenvs_fast.engine.report import Pulse

_BAR_EVERY_S = 0.2
_LINE_EVERY_S = 5.0
_OLD_S = 10.0  # from when on the oldest live rollout is worth a word


class Progress:
    """Shows the pulses of a run. Called on every pass of the loop, it redraws only a few times a second."""

    def __init__(self, total: int, already_done: int = 0, plain: bool | None = None) -> None:
        self.total = total
        self.done = already_done
        self.plain = not sys.stderr.isatty() if plain is None else plain
        self.accuracy: Callable[[], float | None] = lambda: None
        self._already_done = already_done
        self._started = time.monotonic()
        self._next = self._started + (_LINE_EVERY_S if self.plain else 0.0)
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        if not self.plain:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                auto_refresh=False,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=self.total, completed=self.done, note="")
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def watch(self, pulse: Pulse) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (_LINE_EVERY_S if self.plain else _BAR_EVERY_S)
        self.done = self._already_done + pulse.reported
        note = self._note(pulse, now)
        if self._bar is None:
            print(f"{self.done}/{self.total} rollouts  {note}", file=sys.stderr, flush=True)
        else:
            self._bar.update(self._task, completed=self.done, note=note)
            self._bar.refresh()

    def _note(self, pulse: Pulse, now: float) -> str:
        accuracy = self.accuracy()
        speed = pulse.completion_tokens / max(now - self._started, 1e-9)
        parts = [f"{pulse.generating} generating, {pulse.stepping} stepping", f"{speed:,.0f} tok/s"]
        if pulse.oldest is not None and pulse.oldest.live_s >= _OLD_S:
            parts.append(f"oldest: {pulse.oldest}")
        return "  ".join(parts if accuracy is None else [f"accuracy {accuracy:.3f}", *parts])
