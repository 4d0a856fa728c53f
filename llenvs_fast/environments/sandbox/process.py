"""One worker process as its owner sees it: lines out, lines in, a deadline, and a sure death.

Only the pool's loop touches it. Nothing here ever blocks, except for the moment that a killed process takes to end.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
from collections import deque
from typing import TYPE_CHECKING

from llenvs_fast.environments.sandbox.calls import Limits

if TYPE_CHECKING:
    from llenvs_fast.environments.sandbox.loop import Ticket

_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_", "TZ", "OPENBLAS_")
_READ_BYTES = 1 << 16
_QUEUED_S = 0.02  # work to give a worker in advance: enough to keep it busy, little enough to let other batches in
_MAX_QUEUED = 64


class WorkerProcess:
    """A started worker. `tickets` are its calls, the running one first; `room` says how many it should have.

    The worker imports what this process can import. It knows few of this process's environment variables (no keys), has
    a session of its own (Ctrl-C does not reach it), hashes with PYTHONHASHSEED=0 and computes on one thread.
    """

    def __init__(self, module: str, limits: Limits, now: float) -> None:
        self.tickets: deque[Ticket] = deque()
        self.ready = False
        self.room = 1
        self._last_reply = now
        self.deadline = now + limits.start_timeout_s
        self._outgoing = bytearray()
        self._incoming = b""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "llenvs_fast.environments.sandbox.worker", module, str(limits.memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=_environment(),
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.request_fd, self.reply_fd = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self.request_fd, False)
        os.set_blocking(self.reply_fd, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_unsent(self) -> bool:
        return bool(self._outgoing)

    def give(self, ticket: Ticket, now: float) -> None:
        """Queue one call behind those that the worker has."""
        self.tickets.append(ticket)
        self._outgoing += ticket.request
        if len(self.tickets) == 1:
            self._last_reply = now
            self.restart_clock(now)

    def settle(self, replies: list[bytes], now: float) -> None:
        """Replies to the first calls. `room` follows the pace: how many calls the worker should have in all."""
        for reply in replies:
            self.tickets.popleft().settle(reply)
        pace_s = (now - self._last_reply) / len(replies)
        self.room = max(1, min(_MAX_QUEUED, int(_QUEUED_S / max(pace_s, 1e-6))))
        self._last_reply = now
        self.restart_clock(now)

    def restart_clock(self, now: float) -> None:
        """The call at the head starts now."""
        self.deadline = now + self.tickets[0].kill_after_s if self.tickets else math.inf

    def send(self) -> None:
        """Write what the pipe takes. A broken pipe shows on the reading side."""
        try:
            del self._outgoing[: os.write(self.request_fd, self._outgoing)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._outgoing.clear()

    def receive(self) -> tuple[list[bytes], bool]:
        """The whole lines that have come, and whether the worker is gone."""
        chunks = [self._incoming]
        gone = False
        while True:
            try:
                chunk = os.read(self.reply_fd, _READ_BYTES)
            except BlockingIOError:
                break
            if not chunk:
                gone = True
                break
            chunks.append(chunk)
            if len(chunk) < _READ_BYTES:
                break
        *lines, self._incoming = b"".join(chunks).split(b"\n")
        return lines, gone

    def kill(self) -> str:
        """Kill the worker and all that it started; how it had ended, in words."""
        before = self._process.poll()
        if before is None and self._is_at_end():
            before = self._end_by_itself()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        if before is None:
            return "killed"
        return f"ended by signal {signal.Signals(-before).name}" if before < 0 else f"ended with exit code {before}"

    def _end_by_itself(self) -> int | None:
        try:
            return self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return None

    def _is_at_end(self) -> bool:
        """Whether the worker closed its side, which it does only by ending: its exit code is a moment away."""
        try:
            return os.read(self.reply_fd, 1) == b""
        except BlockingIOError:
            return False


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name.startswith(_KEPT_VARIABLES)}
    return kept | {
        "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
