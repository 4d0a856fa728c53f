"""The scheduler and the residency planner: who is admitted, in which order, and never too many."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llenvs_fast.engine.growth import GrowthEstimate, LifeForecast
from llenvs_fast.engine.residency import ResidencyPlanner
from llenvs_fast.engine.scheduler import Candidate, Facts, Schedule, Scheduler
from llenvs_fast.inference.protocol import KVCapacity
from tests.naive import chance_to_go_on, planned_blocks

QUIET = Facts(generating=0, resetting=0, stepping=0)


def candidate(position: int, length: int = 8, max_tokens: int = 8, live: bool = False) -> Candidate:
    return Candidate(position, tuple(range(1000 * position, 1000 * position + length)), max_tokens, int(live))


def test_packed_admits_in_order_up_to_max_live() -> None:
    scheduler = Scheduler(max_live=3)
    for position in range(5):
        scheduler.offer(candidate(position))
    assert scheduler.pick(QUIET) == [0, 1, 2]
    assert scheduler.pick(Facts(3, 0, 0)) == []
    scheduler.ended(1)
    assert scheduler.pick(Facts(2, 0, 0)) == [3]


def test_a_trajectory_in_its_environment_still_counts_as_live() -> None:
    scheduler = Scheduler(max_live=2)
    for position in range(3):
        scheduler.offer(candidate(position))
    assert scheduler.pick(QUIET) == [0, 1]
    scheduler.turn_ended(0, (1, 2), last=False)
    assert scheduler.pick(Facts(generating=1, resetting=0, stepping=1)) == []


def test_returning_trajectories_go_before_new_ones() -> None:
    scheduler = Scheduler(max_live=2)
    for position in range(3):
        scheduler.offer(candidate(position))
    scheduler.pick(QUIET)
    scheduler.ended(1)
    scheduler.offer(candidate(0, live=True))
    assert scheduler.pick(QUIET) == [0, 2]


def test_lockstep_waits_for_everybody_and_then_sends_all_at_once() -> None:
    scheduler = Scheduler(Schedule.LOCKSTEP)
    for position in range(4):
        scheduler.offer(candidate(position, live=position > 1))
    assert scheduler.pick(Facts(generating=1, resetting=0, stepping=0)) == []
    assert scheduler.pick(Facts(generating=0, resetting=0, stepping=1)) == []
    assert scheduler.pick(Facts(generating=0, resetting=1, stepping=0)) == []
    assert sorted(scheduler.pick(QUIET)) == [0, 1, 2, 3]


def test_samples_of_one_prompt_cost_its_blocks_once() -> None:
    planner = ResidencyPlanner(KVCapacity(block_tokens=4, blocks=10 + 4 * 3, max_sequences=64), max_turns=1)
    prompt = tuple(range(40))
    admitted = [planner.admit(sample, prompt, max_tokens=12) for sample in range(6)]
    assert admitted == [True] * 4 + [False] * 2


def test_one_trajectory_larger_than_the_cache_is_admitted_alone() -> None:
    planner = ResidencyPlanner(KVCapacity(block_tokens=4, blocks=2, max_sequences=64))
    assert planner.admit(0, tuple(range(100)), 10)
    assert not planner.admit(1, (1, 2), 1)
    planner.release(0)
    assert planner.admit(1, (1, 2), 1)


def test_a_turn_that_ended_gives_its_reservation_back() -> None:
    planner = ResidencyPlanner(KVCapacity(block_tokens=4, blocks=100, max_sequences=64))
    planner.admit(0, tuple(range(8)), max_tokens=40)
    assert planner.planned_blocks == 2 + 10
    planner.turn_ended(0, (1, 2, 3))
    assert planner.planned_blocks == 3
    assert planner.resume(0, 11, (*range(8), 1, 2, 3, 4, 5), max_tokens=4)
    assert planner.planned_blocks == 4 + 1
    planner.release(0)
    assert planner.planned_blocks == 0


def test_a_prompt_that_forks_from_its_past_is_counted_as_what_it_is_now() -> None:
    planner = ResidencyPlanner(KVCapacity(block_tokens=4, blocks=100, max_sequences=64))
    planner.admit(0, tuple(range(16)), max_tokens=0)
    planner.resume(0, 4, (*range(4), 99, 98), max_tokens=0)
    assert planner.tree.tokens(0).tolist() == [0, 1, 2, 3, 99, 98]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 30), st.integers(0, 20), st.booleans()), min_size=1, max_size=40
    )
)
def test_admitted_trajectories_never_exceed_the_cache(arrivals: list[tuple[int, int, int, bool]]) -> None:
    """Random prompts (of four families that share prefixes) come and go; the twin recounts everything each time."""
    capacity = KVCapacity(block_tokens=4, blocks=24, max_sequences=64)
    planner = ResidencyPlanner(capacity, max_turns=1)
    live: dict[int, tuple[tuple[int, ...], int]] = {}
    for position, (family, length, growth, leaves) in enumerate(arrivals):
        ids = tuple(100 * family + i for i in range(length))
        if planner.admit(position, ids, growth):
            live[position] = (ids, growth)
        assert planner.planned_blocks == planned_blocks(live.values(), capacity.block_tokens)
        assert planner.planned_blocks <= capacity.blocks or len(live) == 1
        if leaves and live:
            first = next(iter(live))
            del live[first]
            planner.release(first)


def test_growth_is_max_tokens_until_enough_turns_have_ended() -> None:
    growth = GrowthEstimate()
    for _ in range(GrowthEstimate.SAFE_TURNS - 1):
        growth.turn_ended(10)
    assert growth.tokens(500) == 500
    growth.turn_ended(10)
    assert growth.tokens(500) == 11


def test_growth_is_never_less_than_the_oldest_running_turn() -> None:
    growth = GrowthEstimate()
    for _ in range(100):
        growth.turn_ended(10)
    assert growth.tokens(500, oldest_running=200) == 201
    assert growth.tokens(100, oldest_running=200) == 100


def test_growth_follows_recent_turns_in_bounded_memory() -> None:
    growth = GrowthEstimate()
    rng = np.random.default_rng(0)
    for tokens in rng.integers(1, 50, 3 * GrowthEstimate.WINDOW):
        growth.turn_ended(int(tokens))
    for _ in range(2 * GrowthEstimate.WINDOW):
        growth.turn_ended(300)
    assert growth.tokens(1000) == 301
    assert len(growth._order) <= 2 * GrowthEstimate.WINDOW


def test_the_sum_of_many_turns_is_less_than_the_worst_of_each() -> None:
    growth = GrowthEstimate()
    rng = np.random.default_rng(0)
    lengths = rng.pareto(1.5, 4000) * 50
    for tokens in lengths:
        growth.turn_ended(int(min(tokens, 2000)))
    together = growth.tokens_of_many(200)
    assert 200 * growth.mean < together < 200 * growth.tokens(2000)
    sums = [np.minimum(rng.choice(lengths, 200), 2000).sum() for _ in range(500)]
    assert np.mean(np.array(sums) <= together) > 0.99
    assert growth.tokens_of_many(4000) == np.inf  # too few have ended to say


# the future ---------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 12), max_size=120),
    st.integers(1, 12),
)
def test_the_chance_to_go_on_is_that_of_the_twin(lives: list[int], max_turns: int) -> None:
    forecast = LifeForecast(max_turns)
    for turns in lives:
        for turn in range(1, min(turns, max_turns)):
            forecast.went_on(turn, 10)
        forecast.is_over(min(turns, max_turns))
    forecast._look()
    alive = forecast.alive()
    for behind in range(max_turns):
        for ahead in range(max_turns):
            assert alive[behind, ahead] == pytest.approx(chance_to_go_on(lives, max_turns, behind, ahead), abs=1e-12)


def test_the_forecast_learns_how_long_trajectories_are() -> None:
    forecast = LifeForecast(64)
    assert forecast.alive()[0, 7] == 1.0  # nothing is known: nobody ends before 8 turns
    for _ in range(500):
        for turn in (1, 2):
            forecast.went_on(turn, 20)
        forecast.is_over(3)
    assert forecast.alive()[0, 2] > 0.97
    assert forecast.alive()[0, 3] < 0.02
    assert forecast.added_tokens(prior=999) == 20


def test_a_long_life_is_planned_for_before_it_is_lived() -> None:
    """A cache for 100 blocks, trajectories that grow by one block a turn to 10: twenty prompts fit, ten lives do."""
    planner = ResidencyPlanner(KVCapacity(block_tokens=4, blocks=100, max_sequences=64), max_turns=10)
    for _ in range(200):
        for turn in range(1, 10):
            planner.life.went_on(turn, 4)
        planner.life.is_over(10)
        planner.growth.turn_ended(4)
    admitted = sum(planner.admit(n, tuple(range(100 * n, 100 * n + 4)), 4) for n in range(30))
    assert 8 <= admitted <= 10


class Played:
    """Trajectories that run under a scheduler, each turn as long as drawn; the real blocks are counted beside it."""

    def __init__(self, capacity: KVCapacity, rng: np.random.Generator, tasks: int, max_turns: int) -> None:
        self.capacity, self.rng, self.max_turns = capacity, rng, max_turns
        self.scheduler = Scheduler(planner=ResidencyPlanner(capacity, max_turns))
        self.context = {n: array("i", range(1000 * n, 1000 * n + int(rng.integers(4, 40)))) for n in range(tasks)}
        self.turns = dict.fromkeys(self.context, 0)
        self.lives = {n: int(rng.integers(1, max_turns + 1)) for n in self.context}
        self.running: dict[int, int] = {}
        self.done: list[int] = []
        for n, ids in self.context.items():
            self.scheduler.offer(Candidate(n, ids, 64))

    def step(self) -> None:
        planner = self.scheduler.planner
        assert planner is not None
        for n in self.scheduler.pick(Facts(len(self.running), 0, 0)):
            self.running[n] = int(self.rng.integers(1, 65))
        assert self.running, "nobody runs, and somebody waits"
        n = min(self.running, key=lambda n: self.running[n])
        tokens = array("i", range(self.running.pop(n)))
        self.turns[n] += 1
        last = self.turns[n] >= self.lives[n]
        self.scheduler.turn_ended(n, tokens, self.turns[n] >= self.max_turns)
        if last:
            self.scheduler.ended(n, self.turns[n])
            self.done.append(n)
            return
        before = len(self.context[n])
        self.context[n].extend(tokens)
        kept = len(self.context[n])
        self.context[n].extend(range(int(self.rng.integers(0, 20))))
        grown = len(self.context[n]) - before
        self.scheduler.offer(Candidate(n, self.context[n], 64, self.turns[n], kept, grown))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(40, 400), st.integers(1, 12))
def test_everybody_ends_whatever_the_cache_and_running_turns_fit_into_it(
    seed: int, blocks: int, max_turns: int
) -> None:
    capacity = KVCapacity(block_tokens=4, blocks=blocks, max_sequences=16)
    played = Played(capacity, np.random.default_rng(seed), tasks=40, max_turns=max_turns)
    planner = played.scheduler.planner
    assert planner is not None
    for _ in range(40 * max_turns):
        if len(played.done) == 40:
            break
        played.step()
        running = sum(-(-(len(played.context[n]) + left) // 4) for n, left in played.running.items())
        assert running <= capacity.blocks or len(played.running) == 1 or planner.growth.is_known
    assert sorted(played.done) == list(range(40))
    assert (planner.resident, planner.planned_blocks) == (0, 0)
    assert planner._count.sum() == planner._blocks.sum() == 0
    assert played.scheduler.waiting == played.scheduler.live == 0


def test_one_that_outgrew_the_cache_is_parked_and_comes_back_first() -> None:
    capacity = KVCapacity(block_tokens=4, blocks=20, max_sequences=16)
    scheduler = Scheduler(planner=ResidencyPlanner(capacity, max_turns=2))
    contexts = {n: array("i", range(100 * n, 100 * n + 8)) for n in range(3)}
    for n, ids in contexts.items():
        scheduler.offer(Candidate(n, ids, max_tokens=4))
    assert scheduler.pick(QUIET) == [0, 1, 2]
    for n, ids in contexts.items():  # each says far more than it was given room for
        scheduler.turn_ended(n, tuple(range(16 + 4 * n)), last=False)
        ids.extend(range(16 + 4 * n))
        scheduler.offer(Candidate(n, ids, max_tokens=8, turns=1, kept=len(ids), grown=16))
    assert scheduler.pick(QUIET) == [0]
    assert (scheduler.parkings, scheduler.parked) == (1, 1)
    scheduler.offer(candidate(9))
    scheduler.ended(0, 2)
    assert scheduler.pick(QUIET) == [2, 1]
    scheduler.ended(2, 2)
    assert scheduler.pick(QUIET) == [9]
