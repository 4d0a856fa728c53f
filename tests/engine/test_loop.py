"""The loop: no barrier, no lost trajectory, no trajectory that costs another."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from llenvs_fast.core.environment import StepResult
from llenvs_fast.core.errors import EngineDeadError, GenerationError, InvalidSettingError
from llenvs_fast.core.seeds import derive_seed
from llenvs_fast.core.state import Action, State
from llenvs_fast.engine.loop import Loop, run_rollouts
from llenvs_fast.engine.report import LoopReport, Pulse
from llenvs_fast.engine.rollout import Outcome, RolloutSpec
from llenvs_fast.engine.scheduler import Schedule
from llenvs_fast.engine.settings import LoopSettings
from llenvs_fast.inference.backend import ModelBackend
from llenvs_fast.inference.backends import ScriptedBackend
from llenvs_fast.inference.backends.faulty import FaultyBackend
from llenvs_fast.inference.backends.scripted_replies import Reply
from llenvs_fast.inference.messages import MessageBuilder
from llenvs_fast.inference.protocol import ChatMessage, Finished, GenerationRequest, KVCapacity, SamplingParams
from llenvs_fast.results.record import Ending
from tests.worlds import EchoWorld, FaultyWorld, LadderWorld, SleepyWorld, SlowWorld, World


def specs(tasks: int, samples: int = 1) -> list[RolloutSpec]:
    return [RolloutSpec(t * samples + s, t, s) for t in range(tasks) for s in range(samples)]


def echoed(request: GenerationRequest) -> str:
    assert request.messages is not None
    return (request.messages[-1].content or "").removeprefix("echo ")


def drawn(request: GenerationRequest) -> Reply:
    """A reply, and how long it takes, that depend on the request's own seed and on nothing else."""
    assert request.seed is not None
    return Reply(f"rung {request.seed % 4}", delay_steps=request.seed % 7)


def run(
    world: World, backend: ModelBackend, todo: list[RolloutSpec] | Iterator[RolloutSpec], **settings: object
) -> tuple[dict[int, Outcome], LoopReport]:
    outcomes: dict[int, Outcome] = {}

    def report(ended: list[Outcome]) -> None:
        for outcome in ended:
            assert outcome.spec.position not in outcomes, "reported twice"
            outcomes[outcome.spec.position] = outcome

    stop = settings.pop("stop", None)
    loop = run_rollouts(todo, world, backend, MessageBuilder(), report, LoopSettings(**settings), stop=stop)  # type: ignore[arg-type]
    return outcomes, loop


def texts(outcome: Outcome) -> list[str | None]:
    return [turn.result.text for turn in outcome.turns]


def test_every_trajectory_gets_its_own_reply() -> None:
    outcomes, loop = run(EchoWorld(300), ScriptedBackend(echoed), specs(300, 3))
    assert len(outcomes) == loop.reported == 900
    assert all(o.trajectory is not None and o.trajectory.total_reward == 1.0 for o in outcomes.values())


@pytest.mark.parametrize("structured", [True, False])
@pytest.mark.parametrize("max_live", [None, 1, 5])
@pytest.mark.parametrize("schedule", list(Schedule))
def test_outcomes_do_not_depend_on_schedule_or_width(
    schedule: Schedule, max_live: int | None, structured: bool
) -> None:
    world = LadderWorld(turns=4, size=6, structured=structured)
    reference, _ = run(world, ScriptedBackend.with_byte_tokens(drawn), specs(6, 3))
    outcomes, _ = run(world, ScriptedBackend.with_byte_tokens(drawn), specs(6, 3), schedule=schedule, max_live=max_live)
    assert [texts(outcomes[p]) for p in range(18)] == [texts(reference[p]) for p in range(18)]
    assert [outcomes[p].ending for p in range(18)] == [reference[p].ending for p in range(18)]


