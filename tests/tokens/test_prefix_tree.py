"""The C++ prefix tree counts what its slow twin counts, takes ids of any integer type safely, and gives memory back."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import llenvs_fast
from llenvs_fast import _native
from llenvs_fast.tokens.prefix_tree import LiveTrajectoryError, PrefixTree, UnknownTrajectoryError, as_ids
from tests.naive import PrefixTreeTwin

KEYS = st.integers(0, 5)
IDS = st.lists(st.integers(0, 1), max_size=9)  # two ids only, so that prefixes are shared by chance
COUNTS = st.integers(-1, 12)


class TreeAgainstTwin(RuleBasedStateMachine):
    """Any sequence of calls gives the twin's answers, and its kind of error where it gives one."""

    @initialize(block_tokens=st.integers(1, 4))
    def start(self, block_tokens):
        self.tree, self.twin = PrefixTree(block_tokens), PrefixTreeTwin(block_tokens)

    def both(self, name, *args):
        outcomes = []
        for side in (self.tree, self.twin):
            try:
                outcomes.append(getattr(side, name)(*args))
            except (KeyError, ValueError) as error:
                outcomes.append(KeyError if isinstance(error, KeyError) else ValueError)
        assert outcomes[0] == outcomes[1], f"{name}{args}: {outcomes[0]}, its twin says {outcomes[1]}"

    @rule(key=KEYS, ids=IDS)
    def insert(self, key, ids):
        self.both("blocks_needed", ids)
        self.both("insert", key, ids)

    @rule(key=KEYS, ids=IDS)
    def append(self, key, ids):
        self.both("append", key, ids)

    @rule(parent=KEYS, child=KEYS, tokens=st.none() | COUNTS)
    def fork(self, parent, child, tokens):
        self.both("fork", parent, child, tokens)

    @rule(key=KEYS, tokens=COUNTS)
    def truncate(self, key, tokens):
        self.both("truncate", key, tokens)

    @rule(key=KEYS)
    def release(self, key):
        self.both("release", key)

    @rule(ids=IDS)
    def match(self, ids):
        self.both("match", ids)

    @rule(key=KEYS, tokens=COUNTS)
    def growth(self, key, tokens):
        self.both("growth", key, tokens)

    @invariant()
    def counts_agree(self):
        assert self.tree.distinct_blocks == self.twin.distinct_blocks
        assert self.tree.live == len(self.tree) == len(self.twin.ids)
        for key in range(6):
            assert (key in self.tree) == (key in self.twin.ids)
            self.both("blocks", key)
            self.both("own_blocks", key)
        for key, ids in self.twin.ids.items():
            assert self.tree.tokens(key).tolist() == ids
            assert self.tree.length(key) == len(ids)


test_any_sequence_of_calls_agrees_with_the_twin = TreeAgainstTwin.TestCase


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 3), IDS), max_size=12))
def test_append_many_does_what_single_appends_do(block_tokens, calls):
    one_by_one, batched = PrefixTree(block_tokens), PrefixTree(block_tokens)
    for tree in (one_by_one, batched):
        for key in range(4):
            tree.insert(key, [])
    for key, ids in calls:
        one_by_one.append(key, ids)
    offsets = np.cumsum([0] + [len(ids) for _, ids in calls])
    batched.append_many([key for key, _ in calls], [i for _, ids in calls for i in ids], offsets)
    assert batched.distinct_blocks == one_by_one.distinct_blocks
    for key in range(4):
        assert batched.tokens(key).tolist() == one_by_one.tokens(key).tolist()


@given(st.integers(1, 5), IDS)
def test_what_was_inserted_matches_in_full_blocks(block_tokens, ids):
    tree = PrefixTree(block_tokens)
    tree.insert(7, ids)
    assert tree.match(ids) == len(ids) // block_tokens * block_tokens
    assert tree.blocks(7) == tree.own_blocks(7) == tree.distinct_blocks == tree.release(7)
    assert tree.match(ids) == 0


def test_blocks_whose_hashes_collide_stay_apart():
    # Some pairs of so many blocks have one 32-bit hash: different first blocks, and equal second ones after them.
    first_blocks = np.random.default_rng(0).integers(0, 2**31, size=(200_000, 2), dtype=np.int32)
    tree = PrefixTree(2)
    for key, ids in enumerate(np.hstack([first_blocks, np.full_like(first_blocks, 7)])):
        tree.insert(key, ids)
    assert tree.distinct_blocks == 2 * len(np.unique(first_blocks, axis=0))


def play_round(tree: PrefixTree, rng: np.random.Generator) -> int:
    """Insert, append to, and release 50 trajectories of 400 tokens; returns the bytes at their most."""
    for key in range(50):
        tree.insert(key, rng.integers(0, 1000, 200))
    tree.append_many(range(50), rng.integers(0, 1000, 50 * 200), np.arange(51) * 200)
    most = tree.memory_bytes
    for key in range(50):
        tree.release(key)
    return most


def test_rounds_of_trajectories_need_the_memory_of_one_round():
    tree, rng = PrefixTree(16), np.random.default_rng(0)
    first = play_round(tree, rng)
    assert [play_round(tree, rng) for _ in range(40)] == [first] * 40
    assert (tree.distinct_blocks, tree.live) == (0, 0)


