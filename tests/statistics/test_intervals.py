from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.proportion import proportion_confint

from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.statistics import normal_quantile, wilson_interval
from tests import naive

counts = st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (0, 5, 0.0, 0.4345),
        (5, 5, 0.5655, 1.0),
        (9, 10, 0.5959, 0.9821),
        (17, 20, 0.6396, 0.9476),
        (850, 1000, 0.8265, 0.8708),
        (2, 8, 0.0715, 0.5907),
        (2, 6, 0.0968, 0.7000),
        (85, 100, 0.7672, 0.9069),
        (7, 10, 0.3968, 0.8922),
    ],
)
def test_wilson_gives_the_known_values(successes: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=6e-5)


@settings(deadline=None)
@given(counts, st.floats(0.01, 0.999))
def test_wilson_agrees_with_statsmodels(count: tuple[int, int], confidence: float) -> None:
    expected = proportion_confint(*count, alpha=1 - confidence, method="wilson")
    np.testing.assert_allclose(wilson_interval(*count, confidence), expected, rtol=1e-9, atol=1e-12)


@settings(deadline=None)
@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_agrees_with_its_definition(count: tuple[int, int]) -> None:
    expected = naive.wilson_interval(*count, normal_quantile(0.95))
    np.testing.assert_allclose(wilson_interval(*count), expected, rtol=1e-6, atol=1e-7)


@settings(deadline=None)
@given(counts)
def test_wilson_holds_the_rate_and_never_leaves_0_to_1(count: tuple[int, int]) -> None:
    low, high = wilson_interval(*count)
    assert 0.0 <= low <= count[0] / count[1] <= high <= 1.0
    assert low < high


def test_wilson_ends_exactly_at_the_boundary() -> None:
    assert wilson_interval(0, 3)[0] == 0.0
    assert wilson_interval(3, 3)[1] == 1.0


def test_wilson_of_nothing_is_undefined() -> None:
    assert all(math.isnan(bound) for bound in wilson_interval(0, 0))


def test_wilson_takes_arrays_and_broadcasts() -> None:
    low, high = wilson_interval([[0], [1]], [1, 2, 4])
    assert low.shape == high.shape == (2, 3)
    assert (low[1, 2], high[1, 2]) == wilson_interval(1, 4)


@pytest.mark.parametrize(("successes", "n"), [(-1, 5), (6, 5), (float("nan"), 5)])
def test_wilson_refuses_what_is_no_count(successes: float, n: int) -> None:
    with pytest.raises(ValueError, match="give 0 ≤ successes ≤ n"):
        wilson_interval(successes, n)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95, float("nan")])
def test_confidence_is_a_share(confidence: float) -> None:
    with pytest.raises(InvalidSettingError, match="between 0 and 1"):
        wilson_interval(1, 2, confidence)
