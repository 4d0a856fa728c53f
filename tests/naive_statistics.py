"""Slow, obvious twins of the statistics: each spells out its definition."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence


def best_of_k(values: Sequence[float], k: int) -> float:
    """The mean of the maximum over all subsets of k."""
    subsets = list(itertools.combinations(values, k))
    return sum(max(s) for s in subsets) / len(subsets) if subsets else math.nan


def maj_at_k(answers: Sequence[object], correct: object, k: int) -> float:
    """The mean over all subsets of k of the correct answer's share among the most frequent ones."""
    shares = []
    for subset in itertools.combinations(range(len(answers)), k):
        votes = Counter(answers[i] for i in subset)
        first = [answer for answer, count in votes.items() if count == max(votes.values())]
        shares.append((correct in first) / len(first))
    return sum(shares) / len(shares) if shares else math.nan


def variance_components(values: Sequence[float], clusters: Sequence[object]) -> tuple[float, float]:
    """(between, within): one-way analysis of variance with groups of any size; NaN where there is no figure."""
    groups: dict[object, list[float]] = {}
    for x, g in zip(values, clusters, strict=True):
        if not math.isnan(x):
            groups.setdefault(g, []).append(x)
    n, count = sum(map(len, groups.values())), len(groups)
    if n <= count:
        return math.nan, math.nan
    means = {g: math.fsum(xs) / len(xs) for g, xs in groups.items()}
    within = math.fsum((x - means[g]) ** 2 for g, xs in groups.items() for x in xs) / (n - count)
    if count < 2:
        return math.nan, within
    mean = math.fsum(x for xs in groups.values() for x in xs) / n
    msb = math.fsum(len(xs) * (means[g] - mean) ** 2 for g, xs in groups.items()) / (count - 1)
    n0 = (n - sum(len(xs) ** 2 for xs in groups.values()) / n) / (count - 1)
    return max(0.0, (msb - within) / n0), within
