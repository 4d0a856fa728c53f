"""What the model reads next: from an environment's state to token ids.

The ids of earlier turns are the source of truth. While the conversation only grows, the next prompt is those ids bit
for bit plus a newly encoded suffix; where an option rewrites history, the conversation is rendered anew and the earlier
tokens that no longer fit are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llenvs_fast.core.errors import Phase
from llenvs_fast.core.state import State
from llenvs_fast.core.trajectory import Trajectory
from llenvs_fast.engine.rollout import Rollout
from llenvs_fast.inference.protocol import ChatMessage
from llenvs_fast.inference.rendering import ChatRenderer

BuildMessages = Callable[[State, Trajectory], Sequence[ChatMessage]]


def prompt_rollouts(rollouts: Sequence[Rollout], build: BuildMessages, renderer: ChatRenderer | None) -> None:
    """Give every rollout its next prompt; one whose messages or rendering fail ends as failed, alone."""
    first: list[tuple[Rollout, tuple[ChatMessage, ...]]] = []
    for rollout in rollouts:
        try:
            assert rollout.trajectory is not None
            messages = tuple(build(rollout.state, rollout.trajectory))
            if renderer is None:
                rollout.was_prompted(messages, ())
            elif rollout.turns:
                rollout.was_prompted(messages, *continued(rollout, messages, renderer))
            else:
                first.append((rollout, messages))
        except Exception as error:
            rollout.has_failed(error, Phase.RENDER)
    if first and renderer is not None:
        _render_first(first, renderer)


def _render_first(first: list[tuple[Rollout, tuple[ChatMessage, ...]]], renderer: ChatRenderer) -> None:
    plain = [(r, m) for r, m in first if not r.state.observation.available_tools]
    try:
        rendered = renderer.render_batch([m for _, m in plain])
    except Exception:
        rendered = None  # some conversation can't be rendered: find it below
    if rendered is not None:
        for (rollout, messages), ids in zip(plain, rendered, strict=True):
            rollout.was_prompted(messages, ids)
    for rollout, messages in first:
        tools = rollout.state.observation.available_tools
        if tools or rendered is None:
            try:
                rollout.was_prompted(messages, renderer.render(messages, tools=tools))
            except Exception as error:
                rollout.has_failed(error, Phase.RENDER)


def continued(
    rollout: Rollout, messages: tuple[ChatMessage, ...], renderer: ChatRenderer
) -> tuple[tuple[int, ...], int]:
    """The ids of the next prompt after at least one turn, and how many earlier ids it could not keep."""
    tools = rollout.state.observation.available_tools
    new = new_messages(rollout, messages)
    if new is not None:
        ended = bool(rollout.ids) and rollout.ids[-1] in renderer.end_of_turn_ids
        return rollout.ids + renderer.suffix(new, ended, tools=tools), 0
    ids = renderer.render(messages, tools=tools)
    return ids, len(rollout.ids) - common_prefix(rollout.ids, ids)


def new_messages(rollout: Rollout, messages: tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...] | None:
    """What stands after the model's last reply, or None where the conversation is not the earlier one continued."""
    n = len(rollout.messages)
    result = rollout.turns[-1].result
    if len(messages) <= n or messages[:n] != rollout.messages:
        return None
    reply = messages[n]
    said_the_same = (reply.content or "") == (result.text or "") and reply.tool_calls == result.tool_calls
    return messages[n + 1 :] if reply.role == "assistant" and said_the_same else None


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])
