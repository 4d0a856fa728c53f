from __future__ import annotations

import subprocess
import sys

import pytest

from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.core.state import ImageContent
from llenvs_fast.core.tools import ToolCall
from llenvs_fast.inference import (
    FRAGMENT_REGISTRY,
    PROFILE_REGISTRY,
    SYSTEM_PROMPT_REGISTRY,
    TEMPLATE_REGISTRY,
    AnswerFormatInjector,
    ChainOfThoughtWrapper,
    ChatMessage,
    ContentWrapper,
    FewShotInjector,
    MessageTrimmer,
    PromptPipeline,
    PromptTemplate,
    PromptTemplateTransformer,
    PromptTransformer,
    RoleMapper,
    SystemPromptInjector,
    build_standard_pipeline,
    compose_system_prompt,
    detect_model_profile,
    resolve_system_prompt,
)
from llenvs_fast.inference.prompting import ANSWER_FORMATS, COT_STYLES

QUESTION = [ChatMessage("user", "What is 6 times 7?")]
IMAGE = ImageContent("aGk=")
RICH = [
    ChatMessage("system", "Be good.", name="rules"),
    ChatMessage("user", "Look.", images=(IMAGE,)),
    ChatMessage("assistant", None, tool_calls=(ToolCall("c1", "look", {"at": "it"}),)),
    ChatMessage("tool", "a cat", tool_call_id="c1", name="look"),
    ChatMessage("user", "And?", images=(IMAGE,), name="ann"),
]


def pairs(messages: list[ChatMessage]) -> list[tuple[str, str | None]]:
    return [(m.role, m.content) for m in messages]


def test_the_standard_pipeline_writes_system_examples_reasoning_and_format_in_this_order():
    pipeline = build_standard_pipeline("You add.", [("1+1?", "2"), ("2+2?", "4")], use_cot=True, tag_name="result")
    assert pairs(pipeline(QUESTION)) == [
        ("system", "You add.\n\nGive your final answer between <result> and </result>."),
        ("user", "1+1?"),
        ("assistant", "2"),
        ("user", "2+2?"),
        ("assistant", "4"),
        ("user", "What is 6 times 7?\n\nThink step by step before you answer."),
    ]


def test_without_options_the_standard_pipeline_states_the_answer_format_alone():
    expected = [("user", "What is 6 times 7?\n\nGive your final answer between <answer> and </answer>.")]
    assert pairs(build_standard_pipeline()(QUESTION)) == expected


def test_pipelines_compose_left_to_right_and_leave_their_parts_unchanged():
    a, b, c = (ContentWrapper(suffix=s) for s in "abc")
    ab = a >> b
    assert ab.transform([ChatMessage("user", "")])[0].content == "ab"
    assert (ab >> c)([ChatMessage("user", "")])[0].content == "abc"
    assert (c >> ab)([ChatMessage("user", "")])[0].content == "cab"
    assert len(ab.transformers) == 2


def test_a_transformer_of_ones_own_composes_on_either_side():
    class Shout:
        def transform(self, messages: list[ChatMessage]) -> list[ChatMessage]:
            return [ChatMessage(m.role, (m.content or "").upper()) for m in messages]

    assert isinstance(Shout(), PromptTransformer)
    assert (Shout() >> ContentWrapper(suffix="a"))([ChatMessage("user", "q")])[0].content == "Qa"
    assert (ContentWrapper(suffix="a") >> Shout())([ChatMessage("user", "q")])[0].content == "QA"


ALL_TRANSFORMERS = [
    SystemPromptInjector("New."),
    SystemPromptInjector("New.", replace_existing=False),
    FewShotInjector([("q", "a")]),
    ChainOfThoughtWrapper(),
    AnswerFormatInjector(),
    MessageTrimmer(3),
    RoleMapper({"system": "developer"}),
    ContentWrapper("<", ">"),
    PromptTemplateTransformer(TEMPLATE_REGISTRY["math"]),
]