def test_seeds_are_derived_from_run_task_sample_and_turn() -> None:
    backend = ScriptedBackend(drawn, record=True)
    outcomes, _ = run(LadderWorld(turns=3, size=2), backend, specs(2, 2), seed=11)
    seeds = {(o.spec.task_index, o.spec.sample): [t.seed for t in o.turns] for o in outcomes.values()}
    assert seeds == {(t, s): [derive_seed(11, t, s, turn) for turn in range(3)] for t in range(2) for s in range(2)}
    assert len({r.seed for r in backend.recorded}) == 12


def test_a_slow_environment_holds_nobody_up() -> None:
    world = SlowWorld(size=20, slow=0)
    order: list[int] = []

    def report(ended: list[Outcome]) -> None:
        order.extend(o.spec.task_index for o in ended)
        if len(order) == 19:
            world.release.set()

    settings = LoopSettings(max_live=2, step_timeout_s=60.0)
    run_rollouts(specs(20), world, ScriptedBackend(echoed), MessageBuilder(), report, settings)
    assert order[-1] == 0
    assert sorted(order) == list(range(20))


def test_the_cap_counts_live_trajectories_whatever_the_samples() -> None:
    backend = ScriptedBackend(lambda r: Reply(echoed(r), delay_steps=(r.seed or 0) % 5))
    _, loop = run(EchoWorld(10), backend, specs(10, 8), max_live=4)
    assert backend.peak_in_flight == loop.peak_live == 4


def test_a_freed_place_is_refilled_while_others_still_run() -> None:
    """Two places: one is taken by a reply that comes late, and all others pass through the other."""
    backend = ScriptedBackend(lambda r: Reply(echoed(r), delay_s=2.0 if echoed(r) == "0" else 0.0))
    order: list[int] = []
    run_rollouts(
        specs(30), EchoWorld(30), backend, MessageBuilder(), lambda e: order.extend(o.spec.task_index for o in e),
        LoopSettings(max_live=2),
    )  # fmt: skip
    assert order[-1] == 0


def test_lockstep_sends_one_batch_a_turn() -> None:
    calls: list[int] = []

    class Batched(ScriptedBackend):
        def submit(self, requests: list[GenerationRequest]) -> None:  # type: ignore[override]
            calls.append(len(requests))
            super().submit(requests)

    run(LadderWorld(turns=3, size=3_000), Batched(drawn), specs(3_000), schedule=Schedule.LOCKSTEP)
    assert calls == [3_000, 3_000, 3_000]
    calls.clear()
    run(LadderWorld(turns=2, size=10), Batched(drawn), specs(10), schedule=Schedule.LOCKSTEP, max_live=6)
    assert calls == [6, 6, 4, 4]


def test_the_next_prompt_is_the_earlier_ids_bit_for_bit_and_a_suffix() -> None:
    hello = Reply("hello", token_ids=tuple(b"hello"))
    backend = ScriptedBackend.with_byte_tokens(hello, record=True)
    outcomes, loop = run(LadderWorld(turns=3, size=1, structured=False), backend, specs(1))
    first, second, third = (r.prompt_ids for r in backend.recorded)
    turns = outcomes[0].turns
    for before, after, turn in ((first, second, turns[0]), (second, third, turns[1])):
        assert before is not None
        assert after is not None
        sampled = turn.token_ids
        assert sampled is not None
        assert after[: len(before) + len(sampled)] == before + sampled
        assert len(after) > len(before) + len(sampled)
    assert loop.reuse_lost_tokens == 0


def test_a_history_shown_otherwise_is_counted_as_lost_reuse() -> None:
    backend = ScriptedBackend.with_byte_tokens("<think>hmm</think>rung 0")
    _, loop = run(LadderWorld(turns=3, size=1, structured=True), backend, specs(1))
    assert loop.reuse_lost_tokens > 0


