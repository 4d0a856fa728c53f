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
from llenvs_fast.inference.prompting import PromptTemplateTransformer
from llenvs_fast.inference.prompts import ModelProfile, PromptTemplate
from llenvs_fast.inference.protocol import ChatMessage

Messages = list[ChatMessage]


@dataclass(frozen=True)
class MessageBuilder:
    """Builds the conversation that the model sees.

    An observation with a `task` and no tools is *structured*: the builder writes the history itself, from the
    trajectory. Any other is *legacy*: its prompt and its own transcript are used as they are.
    """

    system_prompt: str | None = None
    prompt_template: PromptTemplate | None = None
    model_profile: ModelProfile | None = None
    prompt_pipeline: Callable[[Messages], Messages] | None = None
    include_reasoning_in_history: bool = False

    def __call__(self, state: State, trajectory: Trajectory) -> tuple[ChatMessage, ...]:
        observation = state.observation
        messages: Messages = []
        if self.system_prompt is not None:
            messages.append(ChatMessage("system", self.system_prompt))
        if observation.task is not None and not observation.available_tools:
            messages += self._structured(observation, trajectory)
        else:
            messages += _legacy(observation)
        if self.prompt_template is not None:
            messages = PromptTemplateTransformer(self.prompt_template).transform(messages)
        for transformer in self.model_profile.build_transformers() if self.model_profile else ():
            messages = transformer.transform(messages)
        if self.prompt_pipeline is not None:
            messages = self.prompt_pipeline(messages)
        return tuple(coalesced(messages))

    def _structured(self, observation: Observation, trajectory: Trajectory) -> Messages:
        task = observation.task
        assert task is not None
        messages = [ChatMessage("user", task.text, images=task.images)]
        transitions = trajectory.transitions
        first = trajectory.initial_state.observation.state
        if transitions and first is not None and first.text.rstrip() != task.text.rstrip():
            messages.append(ChatMessage("user", first.text, images=first.images))
        for i, transition in enumerate(transitions):
            messages.append(ChatMessage("assistant", self._said(transition)))
            seen = transition.next_state.observation.state
            if seen is not None and i + 1 < len(transitions):
                messages.append(ChatMessage("user", seen.text, images=seen.images))
        now = observation.state
        if now is not None and (transitions or now.text.rstrip() != task.text.rstrip()):
            messages.append(ChatMessage("user", now.text, images=now.images))
        return messages

    def _said(self, transition: Transition) -> str:
        full = transition.action.text or ""
        if self.include_reasoning_in_history:
            return full
        for text in (transition.resolved_action, transition.extracted_action):
            if text is not None:
                return text
        return strip_thinking(full).strip()


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
