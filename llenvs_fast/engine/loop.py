"""The loop: the one place with effects.

Every pass resets new trajectories, submits those that the scheduler picks, advances the engine by one step, hands
finished turns to the environment workers and reports the trajectories that ended. Nothing waits for anything else: a
trajectory whose environment answers is back in the engine on the next step.

Each trajectory is reported exactly once. Where the run is stopped, those under way are taken back and not reported;
where the engine dies, those in flight are reported as failed and those not yet in flight are not. `LoopReport` says so.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from llenvs_fast.core.environment import Environment
from llenvs_fast.core.errors import AbortedError, BackendProtocolError, EngineDeadError, Phase
from llenvs_fast.core.seeds import derive_seed
from llenvs_fast.engine.budgets import Limit
from llenvs_fast.engine.checks import checked_reset
from llenvs_fast.engine.deadlines import Deadlines, InFlight
from llenvs_fast.engine.garbage import patient_collector
from llenvs_fast.engine.prompting import BuildMessages, prompt_rollouts
from llenvs_fast.engine.report import LoopReport, Oldest, Pulse
from llenvs_fast.engine.residency import ResidencyPlanner
from llenvs_fast.engine.rollout import Outcome, Rollout, RolloutSpec, Stage
from llenvs_fast.engine.scheduler import Facts, Schedule, Scheduler, candidate_of
from llenvs_fast.engine.settings import LoopSettings, budgets, check_history, most_instances, step_limit
from llenvs_fast.engine.workers import Call, Done, EnvironmentWorkers
from llenvs_fast.inference.backend import ModelBackend, unwrap
from llenvs_fast.inference.protocol import Finished, GenerationRequest

logger = logging.getLogger("llenvs_fast.engine")

_FAILED_POLLS = 3  # so many polls in a row that raise mean a dead engine
_LOOKAHEAD = 128  # trajectories reset ahead of need, so that a free place is refilled at once
_STEPPING_FACTOR = 8  # and so many windows of them may be open while most wait for their environments
_RESETS_A_PASS = 256  # the first trajectories generate while the next are still reset
_runs = itertools.count()


class Loop:
    """One run of many trajectories. Use `run_rollouts`."""

    def __init__(
        self,
        environment: Environment,
        backend: ModelBackend,
        build_messages: BuildMessages,
        settings: LoopSettings,
        report: Callable[[list[Outcome]], None],
        watch: Callable[[Pulse], None] | None = None,
        stop: threading.Event | None = None,
        env_factory: Callable[[], Environment] | None = None,
    ) -> None:
        self.backend = backend
        self.build_messages = build_messages
        self.settings = settings
        self.report = report
        self.watch = watch
        self.stop = stop or threading.Event()
        check_history(settings, environment, backend)
        self._max_steps = step_limit(settings, environment)
        planner = None if backend.capacity is None else ResidencyPlanner(backend.capacity, self._max_steps)
        self.scheduler = Scheduler(settings.schedule, settings.max_live, planner)
        self._instances = most_instances(settings, environment, env_factory)
        factory = None if self._instances is None else env_factory
        self.workers = EnvironmentWorkers(environment, settings.environment_threads, settings.step_timeout_s, factory)
        self.result = LoopReport()
        self._budgets = budgets(settings, backend)
        self._window = self._lookahead_window()
        self._deadlines = Deadlines(settings.turn_timeout_s, settings.trajectory_timeout_s)
        self._open: dict[int, Rollout] = {}
        self._generating: dict[Hashable, InFlight] = {}
        self._taken_back: set[Hashable] = set()
        self._resetting = 0
        self._stepping = 0
        self._unprompted: list[Rollout] = []
        self._ended: list[Rollout] = []
        self._failed_polls = 0
        self._before = backend.figures.copy()
        self._run = next(_runs)
        self._requests = itertools.count()

    def _lookahead_window(self) -> int:
        if self.settings.schedule is Schedule.LOCKSTEP:
            return self.settings.max_live or sys.maxsize  # a turn is one batch of all there are
        limits = [self.settings.max_live, self.backend.capacity.max_sequences if self.backend.capacity else None]
        at_once = min((n for n in limits if n is not None), default=2048)
        return at_once + _LOOKAHEAD

    # the pass -------------------------------------------------------------------------------------------------------

    def run(self, specs: Iterable[RolloutSpec]) -> LoopReport:
        started = time.perf_counter()
        source = iter(specs)
        try:
            exhausted = False
            while not self.stop.is_set() and self.result.engine_error is None:
                exhausted = exhausted or self._start_new(source)
                if exhausted and not self._open:
                    break
                self._pass()
            self.result.interrupted = self.stop.is_set() and not (exhausted and not self._open)
        finally:
            self._leave()
            self.result.wall_s = time.perf_counter() - started
            self.result.environment_s = self.workers.busy_s
            self.result.parkings = self.scheduler.parkings
            self.result.lost("parked", self.scheduler.parked_tokens)
            self.result.figures = self.backend.figures.since(self._before)
        return self.result

    def _pass(self) -> None:
        self._collect(self.workers.collect())
        self._prompt()
        self._report()  # before new ones are picked: who has ended makes room
        self._submit()
        self._poll()
        self._take_back_late_ones()
        if not self._generating and not self._unprompted and self.workers.pending:
            waiting = time.perf_counter()
            self._collect(self.workers.collect(timeout_s=0.1))
            self.result.stepping_s += time.perf_counter() - waiting

    def _start_new(self, source: Iterator[RolloutSpec]) -> bool:
        """Reset trajectories ahead of need; True once the source is exhausted."""
        calls: list[Call] = []
        room = self._room()
        if self.settings.schedule is Schedule.PACKED:
            room = min(room, _RESETS_A_PASS)
        for spec in itertools.islice(source, room):
            if spec.position in self._open:
                raise ValueError(f"position {spec.position} stands for two trajectories: give each its own")
            self._open[spec.position] = Rollout(spec, self._max_steps, self._budgets)
            calls.append(Call(spec.position, spec.reset_options()))
        self._resetting += len(calls)
        self.workers.submit(calls)
        return len(calls) < room

    def _room(self) -> int:
        """How many more trajectories may be open. Those in their environments leave the engine free for others."""
        opened = len(self._open)
        room = min(self._window - opened + self._stepping, _STEPPING_FACTOR * self._window - opened)
        return max(0, room if self._instances is None else min(room, self._instances - opened))

    def _collect(self, done: list[Done]) -> None:
        for d in done:
            rollout = self._open[d.call.position]
            phase = Phase.RESET if d.call.is_reset else Phase.STEP
            self._resetting -= d.call.is_reset
            self._stepping -= not d.call.is_reset
            try:
                if d.error is not None:
                    raise d.error
                if d.call.action is None:
                    rollout.was_reset(*checked_reset(d.value))
                else:
                    rollout.was_stepped(d.call.action, d.value, d.seconds)
            except Exception as error:
                rollout.has_failed(error, phase)
            (self._ended if rollout.stage is Stage.ENDED else self._unprompted).append(rollout)

    def _prompt(self) -> None:
        rollouts, self._unprompted = self._unprompted, []
        rollouts.sort(key=lambda r: r.spec.position)  # samples of a task stand together, whoever was reset first
        now = time.perf_counter()
        for rollout in rollouts:
            if self._deadlines.has_passed(rollout, now):
                rollout.was_truncated(Limit.TRAJECTORY_TIMEOUT)
        ready = [r for r in rollouts if r.stage is not Stage.ENDED]
        prompt_rollouts(ready, self.build_messages, self.backend.renderer, self.settings.history)
        planning = time.perf_counter()
        for rollout in rollouts:
            if rollout.stage is Stage.ENDED:
                self._ended.append(rollout)
                continue
            self.result.lost(rollout.loss or "", rollout.lost_tokens)
            self.scheduler.offer(candidate_of(rollout))
        self.result.planning_s += time.perf_counter() - planning

    def _submit(self) -> None:
        now, step = time.perf_counter(), self.backend.figures.engine_steps or 0
        picked = self.scheduler.pick(self._facts())
        self.result.planning_s += time.perf_counter() - now
        self.result.peak_live = max(self.result.peak_live, self.scheduler.live)
        if not picked:
            return
        rollouts = [self._open[position] for position in picked]
        requests = [self._request(rollout) for rollout in rollouts]
        for request, rollout in zip(requests, rollouts, strict=True):
            rollout.opened_at = rollout.opened_at or now
            rollout.was_submitted(request.seed)
            self._generating[request.key] = InFlight(rollout, now, step, self._reusable(rollout))
        self._in_backend(lambda: self.backend.submit(requests))

    def _reusable(self, rollout: Rollout) -> int:
        """Tokens of whole blocks of the earlier context. Its last token was sampled and never read."""
        capacity = self.backend.capacity
        if capacity is None or not rollout.turns:
            return 0
        before = rollout.kept + rollout.lost_tokens
        return min(rollout.kept, before - 1) // capacity.block_tokens * capacity.block_tokens

    def _request(self, rollout: Rollout) -> GenerationRequest:
        spec = rollout.spec
        return GenerationRequest(
            key=(self._run, next(self._requests)),
            params=self.settings.sampling_params,
            prompt_ids=rollout.tokens.context if self.backend.renderer is not None else None,
            messages=rollout.messages,
            tools=rollout.state.observation.available_tools,
            seed=derive_seed(self.settings.seed, spec.task_index, spec.sample, len(rollout.turns)),
            max_tokens=rollout.max_tokens,
        )

    def _poll(self) -> None:
        if not self._generating:
            return
        wait_s = 0.005 if self.workers.pending else 0.1
        finished = self._in_backend(lambda: _checked(self.backend.poll(wait_s)))
        if finished is None:
            return
        self._failed_polls = 0
        calls: list[Call] = []
        now = time.perf_counter()
        for f in finished:
            turn = self._generating.pop(f.key, None)
            if turn is not None:
                calls += self._turn_ended(turn, f, now)
            elif f.key in self._taken_back:
                self._taken_back.discard(f.key)
            else:
                logger.warning("the backend ended request %r, which is not in flight: ignored", f.key)
        self._stepping += len(calls)
        self.workers.submit(calls)
        if self._generating and not self.backend.in_flight:
            self._fail_generating(
                BackendProtocolError(f"{type(self.backend).__name__} lost this request: it ended without a result")
            )

    def _turn_ended(self, turn: InFlight, finished: Finished, now: float) -> list[Call]:
        rollout = turn.rollout
        limit = self._deadlines.limit_of(finished.key)
        if limit is not None and isinstance(finished.error, AbortedError):
            rollout.was_truncated(limit)
            self._ended.append(rollout)
            return []
        try:
            result = unwrap(finished)
            last = rollout.on_last_turn
            state = rollout.state
            action = rollout.was_generated(result, now - turn.submitted_at)
        except Exception as error:
            rollout.has_failed(error, Phase.GENERATE)
            self._ended.append(rollout)
            return []
        if len(rollout.turns) > 1:
            self.result.later_turn(result.prompt_tokens, result.cached_tokens, turn.reusable)
        planning = time.perf_counter()
        self.scheduler.turn_ended(rollout.spec.position, result.token_ids or (), last)
        self.result.planning_s += time.perf_counter() - planning
        return [Call(rollout.spec.position, state, action)]

    def _report(self) -> None:
        ended, self._ended = self._ended, []
        for rollout in ended:
            del self._open[rollout.spec.position]
            self.workers.let_go(rollout.spec.position)
            self.scheduler.ended(rollout.spec.position, len(rollout.turns))
        if ended:
            self.report([r.outcome() for r in ended])
            self.result.reported += len(ended)
        if self.watch is not None:
            try:
                self.watch(self._pulse())
            except Exception:  # who watches must not cost what is watched
                logger.warning("the run's watcher raised and is not called again", exc_info=True)
                self.watch = None

    # the backend ----------------------------------------------------------------------------------------------------

    def _in_backend(self, call: Callable[[], Any]) -> Any:
        """Call the backend, on its clock. A raise fails the turns in flight; a dead engine ends the run."""
        entered = time.perf_counter()
        try:
            return call()
        except Exception as error:
            self._failed_polls += 1
            if isinstance(error, EngineDeadError) or self._failed_polls >= _FAILED_POLLS:
                self.result.engine_error = error
            self._fail_generating(error)
        finally:
            self.result.generating_s += time.perf_counter() - entered

    def _fail_generating(self, error: Exception) -> None:
        failed, self._generating = self._generating, {}
        self._taken_back.update(failed)
        for turn in failed.values():
            turn.rollout.has_failed(error, Phase.GENERATE)
            self._ended.append(turn.rollout)
        if self.result.engine_error is None:
            try:
                self.backend.abort(list(failed))
            except Exception:
                logger.exception("the backend failed while requests were taken back")

    def _take_back_late_ones(self) -> None:
        """Abort turns past their deadline, or their trajectory's; they come back from `poll` as truncated."""
        late = self._deadlines.late(self._generating, time.perf_counter())
        if late:
            self._in_backend(lambda: self.backend.abort(late))

    def _leave(self) -> None:
        """Leave nothing behind: no request in flight, no idle thread; what had ended is reported."""
        if self._generating and self.result.engine_error is None:
            try:
                self.backend.abort(list(self._generating))
                deadline = time.monotonic() + 5.0
                while self.backend.in_flight and time.monotonic() < deadline:
                    self.backend.poll(0.1)
            except Exception:
                logger.exception("the backend failed while its last requests were taken back")
        self.workers.close()
        self._report()

    # facts ----------------------------------------------------------------------------------------------------------

    def _facts(self) -> Facts:
        return Facts(
            generating=len(self._generating),
            resetting=self._resetting,
            stepping=self._stepping,
            oldest_running_tokens=self._oldest_running_tokens(),
        )

    def _oldest_running_tokens(self) -> int:
        """An upper bound on what the running turns have sampled: one token a step since the oldest was submitted."""
        steps = self.backend.figures.engine_steps
        oldest = next(iter(self._generating.values()), None)
        return 0 if steps is None or oldest is None else steps - oldest.submitted_step

    def _pulse(self) -> Pulse:
        return Pulse(
            reported=self.result.reported,
            resetting=self._resetting,
            ready=self.scheduler.waiting,
            generating=len(self._generating),
            stepping=self._stepping,
            completion_tokens=self.backend.figures.completion_tokens - self._before.completion_tokens,
            parked=self.scheduler.parked,
            oldest=self._oldest(),
        )

    def _oldest(self) -> Oldest | None:
        live = next((r for r in self._open.values() if r.opened_at > 0.0), None)  # they stand in order of opening
        return None if live is None else Oldest.of(live, time.perf_counter())