def test_a_fault_costs_one_trajectory_and_says_why() -> None:
    world = FaultyWorld(
        size=9,
        resets={0: RuntimeError("no board")},
        steps={1: KeyError("rule"), 2: float("nan"), 3: None, 4: [1, 2], 5: lambda s, a: 7, 6: SystemExit("bye")},
    )
    outcomes, _ = run(world, ScriptedBackend(echoed), specs(9))
    failures = {p: (o.failure.kind, o.failure.phase.value) for p, o in outcomes.items() if o.failure is not None}
    assert failures == {
        0: ("reset_error", "reset"),
        1: ("step_error", "step"),
        2: ("bad_reward", "step"),
        4: ("bad_reward", "step"),
        5: ("step_error", "step"),
        6: ("step_error", "step"),
    }
    assert outcomes[3].ending is Ending.FINISHED
    assert outcomes[3].trajectory is not None
    assert outcomes[3].trajectory.transitions[0].rewards.numeric_signals() == ()
    assert all(outcomes[p].trajectory.total_reward == 1.0 for p in (7, 8))  # type: ignore[union-attr]


def test_a_generation_that_fails_costs_one_trajectory() -> None:
    backend = ScriptedBackend(lambda r: GenerationError("refused") if echoed(r) == "2" else echoed(r))
    outcomes, _ = run(EchoWorld(5), backend, specs(5))
    assert [p for p, o in outcomes.items() if o.failure] == [2]
    assert outcomes[2].failure is not None
    assert (outcomes[2].failure.kind, outcomes[2].failure.phase) == ("generation_error", "generate")


def test_messages_that_cannot_be_built_cost_one_trajectory() -> None:
    ended: list[Outcome] = []

    def build(state, trajectory):  # type: ignore[no-untyped-def]
        if state.hidden == 1:
            raise ValueError("no template for this")
        return MessageBuilder()(state, trajectory)

    for backend in (ScriptedBackend(echoed), ScriptedBackend.with_byte_tokens(echoed)):
        ended.clear()
        run_rollouts(specs(4), EchoWorld(4), backend, build, ended.extend)
        assert {o.spec.position: o.failure.phase for o in ended if o.failure} == {1: "render"}
        assert len(ended) == 4


def test_a_request_that_the_backend_loses_fails_instead_of_hanging() -> None:
    outcomes, _ = run(EchoWorld(5), FaultyBackend(ScriptedBackend(echoed), lose=[3]), specs(5))
    assert {p: o.failure.kind for p, o in outcomes.items() if o.failure} == {3: "backend_protocol"}


def test_an_end_that_comes_twice_or_for_nobody_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    backend = FaultyBackend(ScriptedBackend(echoed), duplicate=[1], unknown_keys=["who?"])
    outcomes, _ = run(EchoWorld(5), backend, specs(5))
    assert all(o.trajectory is not None and o.trajectory.total_reward == 1.0 for o in outcomes.values())
    assert caplog.text.count("is not in flight: ignored") == 2


def test_one_poll_that_raises_costs_the_turns_in_flight_only() -> None:
    backend = FaultyBackend(ScriptedBackend(echoed), raise_at_poll={1: RuntimeError("hiccup")})
    outcomes, loop = run(EchoWorld(12), backend, specs(12), max_live=3)
    assert loop.engine_error is None
    assert len(outcomes) == 12
    failed = [o for o in outcomes.values() if o.failure]
    assert 1 <= len(failed) <= 3
    assert {o.failure.message for o in failed} == {"hiccup"}  # type: ignore[union-attr]


def test_a_dead_engine_ends_the_run_and_keeps_what_had_ended() -> None:
    backend = FaultyBackend(ScriptedBackend(echoed), raise_at_poll={3: EngineDeadError("CUDA error")})
    outcomes, loop = run(EchoWorld(50), backend, specs(50), max_live=2)
    assert isinstance(loop.engine_error, EngineDeadError)
    assert 2 <= len(outcomes) < 50
    assert {o.failure.kind for o in outcomes.values() if o.failure} <= {"engine_dead"}
    assert any(o.failure is None for o in outcomes.values())


