"""The scheduler and the residency planner: who is admitted, in which order, and never too many."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llenvs_fast.engine.growth import GrowthEstimate
from llenvs_fast.engine.residency import ResidencyPlanner
from llenvs_fast.engine.scheduler import Candidate, Facts, Schedule, Scheduler
from llenvs_fast.inference.protocol import KVCapacity
from tests.naive import planned_blocks

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
