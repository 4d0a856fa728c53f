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
from dataclasses import dataclass, field, replace
from typing import Any

from llenvs_fast.core.environment import Environment
from llenvs_fast.core.errors import BackendProtocolError, EngineDeadError, InvalidSettingError, Phase
from llenvs_fast.core.seeds import derive_seed
from llenvs_fast.engine.garbage import patient_collector
from llenvs_fast.engine.prompting import BuildMessages, prompt_rollouts
from llenvs_fast.engine.residency import ResidencyPlanner
from llenvs_fast.engine.rollout import DEFAULT_MAX_STEPS, Outcome, Rollout, RolloutSpec, Stage, checked_reset
from llenvs_fast.engine.scheduler import Candidate, Facts, Schedule, Scheduler
from llenvs_fast.engine.workers import Call, Done, EnvironmentWorkers
from llenvs_fast.inference.backend import ModelBackend, unwrap
from llenvs_fast.inference.protocol import EngineFigures, Finished, GenerationRequest, SamplingParams

logger = logging.getLogger("llenvs_fast.engine")

_FAILED_POLLS = 3  # so many polls in a row that raise mean a dead engine
_LOOKAHEAD = 128  # trajectories reset ahead of need, so that a free place is refilled at once
_RESETS_A_PASS = 256  # the first trajectories generate while the next are still reset
_runs = itertools.count()


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How to run. `max_live` bounds live trajectories; None leaves it to the KV cache and the engine."""

    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    schedule: Schedule = Schedule.PACKED
    max_live: int | None = None
    max_steps: int | None = None
    environment_threads: int = 4
    step_timeout_s: float | None = None


@dataclass(slots=True)
class LoopReport:
    """What the loop did and where its time went.

    `generating_s` is time inside the backend, `stepping_s` time with nothing to do but wait for environments,
    `environment_s` the workers' own busy time (beside the engine), `host_s` the rest of `wall_s`.
    """

    reported: int = 0
    wall_s: float = 0.0
    generating_s: float = 0.0
    stepping_s: float = 0.0
    environment_s: float = 0.0
    reuse_lost_tokens: int = 0
    peak_live: int = 0
    interrupted: bool = False
    engine_error: Exception | None = None
    figures: EngineFigures = field(default_factory=EngineFigures)

    @property
    def host_s(self) -> float:
        return max(0.0, self.wall_s - self.generating_s - self.stepping_s)


@dataclass(frozen=True, slots=True)
class Pulse:
    """The moment, for whoever watches: counts of trajectories by stage."""

    reported: int
    resetting: int
    ready: int
    generating: int
    stepping: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class InFlight:
    """A turn in the backend: whose it is, and when it was submitted (on the clock, and in engine steps)."""

    rollout: Rollout
    submitted_at: float
    submitted_step: int


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
    ) -> None:
        self.backend = backend
        self.build_messages = build_messages
        self.settings = settings
        self.report = report
        self.watch = watch
        self.stop = stop or threading.Event()
        planner = ResidencyPlanner(backend.capacity) if backend.capacity is not None else None
        self.scheduler = Scheduler(settings.schedule, settings.max_live, planner)
        self.workers = EnvironmentWorkers(environment, settings.environment_threads, settings.step_timeout_s)
        self.result = LoopReport()
        self._max_steps = _step_limit(settings, environment)
        self._window = self._lookahead_window()
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
            self.result.figures = self.backend.figures.since(self._before)
        return self.result

    def _pass(self) -> None:
        self._collect(self.workers.collect())
        self._prompt()
        self._report()  # before new ones are picked: who has ended makes room
        self._submit()
        self._poll()
        if not self._generating and not self._unprompted and self.workers.pending:
            waiting = time.perf_counter()
            self._collect(self.workers.collect(timeout_s=0.1))
            self.result.stepping_s += time.perf_counter() - waiting

    def _start_new(self, source: Iterator[RolloutSpec]) -> bool:
        """Reset trajectories ahead of need; True once the source is exhausted."""
        calls: list[Call] = []
        room = self._window - len(self._open)
        if self.settings.schedule is Schedule.PACKED:
            room = min(room, _RESETS_A_PASS)
        for spec in itertools.islice(source, room):
            if spec.position in self._open:
                raise ValueError(f"position {spec.position} stands for two trajectories: give each its own")
            self._open[spec.position] = Rollout(spec, self._max_steps)
            calls.append(Call(spec.position, spec.reset_options()))
        self._resetting += len(calls)
        self.workers.submit(calls)
        return len(calls) < room

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
        prompt_rollouts(rollouts, self.build_messages, self.backend.renderer)
        for rollout in rollouts:
            if rollout.stage is Stage.ENDED:
                self._ended.append(rollout)
                continue
            self.result.reuse_lost_tokens += rollout.reuse_lost
            max_tokens = self.settings.sampling_params.max_tokens
            live = bool(rollout.turns)
            self.scheduler.offer(Candidate(rollout.spec.position, rollout.ids, max_tokens, live))

    def _submit(self) -> None:
        picked = self.scheduler.pick(self._facts())
        self.result.peak_live = max(self.result.peak_live, self.scheduler.live)
        if not picked:
            return
        now, step = time.perf_counter(), self.backend.figures.engine_steps or 0
        rollouts = [self._open[position] for position in picked]
        requests = [self._request(rollout) for rollout in rollouts]
        for request, rollout in zip(requests, rollouts, strict=True):
            rollout.was_submitted(request.seed)
            self._generating[request.key] = InFlight(rollout, now, step)
        self._in_backend(lambda: self.backend.submit(requests))

    def _request(self, rollout: Rollout) -> GenerationRequest:
        spec = rollout.spec
        return GenerationRequest(
            key=(self._run, next(self._requests)),
            params=self.settings.sampling_params,
            prompt_ids=rollout.ids if self.backend.renderer is not None else None,
            messages=rollout.messages,
            tools=rollout.state.observation.available_tools,
            seed=derive_seed(self.settings.seed, spec.task_index, spec.sample, len(rollout.turns)),
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
        try:
            result = unwrap(finished)
            last = rollout.on_last_turn
            state = rollout.state
            action = rollout.was_generated(result, now - turn.submitted_at)
        except Exception as error:
            rollout.has_failed(error, Phase.GENERATE)
            self._ended.append(rollout)
            return []
        self.scheduler.turn_ended(rollout.spec.position, result.token_ids or (), last)
        return [Call(rollout.spec.position, state, action)]

    def _report(self) -> None:
        ended, self._ended = self._ended, []
        for rollout in ended:
            del self._open[rollout.spec.position]
            self.scheduler.ended(rollout.spec.position)
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
        )


def _step_limit(settings: LoopSettings, environment: Environment) -> int:
    limit = settings.max_steps if settings.max_steps is not None else environment.spec.max_steps
    if limit is None:
        return DEFAULT_MAX_STEPS
    if not isinstance(limit, int) or limit < 1:
        raise InvalidSettingError(f"max_steps={limit!r}: give 1 or more, or None for {DEFAULT_MAX_STEPS}")
    return limit


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
) -> LoopReport:
    """Run trajectories to their ends.

    `specs` may be a generator: only a window of it is open at a time. `report` gets the outcomes of each pass, in the
    order in which they ended, and is the caller's to make durable. `watch` is called on every pass and should be cheap.
    Setting `stop` ends the run after the current pass: turns in flight are taken back.
    """
    settings = settings or LoopSettings()
    settings = replace(settings, sampling_params=replace(settings.sampling_params, n=1))
    with backend.exclusive(), patient_collector():
        return Loop(environment, backend, build_messages, settings, report, watch, stop).run(specs)