def test_polls_that_raise_again_and_again_are_a_dead_engine() -> None:
    backend = FaultyBackend(ScriptedBackend(echoed), raise_at_poll={n: RuntimeError("x") for n in range(1, 99)})
    outcomes, loop = run(EchoWorld(50), backend, specs(50), max_live=2)
    assert str(loop.engine_error) == "x"
    assert len(outcomes) < 50


def test_stop_takes_back_what_is_in_flight_and_leaves_the_backend_usable() -> None:
    backend = ScriptedBackend(lambda r: Reply(echoed(r), delay_steps=0 if int(echoed(r)) < 5 else 10**9))
    stop = threading.Event()
    ended: list[Outcome] = []

    def report(outcomes: list[Outcome]) -> None:
        ended.extend(outcomes)
        if len(ended) == 5:
            stop.set()

    loop = run_rollouts(specs(20), EchoWorld(20), backend, MessageBuilder(), report, stop=stop)
    assert loop.interrupted
    assert sorted(o.spec.task_index for o in ended) == [0, 1, 2, 3, 4]
    assert backend.in_flight == 0
    outcomes, again = run(EchoWorld(5), backend, specs(5))
    assert len(outcomes) == 5
    assert not again.interrupted


def test_an_interrupt_anywhere_leaves_the_backend_usable() -> None:
    backend = ScriptedBackend(lambda r: Reply(echoed(r), delay_steps=0 if int(echoed(r)) < 5 else 10**9))

    def interrupt(outcomes: list[Outcome]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_rollouts(specs(20), EchoWorld(20), backend, MessageBuilder(), interrupt)
    assert backend.in_flight == 0
    assert len(run(EchoWorld(5), backend, specs(5))[0]) == 5


def test_a_step_that_hangs_is_given_up_after_its_time() -> None:
    world = SlowWorld(size=6, slow=2)
    outcomes, _ = run(world, ScriptedBackend(echoed), specs(6), step_timeout_s=0.2, environment_threads=2)
    world.release.set()
    assert {p: o.failure.kind for p, o in outcomes.items() if o.failure} == {2: "step_timeout"}
    assert "ran longer than step_timeout_s=0.2" in outcomes[2].failure.message  # type: ignore[union-attr]
    assert len(outcomes) == 6


def test_environment_steps_run_beside_each_other() -> None:
    world = SleepyWorld(size=32, seconds=0.05)
    _, loop = run(world, ScriptedBackend(echoed), specs(32), environment_threads=8)
    assert loop.environment_s > 2 * loop.wall_s


def test_a_source_of_trajectories_is_drawn_as_needed() -> None:
    pulled = 0
    done = 0
    ahead = 0

    def source() -> Iterator[RolloutSpec]:
        nonlocal pulled, ahead
        for spec in specs(5_000):
            pulled += 1
            ahead = max(ahead, pulled - done)
            yield spec

    def report(outcomes: list[Outcome]) -> None:
        nonlocal done
        done += len(outcomes)

    settings = LoopSettings(max_live=8)
    run_rollouts(source(), EchoWorld(5_000), ScriptedBackend(echoed), MessageBuilder(), report, settings)
    assert done == 5_000
    assert ahead <= 8 + 128 + 1


def test_states_that_are_terminal_after_reset_never_reach_the_model() -> None:
    class Over(EchoWorld):
        def reset(self, *, seed=None, options=None):  # type: ignore[no-untyped-def]
            state, info = super().reset(seed=seed, options=options)
            return state.with_metadata(is_terminal=True), info

    backend = ScriptedBackend(echoed, record=True)
    outcomes, _ = run(Over(3), backend, specs(3))
    assert [o.ending for o in outcomes.values()] == [Ending.FINISHED] * 3
    assert backend.recorded == []


def test_no_trajectories_is_a_run_too() -> None:
    outcomes, loop = run(EchoWorld(3), ScriptedBackend(echoed), [])
    assert outcomes == {}
    assert loop.reported == 0


def test_samples_of_a_task_share_its_prompt_in_a_cache_for_a_few() -> None:
    """Eight tasks of 16 samples, a cache for about two tasks at a time: every prompt is prefilled once."""
    world = EchoWorld(size=8, prompt="{i} " + "a long prompt that is shared by all samples " * 10)
    capacity = KVCapacity(block_tokens=16, blocks=120, max_sequences=256)
    backend = ScriptedBackend.with_byte_tokens("a reply of some length", capacity=capacity)
    outcomes, loop = run(world, backend, specs(8, 16), sampling_params=SamplingParams(max_tokens=32))
    prompt = outcomes[0].turns[0].result.prompt_tokens
    first_blocks = (prompt - 1) // 16 * 16
    assert loop.figures.cached_tokens == 8 * 15 * first_blocks
    assert loop.peak_live < 8 * 16


def test_a_warm_start_and_its_end_leave_no_threads_behind() -> None:
    before = threading.active_count()
    run(EchoWorld(5), ScriptedBackend(echoed), specs(5), environment_threads=8)
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_the_watcher_sees_the_run_move() -> None:
    seen = []
    run_rollouts(specs(10), EchoWorld(10), ScriptedBackend(echoed), MessageBuilder(), lambda o: None, watch=seen.append)
    assert seen[-1].reported == 10
    assert [p.reported for p in seen] == sorted(p.reported for p in seen)


def test_a_loop_counts_only_its_own_work() -> None:
    backend = ScriptedBackend(echoed)
    for _ in range(2):
        _, loop = run(EchoWorld(4), backend, specs(4))
        assert loop.figures.requests == 4
    assert Loop(EchoWorld(4), backend, MessageBuilder(), LoopSettings(), print)._before.requests == 8


class BatchWorld(EchoWorld):
    """An EchoWorld that steps in batches; `fault` is called with the actions first."""

    def __init__(self, size: int, fault: Callable[[list[Action]], object] | None = None) -> None:
        super().__init__(size)
        self.fault = fault or (lambda actions: None)

    def step_batch(self, states: list[State], actions: list[Action]) -> list[StepResult | Exception]:
        self.fault(actions)
        return [self.step(state, action) for state, action in zip(states, actions, strict=True)]


class MuteExit(SystemExit):
    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), MuteExit()])
