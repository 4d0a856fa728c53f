"""What an evaluation costs over the engine: run_evaluation against bare `LLM.generate` on the same token ids."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from benchmarks.harness import Figure, ratios, spread
from llenvs_fast.evaluation import run_evaluation
from llenvs_fast.inference import ChatMessage, SamplingParams
from llenvs_fast.inference.backends import VLLMBackend
from tests.tiny_model import make_tiny_model
from tests.worlds import EchoWorld

PROMPTS, TOKENS = 512, 64


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        model = make_tiny_model(Path(directory), context=512)
        with VLLMBackend(model, dtype="float32", max_model_len=512) as backend:
            return [_measure(backend)]


def _measure(backend: VLLMBackend) -> Figure:
    world = EchoWorld(size=PROMPTS)
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0, extra={"ignore_eos": True})
    prompts = [backend.renderer.render([ChatMessage("user", world.prompt.format(i=i))]) for i in range(PROMPTS)]

    def ours():
        backend.reset_prefix_cache()
        return run_evaluation(world, backend, sampling_params=params)

    def bare():
        backend.reset_prefix_cache()
        return bare_generate(backend, prompts)

    same = sum(
        result.turns[0].token_ids == tuple(ids)
        for result, ids in zip(ours().trajectory_results, bare(), strict=True)
    )
    assert same == PROMPTS, f"only {same} of {PROMPTS} outputs equal those of the bare engine"
    found = ratios(ours, bare)
    median = statistics.median(found)
    what = f"wall of run_evaluation over LLM.generate, {PROMPTS} prompts x {TOKENS} tokens"
    checked = f"{same} of {PROMPTS} outputs equal"
    return Figure("evaluation_wall", what, median, "x", spread(found), len(found), "<= 1.05", median <= 1.05, checked)


def bare_generate(backend: VLLMBackend, prompts: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The engine's own offline call, as anybody would write it."""
    from vllm import SamplingParams as EngineParams

    params = EngineParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    outputs = backend.llm.generate([{"prompt_token_ids": list(p)} for p in prompts], params, use_tqdm=False)
    return [tuple(o.outputs[0].token_ids) for o in outputs]
