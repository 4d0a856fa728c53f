"""The guide's metrics and statistics: its check values, its edges, and aggregates equal to the whole."""

from __future__ import annotations

import math
import statistics as stdlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llenvs_fast.evaluation import (
    BinaryStatistics,
    ContinuousStatistics,
    Metric,
    TrajectoryRunner,
    aggregate_binary_metrics,
    aggregate_continuous_metrics,
    compute_accuracy,
    compute_action_reward,
    compute_all_metrics,
    compute_binary_statistics,
    compute_continuous_statistics,
    compute_format_compliance,
    compute_pass_at_k,
    compute_trajectory_reward,
)
from llenvs_fast.inference.backends import ScriptedBackend
from llenvs_fast.inference.protocol import GenerationRequest
from tests.worlds import EchoWorld

values_ = st.lists(st.floats(-1e6, 1e6), max_size=20)


@pytest.mark.parametrize(
    ("count", "n", "low", "high"),
    [
        (1, 1, 0.206543, 1.0),
        (0, 1, 0.0, 0.793457),
        (7, 10, 0.396773, 0.892211),
        (85, 100, 0.767163, 0.906941),
        (0, 10, 0.0, 0.277540),
        (10, 10, 0.722460, 1.0),
    ],
)
def test_wilson_has_the_guides_values(count: int, n: int, low: float, high: float) -> None:
    found = compute_binary_statistics([1] * count + [0] * (n - count))
    assert found.ci_lower == pytest.approx(low, abs=1e-6)
    assert found.ci_upper == pytest.approx(high, abs=1e-6)


def test_binary_statistics_of_the_guide() -> None:
    found = compute_binary_statistics([1, 1, 0, 1, 0, 1, 1, 0, 1, 1])
    assert (found.n, found.count, found.mean) == (10, 7, 0.7)
    assert found.std_error == pytest.approx(math.sqrt(0.021), abs=1e-9)
    assert found.pass_at_k(1) == pytest.approx(0.7)
    assert found.pass_at_k(2) == pytest.approx(14 / 15)
    assert found.pass_at_k(10) == 1.0
    for k in (0, -1, 11):
        with pytest.raises(ValueError, match="1 ≤ k ≤ n"):
            found.pass_at_k(k)
    assert compute_binary_statistics([]) == BinaryStatistics(n=0, mean=0.0, count=0)
    assert compute_binary_statistics([1]).std_error is None
    large = compute_binary_statistics([1] * 5 + [0] * 4995)
    assert large.pass_at_k(2500) == pytest.approx(1 - math.comb(4995, 2500) / math.comb(5000, 2500), abs=1e-12)


def test_continuous_statistics_of_the_guide() -> None:
    found = compute_continuous_statistics([0.8, 0.85, 0.9, 0.78, 0.92], confidence_level=0.95)
    assert found.mean == pytest.approx(0.85)
    assert found.std_dev == pytest.approx(0.0608276253, abs=1e-9)
    assert found.std_error == pytest.approx(0.0272029410, abs=1e-9)
    assert (found.q25, found.median, found.q75) == pytest.approx((0.80, 0.85, 0.90))
    assert (found.ci_lower, found.ci_upper) == pytest.approx((0.7966822356, 0.9033177644), abs=1e-9)
    assert (found.min, found.max) == (0.78, 0.92)
    assert compute_continuous_statistics([]) == ContinuousStatistics(n=0, mean=0.0)
    one = compute_continuous_statistics([3.0])
    assert (one.std_dev, one.std_error, one.ci_lower, one.q25, one.median) == (0.0, 0.0, None, 3.0, 3.0)
    assert compute_continuous_statistics([0.1] * 3).ci_lower is None
    with pytest.raises(ValueError, match="NaN"):
        compute_continuous_statistics([1.0, math.nan])


def test_other_levels_take_the_exact_quantile() -> None:
    wide, usual = (compute_binary_statistics([1, 0] * 50, level) for level in (0.999, 0.95))
    assert wide.ci_lower < usual.ci_lower  # type: ignore[operator]
    z = stdlib.NormalDist().inv_cdf(0.9)
    found = compute_continuous_statistics([1.0, 2.0, 4.0], 0.8)
    assert found.ci_upper == pytest.approx(found.mean + z * (found.std_error or 0.0))


@given(st.lists(values_, min_size=1, max_size=4))
def test_aggregates_are_the_statistics_of_the_whole(groups: list[list[float]]) -> None:
    parts = [Metric("reward", compute_continuous_statistics(g)) for g in groups]
    found = aggregate_continuous_metrics(parts).statistics
    whole = compute_continuous_statistics([v for g in groups for v in g])
    assert isinstance(found, ContinuousStatistics)
    assert (found.n, found.min, found.max) == (whole.n, whole.min, whole.max)
    assert found.mean == pytest.approx(whole.mean, rel=1e-9, abs=1e-6)
    if whole.n > 1:
        assert found.std_dev == pytest.approx(whole.std_dev, rel=1e-6, abs=1e-5)
        assert found.std_error == pytest.approx(whole.std_error, rel=1e-6, abs=1e-5)
    assert (found.median, found.q25, found.q75) == (None, None, None)


@given(st.lists(st.lists(st.booleans(), max_size=20), min_size=1, max_size=4))
def test_binary_aggregates_are_the_statistics_of_the_whole(groups: list[list[bool]]) -> None:
    parts = [Metric("accuracy", compute_binary_statistics(g)) for g in groups]
    assert aggregate_binary_metrics(parts).statistics == compute_binary_statistics([v for g in groups for v in g])


def test_what_can_not_be_aggregated() -> None:
    binary, continuous = (
        Metric("a", compute_binary_statistics([1])),
        Metric("b", compute_continuous_statistics([1.0])),
    )
    for aggregate, wrong in ((aggregate_binary_metrics, continuous), (aggregate_continuous_metrics, binary)):
        with pytest.raises(ValueError, match="at least one"):
            aggregate([])
        with pytest.raises(TypeError, match="give metrics of"):
            aggregate([wrong])
    assert aggregate_binary_metrics([binary], name="mine").name == "mine"


def test_metrics_of_a_batch() -> None:
    def right_every_other_time(request: GenerationRequest) -> str:
        assert request.messages is not None
        asked = (request.messages[-1].content or "").removeprefix("echo ")
        return asked if (request.seed or 0) % 2 else "wrong"

    batch = TrajectoryRunner(EchoWorld(20), ScriptedBackend(right_every_other_time)).run_batch(range(20), num_samples=4)
    results = batch.trajectory_results
    won = [r.success for r in results]
    bundle = compute_all_metrics(batch)
    assert list(bundle.metrics) == ["accuracy", "trajectory_reward", "action_reward", "format_compliance"]
    assert compute_accuracy(results).statistics == compute_binary_statistics(won)
    mean_reward = np.mean([r.total_reward for r in results])
    assert compute_trajectory_reward(results).statistics.mean == pytest.approx(mean_reward)
    assert compute_action_reward(results).statistics.n == 80
    assert compute_format_compliance(results).statistics.mean == 0.0
    assert bundle.to_dict()["accuracy"]["count"] == sum(won)
    assert bundle.get("nothing") is None
    by_task = [sum(won[i : i + 4]) for i in range(0, 80, 4)]
    found = compute_pass_at_k(results, [1, 4, 8])
    assert found[1] == (pytest.approx(np.mean(won)), 20)
    assert found[4] == (pytest.approx(np.mean([c > 0 for c in by_task])), 20)
    assert found[8] == (None, 0)
    assert compute_pass_at_k([], [1]) == {1: (None, 0)}
