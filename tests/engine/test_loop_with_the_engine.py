"""The loop over the real engine: samples, turns and schedules, to the token."""

from __future__ import annotations

import pytest

from llenvs_fast.evaluation import BatchResult, TrajectoryRunner
from llenvs_fast.evaluation.setup import open_environment
from llenvs_fast.inference.backends import VLLMBackend
from llenvs_fast.inference.protocol import SamplingParams
from tests.worlds import EchoWorld, LadderWorld

WARM = SamplingParams(temperature=1.0, max_tokens=12, logprobs=True)


def sampled(batch: BatchResult) -> list[list[tuple[int, ...] | None]]:
    return [[turn.token_ids for turn in r.turns] for r in batch.trajectory_results]


def test_sixteen_samples_differ_and_are_the_same_again(tiny_vllm: VLLMBackend) -> None:
    """Whatever the width and the schedule: seeds belong to (run, task, sample, turn)."""

    def draw(**options: object) -> list:
        runner = TrajectoryRunner(EchoWorld(3), tiny_vllm, WARM, seed=7, schedule=options.pop("schedule", "packed"))  # type: ignore[arg-type]
        return sampled(runner.run_batch(range(3), num_samples=16, **options))  # type: ignore[arg-type]

    reference = draw()
    assert all(len({tuple(map(tuple, s)) for s in reference[16 * t : 16 * t + 16]}) > 8 for t in range(3))
    assert draw(batch_size=5) == reference
    assert draw(schedule="lockstep") == reference


def test_turns_are_token_appends_and_read_from_the_cache(embedded_vllm: VLLMBackend) -> None:
    embedded_vllm.reset_prefix_cache()
    world = LadderWorld(turns=4, size=4, structured=False)
    batch = TrajectoryRunner(world, embedded_vllm, WARM).run_batch(range(4), num_samples=4)
    block = embedded_vllm.capacity.block_tokens
    for result in batch.trajectory_results:
        assert "error" not in result.metadata, result.metadata
        assert len(result.turns) == 4
        for before, after in zip(result.turns, result.turns[1:], strict=False):
            known = before.prompt_ids + before.token_ids  # type: ignore[operator]
            assert after.prompt_ids[: len(known)] == known  # type: ignore[index]
            # The last sampled token was never read, so its block is not in the cache yet.
            assert after.result.cached_tokens >= (len(known) - 1) // block * block  # type: ignore[operator]
        for turn in result.turns:
            assert turn.result.token_logprobs is not None
            assert len(turn.result.token_logprobs) == len(turn.token_ids or ())
    assert batch.report is not None
    assert batch.report.reuse_lost_tokens == 0
    assert batch.report.figures.preemptions == 0


@pytest.mark.parametrize("schedule", ["packed", "lockstep"])
def test_several_turns_end_alike_in_both_schedules(schedule: str, embedded_vllm: VLLMBackend) -> None:
    world = LadderWorld(turns=3, size=4)
    reference = TrajectoryRunner(world, embedded_vllm, WARM).run_batch(range(4), num_samples=3)
    other = TrajectoryRunner(world, embedded_vllm, WARM, schedule=schedule)
    assert sampled(other.run_batch(range(4), batch_size=4, num_samples=3)) == sampled(reference)


def test_a_conversation_that_outgrows_the_context_is_truncated_and_keeps_its_turns(tiny_vllm: VLLMBackend) -> None:
    long, short = LadderWorld(turns=60, size=1, structured=False), LadderWorld(turns=3, size=1, structured=False)
    params = SamplingParams(temperature=1.0, max_tokens=24, extra={"ignore_eos": True})
    (cut,) = TrajectoryRunner(long, tiny_vllm, params).run_batch([0]).trajectory_results
    assert cut.metadata["truncated_by"] == "context"
    assert cut.metadata["num_steps"] == len(cut.turns) > 3
    context = tiny_vllm.capabilities.max_context_length
    assert context is not None
    assert len(cut.turns[-1].prompt_ids or ()) + len(cut.turns[-1].token_ids or ()) <= context
    (fine,) = TrajectoryRunner(short, tiny_vllm, params).run_batch([0]).trajectory_results
    assert "error" not in fine.metadata


SKILLS = {
    "leg_counting": ("leg_counting", {}),
    "GuessTheNumber": ("gem:game:GuessTheNumber-v0-easy", {}),
    "calculator": ("chain_sum", {"tool_types": ["calculator"], "min_terms": 8, "max_terms": 10}),
}


@pytest.mark.parametrize("skill", SKILLS)
def test_the_same_seeds_give_the_same_trajectories_whatever_the_schedule_the_width_and_the_cache(
    skill: str, embedded_vllm: VLLMBackend
) -> None:
    """In float32. The small cache holds three long trajectories, so that others wait, or are parked."""
    name, arguments = SKILLS[skill]
    environment = open_environment(name, arguments)
    params = SamplingParams(temperature=1.0, max_tokens=160)

    def draw(backend: VLLMBackend, schedule: str = "packed", **options: int) -> BatchResult:
        runner = TrajectoryRunner(environment, backend, params, seed=3, schedule=schedule)
        batch = runner.run_batch(range(8), num_samples=2, **options)
        assert not [r.metadata for r in batch.trajectory_results if "error" in r.metadata]
        return batch

    reference = sampled(draw(embedded_vllm))
    assert any(len(turns) > 1 for turns in reference) or skill == "leg_counting"
    assert sampled(draw(embedded_vllm, "lockstep")) == reference
    assert sampled(draw(embedded_vllm, batch_size=3)) == reference
    with VLLMBackend(
        "embedded", dtype="float32", max_model_len=1024, num_gpu_blocks_override=64, max_num_batched_tokens=2048
    ) as small:
        batch = draw(small)
    assert sampled(batch) == reference
    assert batch.report is not None
    assert batch.report.figures.preemptions == 0