@pytest.mark.parametrize("transformer", ALL_TRANSFORMERS, ids=lambda t: type(t).__name__)
def test_no_transformer_drops_images_tool_calls_ids_or_names(transformer: PromptTransformer):
    def fields(messages: list[ChatMessage]) -> list[tuple]:
        return [(m.tool_calls, m.tool_call_id, m.name, m.images) for m in messages]

    before, after = fields(RICH), fields(transformer.transform(RICH))
    added_or_cut = isinstance(transformer, FewShotInjector | MessageTrimmer)
    assert [f for f in after if f in before] == [f for f in before if f in after] if added_or_cut else after == before


@pytest.mark.parametrize("transformer", ALL_TRANSFORMERS, ids=lambda t: type(t).__name__)
def test_content_that_is_none_stays_none_and_the_given_list_is_not_changed(transformer: PromptTransformer):
    given = list(RICH)
    assert all(m.content is None for m in transformer.transform(given) if m.tool_calls)
    assert given == RICH


def test_instructions_go_to_the_last_user_message_that_has_text():
    only_image = ChatMessage("user", None, images=(IMAGE,))
    out = ChainOfThoughtWrapper("explain").transform([*QUESTION, only_image])
    assert out == [ChatMessage("user", f"What is 6 times 7?\n\n{COT_STYLES['explain']}"), only_image]
    assert ChainOfThoughtWrapper().transform([only_image]) == [only_image]


def test_a_system_prompt_replaces_or_precedes_the_one_that_is_there():
    there = [ChatMessage("system", "Old."), *QUESTION]
    assert SystemPromptInjector("New.").transform(there)[0].content == "New."
    assert SystemPromptInjector("New.", replace_existing=False).transform(there)[0].content == "New.\n\nOld."
    assert pairs(SystemPromptInjector("New.").transform(QUESTION))[0] == ("system", "New.")


def test_a_developer_message_counts_as_the_system_message():
    there = [ChatMessage("developer", "Old."), *QUESTION]
    assert pairs(SystemPromptInjector("New.").transform(there))[0] == ("developer", "New.")
    assert len(AnswerFormatInjector().transform(there)) == 2


def test_examples_go_before_the_first_user_message_where_there_is_no_system_message():
    assert [m.content for m in FewShotInjector([("q", "a")]).transform(QUESTION)][:2] == ["q", "a"]


def test_an_unknown_style_is_the_instruction_itself():
    assert ChainOfThoughtWrapper("Sing.").transform(QUESTION)[0].content == "What is 6 times 7?\n\nSing."


@pytest.mark.parametrize("name", ANSWER_FORMATS)
def test_every_known_answer_format_can_be_written(name: str):
    assert AnswerFormatInjector(name).transform(QUESTION)[0].content.startswith("What is 6 times 7?\n\n")


def test_the_boxed_format_shows_its_braces():
    assert "\\boxed{}" in AnswerFormatInjector("boxed").transform(QUESTION)[0].content


def test_an_unknown_answer_format_is_a_template():
    text = AnswerFormatInjector("Write [{tag_name}]42[/{tag_name}].", "a").transform(QUESTION)[0].content
    assert text.endswith("\n\nWrite [a]42[/a].")


def test_an_answer_format_that_cannot_be_filled_is_refused_where_it_is_written():
    with pytest.raises(InvalidSettingError, match="double the braces"):
        AnswerFormatInjector('Write {"answer": 1}.')


def test_the_trimmer_keeps_the_system_message_and_the_newest_ones():
    long = [ChatMessage("system", "s"), *(ChatMessage("user", str(i)) for i in range(20))]
    assert [m.content for m in MessageTrimmer(4).transform(long)] == ["s", "17", "18", "19"]
    assert [m.content for m in MessageTrimmer(2, keep_system=False).transform(long)] == ["18", "19"]
    assert MessageTrimmer(21).transform(long) == long