def _checked(finished: object) -> list[Finished]:
    """What a poll returned. Raises BackendProtocolError where it isn't a list of ends."""
    if isinstance(finished, list) and all(isinstance(f, Finished) and isinstance(f.key, Hashable) for f in finished):
        return finished
    raise BackendProtocolError(f"poll returned {finished!r:.200}: it must return a list of Finished")


def run_rollouts(
    specs: Iterable[RolloutSpec],
    environment: Environment,
    backend: ModelBackend,
    build_messages: BuildMessages,
    report: Callable[[list[Outcome]], None],
    settings: LoopSettings | None = None,
    watch: Callable[[Pulse], None] | None = None,
    stop: threading.Event | None = None,
    env_factory: Callable[[], Environment] | None = None,
) -> LoopReport:
    """Run trajectories to their ends.

    `specs` may be a generator: only a window of it is open at a time. `report` gets the outcomes of each pass, in the
    order in which they ended, and is the caller's to make durable. `watch` is called on every pass and should be cheap.
    Setting `stop` ends the run after the current pass: turns in flight are taken back. An environment that is not pure
    needs `env_factory` to run more than one trajectory at a time; each gets an instance, which is closed in the end.
    """
    settings = settings or LoopSettings()
    settings = replace(settings, sampling_params=replace(settings.sampling_params, n=1))
    with backend.exclusive(), patient_collector():
        return Loop(environment, backend, build_messages, settings, report, watch, stop, env_factory).run(specs)
