"""Prompt transformers: small pure steps from messages to messages, joined with `>>`.

A transformer changes what its docstring says and nothing else: every other message, and every other field of a changed
message (images, tool calls, ids), comes out as it went in. Content that is None stays None. A developer message is a
system message by another name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.inference.protocol import ChatMessage

if TYPE_CHECKING:
    from llenvs_fast.inference.prompts import PromptTemplate

Messages = list[ChatMessage]

SYSTEM_ROLES = ("system", "developer")

COT_STYLES = {
    "think_step_by_step": "Think step by step before you answer.",
    "show_work": "Show the work that leads to your answer.",
    "explain": "Explain how you arrive at your answer.",
    "reflect": "Before you answer, go over your reasoning once more and look for mistakes.",
}

ANSWER_FORMATS = {
    "xml_answer": "Give your final answer between <{tag_name}> and </{tag_name}>.",
    "json": 'Give your final answer as a JSON object with the field "answer".',
    "markdown": "Give your final answer in a Markdown code block.",
    "boxed": "Give your final answer in \\boxed{{}}.",
    "gsm8k": "End with a line that holds #### and your final answer as a number.",
}


@runtime_checkable
class PromptTransformer(Protocol):
    """Anything with `transform`.

    `PromptPipeline([a, b])` is a, then b. So is `a >> b` where one of the two is from this module.
    """

    def transform(self, messages: Messages) -> Messages: ...


class _Composable:
    """What gives the transformers here their `>>`."""

    def transform(self, messages: Messages) -> Messages:
        raise NotImplementedError

    def __rshift__(self, after: PromptTransformer) -> PromptPipeline:
        return PromptPipeline([*_steps(self), *_steps(after)])

    def __rrshift__(self, before: PromptTransformer) -> PromptPipeline:
        return PromptPipeline([*_steps(before), *_steps(self)])


@dataclass(frozen=True)
class PromptPipeline(_Composable):
    """Transformers in the order in which they are applied. Calling it is `transform`."""

    transformers: Sequence[PromptTransformer] = ()

    def transform(self, messages: Messages) -> Messages:
        for transformer in self.transformers:
            messages = transformer.transform(messages)
        return messages

    __call__ = transform


def _steps(transformer: PromptTransformer) -> Sequence[PromptTransformer]:
    return transformer.transformers if isinstance(transformer, PromptPipeline) else (transformer,)


def build_standard_pipeline(
    system_prompt: str | None = None,
    examples: Sequence[tuple[str, str]] | None = None,
    use_cot: bool = False,
    answer_format: str = "xml_answer",
    tag_name: str = "answer",
) -> PromptPipeline:
    """System prompt, examples and chain of thought where asked for, and the answer format always, in this order.

    A pipeline runs after everything else that builds a prompt, so that its system prompt takes the place of an earlier
    one, whatever a model profile had added to that included.
    """
    transformers: list[PromptTransformer] = []
    if system_prompt:
        transformers.append(SystemPromptInjector(system_prompt))
    if examples:
        transformers.append(FewShotInjector(examples))
    if use_cot:
        transformers.append(ChainOfThoughtWrapper())
    transformers.append(AnswerFormatInjector(answer_format, tag_name))
    return PromptPipeline(transformers)


@dataclass(frozen=True)
class SystemPromptInjector(_Composable):
    """Sets the content of the first system message, or puts `content` before it unless `replace_existing`.

    Where there is no system message, one is inserted at the start.
    """

    content: str
    replace_existing: bool = True

    def transform(self, messages: Messages) -> Messages:
        at = _first(messages, SYSTEM_ROLES)
        if at is None:
            return [ChatMessage("system", self.content), *messages]
        old = messages[at].content
        content = self.content if self.replace_existing or not old else f"{self.content}\n\n{old}"
        return _with(messages, at, content)


@dataclass(frozen=True)
class FewShotInjector(_Composable):
    """Inserts (question, answer) pairs as turns after the first system message, else before the first user message."""

    examples: Sequence[tuple[str, str]]

    def transform(self, messages: Messages) -> Messages:
        system = _first(messages, SYSTEM_ROLES)
        at = system + 1 if system is not None else _first(messages, ("user",)) or 0
        turns = [
            ChatMessage(role, text)
            for question, answer in self.examples
            for role, text in (("user", question), ("assistant", answer))
        ]
        return [*messages[:at], *turns, *messages[at:]]


@dataclass(frozen=True)
class ChainOfThoughtWrapper(_Composable):
    """Adds an instruction to the last user message: that of a style in COT_STYLES, or else `style` itself."""

    style: str = "think_step_by_step"

    def transform(self, messages: Messages) -> Messages:
        return _appended(messages, _last_user(messages), COT_STYLES.get(self.style, self.style))


@dataclass(frozen=True)
class AnswerFormatInjector(_Composable):
    """Says how the answer is to be written: in the system message where there is one, else in the last user message.

    A `format_type` that is no key of ANSWER_FORMATS is a template of its own, for `str.format` with `tag_name`.
    """

    format_type: str = "xml_answer"
    tag_name: str = "answer"

    def __post_init__(self) -> None:
        self._instruction()  # a bad template fails where it is written, not in the middle of a run

    def transform(self, messages: Messages) -> Messages:
        at = _first(messages, SYSTEM_ROLES)
        if at is None or messages[at].content is None:
            at = _last_user(messages)
        return _appended(messages, at, self._instruction())

    def _instruction(self) -> str:
        template = ANSWER_FORMATS.get(self.format_type, self.format_type)
        try:
            return template.format(tag_name=self.tag_name)
        except (KeyError, IndexError, ValueError) as error:
            raise InvalidSettingError(
                f"answer format {template!r} is neither one of {', '.join(ANSWER_FORMATS)} nor a template with "
                f"{{tag_name}} at most ({type(error).__name__}: {error}): double the braces that are text"
            ) from error


@dataclass(frozen=True)
class MessageTrimmer(_Composable):
    """Keeps the last messages, at most `max_messages` in all.

    `keep_system` keeps system messages first of all. A tool result whose call was cut off goes with it.
    """

    max_messages: int = 10
    keep_system: bool = True

    def transform(self, messages: Messages) -> Messages:
        if len(messages) <= self.max_messages:
            return list(messages)
        kept = {i for i, m in enumerate(messages) if self.keep_system and m.role in SYSTEM_ROLES}
        others = [i for i in range(len(messages)) if i not in kept]
        room = max(0, self.max_messages - len(kept))
        others = others[len(others) - room :]
        while others and messages[others[0]].role == "tool":
            others.pop(0)
        return [messages[i] for i in sorted(kept.union(others))]


@dataclass(frozen=True)
class RoleMapper(_Composable):
    """Renames roles, such as system to developer."""

    mapping: Mapping[str, str] = field(default_factory=dict)

    def transform(self, messages: Messages) -> Messages:
        return [replace(m, role=self.mapping.get(m.role, m.role)) for m in messages]


@dataclass(frozen=True)
class ContentWrapper(_Composable):
    """Puts `prefix` before and `suffix` after the content of messages of these roles; no roles means all."""

    prefix: str = ""
    suffix: str = ""
    roles: Sequence[str] = ()

    def transform(self, messages: Messages) -> Messages:
        return [self._wrapped(m) if not self.roles or m.role in self.roles else m for m in messages]

    def _wrapped(self, message: ChatMessage) -> ChatMessage:
        if message.content is None:
            return message
        return replace(message, content=f"{self.prefix}{message.content}{self.suffix}")


@dataclass(frozen=True)
class PromptTemplateTransformer(_Composable):
    """Puts the last user message into a template, as its question."""

    template: PromptTemplate

    def transform(self, messages: Messages) -> Messages:
        at = _last_user(messages)
        return list(messages) if at is None else _with(messages, at, self.template.apply(messages[at].content or ""))


def _first(messages: Sequence[ChatMessage], roles: Sequence[str]) -> int | None:
    return next((i for i, m in enumerate(messages) if m.role in roles), None)


def _last_user(messages: Sequence[ChatMessage]) -> int | None:
    """The last user message that has text."""
    return next((i for i, m in reversed([*enumerate(messages)]) if m.role == "user" and m.content is not None), None)


def _with(messages: Messages, at: int, content: str) -> Messages:
    return [*messages[:at], replace(messages[at], content=content), *messages[at + 1 :]]


def _appended(messages: Messages, at: int | None, instruction: str) -> Messages:
    if at is None:
        return list(messages)
    content = messages[at].content
    return _with(messages, at, f"{content}\n\n{instruction}" if content else instruction)
