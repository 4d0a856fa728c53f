"""A million tokens appended to 10,000 trajectories."""

from __future__ import annotations

import statistics

import numpy as np

from benchmarks.harness import Figure, spread, timed
from llenvs_fast.tokens.prefix_tree import PrefixTree

TRAJECTORIES, TOKENS, CALLS, BLOCK = 10_000, 1_000_000, 50_000, 32


def measure() -> list[Figure]:
    rng = np.random.default_rng(0)
    whose = rng.permutation(np.repeat(np.arange(TRAJECTORIES), CALLS // TRAJECTORIES))
    ids = rng.integers(0, 50_000, TOKENS, dtype=np.int32).reshape(CALLS, -1)
    shared = rng.integers(0, 50_000, 10 * BLOCK, dtype=np.int32)
    seconds = []
    for _ in range(5):
        tree = PrefixTree(BLOCK)
        for t in range(TRAJECTORIES):
            tree.insert(t, shared)

        def append(tree: PrefixTree = tree) -> None:
            for t, new in zip(whose.tolist(), ids, strict=True):
                tree.append(t, new)

        seconds.append(timed(append))
        own = TOKENS // TRAJECTORIES
        expected = 10 + TRAJECTORIES * -(-own // BLOCK)  # the shared prompt once, then everybody's own
        assert tree.distinct_blocks == expected, (tree.distinct_blocks, expected)
    median = statistics.median(seconds)
    checked = "distinct blocks as counted by hand"
    what = f"{TOKENS:,} tokens in {CALLS:,} appends"
    return [Figure("prefix_tree", what, median, "s", spread(seconds), 5, "< 1", median < 1.0, checked)]
