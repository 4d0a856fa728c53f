"""A session: what is missing is run, what is done is kept, and the numbers are those of an uninterrupted run."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from llenvs_fast.core.errors import SettingsMismatchError
from llenvs_fast.engine.rollout import Outcome
from llenvs_fast.evaluation import TrajectoryRunner
from llenvs_fast.evaluation.session import Session
from llenvs_fast.inference.backends import ScriptedBackend
from llenvs_fast.inference.protocol import GenerationRequest
from llenvs_fast.results.journal import Journal
from llenvs_fast.results.rows import read_records
from llenvs_fast.results.summary import RunSummary
from tests.worlds import EchoWorld, FaultyWorld, World

TASKS, SAMPLES = 40, 4
SETTINGS = {
    "env_id": "echo",
    "model": "scripted",
    "num_examples": TASKS,
    "rollouts_per_example": SAMPLES,
    "sampling_args": {"temperature": 1.0},
}


def drawn(request: GenerationRequest) -> str:
    """Right about half of the time, by the request's own seed."""
    assert request.messages is not None
    assert request.seed is not None
    return (request.messages[-1].content or "").removeprefix("echo ") if request.seed % 2 else "no"


def session(journal: Journal | None = None, world: World | None = None, tasks: int = TASKS, **options: int) -> Session:
    def runner() -> TrajectoryRunner:
        return TrajectoryRunner(world or EchoWorld(TASKS), ScriptedBackend(drawn))  # type: ignore[arg-type]

    return Session(runner, tasks, SAMPLES, journal=journal, settings=SETTINGS, **options)  # type: ignore[arg-type]


def finished(s: Session) -> RunSummary:
    s.run()
    return s.result()


def test_an_interrupted_run_resumed_equals_one_that_was_not(tmp_path: Path) -> None:
    whole = finished(session())
    stop = threading.Event()
    with Journal.create(tmp_path, SETTINGS) as journal:
        first = session(journal, max_live=8)
        report = first._report

        def stop_after_57(outcomes: list[Outcome]) -> None:
            report(outcomes)
            if first.result().rollouts >= 57:
                stop.set()

        first._report = stop_after_57  # type: ignore[method-assign]
        assert first.run(stop=stop).interrupted
    kept = sum(1 for _ in read_records(tmp_path))
    assert 57 <= kept < 160
    with Journal.resume(tmp_path, SETTINGS) as journal:
        second = session(journal)
        assert second.missing == 160 - kept
        assert second.run().reported == 160 - kept
    rows = [r.key for r in read_records(tmp_path)]
    assert sorted(rows) == [(t, s) for t in range(TASKS) for s in range(SAMPLES)]
    assert second.result() == whole


def test_failed_trajectories_are_run_again_on_resume_and_counted_once(tmp_path: Path) -> None:
    broken = FaultyWorld(size=TASKS, steps={3: RuntimeError("scorer broke"), 5: RuntimeError("scorer broke")})
    with Journal.create(tmp_path, SETTINGS) as journal:
        assert finished(session(journal, broken)).failed == 8
    with Journal.resume(tmp_path, SETTINGS) as journal:
        mended = session(journal)
        assert mended.missing == 8
        assert finished(mended) == finished(session())


def test_a_task_that_has_one_sample_of_four_is_topped_up(tmp_path: Path) -> None:
    with Journal.create(tmp_path, SETTINGS) as journal:
        one = Session(lambda: session()._open_runner(), 1, 1, journal=journal, settings=SETTINGS)
        one.run()
    with Journal.resume(tmp_path, SETTINGS) as journal:
        topped = session(journal, tasks=1)
        assert topped.missing == 3
        topped.run()
        assert topped.result().samples_per_task == (4, 4)


def test_a_complete_run_is_reported_without_opening_the_model(tmp_path: Path) -> None:
    with Journal.create(tmp_path, SETTINGS) as journal:
        whole = finished(session(journal))

    def no_model() -> TrajectoryRunner:
        raise AssertionError("nothing is missing")

    (tmp_path / "metadata.json").unlink()
    with Journal.resume(tmp_path, SETTINGS) as journal:
        again = Session(no_model, TASKS, SAMPLES, journal=journal, settings=SETTINGS)
        assert again.run().reported == 0
        assert again.result() == whole
    assert (tmp_path / "metadata.json").exists(), "it had not been written when the run was killed"


