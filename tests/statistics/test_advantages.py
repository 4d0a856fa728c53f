"""Group advantages against their definitions, row by row; what is missing moves nothing."""

from __future__ import annotations

import math
import statistics as stdlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.statistics import group_advantages

reward = st.sampled_from([0.0, 1.0, 0.25, -3.5, math.nan]) | st.floats(-100, 100)
tables = arrays(np.float64, st.tuples(st.integers(0, 4), st.integers(1, 6)), elements=reward)


def twin(row: list[float], method: str, epsilon: float) -> list[float]:
    known = [r for r in row if not math.isnan(r)]
    out = []
    for i, r in enumerate(row):
        others = [o for j, o in enumerate(row) if j != i and not math.isnan(o)]
        if math.isnan(r):
            out.append(math.nan)
        elif not others or len(set(known)) == 1:
            out.append(0.0)
        elif method == "rloo":
            out.append(r - stdlib.fmean(others))
        elif method == "dr_grpo":
            out.append(r - stdlib.fmean(known))
        else:
            out.append((r - stdlib.fmean(known)) / (stdlib.stdev(known) + epsilon))
    return out


@pytest.mark.parametrize("method", ["grpo", "rloo", "dr_grpo"])
@given(table=tables)
def test_each_row_is_its_definition(method: str, table: np.ndarray) -> None:
    found = group_advantages(table, method=method, epsilon=1e-4)
    expected = np.array([twin(row, method, 1e-4) for row in table.tolist()]).reshape(table.shape)
    np.testing.assert_allclose(found.values, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found.missing, np.isnan(table).sum(axis=1))
    np.testing.assert_array_equal(found.n + found.missing, table.shape[1])


@given(table=tables, shift=st.floats(-10, 10))
def test_advantages_sum_to_zero_and_know_no_shift(table: np.ndarray, shift: float) -> None:
    found = group_advantages(table, method="dr_grpo").values
    np.testing.assert_allclose(np.nansum(found, axis=1), 0.0, atol=1e-9)
    np.testing.assert_allclose(group_advantages(table + shift, method="dr_grpo").values, found, atol=1e-6)


def test_a_mask_is_a_missing_reward_and_not_a_zero() -> None:
    rewards = [[1.0, 0.0, 1.0], [1.0, 1.0, 1.0], [0.5, 9.0, 9.0]]
    mask = np.array([[True, True, False], [True, True, True], [True, False, False]])
    found = group_advantages(rewards, mask, method="rloo")
    np.testing.assert_allclose(found.values, [[1.0, -1.0, np.nan], [0.0, 0.0, 0.0], [0.0, np.nan, np.nan]])
    assert found.flat_groups == 1
    assert found.n.tolist() == [2, 3, 1]
    assert group_advantages([[0.1] * 3], epsilon=0.0).values.tolist() == [[0.0] * 3]
    with pytest.raises(ValueError, match="masked"):
        group_advantages([[1.0, 2.0]], np.ma.array([[True, True]], mask=[[False, True]]))


def test_tiny_rewards_are_normalised_as_others() -> None:
    half = math.sqrt(0.5)
    np.testing.assert_allclose(group_advantages([[0.0, 1e-200]], epsilon=0.0).values, [[-half, half]])


@pytest.mark.parametrize("method", ["grpo", "rloo", "dr_grpo"])
@given(table=tables, seed=st.integers(0, 99))
def test_the_order_of_samples_does_not_matter(method: str, table: np.ndarray, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(table.shape[1])
    found = group_advantages(table[:, order], method=method)
    np.testing.assert_allclose(found.values, group_advantages(table, method=method).values[:, order], atol=1e-6)


def test_bad_arguments() -> None:
    with pytest.raises(InvalidSettingError, match="grpo"):
        group_advantages([[1.0]], method="grp")
    with pytest.raises(ValueError, match="give"):
        group_advantages([1.0])
    with pytest.raises(ValueError, match="booleans of shape"):
        group_advantages([[1.0, 2.0]], [[1, 0]])
    with pytest.raises(ValueError, match="finite"):
        group_advantages([[math.inf]])
    with pytest.raises(InvalidSettingError, match="0 or more"):
        group_advantages([[1.0]], epsilon=-1.0)
