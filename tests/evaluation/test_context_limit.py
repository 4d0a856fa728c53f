"""Prompts at and over the context, and empty ones, in one batch: each ends alone, with its reason."""

from __future__ import annotations

import pytest

from llenvs_fast.evaluation import TrajectoryRunner
from llenvs_fast.inference.backend import ModelBackend
from llenvs_fast.inference.backends import ScriptedBackend, VLLMBackend
from llenvs_fast.inference.protocol import SamplingParams
from tests.worlds import EchoWorld, first_state


class LengthsWorld(EchoWorld):
    """Task i has a prompt of `lengths[i]` characters."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__(len(lengths))
        self.lengths = lengths

    def reset(self, *, seed=None, options=None):  # type: ignore[no-untyped-def]
        return first_state("7" * self.lengths[options["task_index"]], "7", options), {}


def check(backend: ModelBackend, context: int) -> None:
    """The prompt's tokens are its digits and what the template adds, so that lengths can be chosen to the token."""
    assert backend.renderer is not None
    probe = TrajectoryRunner(LengthsWorld([10]), backend, SamplingParams(max_tokens=1)).run_trajectory(0)
    around = probe.turns[0].result.prompt_tokens - 10
    lengths = [5, context - 1 - around, context - around, context + 1 - around, 10 * context]
    runner = TrajectoryRunner(LengthsWorld(lengths), backend, SamplingParams(max_tokens=8))
    batch = runner.run_batch(range(5))
    kinds = [r.metadata.get("kind") for r in batch.trajectory_results]
    assert kinds == [None, None, "prompt_too_long", "prompt_too_long", "prompt_too_long"]
    at_limit = batch.trajectory_results[1].turns[0].result
    assert (at_limit.prompt_tokens, at_limit.completion_tokens) == (context - 1, 1)
    error = batch.trajectory_results[2].metadata["error"]
    assert f"the prompt has {context} tokens and the context {context}" in error
    assert "shorten the prompt or raise max_model_len" in error


def test_with_the_scripted_backend() -> None:
    check(ScriptedBackend.with_byte_tokens("some reply", max_model_len=128), 128)


def test_with_the_real_engine(tiny_vllm: VLLMBackend) -> None:
    check(tiny_vllm, 512)


def test_a_prompt_without_any_token_fails_alone() -> None:
    class Bare(ScriptedBackend):
        """A template that adds nothing, so that an empty message is an empty prompt."""

    backend = Bare.with_byte_tokens("x")
    backend.renderer.render_batch = lambda conversations, *a: [  # type: ignore[union-attr, method-assign]
        tuple((m[-1].content or "").encode()) for m in conversations
    ]
    batch = TrajectoryRunner(LengthsWorld([3, 0, 3]), backend).run_batch(range(3))
    assert [r.metadata.get("kind") for r in batch.trajectory_results] == [None, "empty_prompt", None]
    assert batch.trajectory_results[1].metadata["error"] == "the prompt has no tokens: send at least one"


@pytest.mark.parametrize("schedule", ["packed", "lockstep"])
def test_the_order_of_results_survives_bad_ones(schedule: str, tiny_vllm: VLLMBackend) -> None:
    lengths = [5, 9_999, 5, 9_999, 5]
    runner = TrajectoryRunner(LengthsWorld(lengths), tiny_vllm, SamplingParams(max_tokens=4), schedule=schedule)
    batch = runner.run_batch([4, 3, 2, 1, 0])
    assert [r.metadata["task_index"] for r in batch.trajectory_results] == [4, 3, 2, 1, 0]
    assert ["error" in r.metadata for r in batch.trajectory_results] == [False, True, False, True, False]
