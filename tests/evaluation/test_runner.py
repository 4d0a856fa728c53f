"""TrajectoryRunner and run_evaluation, as the evaluation guide describes them, for single-turn tasks."""

from __future__ import annotations

import numpy as np
import pytest

from llenvs_fast.core.errors import EngineDeadError, InvalidSettingError
from llenvs_fast.evaluation import BatchResult, TrajectoryRunner, run_evaluation
from llenvs_fast.inference.backend import ModelBackend
from llenvs_fast.inference.backends import ScriptedBackend
from llenvs_fast.inference.backends.faulty import FaultyBackend
from llenvs_fast.inference.prompting import build_standard_pipeline
from llenvs_fast.inference.prompts import TEMPLATE_REGISTRY
from llenvs_fast.inference.protocol import (
    BackendCapabilities,
    ChatMessage,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    StopReason,
)
from tests.worlds import EchoWorld, FaultyWorld, LadderWorld


def echoed(request: GenerationRequest) -> str:
    assert request.messages is not None
    return (request.messages[-1].content or "").removeprefix("echo ")


def seeded(request: GenerationRequest) -> str:
    return str((request.seed or 0) % 3)


def test_results_stand_in_the_order_of_the_tasks_asked_for() -> None:
    batch = TrajectoryRunner(EchoWorld(50), ScriptedBackend(echoed)).run_batch([7, 3, 3, 41])
    assert [r.metadata["task_index"] for r in batch.trajectory_results] == [7, 3, 3, 41]
    assert batch.success_rate == batch.mean_reward == 1.0
    assert batch.metadata == {"num_trajectories": 4, "num_successful": 4}


def test_a_result_says_what_the_guide_prints() -> None:
    result = TrajectoryRunner(EchoWorld(5), ScriptedBackend(echoed)).run_trajectory(task_index=2, trajectory_id="mine")
    assert (result.success, result.total_reward) == (True, 1.0)
    assert result.metadata == {"task_index": 2, "num_steps": 1, "reset_info": {"task_index": 2}}
    assert result.trajectory is not None
    assert result.trajectory.episode_id == "mine"
    transition = result.trajectory.transitions[0]
    assert transition.info["generation"]["finish_reason"] == "END_OF_TEXT"
    assert transition.rewards.by_name("correctness").reward == 1.0  # type: ignore[union-attr]


def test_an_empty_batch_is_an_empty_result() -> None:
    batch = TrajectoryRunner(EchoWorld(5), ScriptedBackend(echoed)).run_batch([])
    assert batch.trajectory_results == []
    assert (batch.success_rate, batch.mean_reward) == (0.0, 0.0)


def test_all_samples_are_kept_and_differ() -> None:
    batch = TrajectoryRunner(EchoWorld(4), ScriptedBackend(seeded)).run_batch(range(4), num_samples=16)
    assert [r.metadata["task_index"] for r in batch.trajectory_results] == [t for t in range(4) for _ in range(16)]
    for task in range(4):
        said = {r.turns[0].result.text for r in batch.trajectory_results[16 * task : 16 * task + 16]}
        assert len(said) > 1


def test_samples_are_the_same_however_they_are_drawn() -> None:
    """num_samples, a repeated index, several calls and one at a time: the i-th sample of a task is the i-th."""

    def runner() -> TrajectoryRunner:
        return TrajectoryRunner(EchoWorld(4), ScriptedBackend(seeded), seed=5)

    def said(results: list) -> list[str | None]:
        return [r.turns[0].result.text for r in results]

    at_once = said(runner().run_batch([1], num_samples=6).trajectory_results)
    assert said(runner().run_batch([1] * 6, batch_size=2).trajectory_results) == at_once
    one = runner()
    assert said([one.run_trajectory(1) for _ in range(6)]) == at_once
    two = runner()
    halves = [two.run_batch([1], num_samples=3), two.run_batch([1], num_samples=3)]
    assert said([r for half in halves for r in half.trajectory_results]) == at_once
    assert len(set(at_once)) > 1


def test_progress_never_decreases_and_ends_with_all() -> None:
    calls: list[tuple[int, int]] = []
    runner = TrajectoryRunner(FaultyWorld(size=30, resets={3: ValueError("x")}), ScriptedBackend(echoed))
    runner.run_batch(range(30), batch_size=4, progress_callback=lambda c, t: calls.append((c, t)))
    assert [c for c, _ in calls] == sorted({c for c, _ in calls})
    assert calls[-1] == (30, 30)


