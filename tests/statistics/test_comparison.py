"""Two runs on shared tasks: aligned, tested and planned for, against scipy, statsmodels and enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.statistics import (
    mcnemar_test,
    minimum_detectable_effect,
    pair_runs,
    paired_bootstrap,
    paired_difference,
    samples_needed,
    sign_flip_test,
    tasks_needed,
)

differences_ = st.lists(st.floats(-10, 10) | st.sampled_from([0.0, 1.0, -1.0]), min_size=1, max_size=9)


def test_runs_are_aligned_by_task_and_what_is_left_out_is_counted() -> None:
    paired = pair_runs(
        [1.0, 0.0, 1.0, None, 1.0], ["a", "a", "b", "c", "d"], [1.0, 1.0, 0.0, 1.0, np.nan], ["b", "e", "a", "c", "b"]
    )  # type: ignore[list-item]
    assert paired.tasks.tolist() == ["a", "b"]
    assert paired.baseline.tolist() == [0.5, 1.0]
    assert paired.candidate.tolist() == [0.0, 1.0]
    assert paired.differences.tolist() == [-0.5, 0.0]
    assert paired.baseline_samples.tolist() == [2, 1]
    assert (paired.only_baseline, paired.only_candidate, paired.unscored, paired.missing) == (1, 1, 1, 2)
    with pytest.raises(ValueError, match="same type"):
        pair_runs([1.0], ["a"], [1.0], [1])


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(-5, 5)), min_size=1, max_size=20), st.randoms())
def test_alignment_knows_no_order_and_swapping_the_runs_swaps_the_sign(
    rows: list[tuple[int, float]], random: object
) -> None:
    tasks, x = [t for t, _ in rows], [v for _, v in rows]
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    a = pair_runs(x, tasks, [v + 1 for v in x], tasks)
    b = pair_runs([v + 1 for v in x], tasks, [x[i] for i in order], [tasks[i] for i in order])
    np.testing.assert_allclose(a.differences, 1.0)
    np.testing.assert_allclose(b.differences, -1.0)


def test_the_paired_difference_is_scipys() -> None:
    d = np.random.default_rng(0).normal(0.3, 1.0, 50)
    found = paired_difference(d)
    theirs = scipy.stats.ttest_1samp(d, 0.0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high))
    resampled = paired_bootstrap(d, resamples=4_000)
    assert resampled.low == pytest.approx(found.low, abs=0.06)
    grouped = paired_difference(np.repeat(d, 3), np.repeat(np.arange(50), 3))
    assert grouped.standard_error == pytest.approx(found.standard_error)


def test_mcnemar_has_the_known_value_and_is_the_binomial_test() -> None:
    assert mcnemar_test(9, 1) == pytest.approx(0.021484, abs=1e-6)
    assert mcnemar_test(0, 0) == 1.0
    gained, lost = np.arange(30), np.arange(30)[::-1]
    expected = [scipy.stats.binomtest(int(b), int(b + c)).pvalue for b, c in zip(gained, lost, strict=True)]
    np.testing.assert_allclose(mcnemar_test(gained, lost), expected)
    np.testing.assert_array_equal(mcnemar_test(gained, lost), mcnemar_test(lost, gained))
    with pytest.raises(ValueError, match="counts"):
        mcnemar_test(-1, 2)
    with pytest.raises(ValueError, match="masked"):
        mcnemar_test(np.ma.array([9, 9], mask=[False, True]), [1, 1])


def test_narrow_counts_do_not_wrap_around() -> None:
    for kind in (np.int8, np.uint8, np.int16):
        assert mcnemar_test(kind(100), kind(90)) == pytest.approx(mcnemar_test(100, 90))


def test_labels_between_those_of_a_run_are_no_tasks_of_it() -> None:
    paired = pair_runs([1.0, 2.0, 3.0, 4.0], [0, 2, 4, 9], [1.0, 2.0], [2, 3])
    assert (paired.tasks.tolist(), paired.only_baseline, paired.only_candidate, paired.unscored) == ([2], 3, 1, 0)


@settings(deadline=None)
@given(differences_)
def test_sign_flips_are_all_of_them(d: list[float]) -> None:
    flips = itertools.product([1, -1], repeat=len(d))
    sums = [abs(sum(s * x for s, x in zip(signs, d, strict=True))) for signs in flips]
    slack = 1e-12 * sum(map(abs, d))
    expected = sum(s >= abs(sum(d)) - slack for s in sums) / len(sums)
    found = sign_flip_test(d)
    assert found.exact
    assert found.p_value == pytest.approx(expected)
    assert sign_flip_test([-x for x in d]).p_value == pytest.approx(expected)


def test_of_binary_differences_the_sign_flip_test_is_mcnemars() -> None:
    assert sign_flip_test([1.0] * 9 + [-1.0] + [0.0] * 30).p_value == pytest.approx(mcnemar_test(9, 1))


def test_many_differences_are_flipped_at_random_and_seeded() -> None:
    d = np.random.default_rng(1).normal(0.15, 1.0, 200)
    found = sign_flip_test(d, flips=20_000)
    assert not found.exact
    assert found.p_value == pytest.approx(scipy.stats.ttest_1samp(d, 0.0).pvalue, abs=0.02)
    assert found == sign_flip_test(d, flips=20_000)
    assert found != sign_flip_test(d, flips=20_000, seed=1)
    together = sign_flip_test(np.repeat(d, 2), np.repeat(np.arange(200), 2), flips=20_000)
    assert together.p_value == pytest.approx(found.p_value, abs=0.02)


def test_the_sign_flip_test_keeps_its_size() -> None:
    """No difference: p ≤ 0.05 in at most 0.065 of 1,000 simulations of 12 tasks."""
    rng = np.random.default_rng(2)
    assert np.mean([sign_flip_test(rng.normal(size=12)).p_value <= 0.05 for _ in range(1_000)]) <= 0.065


def test_no_differences() -> None:
    assert math.isnan(sign_flip_test([]).p_value)
    assert sign_flip_test([0.0, 0.0]).p_value == 1.0
    found = sign_flip_test([1.0, None])  # type: ignore[list-item]
    assert (found.n, found.missing) == (1, 1)
    with pytest.raises(InvalidSettingError, match="flips"):
        sign_flip_test([1.0], flips=0)


def test_power_is_statsmodels() -> None:
    from statsmodels.stats.power import NormalIndPower

    effect = NormalIndPower(ddof=0).solve_power(nobs1=400, alpha=0.05, power=0.8, ratio=0)
    assert minimum_detectable_effect(1.0, 0.0, 400) == pytest.approx(effect, rel=1e-3)


@given(
    st.floats(0.0, 1.0), st.floats(0.001, 1.0), st.integers(1, 5_000), st.integers(1, 64),
    st.floats(0.5, 0.99), st.floats(0.55, 0.95),
)  # fmt: skip
def test_what_is_needed_is_the_fewest_that_detect_the_effect(
    between: float, within: float, tasks: int, samples: int, confidence: float, power: float
) -> None:
    levels = {"confidence": confidence, "power": power}
    effect = minimum_detectable_effect(between, within, tasks, samples, **levels)
    assert tasks_needed(effect, between, within, samples, **levels) == tasks
    needed = samples_needed(effect * 1.0000001, between, within, tasks, **levels)
    assert needed is not None
    assert minimum_detectable_effect(between, within, tasks, needed, **levels) <= effect * 1.000001
    assert needed <= samples
    if between > 0.01:
        limit = minimum_detectable_effect(between, 0.0, tasks, **levels)
        assert samples_needed(0.99 * limit, between, within, tasks, **levels) is None


def test_a_planned_comparison_finds_the_effect_as_often_as_it_says() -> None:
    """80 % power, 2,000 simulations of 50 tasks: 0.76 to 0.84."""
    rng = np.random.default_rng(3)
    effect = minimum_detectable_effect(1.0, 2.0, 50, 4)
    d = effect + rng.normal(size=(2_000, 50)) + rng.normal(size=(2_000, 50, 4)).mean(axis=2) * math.sqrt(2.0)
    z = np.abs(d.mean(axis=1)) / math.sqrt((1.0 + 2.0 / 4) / 50)
    assert 0.76 <= np.mean(z > 1.959964) <= 0.84


def test_strange_plans_are_refused() -> None:
    for call in (
        lambda: minimum_detectable_effect(-1.0, 0.0, 10),
        lambda: minimum_detectable_effect(1.0, 0.0, 0),
        lambda: tasks_needed(0.0, 1.0, 1.0),
        lambda: samples_needed(1.0, 1.0, 1.0, 10, power=1.0),
        lambda: minimum_detectable_effect(1.0, 0.0, 10, power=0.01),
        lambda: minimum_detectable_effect(1.0, 0.0, math.nan),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidSettingError, match="give"):
            call()


def test_the_random_sign_flip_test_keeps_its_size() -> None:
    """No difference: p ≤ 0.05 in at most 0.07 of 1,000 simulations of 25 tasks, too many for all flips."""
    rng = np.random.default_rng(4)
    found = [sign_flip_test(rng.normal(size=25), flips=999, seed=i) for i in range(1_000)]
    assert not any(f.exact for f in found)
    assert np.mean([f.p_value <= 0.05 for f in found]) <= 0.07


def test_paired_intervals_cover_the_difference() -> None:
    """Nominally 95 %: t of 15 tasks 0.935 to 0.965 of 2,000 simulations, bootstrap of 40 tasks 0.90 to 0.97 of 500."""
    rng = np.random.default_rng(5)
    t = [paired_difference(rng.normal(size=15)) for _ in range(2_000)]
    b = [paired_bootstrap(rng.normal(size=40), resamples=1_000, seed=i) for i in range(500)]
    assert 0.935 <= np.mean([e.low <= 0 <= e.high for e in t]) <= 0.965
    assert 0.90 <= np.mean([e.low <= 0 <= e.high for e in b]) <= 0.97


def test_separate_tasks_need_the_variances_of_both_runs() -> None:
    from statsmodels.stats.power import NormalIndPower

    effect = NormalIndPower().solve_power(nobs1=400, alpha=0.05, power=0.8, ratio=1)
    assert minimum_detectable_effect(2.0, 0.0, 400) == pytest.approx(effect, rel=1e-3)
    assert minimum_detectable_effect(0.0, 2.0 * 16, 400, 16) == pytest.approx(effect, rel=1e-3)
