from __future__ import annotations

import dataclasses
import json
import math
from collections import deque
from datetime import date, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llenvs_fast.core.errors import BadRewardError, Failure, Phase
from llenvs_fast.results import Ending, TrajectoryRecord
from tests.results.rows import failed, record


class Colour(Enum):
    RED = "red"


class Rude:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class RudeSet(frozenset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise RuntimeError("no")


def read(line: bytes) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    return json.loads(line.decode("utf-8", "strict"), parse_constant=refuse)


def info_of(value: Any) -> Any:
    row = record(info={"value": value})
    assert read(row.to_json_line()) == row.to_json_row()
    return row.to_json_row()["info"]["value"]


def test_a_row_starts_with_the_documented_keys_and_ends_with_its_own_key() -> None:
    keys = list(record(3, 2).to_json_row())
    assert keys[:7] == ["prompt", "completion", "reward", "metrics", "task", "info", "timing"]
    assert record(3, 2).to_json_line().endswith(b'"task_index":3,"sample":2,"status":"finished"}\n')


def test_other_readers_find_the_example_id() -> None:
    assert record(3).to_json_row()["example_id"] == 3


def test_a_record_survives_the_journal_and_back() -> None:
    for row in (record(1, 2, tokens={"turns": [{"token_ids": [1, 2], "logprobs": [-0.5, -1.0]}]}), failed(7)):
        assert TrajectoryRecord.from_json_row(read(row.to_json_line())) == row


def test_a_failure_is_kept_with_its_fields() -> None:
    failure = Failure.from_exception(KeyError("x"), Phase.STEP, 2)
    row = record(status=Ending.FAILED, failure=dataclasses.asdict(failure))
    assert read(row.to_json_line())["failure"]["phase"] == "step"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.longdouble(0.25), 0.25),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([Path("a"), None], dtype=object), ["a", None]),
        (np.datetime64("2026-03-03"), "2026-03-03"),
        ({"b", "a", 3}, [3, "a", "b"]),
        ((1, (2,)), [1, [2]]),
        (deque([1]), "deque([1])"),
        (datetime(2026, 3, 3, 14, 23), "2026-03-03T14:23:00"),
        (date(2026, 3, 3), "2026-03-03"),
        (timedelta(minutes=1), 60.0),
        (Path("/a/b"), "/a/b"),
        (Colour.RED, "red"),
        ({Colour.RED: 1, None: 2, 3: 4, (5, 6): 7}, {"red": 1, "null": 2, "3": 4, "(5, 6)": 7}),
        (b"text", "text"),
        (b"\xff\x00", "\\xff\x00"),
        (ValueError("bad"), "bad"),
        (1 + 2j, "(1+2j)"),
        ("lone \ud800 surrogate", "lone \ufffd surrogate"),
        ("\ud83d\ude00", "\U0001f600"),
        ("NUL \x00, line \u2028 end\n", "NUL \x00, line \u2028 end\n"),
        (Failure("k", "m", Phase.RESET, 0, "E"), dataclasses.asdict(Failure("k", "m", Phase.RESET, 0, "E"))),
        ({}, {}),
        ({"a": {"b": None}}, {"a": {"b": None}}),
        (2**2000, 2**2000),
        (2**20000, hex(2**20000)),
        (Rude(), "<Rude without text: RuntimeError>"),
        (RudeSet(), "<RudeSet without text: RuntimeError>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_value_in_info_becomes_json(value: Any, expected: Any) -> None:
    assert info_of(value) == expected


def test_a_value_inside_itself_ends() -> None:
    inside: dict[str, Any] = {}
    inside["again"] = [inside, inside]
    assert info_of(inside) == {"again": ["<cycle>", "<cycle>"]}


def test_a_value_without_end_ends() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    text = json.dumps(record(info={"value": deep}).to_json_row())
    assert "<nested too deep>" in text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_a_non_finite_number_is_null_and_named(value: float) -> None:
    row = record(reward=value, metrics={"loss": value}, info={"a": [0.0, value]})
    written = read(row.to_json_line())
    assert written["reward"] is None
    assert written["metrics"] == {"loss": None}
    assert written["info"] == {"a": [0.0, None]}
    assert written["non_finite"] == ["reward", "metrics.loss", "info.a.1"]


@pytest.mark.parametrize("reward", ["x", [1.0], {"r": 1}])
def test_a_reward_is_a_number_or_none(reward: Any) -> None:
    with pytest.raises(BadRewardError, match=r"trajectory \(4, 1\) has reward .*: give one number, or None"):
        record(4, 1, reward=reward)


def test_a_row_that_lacks_its_key_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="lacks sample, status"):
        TrajectoryRecord.from_json_row({"task_index": 1, "episode_id": "e"})


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary() | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.none(), inner) | st.tuples(inner),
    max_leaves=20,
)


@settings(deadline=None)
@given(anything, st.text(st.characters()))
def test_whatever_is_in_a_record_its_line_is_strict_json_and_says_what_the_row_says(value: Any, text: str) -> None:
    row = record(info={"value": value}, completion=[{"role": "assistant", "content": text}])
    assert read(row.to_json_line()) == row.to_json_row()
