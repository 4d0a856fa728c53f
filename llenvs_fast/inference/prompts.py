"""The prompt library: templates for questions, profiles of models, and system prompts made of fragments.

Each kind has a registry of its own that users may add to (`TEMPLATE_REGISTRY.register_instance("mine", …)`). An unknown
name is answered with the nearest known ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.core.registry import Registry
from llenvs_fast.inference.prompting import (
    SYSTEM_ROLES,
    ContentWrapper,
    PromptTransformer,
    RoleMapper,
    SystemPromptInjector,
)
from llenvs_fast.inference.protocol import ChatMessage

# templates ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """A text with `{question}` in it, and other fields where wanted. Braces inside the question are text."""

    template: str
    name: str | None = None

    def apply(self, question: str, **fields: Any) -> str:
        """Raises InvalidSettingError where the template asks for a field that is not given, or can't be read."""
        try:
            return self.template.format(question=question, **fields)
        except (KeyError, IndexError, ValueError) as error:
            known = ", ".join(["question", *fields])
            raise InvalidSettingError(
                f"prompt template {self.name or self.template!r} can't be filled ({type(error).__name__}: {error}): "
                f"the fields are {known}, and braces that are text must be doubled"
            ) from error


TEMPLATE_REGISTRY: Registry[PromptTemplate] = Registry("prompt templates")
for _template in (
    PromptTemplate("{question}", "plain"),
    PromptTemplate("Here is a mathematical problem to solve.\n\n{question}", "math"),
    PromptTemplate("Here is a programming problem to solve.\n\n{question}", "coding"),
    PromptTemplate("Reason about the following with care, then answer it.\n\n{question}", "reasoning"),
):
    TEMPLATE_REGISTRY.register_instance(str(_template.name), _template)


# profiles -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _SystemText:
    """Wraps the system messages, and makes one where there is none: an instruction for the model is never lost."""

    prefix: str
    suffix: str

    def transform(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        if not any(m.role in SYSTEM_ROLES and m.content for m in messages):
            return SystemPromptInjector(f"{self.prefix}{self.suffix}".strip()).transform(messages)
        return ContentWrapper(self.prefix, self.suffix, SYSTEM_ROLES).transform(messages)


@dataclass(frozen=True)
class ModelProfile:
    """What one family of models wants done to a conversation.

    `preferred_answer_format` (see `AnswerFormatInjector`) and `stop_sequences` are advice for whoever builds the
    pipeline and the sampling parameters; `build_transformers` leaves them alone.
    """

    name: str
    system_prompt_prefix: str | None = None
    system_prompt_suffix: str | None = None
    preferred_answer_format: str | None = None
    stop_sequences: tuple[str, ...] = ()
    role_mapping: Mapping[str, str] | None = None

    def build_transformers(self) -> list[PromptTransformer]:
        transformers: list[PromptTransformer] = []
        if self.system_prompt_prefix or self.system_prompt_suffix:
            transformers.append(_SystemText(self.system_prompt_prefix or "", self.system_prompt_suffix or ""))
        if self.role_mapping:
            transformers.append(RoleMapper(self.role_mapping))
        return transformers


PROFILE_REGISTRY: Registry[ModelProfile] = Registry("model profiles")
for _profile in (
    ModelProfile(
        "deepseek_r1",
        system_prompt_suffix="\n\nReason between <think> and </think> first, then write your answer after it.",
    ),
    ModelProfile("o1", role_mapping={"system": "developer"}),
    ModelProfile("llama3_instruct"),
    ModelProfile("qwen_chat"),
):
    PROFILE_REGISTRY.register_instance(_profile.name, _profile)

_PROFILE_OF = (("deepseek-r1", "deepseek_r1"), ("o1-", "o1"), ("llama-3", "llama3_instruct"), ("qwen", "qwen_chat"))


def detect_model_profile(model_name: str) -> ModelProfile | None:
    """The profile of the first family whose mark is in the name, or None."""
    lower = model_name.lower()
    return next((PROFILE_REGISTRY[profile] for mark, profile in _PROFILE_OF if mark in lower), None)


# system prompts -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PromptFragment:
    """One instruction of a system prompt."""

    name: str
    content: str
    category: str


_FRAGMENTS: dict[str, dict[str, str]] = {
    "reasoning": {
        "think_step_by_step": "Think step by step before you answer.",
        "show_your_work": "Show the work that leads to your answer.",
        "reflect_then_answer": "Reflect on the problem and on how to approach it, then answer.",
        "verify_your_answer": "Check your answer against the problem before you give it.",
        "direct_answer": "Answer at once, without an explanation.",
    },
    "format": {
        "xml_answer": "Give your final answer between <answer> and </answer>.",
        "boxed_answer": "Give your final answer in \\boxed{}.",
        "gsm8k_answer": "End with a line that holds #### and your final answer as a number.",
        "json_answer": 'Give your final answer as a JSON object with the field "answer".',
    },
    "persona": {
        "math_expert": "You are an expert in mathematics.",
        "coding_expert": "You are an expert programmer.",
        "general_assistant": "You are a helpful assistant.",
    },
    "constraint": {
        "be_concise": "Be brief.",
        "no_apologies": "Do not apologise.",
        "single_answer": "Give exactly one final answer.",
    },
}

FRAGMENT_REGISTRY: Registry[PromptFragment] = Registry("prompt fragments")
for _category, _contents in _FRAGMENTS.items():
    for _name, _content in _contents.items():
        FRAGMENT_REGISTRY.register_instance(_name, PromptFragment(_name, _content, _category))


def compose_system_prompt(*parts: str | PromptFragment, separator: str = "\n\n") -> str:
    """Join texts and fragments; empty ones are left out."""
    texts = (p.content if isinstance(p, PromptFragment) else p for p in parts)
    return separator.join(t for t in texts if t)


SYSTEM_PROMPT_REGISTRY: Registry[str] = Registry("system prompts")
for _name, _parts in {
    "general_reasoning": ("general_assistant", "think_step_by_step", "xml_answer"),
    "math_reasoning": ("math_expert", "think_step_by_step", "xml_answer"),
    "math_boxed": ("math_expert", "think_step_by_step", "boxed_answer"),
    "math_gsm8k": ("math_expert", "show_your_work", "gsm8k_answer"),
    "coding_problem": ("coding_expert", "think_step_by_step", "xml_answer"),
    "concise_reasoning": ("general_assistant", "think_step_by_step", "be_concise", "xml_answer"),
    "direct_answer": ("general_assistant", "direct_answer", "xml_answer"),
}.items():
    SYSTEM_PROMPT_REGISTRY.register_instance(_name, compose_system_prompt(*(FRAGMENT_REGISTRY[p] for p in _parts)))


def resolve_system_prompt(prompt: str | Sequence[str]) -> str:
    """The text behind a name, or behind each of a list of them, joined by blank lines.

    A name is looked up among the system prompts, then among the fragments; anything else is a text and stays as it is.
    """
    if not isinstance(prompt, str):
        return compose_system_prompt(*(resolve_system_prompt(p) for p in prompt))
    if prompt in SYSTEM_PROMPT_REGISTRY:
        return SYSTEM_PROMPT_REGISTRY[prompt]
    return FRAGMENT_REGISTRY[prompt].content if prompt in FRAGMENT_REGISTRY else prompt
