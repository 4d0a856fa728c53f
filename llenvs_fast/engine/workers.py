"""Environment calls in threads, beside the engine.

Resets and steps go in as batches and come back as they end, each with its result or its exception. Light calls are
grouped, so that a thread hop is paid once for many; an environment with `step_batch` gets them in one call. A call
that overruns `step_timeout_s` fails its trajectory, and its thread is abandoned, since Python can't stop it.

A pure environment is one object for all. Of a stateful one each trajectory gets an instance of its own: made before its
reset, closed once it has ended, whatever happened.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llenvs_fast.core.environment import BatchEnvironment, Environment, StepResult
from llenvs_fast.core.errors import LLEnvsError, describe
from llenvs_fast.core.state import Action, State
from llenvs_fast.engine.instances import Instances

_GROUP_S = 0.002  # how much work one thread hop should carry
_MAX_GROUP = 512
_CLOSING = -1  # the ticket of work that nobody waits for


class StepTimeoutError(LLEnvsError, TimeoutError):
    """An environment call did not return in time."""

    kind = "step_timeout"


@dataclass(frozen=True, slots=True)
class Call:
    """A reset (`action` is None, `subject` the reset options) or a step of one trajectory."""

    position: int
    subject: Any
    action: Action | None = None

    @property
    def is_reset(self) -> bool:
        return self.action is None


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a call. `value` is (State, info) of a reset or a StepResult; or `error` is set."""

    call: Call
    value: Any
    error: Exception | None
    seconds: float