def test_other_settings_are_refused_with_their_names(tmp_path: Path) -> None:
    with Journal.create(tmp_path, SETTINGS) as journal:
        finished(session(journal))
    hotter = SETTINGS | {"sampling_args": {"temperature": 0.7}}
    with pytest.raises(SettingsMismatchError, match=r"sampling_args.temperature: saved 1.0, current 0.7"):
        Journal.resume(tmp_path, hotter)


def test_all_samples_of_a_task_are_scored_and_counted() -> None:
    """A, B, A, C with gold A: two of four, so pass@1 is 1/2 and pass@2 is 5/6."""
    s = Session(lambda: TrajectoryRunner(EchoWorld(1), ScriptedBackend(["0", "1", "0", "2"])), 1, 4)
    s.run()
    summary = s.result()
    assert summary.accuracy is not None
    assert (summary.accuracy.successes, summary.accuracy.n) == (2, 4)
    assert summary.pass_at_k[1].value == pytest.approx(1 / 2)
    assert summary.pass_at_k[2].value == pytest.approx(5 / 6)


def test_failed_samples_stay_in_the_denominator_and_are_seen() -> None:
    world = FaultyWorld(size=8, steps=dict.fromkeys((0, 1), RuntimeError("x")))
    right = {"echo 2": "2", "echo 3": "3"} | {f"echo {i}": "wrong" for i in (0, 1, 4, 5, 6, 7)}
    s = Session(lambda: TrajectoryRunner(world, ScriptedBackend(right)), 8, 1)
    s.run()
    summary = s.result()
    assert summary.accuracy is not None
    assert summary.scored_accuracy is not None
    assert (summary.accuracy.value, summary.scored_accuracy.value) == (2 / 8, 2 / 6)
    assert summary.accuracy.low == pytest.approx(0.0715, abs=1e-4)
    assert summary.accuracy.high == pytest.approx(0.5907, abs=1e-4)
    assert summary.failure_kinds == {"step_error": 2}
    assert not s.all_failed


def test_a_run_in_which_everything_failed_says_so() -> None:
    world = FaultyWorld(size=2, resets={0: RuntimeError("x"), 1: RuntimeError("x")})
    s = Session(lambda: TrajectoryRunner(world, ScriptedBackend("1")), 2, 1)
    s.run()
    assert s.all_failed


def test_rows_hold_what_was_said_and_on_request_its_tokens(tmp_path: Path) -> None:
    for keep_tokens in (False, True):
        directory = tmp_path / str(keep_tokens)
        with Journal.create(directory, SETTINGS) as journal:
            s = Session(
                lambda: TrajectoryRunner(EchoWorld(1), ScriptedBackend.with_byte_tokens("0"), system_prompt="Echo."),
                1, 1, journal=journal, settings=SETTINGS, keep_tokens=keep_tokens,
            )  # fmt: skip
            s.run()
        (row,) = read_records(directory)
        assert [m["content"] for m in row.prompt] == ["Echo.", "echo 0"]
        assert [m["content"] for m in row.completion] == ["0"]
        assert row.task == {"question": "echo 0", "answer": None}
        if keep_tokens:
            assert row.tokens is not None
            assert row.tokens["turns"][0]["token_ids"][0] == ord("0")
        else:
            assert row.tokens is None


def test_a_trajectory_that_cannot_be_written_down_is_a_failed_row(tmp_path: Path) -> None:
    class Lazy:
        @property
        def expected_answer(self) -> str:
            raise RuntimeError("not yet known")

    class Lazily(EchoWorld):
        def reset(self, *, seed=None, options=None):  # type: ignore[no-untyped-def]
            state, info = super().reset(seed=seed, options=options)
            return (replace(state, hidden=Lazy()) if state.hidden == 1 else state), info

        def step(self, state, action):  # type: ignore[no-untyped-def]
            return super().step(replace(state, hidden=1) if isinstance(state.hidden, Lazy) else state, action)

    with Journal.create(tmp_path, SETTINGS) as journal:
        runner = TrajectoryRunner(Lazily(3), ScriptedBackend(drawn))
        s = Session(lambda: runner, 3, 1, journal=journal, settings=SETTINGS)
        s.run()
    rows = {r.task_index: r for r in read_records(tmp_path)}
    assert {t: (r.failure or {}).get("kind") for t, r in rows.items()} == {0: None, 1: "record_error", 2: None}
    assert s.failures == {"record_error": "not yet known"}
