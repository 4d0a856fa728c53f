"""Token columns: what was read and sampled comes out again, forks included, at nine bytes a token."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llenvs_fast.tokens.trajectory_tokens import TokenTable, TrajectoryTokens

ID = st.integers(0, 2**31 - 1)
TURNS = st.lists(
    st.tuples(st.lists(ID, max_size=6), st.lists(ID, max_size=6), st.booleans(), st.integers(0, 3), st.floats(0, 1)),
    max_size=6,
)


class Twin:
    """The same with plain lists: each turn's whole prompt and reply."""

    def __init__(self) -> None:
        self.context: list[int] = []
        self.turns: list[tuple[list[int], list[int]]] = []

    def turn(self, new: list[int], sampled: list[int], kept: int) -> None:
        prompt = self.context[:kept] + new
        self.turns.append((prompt, sampled))
        self.context = prompt + sampled


def grown(turns: list) -> tuple[TrajectoryTokens, Twin]:
    tokens, twin = TrajectoryTokens(), Twin()
    for new, sampled, forks, version, share in turns:
        kept = int(share * len(twin.context)) if forks else len(twin.context)
        tokens.begin_turn(new, kept)
        tokens.end_turn(sampled, [-0.5 * i for i in range(len(sampled))] if version else None, version)
        twin.turn(new, sampled, kept)
    return tokens, twin


@given(TURNS)
def test_prompts_replies_and_context_are_those_of_the_twin(turns: list) -> None:
    tokens, twin = grown(turns)
    assert tokens.context.tolist() == twin.context
    assert tokens.sampled_tokens == sum(len(sampled) for _, sampled in twin.turns)
    for t, (prompt, sampled) in enumerate(twin.turns):
        assert tokens.prompt_ids(t).tolist() == prompt
        assert tokens.sampled_ids(t).tolist() == sampled
        given_logprobs = turns[t][3] > 0
        logprobs = tokens.sampled_logprobs(t)
        assert not given_logprobs or logprobs.tolist() == [-0.5 * i for i in range(len(sampled))]
        assert given_logprobs or np.isnan(logprobs).all()


@given(TURNS)
def test_segments_hold_every_sampled_token_once_and_every_prompt_whole(turns: list) -> None:
    tokens, twin = grown(turns)
    segments = tokens.segments()
    assert sum(int(s.sampled.sum()) for s in segments) == tokens.sampled_tokens
    wholes = [prompt + sampled for prompt, sampled in twin.turns]
    for segment in segments:
        assert segment.ids.tolist() in wholes
        assert np.isnan(segment.logprobs[~segment.sampled]).all()
    assert not wholes or segments[-1].ids.tolist() == wholes[-1]


@given(st.lists(TURNS, max_size=4))
def test_a_table_gives_every_trajectory_back(runs: list[list]) -> None:
    alone = [grown(turns)[0] for turns in runs]
    table = TokenTable.from_trajectories(alone, "sampled")
    assert len(table) == len(alone)
    assert table.logprobs_are == "sampled"
    assert int(table.sampled.sum()) == sum(one.sampled_tokens for one in alone)
    for n, one in enumerate(alone):
        back = table.trajectory(n)
        assert (back.ids, back.kept, back.weight_versions) == (one.ids, one.kept, one.weight_versions)
        assert np.array_equal(np.array(back.logprobs), np.array(one.logprobs), equal_nan=True)
        assert back.context == one.context


def test_memory_is_under_sixteen_bytes_a_token_while_growing_and_at_rest() -> None:
    tokens = TrajectoryTokens()
    for _ in range(64):
        tokens.begin_turn(range(40))
        tokens.end_turn(range(60), [-1.0] * 60, 3)
        assert tokens.nbytes <= 16 * len(tokens.ids) + 1024
    assert tokens.nbytes <= 16 * len(tokens.ids)
    table = TokenTable.from_trajectories([tokens] * 20)
    assert table.nbytes <= 10 * len(table.ids)


def test_what_does_not_fit_is_refused() -> None:
    tokens = TrajectoryTokens()
    with pytest.raises(ValueError, match="kept=1: the context has 0 tokens"):
        tokens.begin_turn([1], kept=1)
    with pytest.raises(OverflowError):
        tokens.begin_turn([2**31])
    assert tokens.turns == 0
    tokens.begin_turn([1])
    with pytest.raises(ValueError, match="1 logprobs for 2 sampled tokens"):
        tokens.end_turn([1, 2], [0.0])
    with pytest.raises(IndexError, match="turn 1 of a trajectory with 1 turns"):
        tokens.sampled_ids(1)
    assert math.isnan(tokens.logprobs[0])
