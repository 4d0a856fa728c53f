from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llenvs_fast.results import Ending, Journal, Mean, SummaryAccumulator, read_records, summarize
from tests import naive
from tests.results.rows import SETTINGS, failed, record

results = st.sampled_from([True, False, None, "failed"])
runs = st.dictionaries(st.tuples(st.integers(0, 4), st.integers(0, 5)), results, max_size=20)


def rows_of(run: dict[tuple[int, int], object]) -> list[object]:
    return [failed(t, s) if got == "failed" else record(t, s, success=got) for (t, s), got in run.items()]


def test_failed_trajectories_stay_in_the_denominator_and_both_are_shown() -> None:
    summary = summarize([record(i, success=i < 2) for i in range(6)] + [failed(6), failed(7, kind="score_timeout")])
    assert summary.accuracy is not None
    assert summary.scored_accuracy is not None
    assert (summary.accuracy.successes, summary.accuracy.n, summary.accuracy.value) == (2, 8, 0.25)
    assert (summary.accuracy.low, summary.accuracy.high) == pytest.approx((0.0715, 0.5907), abs=6e-5)
    assert (summary.scored_accuracy.n, summary.scored_accuracy.value) == (6, pytest.approx(1 / 3))
    assert (summary.scored_accuracy.low, summary.scored_accuracy.high) == pytest.approx((0.0968, 0.7), abs=6e-5)
    assert summary.failure_kinds == {"step_error": 1, "score_timeout": 1}
    assert (summary.tasks, summary.rollouts, summary.finished, summary.failed) == (8, 8, 6, 2)


def test_all_samples_of_a_task_count_and_a_resume_changes_nothing(tmp_path) -> None:  # type: ignore[no-untyped-def]
    rows = [record(0, sample, success=text == "A") for sample, text in enumerate("ABAC")]
    with Journal.create(tmp_path, SETTINGS) as journal:
        journal.append(rows[:1])
    with Journal.resume(tmp_path, SETTINGS) as journal:
        journal.append(rows[1:])
    summary = summarize(read_records(tmp_path))
    assert summary == summarize(rows)
    assert summary.samples_per_task == (4, 4)
    assert {k: round(mean.value or 0, 4) for k, mean in summary.pass_at_k.items()} == {1: 0.5, 2: 0.8333, 4: 1.0}


def test_pass_at_k_says_how_many_tasks_had_enough_samples() -> None:
    counts = [(8, 2), (4, 4), (1, 0), (2, 1)]
    summary = summarize([record(t, s, success=s < c) for t, (n, c) in enumerate(counts) for s in range(n)])
    assert {k: mean.n for k, mean in summary.pass_at_k.items()} == {1: 4, 2: 3, 4: 2, 8: 1}
    assert summary.pass_at_k[2].value == pytest.approx(0.821429, abs=1e-6)
    assert summary.pass_at_k[4].value == pytest.approx(0.892857, abs=1e-6)
    assert summary.samples_per_task == (1, 8)


def test_a_missing_reward_is_no_zero() -> None:
    rewards = [1.0, 0.0, None, 1.0, math.nan, math.inf, np.float32(1.0)]
    summary = summarize(record(0, s, reward=reward, metrics={"m": reward}) for s, reward in enumerate(rewards))
    assert summary.reward == Mean(0.75, 4)
    assert summary.metrics == {"m": Mean(0.75, 4)}
    assert summarize([record(reward=math.nan)] * 4).reward == Mean(None, 0)


def test_nothing_judged_is_unknown_not_zero() -> None:
    for rows in ([], [record(success=None), failed(1)]):
        summary = summarize(rows)
        assert summary.accuracy is summary.scored_accuracy is summary.accuracy_cluster_se is None
        assert summary.pass_at_k == {}


def test_samples_of_one_task_are_not_independent() -> None:
    summary = summarize([record(t, s, success=t < 5) for t in range(10) for s in range(10)])
    assert summary.accuracy_cluster_se == pytest.approx(1 / 6)
    assert summarize([record(0, s, success=s < 1) for s in range(9)]).accuracy_cluster_se is None


def test_tokens_are_summed_and_cached_ones_are_unknown_where_nobody_tells() -> None:
    rows = [record(0, s, turns=2, prompt_tokens=10, completion_tokens=5) for s in range(3)]
    summary = summarize(rows)
    assert (summary.turns, summary.prompt_tokens, summary.completion_tokens) == (6, 30, 15)
    assert summary.cached_tokens is None
    assert summarize([*rows, record(1, cached_tokens=0)]).cached_tokens == 0


def test_a_truncated_trajectory_is_scored() -> None:
    summary = summarize([record(0, status=Ending.TRUNCATED), record(1, success=False)])
    assert (summary.truncated, summary.finished) == (1, 1)
    assert summary.accuracy is not None
    assert summary.accuracy.successes == 1


def test_a_large_sum_does_not_swallow_small_rewards() -> None:
    rewards = [1e16, *[1.0] * 1000, -1e16]
    assert summarize(record(i, reward=r) for i, r in enumerate(rewards)).mean_reward == pytest.approx(1000 / 1002)


@settings(deadline=None)
@given(runs, st.randoms(use_true_random=False))
def test_the_order_of_records_does_not_matter(run: dict[tuple[int, int], object], order: random.Random) -> None:
    rows = rows_of(run)
    shuffled = order.sample(rows, len(rows))
    assert summarize(rows) == summarize(shuffled)  # type: ignore[arg-type]


@settings(deadline=None)
@given(runs)
def test_the_summary_agrees_with_counting_by_hand(run: dict[tuple[int, int], object]) -> None:
    accumulator = SummaryAccumulator()
    for row in rows_of(run):
        accumulator.add(row)  # type: ignore[arg-type]
    summary = accumulator.summary()
    counted = {key: got for key, got in run.items() if got is not None}
    if not any(got != "failed" for got in counted.values()):
        assert summary.accuracy is None
        return
    values = [float(got is True) for got in counted.values()]
    assert summary.accuracy is not None
    assert summary.accuracy.value == pytest.approx(sum(values) / len(values))
    expected = naive.clustered_standard_error(values, [task for task, _ in counted])
    got = math.nan if summary.accuracy_cluster_se is None else summary.accuracy_cluster_se
    assert got == pytest.approx(expected, nan_ok=True, abs=1e-9)
    tasks = {t: [got is True for (of, _), got in counted.items() if of == t] for t, _ in counted}
    for k, mean in summary.pass_at_k.items():
        eligible = [naive.pass_at_k(len(s), sum(s), k) for s in tasks.values() if len(s) >= k]
        assert mean.n == len(eligible)
        assert mean.value == pytest.approx(sum(eligible) / len(eligible))