def test_a_progress_callback_that_raises_costs_no_result(caplog: pytest.LogCaptureFixture) -> None:
    def callback(completed: int, total: int) -> None:
        raise ZeroDivisionError

    batch = TrajectoryRunner(EchoWorld(9), ScriptedBackend(echoed)).run_batch(range(9), progress_callback=callback)
    assert batch.success_rate == 1.0
    assert caplog.text.count("progress_callback raised") == 1


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, "4", True])
def test_a_batch_size_below_one_is_refused(batch_size: int) -> None:
    with pytest.raises(InvalidSettingError, match=rf"batch_size={batch_size!r}: give 1 or more, or None"):
        TrajectoryRunner(EchoWorld(9), ScriptedBackend(echoed)).run_batch([1], batch_size=batch_size)


@pytest.mark.parametrize("num_samples", [0, -1])
def test_a_number_of_samples_below_one_is_refused(num_samples: int) -> None:
    with pytest.raises(ValueError, match=f"num_samples={num_samples}: give 1 or more"):
        run_evaluation(EchoWorld(9), ScriptedBackend(echoed), num_samples=num_samples)


def test_n_in_the_sampling_parameters_is_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidSettingError, match="pass num_samples"):
        TrajectoryRunner(EchoWorld(9), ScriptedBackend(echoed), SamplingParams(n=4))


def test_an_unknown_schedule_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InvalidSettingError, match="choose one of packed, lockstep"):
        TrajectoryRunner(EchoWorld(9), ScriptedBackend(echoed), schedule="rounds")


def test_an_empty_environment_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="environment 'echo' has no tasks"):
        run_evaluation(EchoWorld(0), ScriptedBackend(echoed))


def test_tasks_default_to_all_and_are_clipped_to_what_exists() -> None:
    assert len(run_evaluation(EchoWorld(7), ScriptedBackend(echoed)).trajectory_results) == 7
    assert len(run_evaluation(EchoWorld(7), ScriptedBackend(echoed), num_tasks=3).trajectory_results) == 3
    assert len(run_evaluation(EchoWorld(7), ScriptedBackend(echoed), num_tasks=99).trajectory_results) == 7
    with pytest.raises(InvalidSettingError, match="num_tasks=0: give 1 or more"):
        run_evaluation(EchoWorld(7), ScriptedBackend(echoed), num_tasks=0)


def test_errors_are_found_as_the_guide_shows_and_say_more() -> None:
    world = FaultyWorld(size=5, steps={1: RuntimeError("scorer broke"), 2: float("nan")})
    batch = TrajectoryRunner(world, ScriptedBackend(echoed)).run_batch(range(5))
    failed = {r.metadata["task_index"]: r.metadata for r in batch.trajectory_results if "error" in r.metadata}
    assert failed.keys() == {1, 2}
    assert failed[1]["error"] == "scorer broke"
    assert (failed[1]["kind"], failed[1]["phase"], failed[1]["step"]) == ("step_error", "step", 0)
    assert "RuntimeError: scorer broke" in failed[1]["traceback"]
    assert failed[2]["kind"] == "bad_reward"
    assert batch.success_rate == 3 / 5


def test_a_single_trajectory_raises_what_went_wrong() -> None:
    world = FaultyWorld(size=5, steps={1: RuntimeError("scorer broke")})
    with pytest.raises(RuntimeError, match="scorer broke"):
        TrajectoryRunner(world, ScriptedBackend(echoed)).run_trajectory(1)


def test_a_dead_engine_still_gives_one_result_for_every_trajectory() -> None:
    backend = FaultyBackend(ScriptedBackend(echoed), raise_at_poll={3: EngineDeadError("CUDA error")})
    batch = TrajectoryRunner(EchoWorld(40), backend).run_batch(range(40), batch_size=2)
    assert [r.metadata["task_index"] for r in batch.trajectory_results] == list(range(40))
    assert any(r.success for r in batch.trajectory_results)
    assert batch.trajectory_results[-1].metadata["kind"] == "engine_dead"


def test_success_is_the_last_outcome_signal_only() -> None:
    batch = TrajectoryRunner(LadderWorld(turns=2, size=1), ScriptedBackend(["nothing", "rung 1"])).run_batch([0])
    assert batch.trajectory_results[0].success
    batch = TrajectoryRunner(LadderWorld(turns=2, size=1), ScriptedBackend(["rung 0", "nothing"])).run_batch([0])
    assert not batch.trajectory_results[0].success


