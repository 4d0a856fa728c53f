"""Tool calls in text: read whole, or reported; never made up."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llenvs_fast.core.tools import ToolCall
from llenvs_fast.inference.tool_calls import parse_hermes

JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x), max_leaves=5)


def block(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


@given(st.lists(st.dictionaries(st.text(), JSON), max_size=3))
def test_calls_come_back_with_the_arguments_that_were_written(arguments: list[dict[str, object]]) -> None:
    blocks = [block(json.dumps({"name": f"tool_{i}", "arguments": a})) for i, a in enumerate(arguments)]
    text, calls, errors = parse_hermes("before " + "".join(blocks) + " after")
    assert text is not None
    assert text.split() == ["before", "after"]
    assert calls == tuple(ToolCall(f"call_{i}", f"tool_{i}", a) for i, a in enumerate(arguments))
    assert errors == ()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"name": "f", "arguments": {"a": 1}', "no JSON"),
        ("[1, 2]", "a JSON list"),
        ("3", "a JSON int"),
        ('""', "a JSON str"),
        ("", "no JSON"),
        ('{"name": "f", "arguments": [1, 2]}', r'"arguments" are \[1, 2\]'),
        ('{"name": "f"}', '"arguments" are null'),
        ('{"name": "f", "arguments": "{}"}', r'"arguments" are "\{\}"'),
        ('{"arguments": {}}', 'no "name"'),
        ('{"name": 7, "arguments": {}}', 'no "name"'),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_a_call_that_can_not_be_read_is_an_error_beside_the_good_ones(body: str, said: str) -> None:
    good = block('{"name": "g", "arguments": {"quote": "say \\"</hi>\\""}}')
    text, calls, (error,) = parse_hermes(block(body) + good)
    assert text is None
    assert calls == (ToolCall("call_1", "g", {"quote": 'say "</hi>"'}),)
    assert re.search(said, error)


def test_a_call_cut_off_by_the_token_limit_is_an_error() -> None:
    text, calls, errors = parse_hermes('sure <tool_call>{"name": "f", "arguments": {}}')
    assert text == "sure"
    assert calls == ()
    assert "no closing </tool_call>" in errors[0]


def test_a_call_left_open_does_not_swallow_the_next() -> None:
    _, calls, errors = parse_hermes('<tool_call>{"name": ' + block('{"name": "f", "arguments": {}}'))
    assert [c.name for c in calls] == ["f"]
    assert len(errors) == 1


def test_text_without_calls_is_text() -> None:
    assert parse_hermes(" just text ") == ("just text", (), ())
    assert parse_hermes("") == (None, (), ())
