"""TrajectoryRunner and run_evaluation: the evaluation guide's face on the engine."""

from __future__ import annotations

import logging
import operator
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import SupportsIndex, TypeVar

from llenvs_fast.core.environment import Environment
from llenvs_fast.core.errors import EngineDeadError, Failure, InvalidSettingError, Phase
from llenvs_fast.engine.loop import run_rollouts
from llenvs_fast.engine.prompting import History
from llenvs_fast.engine.report import LoopReport, Pulse
from llenvs_fast.engine.rollout import Outcome, RolloutSpec
from llenvs_fast.engine.scheduler import Schedule
from llenvs_fast.engine.settings import LoopSettings
from llenvs_fast.evaluation.outcomes import BatchResult, TrajectoryResult, batch_result, trajectory_result
from llenvs_fast.inference.backend import ModelBackend
from llenvs_fast.inference.history import HistoryFn, TurnInfoConfig, full_history, turn_info_config
from llenvs_fast.inference.messages import MessageBuilder, Messages
from llenvs_fast.inference.prompts import ModelProfile, PromptTemplate
from llenvs_fast.inference.protocol import SamplingParams
from llenvs_fast.results.record import Ending

logger = logging.getLogger("llenvs_fast.evaluation")

ProgressCallback = Callable[[int, int], None]
Choice = TypeVar("Choice", bound=StrEnum)


