"""Is one run better than another? Two runs on shared tasks are compared task by task, so that easy tasks cancel out.

`pair_runs` aligns the runs by task; what follows works on the differences (P,), candidate − baseline, one per task: for
a run with several samples of a task, the difference of the task's means.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.statistics.bootstrap import bootstrap_mean
from llenvs_fast.statistics.clustered import clustered_mean
from llenvs_fast.statistics.draws import bits, streams
from llenvs_fast.statistics.groups import group_codes
from llenvs_fast.statistics.moments import grouped_moments
from llenvs_fast.statistics.observed import Estimate, as_values, observed, unmasked

EXACT_FLIPS_UP_TO = 20  # differences: 2¹⁹ sums, since a flip of all signs changes nothing
_FLIPS_AT_ONCE = 1 << 22


@dataclass(frozen=True, slots=True)
class PairedRuns:
    """The tasks (P,) on which both runs have a value, in order, and each run's mean over its samples of them: (P,).

    `only_baseline` and `only_candidate` count tasks that the other run doesn't have, `unscored` those that both have
    but one without any value, `missing` the samples of either run without a value. None of these is used.
    """

    tasks: NDArray[Any]
    baseline: NDArray[np.float64]
    candidate: NDArray[np.float64]
    baseline_samples: NDArray[np.int64]
    candidate_samples: NDArray[np.int64]
    only_baseline: int
    only_candidate: int
    unscored: int
    missing: int

    @property
    def differences(self) -> NDArray[np.float64]:
        """candidate − baseline, (P,)."""
        return self.candidate - self.baseline


def pair_runs(
    baseline: ArrayLike, baseline_tasks: ArrayLike, candidate: ArrayLike, candidate_tasks: ArrayLike
) -> PairedRuns:
    """Align two runs by task. Values and task labels are (N,) and (M,), in any order, with any number of samples.

    Each task counts once, however many samples it has in either run. Misleads where the tasks that only one run has
    are the hard ones: look at the counts. Raises ValueError for shapes that differ and labels of different types.
    """
    a_means, b_means = grouped_moments(baseline, baseline_tasks), grouped_moments(candidate, candidate_tasks)
    ids_a, ids_b = a_means.groups, b_means.groups
    if len(ids_a) and len(ids_b) and (ids_a.dtype.kind in "US") != (ids_b.dtype.kind in "US"):
        raise ValueError(f"tasks are {ids_a.dtype} in baseline and {ids_b.dtype} in candidate: give both the same type")
    shared, a, b = np.intersect1d(ids_a, ids_b, assume_unique=True, return_indices=True)
    scored = (a_means.n[a] > 0) & (b_means.n[b] > 0)
    a, b = a[scored], b[scored]
    return PairedRuns(
        tasks=shared[scored],
        baseline=a_means.mean[a],
        candidate=b_means.mean[b],
        baseline_samples=a_means.n[a],
        candidate_samples=b_means.n[b],
        only_baseline=len(ids_a) - len(shared),
        only_candidate=len(ids_b) - len(shared),
        unscored=len(shared) - len(a),
        missing=int(a_means.missing.sum() + b_means.missing.sum()),
    )


def paired_difference(differences: ArrayLike, clusters: ArrayLike | None = None, confidence: float = 0.95) -> Estimate:
    """By how much does the candidate differ on tasks like these?

    Mean of the differences (P,) ± Student's t interval with tasks as clusters, which allows for the samples in them:
    standard error √(Σ (d − d̄)² / (P (P − 1))) (Miller 2024, section 4.2). Where tasks themselves come in groups (on
    one text, from one template), give these as `clusters` (P,). Misleads with few tasks whose differences are skewed;
    an interval around 0 says that no difference was shown, not that there is none. NaN differences are missing; fewer
    than two tasks have no interval.
    """
    return clustered_mean(differences, _own_clusters(differences, clusters), confidence)


def paired_bootstrap(
    differences: ArrayLike,
    clusters: ArrayLike | None = None,
    confidence: float = 0.95,
    *,
    method: str = "bca",
    resamples: int = 10_000,
    seed: int = 0,
) -> Estimate:
    """The same question without a normal distribution: the differences (P,), or clusters of them, drawn anew.

    Each resample draws tasks together with both their runs (Efron & Tibshirani 1993, section 9; Koehn 2004). Misleads
    with fewer than about 20 tasks: it can't draw what it hasn't seen, so the interval is too narrow.
    """
    return bootstrap_mean(differences, clusters, method=method, confidence=confidence, resamples=resamples, seed=seed)


def mcnemar_test(gained: ArrayLike, lost: ArrayLike) -> Any:
    """Could tasks have changed sides by chance alone? For one 0/1 outcome per task and run.

    `gained` tasks are right in the candidate only, `lost` ones in the baseline only. The exact two-sided p value is
    min(1, 2 · P(X ≤ min(gained, lost))), X binomial over gained + lost with ½ (McNemar 1947, in its exact form);
    1.0 where no task changed. Counts broadcast. Misleads (towards "no difference") where few tasks changed: 5 can't
    reach 0.05. Not for several samples per task: use `sign_flip_test`. Raises ValueError for anything but counts.
    """
    from scipy.special import bdtr

    b, c = np.broadcast_arrays(unmasked(gained, "gained"), unmasked(lost, "lost"))
    if b.size and (b.dtype.kind not in "iu" or c.dtype.kind not in "iu" or min(b.min(), c.min()) < 0):
        raise ValueError(f"gained is {gained!r}, lost is {lost!r}: give counts, whole numbers from 0")
    b, c = b.astype(np.int64), c.astype(np.int64)  # narrow counts would wrap around in the sum
    return np.minimum(1.0, 2.0 * bdtr(np.minimum(b, c).astype(np.float64), b + c, 0.5))[()]


@dataclass(frozen=True, slots=True)
class SignFlipTest:
    """`p_value` from all sign flips (`exact`) or from `flips` random ones; over `n` differences, `missing` left out."""

    p_value: float
    exact: bool
    flips: int
    n: int
    missing: int


def sign_flip_test(
    differences: ArrayLike, clusters: ArrayLike | None = None, *, flips: int = 10_000, seed: int = 0
) -> SignFlipTest:
    """Could labels alone explain it? The permutation test of paired data: swapping the two runs flips a task's sign.

    Two-sided p: the share of sign flips whose |Σ ± d| reaches |Σ d| (Fisher 1935, section 21). Exact for up to 20
    differences that aren't 0 (those never matter); above, `flips` random ones, with p = (1 + reached) / (1 + flips),
    which keeps the size of the test (Phipson & Smyth 2010). `clusters` (P,) flip together. For one 0/1 outcome per
    task the exact test is McNemar's. Misleads where differences are skewed: it tests whether they are symmetric
    about 0. p is NaN with no difference, 1.0 where all are 0.
    """
    if flips < 1:
        raise InvalidSettingError(f"flips is {flips!r}: give at least 1")
    d, labels, missing = observed(differences, _own_clusters(differences, clusters), name="differences")
    n = len(d)
    if n == 0:
        return SignFlipTest(math.nan, True, 0, n, missing)
    sums = np.bincount(group_codes(labels)[1], weights=d)
    totals: NDArray[np.float64] = np.sort(np.abs(sums[sums != 0])).astype(np.float64)  # a flip gives either sign
    total = abs(float(d.sum()))
    exact = len(totals) <= EXACT_FLIPS_UP_TO
    reached = _reached(_all_signs(len(totals)) if exact else _random_signs(len(totals), flips, seed), totals, total)
    if exact:
        return SignFlipTest(reached / 2 ** max(len(totals) - 1, 0), True, 2 ** max(len(totals) - 1, 0), n, missing)
    return SignFlipTest((1 + reached) / (1 + flips), False, flips, n, missing)


def _own_clusters(differences: ArrayLike, clusters: ArrayLike | None) -> ArrayLike:
    return np.arange(np.size(as_values(differences, "differences"))) if clusters is None else clusters


def _reached(signs: Iterator[NDArray[np.float64]], totals: NDArray[np.float64], total: float) -> int:
    """How many flips have a sum as far from 0 as `total`, but for rounding."""
    least = total - 1e-12 * float(totals.sum())
    return sum(int(np.count_nonzero(np.abs(chunk @ totals) >= least)) for chunk in signs)


def _all_signs(n: int) -> Iterator[NDArray[np.float64]]:
    """All sign flips with the first sign fixed, (b, n) at a time: the others are their mirror images."""
    count, rows = 2 ** max(n - 1, 0), max(1, _FLIPS_AT_ONCE // max(n, 1))
    for start in range(0, count, rows):
        number = np.arange(start, min(start + rows, count), dtype=np.int64)[:, None]
        yield 1.0 - 2.0 * ((number >> np.arange(n)) & 1).astype(np.float64)


def _random_signs(n: int, flips: int, seed: int) -> Iterator[NDArray[np.float64]]:
    rows = max(1, _FLIPS_AT_ONCE // n)
    for start in range(0, flips, rows):
        random = bits(streams(seed, start, min(start + rows, flips)), n)
        yield 1.0 - 2.0 * (random >> np.uint64(63)).astype(np.float64)