def test_a_missing_reward_is_no_success_and_no_error() -> None:
    batch = TrajectoryRunner(FaultyWorld(size=2, steps={0: None}), ScriptedBackend(echoed)).run_batch([0])
    assert not batch.trajectory_results[0].success
    assert "error" not in batch.trajectory_results[0].metadata


def test_prompts_are_built_system_prompt_template_pipeline() -> None:
    backend = ScriptedBackend(["7"], record=True)
    runner = TrajectoryRunner(
        EchoWorld(9),
        backend,
        system_prompt="You are an expert mathematician.",
        prompt_template=TEMPLATE_REGISTRY["math"],
        prompt_pipeline=build_standard_pipeline(use_cot=True),
    )
    runner.run_trajectory(7)
    system, user = backend.recorded[0].messages or ()
    assert system.content is not None
    assert user.content is not None
    assert system.content.startswith("You are an expert mathematician.")
    assert "<answer>" in system.content
    assert "echo 7" in user.content
    assert len(user.content) > len(TEMPLATE_REGISTRY["math"].apply("echo 7"))


class PlainBackend(ModelBackend):
    """What a user writes who knows the guide only: one method that answers a batch."""

    capabilities = BackendCapabilities()
    model_name = "plain"

    def __init__(self, short_by: int = 0) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.short_by = short_by

    def generate_chat_batch(  # type: ignore[override]
        self, messages_batch: list[list[ChatMessage]], params: SamplingParams
    ) -> list[GenerationResult]:
        self.batches.append(len(messages_batch))
        replies = [(m[-1].content or "").removeprefix("echo ") for m in messages_batch]
        results = [GenerationResult(text, StopReason.END_OF_TEXT, completion_tokens=1) for text in replies]
        return results[self.short_by :]


@pytest.mark.parametrize("schedule", ["packed", "lockstep"])
def test_a_backend_that_only_answers_batches_is_enough(schedule: str) -> None:
    backend = PlainBackend()
    batch = TrajectoryRunner(EchoWorld(12), backend, schedule=schedule).run_batch(range(12))
    assert batch.success_rate == 1.0
    assert sum(backend.batches) == 12
    if schedule == "lockstep":
        assert backend.batches == [12]


def test_a_wrong_number_of_outputs_fails_those_trajectories_and_mixes_up_none() -> None:
    batch = TrajectoryRunner(EchoWorld(4), PlainBackend(short_by=1), schedule="lockstep").run_batch(range(4))
    errors = {r.metadata["error"] for r in batch.trajectory_results}
    assert errors == {"PlainBackend returned 3 results for 4 conversations"}
    assert {r.metadata["kind"] for r in batch.trajectory_results} == {"backend_protocol"}


def test_the_report_says_where_the_time_went() -> None:
    report = TrajectoryRunner(EchoWorld(20), ScriptedBackend(echoed)).run_batch(range(20)).report
    assert report is not None
    assert report.reported == 20
    assert report.wall_s >= report.generating_s + report.stepping_s > 0
    assert report.figures.completion_tokens == 20


@pytest.mark.parametrize(
    ("option", "value"), [("environment_threads", 0), ("environment_threads", 1.5), ("step_timeout_s", 0)]
)
def test_a_runner_refuses_options_that_it_can_not_run_with(option: str, value: float) -> None:
    with pytest.raises(InvalidSettingError, match=f"{option}={value}: give"):
        TrajectoryRunner(EchoWorld(9), ScriptedBackend(echoed), **{option: value})  # type: ignore[arg-type]


def test_numpy_indices_and_generators_are_task_indices_too() -> None:
    def seeds(batch: BatchResult) -> list[int | None]:
        return [r.turns[0].seed for r in batch.trajectory_results]

    plain = TrajectoryRunner(EchoWorld(9), ScriptedBackend(seeded)).run_batch([3, 4])
    for indices in (np.array([3, 4]), (i for i in (3, 4))):
        other = TrajectoryRunner(EchoWorld(9), ScriptedBackend(seeded)).run_batch(indices)
        assert seeds(other) == seeds(plain)
        assert all(type(r.metadata["task_index"]) is int for r in other.trajectory_results)
