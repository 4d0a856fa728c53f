"""16 samples of one 1,000-token prompt: the prompt is prefilled once."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.harness import Figure
from llenvs_fast.evaluation import TrajectoryRunner
from llenvs_fast.inference import SamplingParams
from llenvs_fast.inference.backends import VLLMBackend
from tests.tiny_model import make_tiny_model
from tests.worlds import EchoWorld

SAMPLES, PROMPT_TOKENS = 16, 1_000


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        model = make_tiny_model(Path(directory), context=2048)
        with VLLMBackend(model, dtype="float32", max_model_len=2048) as backend:
            return [_measure(backend)]


def _measure(backend: VLLMBackend) -> Figure:
    words = "7 " * 2_000
    world = EchoWorld(size=1, prompt=words)
    while len(backend.renderer.render(_messages(world))) > PROMPT_TOKENS:
        world.prompt = world.prompt[:-2]
    runner = TrajectoryRunner(world, backend, SamplingParams(max_tokens=16, temperature=1.0))
    batch = runner.run_batch([0], num_samples=SAMPLES)
    results = [r.turns[0].result for r in batch.trajectory_results]
    assert len({r.turns[0].token_ids for r in batch.trajectory_results}) > 1, "the samples are not independent draws"
    block = backend.capacity.block_tokens
    bound = (SAMPLES - 1) * ((results[0].prompt_tokens - 1) // block * block)
    share = sum(r.cached_tokens or 0 for r in results) / bound
    what = f"cached tokens over the block bound of {SAMPLES - 1} samples, {results[0].prompt_tokens}-token prompt"
    return Figure("shared_prompt", what, share, "x", None, 1, ">= 1", share >= 1.0, "samples differ")


def _messages(world: EchoWorld):
    from llenvs_fast.inference import ChatMessage

    return [ChatMessage("user", world.prompt)]
