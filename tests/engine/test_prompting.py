"""Prompts as token appends: earlier ids bit for bit, then only what is new."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llenvs_fast.engine.prompting import common_prefix, new_messages
from llenvs_fast.engine.rollout import Rollout, RolloutSpec
from llenvs_fast.inference.protocol import ChatMessage, GenerationResult
from tests.worlds import EchoWorld


def after_one_turn(messages: tuple[ChatMessage, ...], reply: str) -> Rollout:
    rollout = Rollout(RolloutSpec(0, 1), 5)
    rollout.was_reset(*EchoWorld().reset(options={"task_index": 1}))
    rollout.was_prompted(messages, (1, 2, 3))
    rollout.was_submitted(None)
    rollout.was_generated(GenerationResult(reply, token_ids=(4,)), 0.0)
    return rollout


USER = ChatMessage("user", "hello")


def test_a_conversation_that_only_grew_gives_what_is_new() -> None:
    rollout = after_one_turn((USER,), "hi")
    more = ChatMessage("user", "more")
    assert new_messages(rollout, (USER, ChatMessage("assistant", "hi"), more)) == (more,)


def test_a_reply_shown_otherwise_is_a_rewritten_history() -> None:
    rollout = after_one_turn((USER,), "<think>x</think>hi")
    assert new_messages(rollout, (USER, ChatMessage("assistant", "hi"), ChatMessage("user", "more"))) is None


def test_a_changed_earlier_message_is_a_rewritten_history() -> None:
    rollout = after_one_turn((USER,), "hi")
    changed = (ChatMessage("user", "hello, turn 2"), ChatMessage("assistant", "hi"), ChatMessage("user", "more"))
    assert new_messages(rollout, changed) is None
    assert new_messages(rollout, (USER,)) is None


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_common_prefix_is_the_longest(a: list[int], b: list[int]) -> None:
    n = common_prefix(tuple(a), tuple(b))
    assert a[:n] == b[:n]
    assert n == len(a) or n == len(b) or a[n] != b[n]
