"""Accumulators: merged parts are the whole."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llenvs_fast.core.errors import MissingPackageError
from llenvs_fast.statistics import moments
from llenvs_fast.statistics.streaming import MomentsAccumulator, QuantileSketch, TaskCountsAccumulator

batches_ = st.lists(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), max_size=12), max_size=6)


@given(batches_, st.integers(0, 6))
def test_moments_of_parts_are_those_of_the_whole(batches: list[list[float]], cut: int) -> None:
    whole = moments([v for b in batches for v in b])
    parts = MomentsAccumulator(), MomentsAccumulator()
    for i, batch in enumerate(batches):
        parts[i >= cut].add(batch)
    first, second = parts
    first.merge(second)
    found = first.result()
    assert (found.n, found.missing) == (whole.n, whole.missing)
    np.testing.assert_allclose(found.mean, whole.mean, rtol=1e-9, atol=1e-6)
    np.testing.assert_allclose(found.variance, whole.variance, rtol=1e-6, atol=1e-4)
    known = [v for b in batches for v in b if not math.isnan(v)]
    if known:
        assert (first.lowest, first.highest) == (min(known), max(known))


def test_an_offset_of_a_billion_costs_no_digits() -> None:
    accumulator = MomentsAccumulator()
    for value in (4.0, 7.0, 13.0, 16.0):
        accumulator.add([1e9 + value])
    assert accumulator.result().variance == pytest.approx(30.0, rel=1e-9)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.0, 1.0, math.nan])), max_size=40), st.integers(0, 40))
def test_task_counts_of_parts_are_those_of_the_whole(rows: list[tuple[int, float]], cut: int) -> None:
    a, b = TaskCountsAccumulator.empty(), TaskCountsAccumulator.empty()
    for accumulator, part in ((a, rows[:cut]), (b, rows[cut:])):
        accumulator.add(np.array([t for t, _ in part], dtype=np.int64), [x for _, x in part])
    a.merge(b)
    for task in range(len(a.n)):
        own = [x for t, x in rows if t == task]
        assert a.missing[task] == sum(map(math.isnan, own))
        assert a.successes[task] == own.count(1.0)
        assert a.n[task] == len(own) - a.missing[task]
    assert len(a.n) == max((t + 1 for t, _ in rows), default=0)


def test_strange_rows_are_refused_and_change_nothing() -> None:
    counts = TaskCountsAccumulator.empty()
    for tasks, outcomes in (([-1], [1]), ([0], [0.5]), ([0, 1], [1]), ([0.0], [1])):
        with pytest.raises(ValueError, match="give"):
            counts.add(tasks, outcomes)
    assert len(counts.n) == 0
    accumulator = MomentsAccumulator()
    with pytest.raises(ValueError, match="finite"):
        accumulator.add([math.inf])
    assert math.isnan(accumulator.result().mean)


def test_merged_sketches_are_near_the_quantiles_of_the_whole() -> None:
    pytest.importorskip("datasketches")
    x = np.random.default_rng(0).normal(size=200_000)
    parts = [QuantileSketch() for _ in range(4)]
    for i, batch in enumerate(np.array_split(x, 40)):
        parts[i % 4].add(batch)
    parts[0].add([None, math.nan])  # type: ignore[list-item]
    for part in parts[1:]:
        parts[0].merge(part)
    q = [0.0, 0.05, 0.5, 0.95, 1.0]
    found = parts[0].quantiles(q)
    assert (parts[0].n, parts[0].missing) == (200_000, 2)
    assert (found[0], found[-1]) == (x.min(), x.max())
    ranks = np.searchsorted(np.sort(x), found) / len(x)
    np.testing.assert_allclose(ranks[1:-1], q[1:-1], atol=0.02)
    assert np.isnan(QuantileSketch().quantiles([0.5])).all()


def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(MissingPackageError, match=r"llenvs-fast\[sketch\]"):
        QuantileSketch()