class EnvironmentWorkers:
    """A few daemon threads around one pure environment, or around instances that `factory` makes."""

    def __init__(
        self,
        environment: Environment,
        threads: int = 4,
        step_timeout_s: float | None = None,
        factory: Callable[[], Environment] | None = None,
    ) -> None:
        self.environment = environment
        self.instances = None if factory is None else Instances(factory)
        self.step_timeout_s = step_timeout_s
        self.busy_s = 0.0
        self.pending = 0
        self._threads = threads
        self._tickets = itertools.count()
        self._waiting: queue.SimpleQueue[tuple[int, list[Call]] | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[int, list[Done]]] = queue.SimpleQueue()
        self._outstanding: dict[int, list[Call]] = {}
        self._started: dict[int, float] = {}
        self._given_up: set[int] = set()
        self._call_s = {True: 1e-3, False: 1e-3}  # running mean of one call's seconds, by `is_reset`
        for _ in range(threads):
            self._start_thread()

    def submit(self, calls: Sequence[Call]) -> None:
        """Take calls of one kind: all resets, or all steps."""
        size = self._group_size(calls)
        for i in range(0, len(calls), size):
            ticket, group = next(self._tickets), list(calls[i : i + size])
            self._outstanding[ticket] = group
            self._waiting.put((ticket, group))
        self.pending += len(calls)

    def collect(self, timeout_s: float = 0.0) -> list[Done]:
        """The calls that ended, each once; waits up to `timeout_s` for a first one."""
        ended: list[Done] = []
        wait = timeout_s > 0 and self.pending > 0
        while True:
            try:
                ticket, group = self._ended.get(timeout=timeout_s) if wait else self._ended.get_nowait()
            except queue.Empty:
                break
            wait = False
            ended += self._settle(ticket, group)
        if self.step_timeout_s is not None:
            ended += self._overdue(time.monotonic())
        self.pending -= len(ended)
        return ended

    def let_go(self, position: int) -> None:
        """The trajectory has ended: its instance, where it has one, is closed beside the others' work."""
        if self.instances is not None and self.instances.has(position):
            self._waiting.put((_CLOSING, [Call(position, None)]))

    def close(self) -> None:
        """Close all instances and let idle threads go. Threads inside a call never keep the process alive."""
        if self.instances is not None:
            self.instances.close()
        for _ in range(self._threads):
            self._waiting.put(None)

    # inside ---------------------------------------------------------------------------------------------------------

    def _group_size(self, calls: Sequence[Call]) -> int:
        if not calls:
            return 1
        if self.step_timeout_s is not None:
            return 1  # only a call that is alone can be given up alone
        spread = -(-len(calls) // self._threads)
        method = "reset_batch" if calls[0].is_reset else "step_batch"
        if self.instances is None and hasattr(self.environment, method):
            return min(max(spread, 32), _MAX_GROUP)
        return max(1, min(int(_GROUP_S / self._call_s[calls[0].is_reset]), spread, _MAX_GROUP))

    def _settle(self, ticket: int, group: list[Done]) -> list[Done]:
        self._started.pop(ticket, None)
        if self._outstanding.pop(ticket, None) is None:
            return []  # given up before
        for done in group:
            self.busy_s += done.seconds
            kind = done.call.is_reset
            self._call_s[kind] = max(1e-7, 0.9 * self._call_s[kind] + 0.1 * done.seconds)
        return group

    def _overdue(self, now: float) -> list[Done]:
        assert self.step_timeout_s is not None
        late = [t for t, started in list(self._started.items()) if now - started > self.step_timeout_s]
        ended: list[Done] = []
        for ticket in late:
            self._started.pop(ticket, None)
            self._given_up.add(ticket)
            for call in self._outstanding.pop(ticket, ()):
                what = "reset" if call.is_reset else "step"
                message = (
                    f"{what} of task position {call.position} ran longer than step_timeout_s={self.step_timeout_s:g}: "
                    "raise the limit, or fix the environment"
                )
                ended.append(Done(call, None, StepTimeoutError(message), self.step_timeout_s))
            self._start_thread()
        return ended

    def _start_thread(self) -> None:
        threading.Thread(target=self._work, name="llenvs-environment", daemon=True).start()

    def _work(self) -> None:
        while (task := self._waiting.get()) is not None:
            ticket, group = task
            if ticket == _CLOSING:
                assert self.instances is not None
                self.instances.close_one(group[0].position)
                continue
            self._started[ticket] = time.monotonic()
            self._ended.put((ticket, self._run(group)))
            if ticket in self._given_up:
                for call in group:
                    self.let_go(call.position)  # an instance that a late reset made after all
                return  # another thread has taken this one's place

    def _run(self, group: list[Call]) -> list[Done]:
        if self.instances is None:
            return run_calls(self.environment, group)
        return [_run_one(self.instances.of, call) for call in group]


def run_calls(environment: Environment, group: list[Call]) -> list[Done]:
    """Run calls of one kind; every call ends with a value or an exception."""
    method = "reset_batch" if group[0].is_reset else "step_batch"
    if len(group) > 1 and hasattr(environment, method):
        return _run_batched(environment, group)
    return [_run_one(lambda _: environment, call) for call in group]


def _run_one(environment_of: Callable[[int], Environment], call: Call) -> Done:
    started = time.perf_counter()
    try:
        value: Any
        environment = environment_of(call.position)
        if call.action is None:
            value = environment.reset(options=call.subject)
        else:
            value = environment.step(call.subject, call.action)
        error = None
    except Exception as raised:
        value, error = None, raised
    except BaseException as raised:  # sys.exit() in an environment must not end the worker
        value, error = None, _as_exception(raised)
    return Done(call, value, error, time.perf_counter() - started)


def _run_batched(environment: Any, group: list[Call]) -> list[Done]:
    batched: BatchEnvironment = environment
    started = time.perf_counter()
    values: Sequence[tuple[State, dict[str, Any]] | StepResult | Exception]
    try:
        if group[0].is_reset:
            values = batched.reset_batch([c.subject for c in group])
        else:
            values = batched.step_batch([c.subject for c in group], [_action(c) for c in group])
        if len(values) != len(group):
            raise ValueError(f"{type(environment).__name__} returned {len(values)} results for {len(group)} calls")
    except BaseException as error:
        values = [_as_exception(error)] * len(group)
    seconds = (time.perf_counter() - started) / len(group)
    return [_done(call, value, seconds) for call, value in zip(group, values, strict=True)]


def _action(call: Call) -> Action:
    assert call.action is not None
    return call.action


def _done(call: Call, value: Any, seconds: float) -> Done:
    if isinstance(value, BaseException):
        return Done(call, None, _as_exception(value), seconds)
    return Done(call, value, None, seconds)


def _as_exception(raised: BaseException) -> Exception:
    if isinstance(raised, Exception):
        return raised
    return RuntimeError(f"the environment raised {type(raised).__name__}: {describe(raised)}")
