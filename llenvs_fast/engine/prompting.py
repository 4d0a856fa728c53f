"""What the model reads next: from an environment's state to token ids.

The ids of earlier turns are the source of truth. While the conversation only grows, the next prompt is those ids bit
for bit plus a newly encoded suffix. Options and chat templates that show earlier turns otherwise are obeyed, kept out
or refused, as the run's `History` says; where they are obeyed, the context is kept up to the first token that differs,
and what could not be kept is counted with its cause.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from enum import StrEnum

import numpy as np

from llenvs_fast.core.errors import LLEnvsError, Phase
from llenvs_fast.core.state import State
from llenvs_fast.core.trajectory import Trajectory
from llenvs_fast.engine.budgets import OverBudgetError
from llenvs_fast.engine.rollout import LossCause, Rollout
from llenvs_fast.inference.prompt_check import too_long
from llenvs_fast.inference.protocol import ChatMessage
from llenvs_fast.inference.rendering import ChatRenderer

Messages = tuple[ChatMessage, ...]
BuildMessages = Callable[[State, Trajectory], Sequence[ChatMessage]]


class History(StrEnum):
    """How earlier turns stand in later prompts."""

    TEMPLATE = "template"
    """As the options and the chat template show them: what a chat API would send."""
    KEEP = "keep"
    """As they were read and sampled, token for token, whatever options and template say: what RL needs."""
    REFUSE = "refuse"
    """As in both of the above, which must not differ: a trajectory in which they do fails."""


class HistoryRewrittenError(LLEnvsError, ValueError):
    """An option or the chat template shows earlier turns otherwise than they were, and the run forbids it."""

    kind = "history_rewritten"


def prompt_rollouts(
    rollouts: Sequence[Rollout],
    build: BuildMessages,
    renderer: ChatRenderer | None,
    history: History = History.TEMPLATE,
) -> None:
    """Give every rollout its next prompt. One that can have none ends, alone: as failed, or truncated by its budget."""
    first: list[tuple[Rollout, Messages]] = []
    for rollout in rollouts:
        try:
            if renderer is None:
                rollout.was_prompted(_built(rollout, build), None)
            elif rollout.turns:
                _continue(rollout, build, renderer, history)
            else:
                first.append((rollout, _built(rollout, build)))
        except Exception as error:
            _end(rollout, error)
    if first and renderer is not None:
        _render_first(first, renderer)


def _built(rollout: Rollout, build: BuildMessages) -> Messages:
    assert rollout.trajectory is not None
    return tuple(build(rollout.state, rollout.trajectory))


def _end(rollout: Rollout, error: Exception) -> None:
    if not isinstance(error, OverBudgetError):
        rollout.has_failed(error, Phase.RENDER)
    elif rollout.turns:
        rollout.was_truncated(error.limit)
    else:
        rollout.has_failed(too_long(error.tokens, rollout.budgets.context_tokens or 0), Phase.GENERATE)


def _render_first(first: list[tuple[Rollout, Messages]], renderer: ChatRenderer) -> None:
    plain = [(r, m) for r, m in first if not r.state.observation.available_tools]
    try:
        rendered: Sequence[tuple[int, ...] | None] = renderer.render_batch([m for _, m in plain])
    except Exception:  # some conversation can't be rendered: find it below
        rendered = [None] * len(plain)
    ids = dict(zip((id(r) for r, _ in plain), rendered, strict=True))
    for rollout, messages in first:
        try:
            known = ids.get(id(rollout))
            tools = rollout.state.observation.available_tools
            rollout.was_prompted(messages, known if known is not None else renderer.render(messages, tools=tools))
        except Exception as error:
            _end(rollout, error)


# turns after the first ------------------------------------------------------------------------------------------------


def _continue(rollout: Rollout, build: BuildMessages, renderer: ChatRenderer, history: History) -> None:
    """Prompt a rollout that has had turns. What an append costs does not grow with the conversation."""
    new = _continuation(rollout, build)
    messages: Messages | None = None
    if new is None:
        messages = _built(rollout, build)
        new = new_messages(rollout, messages)
    shown_as_is = new is not None and renderer.shows_verbatim(rollout.turns[-1].result.text or "")
    if shown_as_is or history is History.KEEP:
        if new is None:
            assert messages is not None
            new = after_last_reply(messages)
        _append(rollout, new, messages, renderer)
        return
    if messages is None:
        messages = _built(rollout, build)
    cause = LossCause.TEMPLATE if new is not None else _cause(rollout, messages, build)
    if history is History.REFUSE:
        raise HistoryRewrittenError(
            f"history='refuse', and the {cause.value.replace('_', ' ')} shows an earlier turn otherwise than it was "
            "read and sampled: use history='keep' to keep all turns verbatim, or history='template' to allow it"
        )
    _fork(rollout, messages, cause, renderer)


def _continuation(rollout: Rollout, build: BuildMessages) -> Messages | None:
    """What a builder that only ever appends adds after the last reply, without building all that stands before."""
    continuation = getattr(build, "continuation", None)
    if continuation is None:
        return None
    result = rollout.turns[-1].result
    new: Messages | None = continuation(rollout.trajectory, result.text or "", result.tool_calls)
    return new


def _append(rollout: Rollout, new: Messages, messages: Messages | None, renderer: ChatRenderer) -> None:
    context = rollout.tokens.context
    ended = bool(context) and context[-1] in renderer.end_of_turn_ids
    suffix = renderer.suffix(new, ended, tools=rollout.state.observation.available_tools)
    if messages is None:
        result = rollout.turns[-1].result
        reply = ChatMessage("assistant", result.text or "", tool_calls=result.tool_calls)
        messages = (*rollout.messages, reply, *new)
    rollout.was_prompted(messages, suffix, new_messages=new)


def _fork(rollout: Rollout, messages: Messages, cause: LossCause, renderer: ChatRenderer) -> None:
    ids = array("i", renderer.render(messages, tools=rollout.state.observation.available_tools))
    kept = common_prefix(rollout.tokens.context, ids)
    same = next((i for i, (a, b) in enumerate(zip(messages, rollout.messages, strict=False)) if a != b), len(messages))
    new = messages[min(same, len(messages)) :]
    replies = [i for i, m in enumerate(new) if m.role == "assistant"]
    rollout.was_prompted(messages, ids[kept:], kept, cause, new[replies[-1] + 1 :] if replies else new)


def _cause(rollout: Rollout, messages: Messages, build: BuildMessages) -> LossCause:
    n = len(rollout.messages)
    if messages[:n] == rollout.messages:
        return LossCause.REPLY
    rewriting = getattr(build, "rewriting_option", None)
    return LossCause(rewriting) if rewriting in list(LossCause) else LossCause.PROMPT


def new_messages(rollout: Rollout, messages: Messages) -> Messages | None:
    """What stands after the model's last reply, or None where the conversation is not the earlier one continued."""
    n = len(rollout.messages)
    result = rollout.turns[-1].result
    if len(messages) <= n or messages[:n] != rollout.messages:
        return None
    reply = messages[n]
    said_the_same = (reply.content or "") == (result.text or "") and reply.tool_calls == result.tool_calls
    return messages[n + 1 :] if reply.role == "assistant" and said_the_same else None


def after_last_reply(messages: Messages) -> Messages:
    """The messages after the last assistant message. Raises HistoryRewrittenError where there is none."""
    replies = [i for i, m in enumerate(messages) if m.role == "assistant"]
    if not replies:
        raise HistoryRewrittenError(
            "history='keep', and the conversation that was built holds no earlier reply: leave out no_history and "
            "other windows over the history, or use history='template'"
        )
    return messages[replies[-1] + 1 :]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix of two sequences of ids."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(np.asarray(a[:n], dtype=np.int32) != np.asarray(b[:n], dtype=np.int32))
    return int(differ[0]) if differ.size else n
