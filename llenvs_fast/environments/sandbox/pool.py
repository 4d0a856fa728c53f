"""A pool of killable worker processes that run named functions of one module.

Promise: every call gets an outcome, in its limit plus a little, whatever its neighbours do. A call that hangs, crashes
or eats memory costs itself and its worker; the calls queued behind it go to another. The pool knows nothing of what
its functions mean.

Callers hand in batches and wait; one thread (see `loop`) owns all workers, so calls from many threads share them.
Workers start when there is work for them. They die with this process, even with a killed one: the kernel kills them
when that thread ends.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence

from llenvs_fast.environments.sandbox.calls import PROTECTION, Call, Limits, Outcome, SandboxError
from llenvs_fast.environments.sandbox.loop import Batch, Loop, read_reply


class SandboxPool:
    """Runs functions of `module` (a dotted name) in up to `workers` processes; safe to use from many threads."""

    def __init__(self, module: str, workers: int | None = None, limits: Limits | None = None) -> None:
        self.module = module
        self.workers = min(4, os.cpu_count() or 1) if workers is None else workers
        self.limits = limits or Limits()
        if self.workers < 1:
            raise ValueError(f"workers={self.workers}: a pool needs at least one")
        self._lock = threading.Lock()
        self._loop: Loop | None = None

    def call(self, call: Call) -> Outcome:
        return self.call_batch([call])[0]

    def call_batch(self, calls: Sequence[Call]) -> list[Outcome]:
        """Outcomes in the order of the calls. Raises SandboxError where no worker can be had at all."""
        if not calls:
            return []
        batch = Batch(calls)
        self._running_loop().submit(batch)
        try:
            batch.done.wait()
        except BaseException:  # Ctrl-C: nobody waits for the rest
            batch.waiting.clear()
            raise
        if batch.error is not None:
            raise SandboxError(str(batch.error))
        return [read_reply(outcome) for outcome in batch.outcomes]

    def protection(self) -> str:
        """What holds a worker in check on this machine, in one line for the run's record."""
        return str(self.call(Call(PROTECTION)).value)

    def worker_pids(self) -> list[int]:
        return [] if self._loop is None else self._loop.pids()

    def stop_idle(self) -> None:
        """Stop the workers that have nothing to do; the next call starts new ones."""
        if self._loop is not None:
            self._loop.stop_idle()

    def close(self) -> None:
        """Stop all workers now; batches under way fail with SandboxError. The next call starts afresh."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()

    def _running_loop(self) -> Loop:
        with self._lock:
            if self._loop is None or not self._loop.usable:
                self._loop = Loop(self.module, self.workers, self.limits)
                weakref.finalize(self, self._loop.close)  # when the pool is forgotten, and at exit
            return self._loop
