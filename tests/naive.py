"""Slow, obvious twins of the fast things. Each is the specification of its fast version: read it first."""

from __future__ import annotations

from collections.abc import Callable, Iterable

# residency planner ----------------------------------------------------------------------------------------------------


def planned_blocks(live, block_tokens: int) -> int:
    """Blocks that live trajectories hold and may still need. `live`: (ids, tokens to come) of each.

    Every full block is known by all ids up to its end; a tail block and the growth after it belong to one trajectory.
    """
    full = {ids[:end] for ids, _ in live for end in range(block_tokens, len(ids) + 1, block_tokens)}
    tails = sum(len(ids) % block_tokens > 0 for ids, _ in live)
    growth = sum(-(-(len(ids) + more) // block_tokens) - -(-len(ids) // block_tokens) for ids, more in live)
    return len(full) + tails + growth


# prefix tree ---------------------------------------------------------------------------------------------------------


def chance_to_go_on(lives: list[int], max_turns: int, behind: int, ahead: int) -> float:
    """The chance that a trajectory with `behind` turns is there for its next turn but `ahead`, from lives seen.

    One minus the hazard after each turn in between: the share of those that had come so far and were over, with four
    imagined ones that end at none of the first eight turns, then at each with a chance of an eighth.
    """
    chance = 1.0
    for turns in range(behind + 1, behind + 1 + ahead):
        if turns >= max_turns:
            return 0.0
        ended = sum(min(life, max_turns) == turns for life in lives)
        came = sum(min(life, max_turns) >= turns for life in lives)
        prior = 0.0 if turns < min(8, max_turns) else 1 / 8
        chance *= 1.0 - (ended + 4.0 * prior) / (came + 4.0)
    return chance


class PrefixTreeTwin:
    """Every trajectory is a list of ids; a full block is the tuple of all ids up to its end. Recounts everything."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.ids: dict[int, list[int]] = {}

    def _full_blocks(self, ids: list[int]) -> set[tuple[int, ...]]:
        ends = range(self.block_tokens, len(ids) + 1, self.block_tokens)
        return {tuple(ids[:end]) for end in ends}

    def _held(self, keys: Iterable[int]) -> set[tuple[int, ...]]:
        return set().union(*(self._full_blocks(self.ids[key]) for key in keys))

    def _grown_by(self, change: Callable[[PrefixTreeTwin], object]) -> int:
        after = PrefixTreeTwin(self.block_tokens)
        after.ids = {key: list(ids) for key, ids in self.ids.items()}
        change(after)
        return after.distinct_blocks - self.distinct_blocks

    def _new(self, key: int, ids: list[int]) -> None:
        if key in self.ids:
            raise KeyError(key)
        self.ids[key] = list(ids)

    def _first(self, key: int, tokens: int) -> list[int]:
        ids = self.ids[key]
        if not 0 <= tokens <= len(ids):
            raise ValueError(tokens)
        return ids[:tokens]

    def insert(self, key: int, ids: list[int]) -> int:
        resident = self.match(ids)
        self._new(key, ids)
        return resident

    def append(self, key: int, ids: list[int]) -> None:
        self.ids[key].extend(ids)

    def fork(self, parent: int, child: int, tokens: int | None = None) -> None:
        self._new(child, self._first(parent, len(self.ids[parent]) if tokens is None else tokens))

    def truncate(self, key: int, tokens: int) -> None:
        self.ids[key] = self._first(key, tokens)

    def release(self, key: int) -> int:
        own = self.own_blocks(key)
        del self.ids[key]
        return own

    def match(self, ids: list[int]) -> int:
        return self.block_tokens * len(self._full_blocks(ids) & self._held(self.ids))

    def blocks_needed(self, ids: list[int]) -> int:
        return self._grown_by(lambda tree: tree.insert(-1, ids))

    def growth(self, key: int, tokens: int) -> int:
        ids_of_nobody = [-1] * tokens
        grown_by = self._grown_by(lambda tree: tree.append(key, ids_of_nobody))
        if tokens < 0:
            raise ValueError(tokens)
        return grown_by

    def blocks(self, key: int) -> int:
        return -(-len(self.ids[key]) // self.block_tokens)

    def own_blocks(self, key: int) -> int:
        others = self._held(self.ids.keys() - {key})
        return len(self._full_blocks(self.ids[key]) - others) + (len(self.ids[key]) % self.block_tokens > 0)

    @property
    def distinct_blocks(self) -> int:
        return len(self._held(self.ids)) + sum(len(ids) % self.block_tokens > 0 for ids in self.ids.values())


# statistics ----------------------------------------------------------------------------------------------------------


def pass_at_k(n: int, c: int, k: int) -> float:
    """The share of the k-element subsets of n samples that hold at least one of the c correct ones."""
    from itertools import combinations

    if k > n:
        return float("nan")
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    return sum(map(any, subsets)) / len(subsets)


def wilson_interval(successes: int, n: int, z: float) -> tuple[float, float]:
    """Both p at which a normal test just accepts the observed rate: (successes / n - p)² = z² p (1 - p) / n."""
    import numpy as np

    rate = successes / n
    low, high = sorted(np.roots([1 + z * z / n, -(2 * rate + z * z / n), rate * rate]).real)
    return low, high


def clustered_standard_error(values: list[float], clusters: list[int]) -> float:
    """Residuals summed by cluster, squared, summed; the small-sample factor; the root over N."""
    scored = [(v, g) for v, g in zip(values, clusters, strict=True) if v == v]
    groups = {g for _, g in scored}
    if len(groups) < 2:
        return float("nan")
    mean = sum(v for v, _ in scored) / len(scored)
    squares = sum(sum(v - mean for v, of in scored if of == g) ** 2 for g in groups)
    return (len(groups) / (len(groups) - 1) * squares) ** 0.5 / len(scored)