@dataclass
class TrajectoryRunner:
    """Runs trajectories of one environment with one backend.

    `turn_info` and `history_fn` say what the model is told of turns and how much it sees of earlier ones; `history` how
    earlier turns stand in later prompts where an option or the chat template would show them otherwise (see `History`:
    "template", "keep" or "refuse"). `env_factory` makes the instances of a stateful environment, at most
    `max_environments` at once. The budgets and deadlines are those of `LoopSettings`.

    The samples that a runner draws of a task are numbered from 0 on, over all its calls; a turn's seed is derived from
    (`seed`, task, sample number, turn). So a fresh runner with the same seed draws the same samples, whatever the batch
    size or schedule, and ten calls of `run_trajectory(0)` give ten different ones.
    """

    environment: Environment
    backend: ModelBackend
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    prompt_pipeline: Callable[[Messages], Messages] | None = None
    system_prompt: str | None = None
    prompt_template: PromptTemplate | None = None
    model_profile: ModelProfile | None = None
    _: KW_ONLY
    turn_info: TurnInfoConfig | bool | None = None
    history_fn: HistoryFn | None = None
    include_reasoning_in_history: bool = False
    history: History | str = History.TEMPLATE
    seed: int = 0
    schedule: Schedule | str = Schedule.PACKED
    env_factory: Callable[[], Environment] | None = None
    max_environments: int | None = None
    environment_threads: int = 4
    max_trajectory_tokens: int | None = None
    max_context_tokens: int | None = None
    turn_timeout_s: float | None = None
    trajectory_timeout_s: float | None = None
    step_timeout_s: float | None = None

    def __post_init__(self) -> None:
        self.schedule = _one_of(Schedule, "schedule", self.schedule)
        self.history = _one_of(History, "history", self.history)
        turn_info_config(self.turn_info)
        if self.history is History.KEEP and self.history_fn not in (None, full_history):
            raise InvalidSettingError(
                "history='keep' keeps all turns, and history_fn leaves some out: drop one of the two"
            )
        _at_least_one("environment_threads", self.environment_threads)
        if self.step_timeout_s is not None and not self.step_timeout_s > 0:
            raise InvalidSettingError(f"step_timeout_s={self.step_timeout_s!r}: give seconds above 0, or None")
        if self.sampling_params.n != 1:
            raise InvalidSettingError(
                f"sampling_params.n={self.sampling_params.n}: samples are separate trajectories here; "
                "leave n=1 and pass num_samples to run_batch or run_evaluation"
            )
        self._drawn: Counter[int] = Counter()

    def run_trajectory(
        self, task_index: int, trajectory_id: str | None = None, max_steps: int | None = None
    ) -> TrajectoryResult:
        """Run one trajectory. An error of the environment, the prompt or the backend is raised as it is."""
        outcomes: list[Outcome] = []
        task_index = _plain(task_index)
        spec = RolloutSpec(0, task_index, self._next_sample(task_index), trajectory_id)
        report = self.run([spec], outcomes.extend, max_steps=max_steps)
        if not outcomes:
            raise report.engine_error or EngineDeadError("the run was stopped before the trajectory ended")
        if outcomes[0].error is not None:
            raise outcomes[0].error
        return trajectory_result(outcomes[0])

    def run_batch(
        self,
        task_indices: Iterable[int],
        batch_size: int | None = None,
        progress_callback: ProgressCallback | None = None,
        *,
        num_samples: int = 1,
    ) -> BatchResult:
        """Run `num_samples` trajectories of each task; the results stand in the order of `task_indices`.

        A trajectory that fails costs only itself: its metadata holds `error`, `kind`, `phase`, `step` and `traceback`.
        `batch_size` bounds how many are live at once: a place is refilled as soon as it is free. An index may stand
        more than once. `progress_callback(completed, total)` never decreases and ends with `(total, total)`.
        """
        if batch_size is not None:
            _at_least_one("batch_size", batch_size, ", or None for as many as fit")
        _at_least_one("num_samples", num_samples)
        specs = list(self._specs(task_indices, num_samples))
        results: list[TrajectoryResult | None] = [None] * len(specs)
        progress = _Progress(progress_callback, len(specs))

        def report(outcomes: list[Outcome]) -> None:
            for outcome in outcomes:
                results[outcome.spec.position] = trajectory_result(outcome)
            progress.advance(len(outcomes))

        loop = self.run(specs, report, max_live=batch_size)
        for spec in specs:
            if results[spec.position] is None:
                results[spec.position] = trajectory_result(_not_run(spec, loop))
        progress.finish()
        return batch_result([r for r in results if r is not None], loop)

    def run(
        self,
        specs: Iterable[RolloutSpec],
        report: Callable[[list[Outcome]], None],
        *,
        max_live: int | None = None,
        max_steps: int | None = None,
        watch: Callable[[Pulse], None] | None = None,
        stop: threading.Event | None = None,
    ) -> LoopReport:
        """Run any trajectories and report each as it ends, keeping none: for runs too large to hold."""
        settings = LoopSettings(
            sampling_params=self.sampling_params,
            seed=self.seed,
            schedule=_one_of(Schedule, "schedule", self.schedule),
            history=_one_of(History, "history", self.history),
            max_live=max_live,
            max_environments=self.max_environments,
            max_steps=max_steps,
            max_trajectory_tokens=self.max_trajectory_tokens,
            max_context_tokens=self.max_context_tokens,
            turn_timeout_s=self.turn_timeout_s,
            trajectory_timeout_s=self.trajectory_timeout_s,
            step_timeout_s=self.step_timeout_s,
            environment_threads=self.environment_threads,
        )
        return run_rollouts(
            specs, self.environment, self.backend, self.message_builder, report, settings, watch, stop, self.env_factory
        )

    @property
    def message_builder(self) -> MessageBuilder:
        return MessageBuilder(
            system_prompt=self.system_prompt,
            prompt_template=self.prompt_template,
            model_profile=self.model_profile,
            prompt_pipeline=self.prompt_pipeline,
            include_reasoning_in_history=self.include_reasoning_in_history,
            history_fn=self.history_fn,
            turn_info=turn_info_config(self.turn_info),
            max_steps=self.environment.spec.max_steps,
        )

    def _next_sample(self, task_index: int) -> int:
        self._drawn[task_index] += 1
        return self._drawn[task_index] - 1

    def _specs(self, task_indices: Iterable[int], num_samples: int) -> Iterator[RolloutSpec]:
        position = 0
        for task_index in map(_plain, task_indices):
            for _ in range(num_samples):
                yield RolloutSpec(position, task_index, self._next_sample(task_index))
                position += 1


