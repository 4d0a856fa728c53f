"""The thread that owns the workers of a pool: it hands out calls, watches the clock, and replaces what dies.

Every call that enters is settled exactly once, or its batch fails as a whole. Nothing here waits for a worker
but in the one place where it waits for all of them; batches take turns call by call.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Sequence

from llenvs_fast.environments.sandbox.calls import SET_UP, SETTING_UP, Call, Limits, Outcome, SandboxError, Status
from llenvs_fast.environments.sandbox.process import WorkerProcess

KILL_GRACE_S = 0.5  # a worker first tries to end its child itself
CALLS_PER_WORKER = 4  # with fewer waiting than this, another worker is not worth its start


class Ticket:
    """One call on its way: the line that asks for it, and the place in its batch where the outcome goes."""

    __slots__ = ("batch", "call", "index", "request")

    def __init__(self, call: Call, batch: Batch, index: int) -> None:
        self.call, self.batch, self.index = call, batch, index
        self.request = json.dumps((call.function, call.args, call.timeout_s)).encode() + b"\n"

    @property
    def kill_after_s(self) -> float:
        return self.call.timeout_s + KILL_GRACE_S

    def settle(self, outcome: bytes | Outcome) -> None:
        self.batch.settle(self.index, outcome)


class Batch:
    """Calls of one caller, who waits for `done`."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.waiting = deque(Ticket(call, self, index) for index, call in enumerate(calls))
        self.outcomes: list[bytes | Outcome | None] = [None] * len(calls)
        self.error: SandboxError | None = None
        self.done = threading.Event()
        self._left = len(calls)

    def settle(self, index: int, outcome: bytes | Outcome) -> None:
        self.outcomes[index] = outcome
        self._left -= 1
        if not self._left:
            self.done.set()

    def fail(self, error: SandboxError) -> None:
        self.error = error
        self.waiting.clear()
        self.done.set()


def read_reply(reply: bytes | Outcome | None) -> Outcome:
    assert reply is not None
    if isinstance(reply, Outcome):
        return reply
    status, value, message, error_type = json.loads(reply)
    return Outcome(Status(status), value, message, error_type)