def test_a_batch_of_steps_that_raises_anything_ends_those_steps(error: BaseException) -> None:
    def fault(actions: list[Action]) -> None:
        raise error

    outcomes, _ = run(BatchWorld(6, fault), ScriptedBackend(echoed), specs(6))
    assert {o.failure.kind for o in outcomes.values() if o.failure} == {"step_error"}
    assert len(outcomes) == 6


def test_a_slot_of_a_batch_may_hold_an_error() -> None:
    class Slots(BatchWorld):
        def step_batch(self, states: list[State], actions: list[Action]) -> list[StepResult | Exception]:
            results = super().step_batch(states, actions)
            return [KeyError("rule") if s.hidden == 2 else r for s, r in zip(states, results, strict=True)]

    outcomes, _ = run(Slots(40), ScriptedBackend(echoed), specs(40))
    assert [p for p, o in outcomes.items() if o.failure] == [2]


def test_a_batch_that_hangs_costs_one_step_where_there_is_a_limit() -> None:
    release = threading.Event()

    class Hangs(BatchWorld):
        def step(self, state: State, action: Action) -> StepResult:
            if state.hidden == 3:
                release.wait(30)
            return super().step(state, action)

    outcomes, _ = run(Hangs(40), ScriptedBackend(echoed), specs(40), step_timeout_s=0.3)
    release.set()
    assert {p: o.failure.kind for p, o in outcomes.items() if o.failure} == {3: "step_timeout"}