def run_evaluation(
    environment: Environment,
    backend: ModelBackend,
    num_tasks: int | None = None,
    task_indices: Iterable[int] | None = None,
    sampling_params: SamplingParams | None = None,
    prompt_pipeline: Callable[[Messages], Messages] | None = None,
    system_prompt: str | None = None,
    prompt_template: PromptTemplate | None = None,
    model_profile: ModelProfile | None = None,
    batch_size: int | None = None,
    progress_callback: ProgressCallback | None = None,
    *,
    num_samples: int = 1,
    seed: int = 0,
    turn_info: TurnInfoConfig | bool | None = None,
    history_fn: HistoryFn | None = None,
    include_reasoning_in_history: bool = False,
    history: History | str = History.TEMPLATE,
    schedule: Schedule | str = Schedule.PACKED,
    env_factory: Callable[[], Environment] | None = None,
) -> BatchResult:
    """Evaluate a model on the first `num_tasks` tasks (default all; 100 where the environment has no length).

    `task_indices` wins over `num_tasks`. Raises InvalidSettingError for a number of tasks below 1 or an empty
    environment.
    """
    runner = TrajectoryRunner(
        environment,
        backend,
        sampling_params or SamplingParams(),
        prompt_pipeline,
        system_prompt,
        prompt_template,
        model_profile,
        turn_info=turn_info,
        history_fn=history_fn,
        include_reasoning_in_history=include_reasoning_in_history,
        history=history,
        seed=seed,
        schedule=schedule,
        env_factory=env_factory,
    )
    indices = range(count_tasks(environment, num_tasks)) if task_indices is None else task_indices
    return runner.run_batch(indices, batch_size, progress_callback, num_samples=num_samples)


def count_tasks(environment: Environment, wanted: int | None) -> int:
    """How many tasks to run: `wanted`, but no more than there are. None is all of them, or 100 of an endless source."""
    name = environment.spec.name
    if wanted is not None:
        _at_least_one("num_tasks", wanted, ", or None for all")
    if not isinstance(environment, Sized):
        return 100 if wanted is None else wanted
    available = len(environment)
    if available == 0:
        raise InvalidSettingError(f"environment {name!r} has no tasks: check its size, split or filter")
    return available if wanted is None else min(wanted, available)


class _Progress:
    """Calls back when the count has changed. A callback that raises is dropped with a warning: results matter more."""

    def __init__(self, callback: ProgressCallback | None, total: int) -> None:
        self._callback = callback if total else None
        self._total = total
        self._completed = 0
        self._told = -1

    def advance(self, count: int) -> None:
        self._completed += count
        self._tell()

    def finish(self) -> None:
        self._completed = self._total
        self._tell()

    def _tell(self) -> None:
        if self._callback is None or self._told == self._completed:
            return
        self._told = self._completed
        try:
            self._callback(self._completed, self._total)
        except Exception:
            logger.warning("progress_callback raised and is not called again", exc_info=True)
            self._callback = None


def _at_least_one(name: str, value: int, otherwise: str = "") -> None:
    if not isinstance(value, SupportsIndex) or isinstance(value, bool) or operator.index(value) < 1:
        raise InvalidSettingError(f"{name}={value!r}: give 1 or more{otherwise}")


def _plain(task_index: int) -> int:
    """A NumPy integer as an int, which its seeds and its place in the journal are made of."""
    if not isinstance(task_index, SupportsIndex):
        raise InvalidSettingError(f"task_indices has {task_index!r}: give integers")
    return operator.index(task_index)


def _one_of(choices: type[Choice], setting: str, name: str) -> Choice:
    if name not in list(choices):
        raise InvalidSettingError(f"{setting}={name!r}: choose one of {', '.join(choices)}")
    return choices(name)


def _not_run(spec: RolloutSpec, loop: LoopReport) -> Outcome:
    error = loop.engine_error or EngineDeadError("the run was stopped before this trajectory ended")
    failure = Failure.from_exception(error, Phase.GENERATE, 0)
    return Outcome(spec, Ending.FAILED, None, (), {}, failure, error, 0.0, 0.0)
