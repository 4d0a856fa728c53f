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
