"""One evaluation of an environment with a model: what to run, what is done already, what came out.

A session streams: every trajectory becomes a journal row and a few counts the moment it ends, and is then let go.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from llenvs_fast.engine.report import LoopReport, Pulse
from llenvs_fast.engine.rollout import Outcome, RolloutSpec
from llenvs_fast.evaluation.outcomes import record_of
from llenvs_fast.evaluation.runner import TrajectoryRunner
from llenvs_fast.results.journal import Journal
from llenvs_fast.results.record import Ending, TrajectoryRecord
from llenvs_fast.results.rows import read_records
from llenvs_fast.results.runs import run_metadata
from llenvs_fast.results.summary import RunSummary, SummaryAccumulator


class Session:
    """`num_tasks` tasks x `samples_per_task` samples with one runner, which is opened only where something is missing.

    With a `journal`, rows go there as trajectories end, and those that it has already are not run again; `settings` are
    the run's identity, as given to the journal.
    """

    def __init__(
        self,
        open_runner: Callable[[], TrajectoryRunner],
        num_tasks: int,
        samples_per_task: int,
        *,
        journal: Journal | None = None,
        settings: dict[str, Any] | None = None,
        max_live: int | None = None,
        keep_tokens: bool = False,
    ) -> None:
        self._open_runner = open_runner
        self._runner: TrajectoryRunner | None = None
        self.num_tasks = num_tasks
        self.samples_per_task = samples_per_task
        self.journal = journal
        self.settings = settings or {}
        self.max_live = max_live
        self.keep_tokens = keep_tokens
        self._summary = SummaryAccumulator()
        self._done = frozenset(k for k in journal.done if self._wants(*k)) if journal is not None else frozenset()
        self._judged = self._right = 0
        self.failures: dict[str, str] = {}  # the first message of each kind

    @property
    def total(self) -> int:
        return self.num_tasks * self.samples_per_task

    @property
    def missing(self) -> int:
        """Trajectories still to be run when the session was opened."""
        return self.total - len(self._done)

    def load(self) -> None:
        """Load the model, where anything is to be run. `run` does it where it has not been done."""
        if self._runner is None and self.missing:
            self._runner = self._open_runner()

    def run(self, watch: Callable[[Pulse], None] | None = None, stop: threading.Event | None = None) -> LoopReport:
        """Run what is missing or had failed. A row is durable before its trajectory counts as done."""
        self._take_earlier_rows()
        self.load()
        started, clock = datetime.now().astimezone(), time.perf_counter()
        try:
            if self._runner is None:
                return LoopReport()
            return self._runner.run(self._specs(), self._report, max_live=self.max_live, watch=watch, stop=stop)
        finally:
            if self.journal is not None and (self._runner is not None or not self.journal.has_metadata):
                time_ms = 1e3 * (time.perf_counter() - clock)
                self.journal.write_metadata(run_metadata(self.settings, started, time_ms, self.result()))

    def result(self) -> RunSummary:
        """What came out so far, earlier parts of a resumed run included."""
        return self._summary.summary()

    @property
    def all_failed(self) -> bool:
        """Whether trajectories were run and not one of them came to an end of its own."""
        summary = self.result()
        return summary.rollouts > 0 and summary.failed == summary.rollouts

    def accuracy_so_far(self) -> float | None:
        return self._right / self._judged if self._judged else None

    def _specs(self) -> Iterator[RolloutSpec]:
        for task in range(self.num_tasks):
            for sample in range(self.samples_per_task):
                if (task, sample) not in self._done:
                    yield RolloutSpec(task * self.samples_per_task + sample, task, sample)

    def _report(self, outcomes: list[Outcome]) -> None:
        records = [record_of(outcome, self.keep_tokens) for outcome in outcomes]
        if self.journal is not None:
            self.journal.append(records)
        for record in records:
            self._add(record)

    def _add(self, record: TrajectoryRecord) -> None:
        self._summary.add(record)
        self._judged += record.success is not None or record.status is Ending.FAILED
        self._right += bool(record.success)
        if record.failure is not None:
            self.failures.setdefault(record.failure["kind"], record.failure["message"])

    def _take_earlier_rows(self) -> None:
        if self.journal is not None and self._done:
            for record in read_records(self.journal.directory):
                if record.key in self._done:
                    self._add(record)

    def _wants(self, task: int, sample: int) -> bool:
        return task < self.num_tasks and sample < self.samples_per_task
