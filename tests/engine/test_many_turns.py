"""Many turns: history modes, budgets, deadlines, instances of stateful environments, and work that does not grow."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from llenvs_fast.core.environment import EnvironmentSpec, StepResult
from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.core.state import Action, State
from llenvs_fast.engine.loop import run_rollouts
from llenvs_fast.engine.prompting import History
from llenvs_fast.engine.report import LoopReport, Oldest, Pulse
from llenvs_fast.engine.rollout import Outcome, RolloutSpec, Stage
from llenvs_fast.engine.settings import LoopSettings
from llenvs_fast.evaluation import TrajectoryRunner, TurnInfoConfig, last_n_history, no_history
from llenvs_fast.inference.backends import ScriptedBackend
from llenvs_fast.inference.backends.scripted_replies import Reply
from llenvs_fast.inference.backends.scripted_tokens import ByteTokenizer
from llenvs_fast.inference.messages import MessageBuilder
from llenvs_fast.inference.protocol import SamplingParams
from llenvs_fast.inference.rendering import ChatRenderer
from llenvs_fast.results.record import Ending
from tests.worlds import LadderWorld, World

THOUGHT = "<think>hmm</think>rung"


class ForgetfulTokenizer(ByteTokenizer):
    """Its template drops the thoughts of earlier replies, as those of many reasoning models do."""

    def apply_chat_template(self, messages: Sequence[dict[str, Any]], *args: Any, **options: Any) -> str:
        shown = [
            {**m, "content": m["content"].split("</think>")[-1]} if m["role"] == "assistant" else m for m in messages
        ]
        return super().apply_chat_template(shown, *args, **options)


def run(world: World, backend: ScriptedBackend, tasks: int = 1, **options: Any) -> tuple[list[Outcome], LoopReport]:
    outcomes: list[Outcome] = []
    builder = options.pop("builder", MessageBuilder())
    factory, watch = options.pop("env_factory", None), options.pop("watch", None)
    specs = [RolloutSpec(i, i) for i in range(tasks)]
    settings = LoopSettings(**{"sampling_params": SamplingParams(max_tokens=100)} | options)
    loop = run_rollouts(specs, world, backend, builder, outcomes.extend, settings, watch, env_factory=factory)
    return sorted(outcomes, key=lambda o: o.spec.position), loop


def forgetful(reply: Any = THOUGHT) -> ScriptedBackend:
    return ScriptedBackend(reply, renderer=ChatRenderer(ForgetfulTokenizer()))


def appends_only(outcome: Outcome) -> bool:
    known = [(t.prompt_ids or ()) + (t.token_ids or ()) for t in outcome.turns]
    later = zip(known, outcome.turns[1:], strict=False)
    return all((turn.prompt_ids or ())[: len(before)] == before for before, turn in later)


# history modes ------------------------------------------------------------------------------------


def test_template_forks_where_the_template_forgets_and_counts_what_that_costs() -> None:
    (outcome,), loop = run(LadderWorld(3, 1, structured=False), forgetful())
    first, second, _ = outcome.turns
    assert not appends_only(outcome)
    text = bytes(i for i in second.prompt_ids or () if i < 256).decode()
    assert "hmm" not in text
    assert second.loss == "template"
    lost = len(first.prompt_ids or ()) + len(first.token_ids or ()) - second.lost_tokens
    pairs = zip((first.prompt_ids or ()) + (first.token_ids or ()), second.prompt_ids or (), strict=False)
    common = next(i for i, (a, b) in enumerate(pairs) if a != b)
    assert lost == common
    assert loop.lost_tokens == {"template": sum(t.lost_tokens for t in outcome.turns)}
    assert outcome.tokens is not None
    assert len(outcome.tokens.segments()) == 3


@pytest.mark.parametrize("structured", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"turn_info": TurnInfoConfig()}, {"prompt_pipeline": lambda messages: messages}]
)
def test_keep_appends_whatever_template_and_options_say(structured: bool, options: dict[str, Any]) -> None:
    backend = forgetful()
    (outcome,), loop = run(
        LadderWorld(4, 1, structured=structured), backend, history=History.KEEP, builder=MessageBuilder(**options)
    )
    assert outcome.ending is Ending.FINISHED, outcome.failure
    assert appends_only(outcome)
    assert loop.lost_tokens == {}
    text = bytes(i for i in outcome.turns[-1].prompt_ids or () if i < 256).decode()
    assert text.count("hmm") == 3
    assert all(f"rung {i}" in text for i in range(4))


def test_refuse_says_so_at_the_start_where_the_template_is_at_fault() -> None:
    with pytest.raises(
        InvalidSettingError, match="history='refuse', and the chat template of scripted shows earlier rep"
    ):
        run(LadderWorld(3, 1), forgetful(), history=History.REFUSE)


def test_refuse_fails_the_trajectory_that_an_option_would_rewrite() -> None:
    backend = ScriptedBackend.with_byte_tokens(
        lambda r: THOUGHT if r.messages[0].content.startswith("climb ladder 1") else "rung"
    )
    outcomes, _ = run(LadderWorld(3, 3), backend, 3, history=History.REFUSE)
    assert [o.ending for o in outcomes] == [Ending.FINISHED, Ending.FAILED, Ending.FINISHED]
    failure = outcomes[1].failure
    assert failure is not None
    assert (failure.kind, failure.phase, failure.step) == ("history_rewritten", "render", 1)
    assert "the reply shows an earlier turn otherwise" in failure.message


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"turn_info": TurnInfoConfig(), "max_steps": 9}, "turn_info"),
        ({"history_fn": last_n_history(1)}, "history"),
        ({"history_fn": no_history}, "history"),
        ({"prompt_pipeline": lambda m: [*m[:-1], type(m[-1])("user", m[-1].content + "!")]}, "prompt"),
        ({}, None),
    ],
)
def test_every_option_is_obeyed_and_its_cost_has_its_name(options: dict[str, Any], cause: str | None) -> None:
    backend = ScriptedBackend.with_byte_tokens("rung", record=True)
    (outcome,), loop = run(LadderWorld(4, 1), backend, builder=MessageBuilder(**options))
    assert set(loop.lost_tokens) == ({cause} if cause else set())
    builder, trajectory = MessageBuilder(**options), outcome.trajectory
    assert trajectory is not None
    assert backend.renderer is not None
    partial = type(trajectory).create(trajectory.initial_state)
    for turn, transition in zip(outcome.turns, trajectory.transitions, strict=True):
        whole = backend.renderer.render(builder(partial.current_state, partial))
        assert turn.prompt_ids == whole
        partial.add_transition(transition)


def test_keep_and_a_window_contradict_each_other() -> None:
    with pytest.raises(InvalidSettingError, match="history='keep' keeps all turns, and history_fn leaves some out"):
        TrajectoryRunner(LadderWorld(), ScriptedBackend("x"), history="keep", history_fn=no_history)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="history='verbatim': choose one of template, keep, refuse"):
        TrajectoryRunner(LadderWorld(), ScriptedBackend("x"), history="verbatim")


# budgets ------------------------------------------------------------------------------------------


def test_two_token_budgets_are_both_enforced_before_generation() -> None:
    backend = ScriptedBackend.with_byte_tokens("x" * 100)
    (outcome,), loop = run(
        LadderWorld(90, 1), backend, sampling_params=SamplingParams(max_tokens=16), max_trajectory_tokens=40
    )
    assert [len(t.token_ids or ()) for t in outcome.turns] == [16, 16, 8]
    assert (outcome.ending, outcome.truncated_by) == (Ending.TRUNCATED, "trajectory_tokens")
    assert loop.figures.completion_tokens == 40  # nothing generated was thrown away
    assert outcome.trajectory is not None
    assert len(outcome.trajectory) == 3


def test_the_context_truncates_and_the_last_turn_fills_it() -> None:
    backend = ScriptedBackend.with_byte_tokens("x" * 30)
    (outcome,), _ = run(LadderWorld(90, 1), backend, max_context_tokens=300)
    assert outcome.truncated_by == "context"
    used = [len(t.prompt_ids or ()) + len(t.token_ids or ()) for t in outcome.turns]
    assert max(used) <= 300
    assert used[-1] > 200


def test_a_first_prompt_over_a_context_of_ones_own_fails() -> None:
    (outcome,), _ = run(LadderWorld(3, 1), ScriptedBackend.with_byte_tokens("x"), max_context_tokens=10)
    assert outcome.failure is not None
    assert outcome.failure.kind == "prompt_too_long"
    assert "tokens and the context 10" in outcome.failure.message


@pytest.mark.parametrize(
    ("world", "settings", "limit"),
    [
        (LadderWorld(9, 1), {"max_steps": 2}, "max_steps"),
        (LadderWorld(1, 1), {"sampling_params": SamplingParams(max_tokens=5)}, "max_tokens"),
        (LadderWorld(1, 1), {"max_trajectory_tokens": 6}, "trajectory_tokens"),
    ],
)
def test_the_limit_that_truncated_is_recorded(world: World, settings: dict[str, Any], limit: str) -> None:
    (outcome,), _ = run(world, ScriptedBackend.with_byte_tokens("x" * 50), **settings)
    assert (outcome.ending, outcome.truncated_by) == (Ending.TRUNCATED, limit)


@pytest.mark.parametrize("name", ["max_trajectory_tokens", "max_context_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_a_budget_that_is_no_count_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidSettingError, match=f"{name.removeprefix('max_')}={value!r}: give 1 or more"):
        run(LadderWorld(), ScriptedBackend("x"), **{name: value})


# deadlines ----------------------------------------------------------------------------------------


def test_a_turn_past_its_deadline_is_taken_back_and_its_neighbours_go_on() -> None:
    def reply(request: Any) -> Reply:
        slow = request.messages[0].content.startswith("climb ladder 1") and len(request.messages) > 1
        return Reply("rung", delay_s=60.0 if slow else 0.0)

    outcomes, _ = run(LadderWorld(3, 3), ScriptedBackend.with_byte_tokens(reply), 3, turn_timeout_s=0.3)
    assert [o.ending for o in outcomes] == [Ending.FINISHED, Ending.TRUNCATED, Ending.FINISHED]
    assert outcomes[1].truncated_by == "turn_timeout"
    assert len(outcomes[1].turns) == 1


def test_a_trajectory_past_its_deadline_ends_between_turns_or_in_one() -> None:
    slow = ScriptedBackend.with_byte_tokens(Reply("rung", delay_s=0.2))
    (between,), _ = run(LadderWorld(90, 1), slow, trajectory_timeout_s=0.7)
    assert between.truncated_by == "trajectory_timeout"
    assert 1 <= len(between.turns) < 6
    (within,), _ = run(
        LadderWorld(9, 1), ScriptedBackend.with_byte_tokens(Reply("x", delay_s=60.0)), trajectory_timeout_s=0.2
    )
    assert within.truncated_by == "trajectory_timeout"
    assert within.turns == ()


def test_a_deadline_that_is_no_time_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="turn_timeout_s=0: give seconds above 0"):
        run(LadderWorld(), ScriptedBackend("x"), turn_timeout_s=0)


def test_the_pulse_names_the_oldest_live_trajectory() -> None:
    def reply(request: Any) -> Reply:
        return Reply("rung", delay_s=0.5 if request.messages[0].content.startswith("climb ladder 2") else 0.0)

    seen: list[Oldest] = []

    def watch(pulse: Pulse) -> None:
        if pulse.oldest is not None:
            seen.append(pulse.oldest)

    run(LadderWorld(2, 4), ScriptedBackend.with_byte_tokens(reply), 4, watch=watch)
    last = seen[-1]
    assert (last.task_index, last.sample, last.turn) == (2, 0, 2)
    assert last.stage in (Stage.GENERATING, Stage.STEPPING)
    assert str(last).startswith("task 2/0 in turn 2, ")


# stateful environments ----------------------------------------------------------------------------


@dataclass
class Lives:
    made: int = 0
    closed: int = 0
    most: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class CounterWorld(World):
    """Counts its own steps, so that an instance shared by two trajectories would show."""

    def __init__(self, lives: Lives | None = None, turns: int = 3, fault: int | None = None) -> None:
        self.lives, self.turns, self.fault, self.count = lives or Lives(), turns, fault, 0
        with self.lives.lock:
            self.lives.made += 1
            self.lives.most = max(self.lives.most, self.lives.made - self.lives.closed)

    @property
    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec("counter", max_steps=9, is_multi_turn=True, pure_step=False)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[State, dict[str, Any]]:
        self.count = 0
        return LadderWorld(self.turns, 99, structured=False).reset(options=options)

    def step(self, state: State, action: Action) -> StepResult:
        if self.fault == state.hidden:
            raise RuntimeError("broken")
        self.count += 1
        result = LadderWorld(self.turns, 99, structured=False).step(state, action)
        return StepResult(result.next_state, result.rewards, result.terminated, info={"count": self.count})

    def close(self) -> None:
        with self.lives.lock:
            self.lives.closed += 1


def counts(outcome: Outcome) -> list[int]:
    assert outcome.trajectory is not None
    return [t.info["step"]["count"] for t in outcome.trajectory.transitions]


@pytest.mark.parametrize("limit", [None, 3])
def test_each_trajectory_has_an_instance_of_its_own_which_is_closed(limit: int | None) -> None:
    lives = Lives()
    outcomes, _ = run(
        CounterWorld(), ScriptedBackend.with_byte_tokens("rung"), 20,
        env_factory=lambda: CounterWorld(lives, fault=7), max_environments=limit,
    )  # fmt: skip
    assert [counts(o) for o in outcomes] == [[1, 2, 3] if i != 7 else [] for i in range(20)]
    assert outcomes[7].failure is not None
    assert (lives.made, lives.closed) == (20, 20)
    assert limit is None or lives.most <= limit + 1  # one may still be closing


def test_without_a_factory_trajectories_take_turns_and_a_warning_says_why(caplog: pytest.LogCaptureFixture) -> None:
    outcomes, loop = run(CounterWorld(), ScriptedBackend.with_byte_tokens("rung"), 5)
    assert [counts(o) for o in outcomes] == [[1, 2, 3]] * 5
    assert loop.peak_live == 1
    assert "Give env_factory=... for an instance each" in caplog.text


def test_instances_are_closed_when_the_run_is_stopped() -> None:
    lives, stop = Lives(), threading.Event()

    def watch(pulse: Pulse) -> None:
        if pulse.generating:
            stop.set()

    outcomes: list[Outcome] = []
    backend = ScriptedBackend.with_byte_tokens(Reply("x", delay_s=9.0))
    specs = [RolloutSpec(i, i) for i in range(8)]
    run_rollouts(
        specs, CounterWorld(), backend, MessageBuilder(), outcomes.extend, LoopSettings(), watch, stop,
        lambda: CounterWorld(lives),
    )  # fmt: skip
    deadline = time.monotonic() + 5.0
    while lives.closed < lives.made and time.monotonic() < deadline:
        time.sleep(0.01)
    assert lives.made == lives.closed > 0


def test_a_factory_that_raises_costs_its_trajectory() -> None:
    made = iter([CounterWorld(), RuntimeError("no room"), CounterWorld()])

    def factory() -> CounterWorld:
        one = next(made)
        if isinstance(one, Exception):
            raise one
        return one

    outcomes, _ = run(
        CounterWorld(), ScriptedBackend.with_byte_tokens("rung"), 3, env_factory=factory, max_environments=1
    )
    assert sorted(o.ending for o in outcomes) == [Ending.FAILED, Ending.FINISHED, Ending.FINISHED]


@pytest.mark.parametrize("limit", [0, -1, True])
def test_a_bad_limit_of_instances_is_refused(limit: object) -> None:
    with pytest.raises(InvalidSettingError, match="max_environments="):
        run(CounterWorld(), ScriptedBackend("x"), max_environments=limit, env_factory=CounterWorld)