class Loop:
    """The thread that owns the workers."""

    def __init__(self, module: str, workers: int, limits: Limits) -> None:
        self._module, self._max_workers, self._limits = module, workers, limits
        self._inbox: deque[Batch] = deque()
        self._batches: deque[Batch] = deque()  # those with calls that no worker has yet
        self._workers: list[WorkerProcess] = []
        self._selector = selectors.DefaultSelector()
        self._wake_fd, self._ring_fd = os.pipe()
        os.set_blocking(self._wake_fd, False)
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        self._closing = self._stopping_idle = self._closed = False
        self._lock = threading.Lock()
        self._owner_pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="sandbox", daemon=True)
        self._thread.start()

    @property
    def usable(self) -> bool:
        """False after a fork (the thread stayed with the parent) and after the loop ended."""
        return self._owner_pid == os.getpid() and self._thread.is_alive() and not self._closing

    def submit(self, batch: Batch) -> None:
        self._inbox.append(batch)
        if not self._ring():
            batch.fail(self._closed_error())

    def stop_idle(self) -> None:
        self._stopping_idle = True
        self._ring()

    def pids(self) -> list[int]:
        return [worker.pid for worker in list(self._workers)]

    def close(self) -> None:
        if self._owner_pid == os.getpid():
            self._closing = True
            self._ring()
            if threading.current_thread() is not self._thread:
                self._thread.join()

    def _ring(self) -> bool:
        """Wake the loop; False where it has ended."""
        with self._lock:
            if not self._closed:
                os.write(self._ring_fd, b"\0")
            return not self._closed

    def _closed_error(self) -> SandboxError:
        return SandboxError(f"the sandbox pool for {self._module} was closed while calls were under way")

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        finally:
            with self._lock:
                self._closed = True
                self._selector.close()
                os.close(self._wake_fd)
                os.close(self._ring_fd)
            for worker in self._workers:
                worker.kill()
            held = [ticket.batch for worker in self._workers for ticket in worker.tickets]
            for batch in (*self._inbox, *self._batches, *held):
                batch.fail(self._closed_error())

    def _turn(self) -> None:
        """Wait for something to happen, then bring everything up to date."""
        deadline = min((worker.deadline for worker in self._workers), default=math.inf)
        timeout_s = None if math.isinf(deadline) else max(0.0, deadline - time.monotonic())
        for key, events in self._selector.select(timeout_s):
            if key.data is None:
                os.read(self._wake_fd, 4096)
            elif events & selectors.EVENT_WRITE:
                self._send(key.data)
            elif key.data in self._workers:
                self._receive(key.data)
        while self._inbox:
            self._batches.append(self._inbox.popleft())
        for worker in [worker for worker in self._workers if worker.deadline < time.monotonic()]:
            self._receive(worker)  # the reply may be here, and only this loop late
            if worker in self._workers and worker.deadline < time.monotonic():
                self._expire(worker)
        self._hand_out()

    def _hand_out(self) -> None:
        """Start the workers that the waiting calls deserve, and give each worker its share of them."""
        waiting = sum(len(batch.waiting) for batch in self._batches)
        wanted = min(self._max_workers, math.ceil(waiting / CALLS_PER_WORKER))
        for _ in range(wanted - len(self._workers)):
            self._start_worker()
        share = max(1, waiting // (2 * self._max_workers))
        now = time.monotonic()
        for worker in self._workers:
            while worker.ready and len(worker.tickets) < min(share, worker.room) and (ticket := self._next_ticket()):
                worker.give(ticket, now)
            if worker.has_unsent:
                self._send(worker)
        if self._stopping_idle:
            self._stopping_idle = False
            for worker in [worker for worker in self._workers if worker.ready and not worker.tickets]:
                self._remove(worker)

    def _next_ticket(self) -> Ticket | None:
        """Batches take turns."""
        while self._batches:
            batch = self._batches.popleft()
            try:
                ticket = batch.waiting.popleft()
            except IndexError:  # all handed out, or given up by its caller
                continue
            self._batches.append(batch)
            return ticket
        return None

    def _start_worker(self) -> None:
        try:
            worker = WorkerProcess(self._module, self._limits, time.monotonic())
        except OSError as error:
            self._fail_all(f"a sandbox worker for {self._module} can't be started: {error}")
            return
        self._workers.append(worker)
        self._selector.register(worker.reply_fd, selectors.EVENT_READ, worker)

    def _send(self, worker: WorkerProcess) -> None:
        """Write, and watch for room in the pipe only while something is left to write."""
        worker.send()
        watched = worker.request_fd in self._selector.get_map()
        if worker.has_unsent and not watched:
            self._selector.register(worker.request_fd, selectors.EVENT_WRITE, worker)
        elif watched and not worker.has_unsent:
            self._selector.unregister(worker.request_fd)

    def _receive(self, worker: WorkerProcess) -> None:
        lines, gone = worker.receive()
        now = time.monotonic()
        if lines and not worker.ready:
            self._greet(worker, lines.pop(0))
        if replies := [line for line in lines if line not in (SETTING_UP, SET_UP)][: len(worker.tickets)]:
            worker.settle(replies, now)
        if worker.tickets and lines and lines[-1] == SETTING_UP:
            worker.deadline = now + worker.tickets[0].call.setup_timeout_s
        elif worker.tickets and lines and lines[-1] == SET_UP:
            worker.restart_clock(now)
        if gone and worker in self._workers:
            self._bury(worker)

    def _greet(self, worker: WorkerProcess, line: bytes) -> None:
        hello = read_reply(line)
        if hello.status is Status.VALUE:
            worker.ready = True
            worker.deadline = math.inf
        else:
            self._remove(worker)
            self._fail_all(f"a sandbox worker can't import {self._module}: {hello.message}")

    def _bury(self, worker: WorkerProcess) -> None:
        """A worker ended by itself: the call at its head is what it died of."""
        how = self._remove(worker)
        if not worker.ready:
            self._fail_all(f"a sandbox worker for {self._module} {how} before it was ready")
        elif worker.tickets:
            ticket = worker.tickets.popleft()
            ticket.settle(Outcome(Status.CRASHED, message=f"the worker {how} during {ticket.call.function!r}"))
            self._requeue(worker)

    def _expire(self, worker: WorkerProcess) -> None:
        self._remove(worker)
        if not worker.ready:
            self._fail_all(f"a sandbox worker was not ready in {self._limits.start_timeout_s:g} s")
            return
        ticket = worker.tickets.popleft()
        message = f"{ticket.call.function!r} did not end in {ticket.call.timeout_s:g} s; its worker was killed"
        ticket.settle(Outcome(Status.TIMEOUT, message=message))
        self._requeue(worker)

    def _requeue(self, worker: WorkerProcess) -> None:
        """Calls that a dead worker had not begun go back to the front of their batches."""
        while worker.tickets:
            ticket = worker.tickets.pop()
            ticket.batch.waiting.appendleft(ticket)
            if ticket.batch not in self._batches:
                self._batches.append(ticket.batch)

    def _remove(self, worker: WorkerProcess) -> str:
        self._workers.remove(worker)
        for fd in (worker.reply_fd, worker.request_fd):
            if fd in self._selector.get_map():
                self._selector.unregister(fd)
        return worker.kill()

    def _fail_all(self, message: str) -> None:
        while self._batches:
            self._batches.popleft().fail(SandboxError(message))