def test_memory_is_a_few_times_that_of_the_live_ids():
    most = play_round(PrefixTree(16), np.random.default_rng(0))
    live_id_bytes = 50 * 400 * 4
    assert live_id_bytes < most < 4 * live_id_bytes


def test_shared_ids_are_stored_once():
    tree, prompt = PrefixTree(16), np.arange(1600)
    tree.insert(0, prompt)
    before = tree.memory_bytes
    for key in range(1, 20):
        tree.insert(key, prompt)
    assert tree.memory_bytes - before < prompt.size * 4


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.uint32, np.int64, np.uint64, ">i4"])
def test_ids_of_every_integer_type_mean_the_same(dtype):
    tree = PrefixTree(2)
    tree.insert(0, np.array([5, 6, 7, 100], dtype=dtype))
    assert tree.tokens(0).tolist() == [5, 6, 7, 100]
    assert tree.tokens(0).dtype == np.int32


@pytest.mark.parametrize("value", [2**31, 2**32 + 1, 2**62, -1])
def test_ids_that_int32_cannot_hold_are_refused_by_name_and_never_wrapped(value):
    tree = PrefixTree(2)
    with pytest.raises(ValueError, match=f"token id {value} at position 1"):
        tree.insert(0, [3, value])
    assert tree.live == 0


def test_a_negative_id_in_an_int32_array_is_refused():
    with pytest.raises(ValueError, match="token id -4 at position 2"):
        PrefixTree(2).match(np.array([1, 2, -4], dtype=np.int32))


@pytest.mark.parametrize("ids", [[1.0], np.array([1.5]), ["a"], [1, 2**63], [2**70], [True]])
def test_ids_that_are_not_integers_are_a_type_error(ids):
    with pytest.raises(TypeError, match="token ids of type"):
        PrefixTree(2).insert(0, ids)


def test_ids_must_be_one_sequence():
    with pytest.raises(ValueError, match=r"shape \(2, 2\)"):
        as_ids(np.zeros((2, 2), dtype=np.int32))


def test_strided_ids_are_read_in_order():
    tree = PrefixTree(2)
    tree.insert(0, np.arange(10, dtype=np.int32)[::-3])
    assert tree.tokens(0).tolist() == [9, 6, 3, 0]


def test_the_ids_handed_out_are_a_copy():
    tree = PrefixTree(2)
    tree.insert(0, [1, 2, 3])
    tree.tokens(0)[:] = 9
    assert tree.tokens(0).tolist() == [1, 2, 3]


def test_the_native_tree_takes_no_other_array_than_int32():
    with pytest.raises(TypeError, match="int32"):
        _native.PrefixTree(2).insert(0, np.array([1, 2], dtype=np.int64))


def test_errors_name_the_trajectory_and_the_remedy():
    tree = PrefixTree(2)
    tree.insert(4, [1, 2, 3])
    with pytest.raises(UnknownTrajectoryError, match="trajectory 9 is not among the 1 live ones: insert") as caught:
        tree.append(9, [1])
    assert isinstance(caught.value, KeyError)
    assert not str(caught.value).startswith("'")
    with pytest.raises(LiveTrajectoryError, match="trajectory 4 is live already: release it first"):
        tree.insert(4, [1])
    with pytest.raises(ValueError, match="first 5 tokens of trajectory 4: it has 3"):
        tree.truncate(4, 5)
    with pytest.raises(ValueError, match="block_tokens is 0"):
        PrefixTree(0)


@pytest.mark.parametrize(
    ("keys", "offsets", "error", "message"),
    [
        ([1, 9], [0, 1, 2], UnknownTrajectoryError, "trajectory 9"),
        ([1], [0, 1], ValueError, "rise from 0 to 2"),
        ([1, 1], [0, 3, 2], ValueError, "rise from 0 to 2"),
        ([1], [0, 1, 2], ValueError, "offsets has 3 values for 1 trajectories"),
        ([1.0], [0, 2], TypeError, "trajectories of type float64"),
        (np.array([1], dtype=np.uint64), [0, 2], TypeError, "trajectories of type uint64"),
    ],
)
def test_a_batch_with_a_mistake_is_refused_whole(keys, offsets, error, message):
    tree = PrefixTree(2)
    tree.insert(1, [5])
    with pytest.raises(error, match=message):
        tree.append_many(keys, [6, 7], offsets)
    assert tree.tokens(1).tolist() == [5]


def test_growth_of_a_huge_number_of_tokens_does_not_overflow():
    tree = PrefixTree(16)
    tree.insert(0, [1])
    assert tree.growth(0, 2**63 - 1) == -(-(2**63 - 1 - 15) // 16)


def test_the_type_stub_names_what_the_module_has():
    stub = ast.parse(Path(llenvs_fast.__file__).with_name("_native.pyi").read_text())
    (tree,) = [node for node in stub.body if isinstance(node, ast.ClassDef) and node.name == "PrefixTree"]
    stubbed = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    bound = {name for name in vars(_native.PrefixTree) if not name.startswith("_")}
    assert bound | {"__init__", "__contains__", "__len__"} == stubbed
