"""maj@k: the chance that the most frequent of k answers to a task is the correct one (self-consistency)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llenvs_fast.statistics.pass_at_k import _integers


@dataclass(frozen=True, slots=True)
class MajAtK:
    """`values`: (P, J), NaN where k > n. `n` and `missing`: (P,), the samples with and without an answer."""

    values: NDArray[np.float64]
    n: NDArray[np.int64]
    missing: NDArray[np.int64]


def maj_at_k(answers: Sequence[Sequence[Hashable]], correct: Sequence[Hashable], ks: ArrayLike) -> MajAtK:
    """Chance that the correct answer gets the most votes of k samples, drawn without replacement: exact, no simulation.

    `answers` holds the answers of the samples of each task, None or NaN where a sample gave none (as many as there are,
    P rows); `correct` (P,) the correct answer of each; `ks` is an int or (J,). Answers that tie for the most votes win
    with the same chance each. Wang et al. 2022 (self-consistency); averages: `eligible_mean(result.values)`.

    Answers are compared with ==: bring them to one form first, or the votes for "1/2" and "0.5" split. It may fall with
    k, where the most frequent answer is wrong. Raises ValueError for another number of correct answers and for k < 1.
    """
    k_array = np.atleast_1d(_integers("k", ks))
    if len(answers) != len(correct) or k_array.ndim != 1 or (k_array < 1).any():
        raise ValueError(
            f"{len(answers)} tasks, {len(correct)} correct answers, k is {ks!r}: "
            "give one correct answer per task, and k ≥ 1 as an integer or (J,)"
        )
    values = np.full((len(answers), len(k_array)), np.nan)
    n, missing = np.zeros((2, len(answers)), dtype=np.int64)
    for p, (row, right) in enumerate(zip(answers, correct, strict=True)):
        votes = Counter(answer for answer in row if not _is_missing(answer))
        n[p], missing[p] = votes.total(), len(row) - votes.total()
        right_votes = votes.pop(right, 0)
        others = np.array(sorted(votes.values()), dtype=np.int64)
        for j, k in enumerate(k_array.tolist()):
            if k <= n[p]:
                values[p, j] = _chance_to_win(right_votes, others, k)
    return MajAtK(values, n, missing)


def _is_missing(answer: Any) -> bool:
    return answer is None or answer is np.ma.masked or bool(answer != answer)


def _chance_to_win(right: int, others: NDArray[np.int64], k: int) -> float:
    """Chance that the answer with `right` samples has the most votes of k, where the others have `others` samples.

    Draws without replacement are independent binomial draws, given that they sum to k, whatever their rate. So: over
    each number of votes `most` for the right answer, the chance that the others have none more and k − most together,
    by how many of them tie.
    """
    rate = k / (right + int(others.sum()))
    if rate == 1.0:
        return _share_if_all_vote(right, others)
    chance = 0.0
    for most, its in enumerate(_binomial(right, rate, k)):
        rivals = others[others >= most]
        if most == 0:
            continue
        # tied[t, v]: t rivals have `most` votes, and all the others v votes together
        tied = _binomial(int(others.sum() - rivals.sum()), rate, k)[None, :]
        tied = np.pad(tied, ((0, 0), (0, k + 1 - tied.shape[1])))
        for rival in rivals.tolist():
            votes = _binomial(rival, rate, most)
            tied = _with_rival(tied, votes[:most], votes[most])
        chance += its * float(tied[:, k - most] @ (1.0 / np.arange(1, len(tied) + 1)))
    return min(1.0, chance / float(_binomial(right + int(others.sum()), rate, k)[k]))


def _with_rival(tied: NDArray[np.float64], fewer: NDArray[np.float64], same: float) -> NDArray[np.float64]:
    """One more rival, with the chances of 0, 1, … votes that are fewer, and of as many votes as the right answer."""
    k, most = tied.shape[1] - 1, len(fewer)
    padded = np.pad(tied, ((0, 1), (most, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, most, axis=1)[:, 1 : k + 2]
    out = windows @ fewer[::-1]
    out[1:, most:] += same * tied[:, : k + 1 - most]
    return np.asarray(out)


def _share_if_all_vote(right: int, others: NDArray[np.int64]) -> float:
    most = int(others.max(initial=0))
    return float(right > most) if right != most or not right else 1.0 / (1 + int((others == most).sum()))


def _binomial(n: int, rate: float, at_most: int) -> NDArray[np.float64]:
    """Chances of 0 … min(n, at_most) successes of n, from the likeliest outwards so that nothing underflows first."""
    last = min(n, at_most)
    mode = min(last, int((n + 1) * rate))
    odds = rate / (1.0 - rate)
    up = np.arange(mode, last)
    down = np.arange(mode, 0, -1)
    above = np.cumprod((n - up) / (up + 1) * odds)
    below = np.cumprod(down / (n - down + 1) / odds)[::-1]
    ways = math.lgamma(n + 1) - math.lgamma(mode + 1) - math.lgamma(n - mode + 1)
    at_mode = math.exp(ways + mode * math.log(rate) + (n - mode) * math.log1p(-rate))
    return at_mode * np.concatenate([below, [1.0], above])