def test_a_backend_serves_one_run_at_a_time() -> None:
    """Two that poll it at once would take each other's results; an environment that asks it would wait for itself."""
    backend = ScriptedBackend(echoed)

    class Judged(EchoWorld):
        def step(self, state: State, action: Action) -> StepResult:
            backend.generate_chat([ChatMessage("user", "good?")], SamplingParams())
            return super().step(state, action)

    outcomes, _ = run(Judged(3), backend, specs(3))
    assert {o.failure.kind for o in outcomes.values() if o.failure} == {"backend_busy"}
    assert len(run(EchoWorld(3), backend, specs(3))[0]) == 3


@pytest.mark.parametrize("junk", [None, 7, ["x"], [Finished([], None)], (f for f in ())])  # type: ignore[arg-type]
def test_a_poll_that_returns_junk_fails_what_is_in_flight(junk: object) -> None:
    class Junk(ScriptedBackend):
        def poll(self, timeout_s: float = 0.0) -> list[Finished]:
            super().poll(timeout_s)
            return junk  # type: ignore[return-value]

    outcomes, _ = run(EchoWorld(3), Junk(echoed), specs(3))
    assert {o.failure.kind for o in outcomes.values() if o.failure} == {"backend_protocol"}
    assert len(outcomes) == 3


def test_a_result_of_the_wrong_type_fails_that_trajectory() -> None:
    class Words(ScriptedBackend):
        def poll(self, timeout_s: float = 0.0) -> list[Finished]:
            return [Finished(f.key, "a text") for f in super().poll(timeout_s)]  # type: ignore[arg-type]

    outcomes, _ = run(EchoWorld(3), Words(echoed), specs(3))
    assert all("ended with result 'a text'" in o.failure.message for o in outcomes.values() if o.failure)
    assert {o.failure.kind for o in outcomes.values() if o.failure} == {"backend_protocol"}


def test_a_watcher_that_raises_is_dropped_and_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def watch(pulse: Pulse) -> None:
        raise ZeroDivisionError

    ended: list[Outcome] = []
    run_rollouts(specs(5), EchoWorld(5), ScriptedBackend(echoed), MessageBuilder(), ended.extend, watch=watch)
    assert len(ended) == 5
    assert caplog.text.count("watcher raised") == 1


@pytest.mark.parametrize("max_steps", [0, -1, "3"])
def test_a_step_limit_below_one_is_refused(max_steps: object) -> None:
    with pytest.raises(InvalidSettingError, match=r"max_steps=.*: give 1 or more, or None for 100"):
        run(EchoWorld(1), ScriptedBackend(echoed), specs(1), max_steps=max_steps)


def test_the_collectors_thresholds_are_put_back_by_the_last_run_to_end() -> None:
    before = gc.get_threshold()
    inside: list[tuple[int, int, int]] = []

    def one() -> None:
        run_rollouts(
            specs(200), SleepyWorld(200, seconds=0.001), ScriptedBackend(echoed), MessageBuilder(),
            lambda o: inside.append(gc.get_threshold()),
        )  # fmt: skip

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gc.get_threshold() == before
    assert set(inside) == {(100_000, 20, 20)}


def test_two_trajectories_of_one_position_are_refused() -> None:
    with pytest.raises(ValueError, match="position 0 stands for two trajectories"):
        run(EchoWorld(2), ScriptedBackend(echoed), [RolloutSpec(0, 0), RolloutSpec(0, 1)])


def test_an_observation_without_a_text_fails_alone() -> None:
    class Blank(EchoWorld):
        def reset(self, *, seed=None, options=None):  # type: ignore[no-untyped-def]
            state, info = super().reset(seed=seed, options=options)
            blank = replace(state, observation=replace(state.observation, prompt=None))
            return (blank if state.hidden == 1 else state), info

    outcomes, _ = run(Blank(3), ScriptedBackend(echoed), specs(3))
    assert {p: o.failure.phase for p, o in outcomes.items() if o.failure} == {1: "render"}
    assert "the observation's prompt is None: it must be a string" in outcomes[1].failure.message  # type: ignore[union-attr]
