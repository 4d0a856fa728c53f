"""Answer extraction: the last finished answer wins, thinking is no answer, and hostile text costs linear work."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llenvs_fast.core.extraction import (
    AnswerExtractor,
    BoxedExtractor,
    LastLineExtractor,
    NumericExtractor,
    RawExtractor,
    TagBasedExtractor,
    answer_extractor_registry,
    strip_thinking,
)

MEGABYTE = 2**20


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so <answer> 12 </answer>.", "12"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("<Answer>yes</ANSWER>", "yes"),
        ("<answer>a <answer>b</answer> c</answer>", "b"),
        ("<answer>1</answer> or <answer>2", None),
        ("2</answer>", None),
        ("<answer>  </answer>", None),
        ("<answer>two\nlines</answer>", "two\nlines"),
        ("<answers>1</answers>", None),
        ("", None),
    ],
)
def test_the_last_finished_tag_wins(text: str, answer: str | None) -> None:
    assert TagBasedExtractor().extract(text)[0] == answer


def test_another_tag_may_be_used() -> None:
    text = "<answer>1</answer><final.x>2</final.x><finalyx>3</finalyx>"
    assert TagBasedExtractor(tag="final.x").extract(text)[0] == "2"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think><answer>draft</answer></think> so <answer>real</answer>", "real"),
        ("<think><answer>draft</answer></think> I don't know", None),
        ("<think> hmm <answer>draft</answer>", None),
        ("<answer>draft</answer></think> I don't know", None),
        ("<answer>real</answer><think> <answer>draft</answer> </think>", "real"),
        ("<think>a</think><answer>1</answer><think>b", "1"),
    ],
)
def test_an_answer_drafted_in_the_thinking_does_not_win(text: str, answer: str | None) -> None:
    assert TagBasedExtractor().extract(text)[0] == answer


def test_thinking_is_read_when_asked_for() -> None:
    assert TagBasedExtractor(ignore_thinking=False).extract("<think><answer>draft</answer></think>")[0] == "draft"


@given(st.lists(st.sampled_from(["<think>", "</think>", "a", "b"]), max_size=12))
def test_strip_thinking_agrees_with_its_slow_twin(pieces: list[str]) -> None:
    text = "".join(pieces)
    slow = text
    while (closed := slow.find("</think>")) >= 0:
        opened = slow.find("<think>", 0, closed)
        slow = slow[: max(opened, 0)] + slow[closed + len("</think>") :]
        if opened >= 0:  # kept text must not be read again as thinking
            slow = slow[:opened].replace("a", "A").replace("b", "B") + slow[opened:]
    slow = re.sub(r"<think>.*", "", slow).lower()
    assert strip_thinking(text) == slow


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{1} then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{1} \boxed{2", None),
        ("boxed{1}", None),
        (r"\boxed{}", None),
    ],
)
def test_the_last_box_wins_with_balanced_braces(text: str, answer: str | None) -> None:
    assert BoxedExtractor().extract(text)[0] == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("1 then 2.", "2"),
        ("$1,234,567.50 in all", "1234567.50"),
        ("values 1,2,3", "3"),
        ("12,3456", "3456"),
        ("it is -7", "-7"),
        ("it is \N{MINUS SIGN}7", "-7"),
        ("10-3", "3"),
        ("x = +4", "4"),
        ("about .5", ".5"),
        ("6.02e23 atoms", "6.02e23"),
        ("3 / 4 of it", "3/4"),
        ("-3/4", "-3/4"),
        ("none", None),
        ("...", None),
    ],
)
def test_the_last_number_wins(text: str, answer: str | None) -> None:
    assert NumericExtractor().extract(text)[0] == answer


@given(st.integers())
def test_any_integer_is_found_with_and_without_separators(number: int) -> None:
    for text in (f"it is {number}.", f"it is {number:,}."):
        assert NumericExtractor().extract(text)[0] == str(number)


def test_last_line_and_raw() -> None:
    assert LastLineExtractor().extract("a\n b \n\n")[0] == "b"
    assert LastLineExtractor().extract(" \n")[0] is None
    assert RawExtractor().extract(" <think>a</think> b ")[0] == " <think>a</think> b "
    assert RawExtractor().extract("  ")[0] is None


def test_a_missing_answer_carries_its_reason() -> None:
    assert TagBasedExtractor().extract("<answer>1") == (None, {"extractor": "tag_based", "reason": "unclosed"})
    assert BoxedExtractor().extract("1") == (None, {"extractor": "boxed", "reason": "no_match"})


def test_the_registry_makes_extractors_by_name() -> None:
    assert answer_extractor_registry.keys() == ["boxed", "last_line", "numeric", "raw", "tag_based"]
    assert all(isinstance(answer_extractor_registry.get(name), AnswerExtractor) for name in answer_extractor_registry)
    assert answer_extractor_registry.create("tag_based", tag="x") == TagBasedExtractor(tag="x")


HOSTILE_UNITS = [
    "<answer>", "</answer>", "<answer", "<think>", "</think>", "<think><answer>", "\\boxed{", "{", "}", "\\",
    "1", "1,", "1,234", ",", ".", "1.", "-", "1/", "1 ", " ", "\n", "e", "1e", "\0", "\ud800", "İ",
]  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", answer_extractor_registry.keys())
def test_a_megabyte_of_hostile_text_is_read(name: str) -> None:
    # anything worse than linear would run for hours here; the timeout only ends such a run
    extractor = answer_extractor_registry.get(name)
    for unit in HOSTILE_UNITS:
        answer, how = extractor.extract(unit * (MEGABYTE // len(unit)))
        assert (answer is None) == ("reason" in how)