def test_the_trimmer_cuts_a_tool_result_off_together_with_its_call():
    assert [m.role for m in MessageTrimmer(3).transform(RICH)] == ["system", "user"]


def test_a_question_with_braces_comes_through_a_template_as_it_is():
    question = 'f(x) = {x: 1} and {} and {question} and "{0}"'
    assert TEMPLATE_REGISTRY["plain"].apply(question) == question
    out = PromptTemplateTransformer(TEMPLATE_REGISTRY["math"]).transform([ChatMessage("user", question)])
    assert out[0].content == f"Here is a mathematical problem to solve.\n\n{question}"


def test_a_template_takes_other_fields_and_names_the_one_that_is_missing():
    template = PromptTemplate("{topic}: {question}", "topical")
    assert template.apply("Why?", topic="Law") == "Law: Why?"
    with pytest.raises(InvalidSettingError, match=r"topical.*topic"):
        template.apply("Why?")


@pytest.mark.parametrize(
    ("registry", "known", "near"),
    [
        (TEMPLATE_REGISTRY, "math", "mat"),
        (PROFILE_REGISTRY, "deepseek_r1", "deepseek_r2"),
        (FRAGMENT_REGISTRY, "be_concise", "be_concis"),
        (SYSTEM_PROMPT_REGISTRY, "math_boxed", "math_box"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(registry, known: str, near: str):
    assert known in registry
    assert registry[known]
    with pytest.raises(KeyError, match=f"nearest.*{known}"):
        registry[near]


def test_the_reasoning_profile_adds_its_instruction_with_and_without_a_system_message():
    (transformer,) = PROFILE_REGISTRY["deepseek_r1"].build_transformers()
    with_system = transformer.transform([ChatMessage("system", "Be good."), *QUESTION])
    without = transformer.transform(QUESTION)
    assert with_system[0].content.startswith("Be good.\n\nReason between <think>")
    assert without[0].content == with_system[0].content.removeprefix("Be good.\n\n")


def test_the_o1_profile_renames_the_system_role_and_the_others_change_nothing():
    (transformer,) = PROFILE_REGISTRY["o1"].build_transformers()
    assert [m.role for m in transformer.transform(RICH)] == ["developer", "user", "assistant", "tool", "user"]
    assert PROFILE_REGISTRY["qwen_chat"].build_transformers() == []
    assert PROFILE_REGISTRY["llama3_instruct"].build_transformers() == []


@pytest.mark.parametrize(
    ("model", "profile"),
    [
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "deepseek_r1"),
        ("o1-mini", "o1"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3_instruct"),
        ("Qwen/Qwen3-4B", "qwen_chat"),
    ],
)
def test_a_profile_is_found_by_the_models_name(model: str, profile: str):
    assert detect_model_profile(model) is PROFILE_REGISTRY[profile]


def test_an_unknown_model_has_no_profile():
    assert detect_model_profile("mistral-7b") is None


def test_system_prompts_are_composed_of_names_and_texts():
    assert compose_system_prompt("a", "", "b") == "a\n\nb"
    assert compose_system_prompt("a", FRAGMENT_REGISTRY["be_concise"], separator=" ") == "a Be brief."
    assert resolve_system_prompt("math_boxed") == SYSTEM_PROMPT_REGISTRY["math_boxed"]
    assert resolve_system_prompt(["math_expert", "Use ink."]) == "You are an expert in mathematics.\n\nUse ink."
    assert resolve_system_prompt("You are a pirate.") == "You are a pirate."


def test_importing_the_room_loads_no_engine_and_no_model_library():
    code = (
        "import sys, llenvs_fast.inference, llenvs_fast.inference.backends, llenvs_fast.inference.conformance, "
        "llenvs_fast.inference.backends.scripted; "
        "print([m for m in ('torch', 'transformers', 'vllm', 'numba') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


def test_an_empty_pipeline_changes_nothing():
    assert PromptPipeline()(RICH) == RICH
