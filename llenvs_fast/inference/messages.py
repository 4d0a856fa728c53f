"""From a state and its trajectory to the messages of the next turn. Pure: the same arguments give the same messages.

The order of building is fixed: system prompt, observation, prompt template, model profile, prompt pipeline; last,
adjacent messages of one role are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llenvs_fast.core.extraction import strip_thinking
from llenvs_fast.core.state import ImageContent, Observation, State
from llenvs_fast.core.tools import ToolCall
from llenvs_fast.core.trajectory import Trajectory, Transition
from llenvs_fast.inference.history import HistoryEntry, HistoryFn, TurnInfoConfig, full_history
from llenvs_fast.inference.prompting import PromptTemplateTransformer
from llenvs_fast.inference.prompts import ModelProfile, PromptTemplate
from llenvs_fast.inference.protocol import ChatMessage

Messages = list[ChatMessage]


@dataclass(frozen=True)
class MessageBuilder:
    """Builds the conversation that the model sees.

    An observation with a `task` and no tools is *structured*: the builder writes the history itself, from the
    trajectory, as `history_fn` says, and `turn_info` with the environment's `max_steps` applies. Any other is *legacy*:
    its prompt and its own transcript are used as they are.
    """

    system_prompt: str | None = None
    prompt_template: PromptTemplate | None = None
    model_profile: ModelProfile | None = None
    prompt_pipeline: Callable[[Messages], Messages] | None = None
    include_reasoning_in_history: bool = False
    history_fn: HistoryFn | None = None
    turn_info: TurnInfoConfig | None = None
    max_steps: int | None = None

    def __call__(self, state: State, trajectory: Trajectory) -> tuple[ChatMessage, ...]:
        observation = state.observation
        messages: Messages = []
        if self.system_prompt is not None:
            messages.append(ChatMessage("system", self.system_prompt))
        if _is_structured(observation):
            messages += self._structured(state, trajectory)
        else:
            messages += _legacy(observation)
        if self.prompt_template is not None:
            messages = PromptTemplateTransformer(self.prompt_template).transform(messages)
        for transformer in self.model_profile.build_transformers() if self.model_profile else ():
            messages = transformer.transform(messages)
        if self.prompt_pipeline is not None:
            messages = self.prompt_pipeline(messages)
        return tuple(coalesced(messages))

    @property
    def rewriting_option(self) -> str | None:
        """What of the options shows earlier messages otherwise as the conversation goes on; None where nothing does."""
        if self.history_fn not in (None, full_history):
            return "history"
        if self.turn_info is not None:
            return "turn_info"
        return "prompt" if self.prompt_template or self.prompt_pipeline or self.model_profile else None

    def continuation(
        self, trajectory: Trajectory, reply: str, tool_calls: tuple[ToolCall, ...] = ()
    ) -> tuple[ChatMessage, ...] | None:
        """What a call would add after the model's last reply, at a cost that does not grow with the conversation.

        None where the call has to be made to know: an option rewrites earlier messages, the reply is shown otherwise
        than it was given, or the environment's transcript is not the earlier one continued.
        """
        last = trajectory.last_transition
        if self.rewriting_option is not None or last is None:
            return None
        before, now = last.state.observation, last.next_state.observation
        if _is_structured(now) != _is_structured(before):
            return None
        if not _is_structured(now):
            return _legacy_continuation(before, now, reply, tool_calls)
        if tool_calls or now.task != before.task or self._said(last) != reply:
            return None
        return () if now.state is None else (ChatMessage("user", now.state.text, images=now.state.images),)

    def _structured(self, state: State, trajectory: Trajectory) -> Messages:
        observation, transitions = state.observation, trajectory.transitions
        suffix, prefix = "", ""
        if self.turn_info is not None:
            suffix, prefix = self.turn_info.suffix_and_prefix(state, self.max_steps)
        task, now = observation.task, observation.state
        assert task is not None
        messages = [ChatMessage("user", task.text + suffix, images=task.images)]
        first = trajectory.initial_state.observation.state
        history = (self.history_fn or full_history)(self._entries(transitions))
        if history and first is not None and first.text.rstrip() != task.text.rstrip():
            messages.append(ChatMessage("user", first.text, images=first.images))
        messages += history
        if now is not None and (transitions or now.text.rstrip() != task.text.rstrip()):
            messages.append(ChatMessage("user", prefix + now.text, images=now.images))
        return messages

    def _entries(self, transitions: Sequence[Transition]) -> list[HistoryEntry]:
        entries = []
        for i, transition in enumerate(transitions):
            seen = transition.next_state.observation.state if i + 1 < len(transitions) else None
            text, images = ("", ()) if seen is None else (seen.text, seen.images)
            entries.append(HistoryEntry(self._said(transition), text, images, transition.state.metadata.step))
        return entries

    def _said(self, transition: Transition) -> str:
        full = transition.action.text or ""
        if self.include_reasoning_in_history:
            return full
        for text in (transition.resolved_action, transition.extracted_action):
            if text is not None:
                return text
        return strip_thinking(full).strip()


def _is_structured(observation: Observation) -> bool:
    return observation.task is not None and not observation.available_tools


def _legacy_continuation(
    before: Observation, now: Observation, reply: str, tool_calls: tuple[ToolCall, ...]
) -> tuple[ChatMessage, ...] | None:
    n = len(before.messages)
    if now.prompt != before.prompt or now.images != before.images or len(now.messages) <= n:
        return None
    if now.messages[:n] != before.messages:
        return None
    said, *new = (_message(m) for m in now.messages[n:])
    if said.role != "assistant" or (said.content or "") != reply or said.tool_calls != tool_calls:
        return None
    return tuple(coalesced(new))


def _legacy(observation: Observation) -> Messages:
    if not isinstance(observation.prompt, str):
        raise TypeError(f"the observation's prompt is {observation.prompt!r:.100}: it must be a string")
    return [
        ChatMessage("user", observation.prompt, images=observation.images),
        *(_message(m) for m in observation.messages),
    ]


def _message(message: dict[str, Any]) -> ChatMessage:
    return ChatMessage(
        role=message["role"],
        content=message.get("content"),
        tool_calls=tuple(ToolCall(c["id"], c["name"], c["arguments"]) for c in message.get("tool_calls", ())),
        tool_call_id=message.get("tool_call_id"),
        name=message.get("name"),
        images=tuple(ImageContent(i["data"], i.get("media_type", "image/png")) for i in message.get("images", ())),
    )


def coalesced(messages: Sequence[ChatMessage]) -> Messages:
    """Adjacent user or assistant messages without tool calls or ids joined by one blank line."""
    joined: Messages = []
    for message in messages:
        before = joined[-1] if joined else None
        if before is not None and before.role == message.role and _joinable(before) and _joinable(message):
            content = "\n\n".join(c for c in (before.content, message.content) if c)
            joined[-1] = replace(before, content=content, images=before.images + message.images)
        else:
            joined.append(message)
    return joined


def _joinable(message: ChatMessage) -> bool:
    return message.role in ("user", "assistant") and not message.tool_calls and message.tool_call_id is None
