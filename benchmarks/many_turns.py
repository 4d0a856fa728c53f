"""Many turns on the real engine: no barrier at turn ends, a cache for a quarter of the trajectories, a straggler.

The lengths of turns are set, not sampled: heavy-tailed, and the same for whoever runs them.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness import Figure, timed
from llenvs_fast.core.environment import EnvironmentSpec, StepResult
from llenvs_fast.core.reward import SignalBundle
from llenvs_fast.core.state import Action, Observation, State
from llenvs_fast.engine.report import LoopReport
from llenvs_fast.evaluation import BatchResult, TrajectoryRunner
from llenvs_fast.inference import ChatMessage, SamplingParams
from llenvs_fast.inference.backends import VLLMBackend
from llenvs_fast.inference.protocol import GenerationRequest
from tests.tiny_model import make_tiny_model
from tests.worlds import World, first_state, next_state

TRAJECTORIES, TURNS, CONTEXT = 64, 8, 2048
MEAN_TOKENS = 30
GREEDY = SamplingParams(max_tokens=512, temperature=0.0, extra={"ignore_eos": True})


def turn_tokens(task: int, turn: int) -> int:
    """Length of a turn: Pareto with shape 1.3, held to 8 to 400 tokens; 30 on average."""
    return int(min(400, max(8, MEAN_TOKENS / 3 * random.Random(f"{task}/{turn}").paretovariate(1.3))))


@dataclass
class TalkWorld(World):
    """`turns` turns of small talk; a step takes `step_s` on average, with a heavy tail."""

    turns: int = TURNS
    size: int = TRAJECTORIES
    step_s: float = 0.0

    @property
    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec("talk", max_steps=self.turns, is_multi_turn=True, pure_step=True)

    def __len__(self) -> int:
        return self.size

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[State, dict[str, Any]]:
        task = (options or {})["task_index"]
        return first_state(f"talk {task}: " + said(task, -1), task, options or {}), {}

    def step(self, state: State, action: Action) -> StepResult:
        task, turn = state.hidden, state.metadata.step
        if self.step_s:
            time.sleep(self.step_s * random.Random(f"step {task}/{turn}").lognormvariate(-0.32, 0.8))
        done = turn + 1 >= self.turns
        before = state.observation
        new = {"role": "assistant", "content": action.text}, {"role": "user", "content": said(task, turn)}
        observation = Observation(before.prompt, messages=(*before.messages, *new))
        return StepResult(next_state(state, done, observation), SignalBundle.single(1.0), terminated=done)


def said(task: int, turn: int) -> str:
    words = random.Random(f"words {task}/{turn}")
    return " ".join(str(words.randrange(1000)) for _ in range(24))


class SetLengths(VLLMBackend):
    """Every turn is as long as `length` says of its task and its turn, which its messages tell."""

    length: Callable[[int, int], int] = staticmethod(turn_tokens)

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        super().submit([replace(r, max_tokens=self.length(*_which(r.messages or ()))) for r in requests])


def _which(messages: Sequence[ChatMessage]) -> tuple[int, int]:
    task = int((messages[0].content or "").removeprefix("talk ").partition(":")[0])
    return task, sum(m.role == "assistant" for m in messages)


def measure() -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory() as directory:
        model = make_tiny_model(Path(directory), context=CONTEXT)
        options = {"dtype": "float32", "max_model_len": CONTEXT}
        with SetLengths(model, **options) as backend:
            figures += [*_schedules(backend), _straggler(backend)]
            roomy = _run(backend, TalkWorld())
            figures.append(_planning(_report(roomy)))
            tokens = _longest_tokens(roomy)
        blocks = tokens // backend.capacity.block_tokens // 4 if backend.capacity else 0
        with SetLengths(model, num_gpu_blocks_override=blocks, **options) as backend:
            figures += _small_cache(backend)
    return figures


def _run(backend: VLLMBackend, world: TalkWorld, schedule: str = "packed", **options: Any) -> BatchResult:
    backend.reset_prefix_cache()
    runner = TrajectoryRunner(world, backend, GREEDY, schedule=schedule, environment_threads=world.size, **options)
    batch = runner.run_batch(range(world.size))
    failed = [r.metadata for r in batch.trajectory_results if "error" in r.metadata]
    assert not failed, failed[0]
    return batch


def _tokens(batch: BatchResult) -> list[list[tuple[int, ...] | None]]:
    return [[t.token_ids for t in r.turns] for r in batch.trajectory_results]


def _schedules(backend: VLLMBackend) -> list[Figure]:
    """No barrier at turn ends, against one."""
    world = TalkWorld(step_s=0.05)
    runs = [(_run(backend, world), _run(backend, world, "lockstep")) for _ in range(3)]
    packed, lockstep = runs[0]
    same = sum(a == b for a, b in zip(_tokens(packed), _tokens(lockstep), strict=True))
    assert same == world.size, f"only {same} of {world.size} trajectories are equal in both schedules"
    walls = sorted(_report(b).wall_s / _report(a).wall_s for a, b in runs)
    steps = _steps(packed) / _steps(lockstep)
    what, checked = f"{TRAJECTORIES} trajectories x {TURNS} turns, steps of 50 ms", "equal tokens"
    return [
        Figure("many_turns", f"wall of lockstep over packed, {what}", walls[1], "x", walls[-1] - walls[0], 3, ">= 1.5",
               walls[1] >= 1.5, checked),
        Figure("many_turns", f"engine steps of packed over lockstep, {what}", steps, "x", None, 1, "<= 0.6",
               steps <= 0.6, checked),
    ]  # fmt: skip


def _straggler(backend: VLLMBackend) -> Figure:
    """One reply of 40 times the mean among 256."""
    longest = 40 * MEAN_TOKENS
    backend.length = lambda task, turn: longest if task == 100 else max(8, turn_tokens(task, turn) // 2)
    batch = _run(backend, TalkWorld(turns=1, size=256), max_context_tokens=CONTEXT)
    backend.length = turn_tokens
    share = _steps(batch) / longest
    what = f"engine steps of 256 trajectories over the {longest} tokens of the longest"
    return Figure("many_turns", what, share, "x", None, 1, "<= 1.05", share <= 1.05, "nobody was told which")


def _planning(report: LoopReport) -> Figure:
    share = report.planning_s / report.wall_s
    what = "scheduler, planner and tree over wall, cache for all"
    checked = f"at most {report.peak_live} live"
    return Figure("many_turns", what, share, "of wall", None, 1, "< 0.01", share < 0.01, checked)


def _longest_tokens(batch: BatchResult) -> int:
    """Tokens that the trajectories have together at their ends."""
    turns = [r.turns[-1] for r in batch.trajectory_results]
    return sum(len(t.prompt_ids or ()) + len(t.token_ids or ()) for t in turns)


def _small_cache(backend: VLLMBackend) -> list[Figure]:
    """A cache for a quarter of the trajectories, against text rendered anew each turn with all of them live."""
    batch = _run(backend, TalkWorld())
    report = _report(batch)
    rate = report.hit_rate_of_bound or 0.0
    wall_ratios, prefill = [], 0.0
    for _ in range(3):
        wall = _report(_run(backend, TalkWorld())).wall_s
        computed: list[int] = []
        backend.reset_prefix_cache()
        wall_ratios.append(timed(lambda: computed.append(_by_chat(backend))) / wall)  # noqa: B023
        prefill = computed[0] / (report.figures.prompt_tokens - (report.figures.cached_tokens or 0))
    wall_ratios.sort()
    blocks = backend.capacity.blocks if backend.capacity else 0
    what = f"cache for a quarter ({blocks} blocks)"
    checked = f"{report.figures.preemptions} preemptions, {report.parkings} parked, at most {report.peak_live} live"
    return [
        Figure("many_turns", f"cached tokens from turn 2 on over the block bound, {what}", rate, "x", None, 1,
               ">= 0.95, no preemption", rate >= 0.95 and not report.figures.preemptions, checked),
        Figure("many_turns", f"wall of LLM.chat turn by turn over ours, {what}", wall_ratios[1], "x",
               wall_ratios[-1] - wall_ratios[0], 3, ">= 2", wall_ratios[1] >= 2, "same lengths"),
        Figure("many_turns", f"prefill tokens of LLM.chat over ours, {what}", prefill, "x", None, 1, ">= 3",
               prefill >= 3, "same lengths"),
    ]  # fmt: skip


def _by_chat(backend: VLLMBackend) -> int:
    """All conversations, turn by turn, as text through the engine's own chat call; tokens that it had to compute."""
    from vllm import SamplingParams as EngineParams

    world, computed = TalkWorld(), 0
    states = [world.reset(options={"task_index": i})[0] for i in range(world.size)]
    for turn in range(world.turns):
        params = [EngineParams(max_tokens=turn_tokens(i, turn), temperature=0.0, ignore_eos=True) for i in range(64)]
        talks = [[{"role": "user", "content": s.observation.prompt}, *s.observation.messages] for s in states]
        assert backend.llm is not None
        outputs = backend.llm.chat(talks, params, use_tqdm=False)
        computed += sum(len(o.prompt_token_ids or ()) - (o.num_cached_tokens or 0) for o in outputs)
        texts = [o.outputs[0].text for o in outputs]
        states = [world.step(s, Action.from_text(t)).next_state for s, t in zip(states, texts, strict=True)]
    return computed


def _report(batch: BatchResult) -> LoopReport:
    assert batch.report is not None
    return batch.report


def _steps(batch: BatchResult) -> int:
    return _report(batch).figures.engine_steps or 0
