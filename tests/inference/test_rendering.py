"""Rendering: exactly one BOS, suffixes that fit, and templates that do odd things."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llenvs_fast.core.errors import ChatTemplateError, RecoverableInputError
from llenvs_fast.core.state import ImageContent
from llenvs_fast.core.tools import ToolCall, ToolDefinition
from llenvs_fast.inference.protocol import ChatMessage
from llenvs_fast.inference.rendering import ChatRenderer
from tests.tiny_model import CHAT_TEMPLATE, edit_json, make_tiny_model, make_tiny_tokenizer

HISTORY_KEPT = """\
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
THOUGHTS_STRIPPED = HISTORY_KEPT.replace(
    "{{ m.content }}",
    "{{ m.content.split('</think>')[-1].lstrip('\\n') if m.role == 'assistant' and not loop.last else m.content }}",
)
FIRST_TURN_DROPPED = HISTORY_KEPT.replace("in messages %}", "in messages[-2:] %}")
THOUGHT_IN_PROMPT = HISTORY_KEPT.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}<|im_end|>{% endfor %}"
)
SPACE_BEFORE_END = (
    "{% for m in messages %}{% if m.role == 'user' %}[Q] {{ m.content }} [/Q]"
    "{% else %} {{ m.content | trim }} <|im_end|>{% endif %}{% endfor %}"
)
HEADERS_ONLY = "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}{% endfor %}"
OTHER_END = HISTORY_KEPT.replace("<|im_end|>", "<|endoftext|>")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tiny_tokenizer()


@pytest.fixture(scope="module")
def renderer(tokenizer: Any) -> ChatRenderer:
    return ChatRenderer(tokenizer)


def user(text: str) -> ChatMessage:
    return ChatMessage("user", text)


def assistant(text: str) -> ChatMessage:
    return ChatMessage("assistant", text)


# whole conversations -----------------------------------------------------------------------------------------------


def test_a_conversation_reads_as_the_template_writes_it(renderer: ChatRenderer, tokenizer: Any) -> None:
    messages = [ChatMessage("system", "be good"), user("hello world 12"), assistant("<answer>3</answer>"), user("é")]
    for prompt_reply in (True, False):
        expected = tokenizer.apply_chat_template(
            [m.to_template_dict() for m in messages],
            add_generation_prompt=prompt_reply,
            tokenize=True,
            return_dict=False,
        )
        assert renderer.render(messages, add_generation_prompt=prompt_reply) == tuple(expected)


def test_a_batch_is_rendered_like_one_by_one_in_order(tokenizer: Any) -> None:
    conversations = [[user(f"number {i % 7}")] + [assistant("yes"), user("no")] * (i % 3) for i in range(40)]
    batch = ChatRenderer(tokenizer).render_batch(conversations)
    assert batch == [ChatRenderer(tokenizer).render(c) for c in conversations]
    assert ChatRenderer(tokenizer).render_batch([]) == []


def test_tools_and_tool_calls_are_shown(renderer: ChatRenderer) -> None:
    tool = ToolDefinition("look_up", "Finds a word.", raw_schema={"type": "object", "properties": {}})
    call = ToolCall("1", "look_up", {"word": "hello"})
    messages = [user("find it"), ChatMessage("assistant", "", tool_calls=(call,)), ChatMessage("tool", "found")]
    text = renderer.decode(renderer.render(messages, tools=[tool]), skip_special=False)
    assert "Finds a word." in text
    assert '{"name": "look_up", "arguments": {"word": "hello"}}' in text
    assert "Finds" not in renderer.decode(renderer.render(messages))


def test_template_options_reach_the_template(tokenizer: Any) -> None:
    template = "{% if shout %}LOUD{% endif %}" + CHAT_TEMPLATE
    loud = ChatRenderer(tokenizer, {"shout": True}, chat_template=template)
    quiet = ChatRenderer(tokenizer, chat_template=template)
    assert loud.decode(loud.render([user("x")])) == "LOUD" + quiet.decode(quiet.render([user("x")]))


# BOS ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [None, CHAT_TEMPLATE, "<s><s>" + CHAT_TEMPLATE], ids=["one", "none", "two"])
def test_a_prompt_has_exactly_one_bos_where_the_tokenizer_adds_it(template: str | None) -> None:
    tokenizer = make_tiny_tokenizer(bos=True)
    renderer = ChatRenderer(tokenizer, chat_template=template)
    ids = renderer.render([user("hello")])
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(tokenizer.bos_token_id) == 1
    for text in ("hello", "<s>hello", "<s><s>hello"):
        assert renderer.encode_text(text) == (tokenizer.bos_token_id, *renderer.encode_text("hello")[1:])


def test_a_prompt_has_no_bos_where_the_tokenizer_has_none(renderer: ChatRenderer) -> None:
    assert renderer.bos_token_id is None
    assert renderer.decode(renderer.encode_text("hello"), skip_special=False) == "hello"


def test_two_bos_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    renderer = ChatRenderer(make_tiny_tokenizer(bos=True), chat_template="<s><s>" + CHAT_TEMPLATE)
    with caplog.at_level(logging.WARNING):
        for i in range(3):
            renderer.render([user(str(i))])
    assert [r.message for r in caplog.records] == ["a prompt began with 2 BOS tokens, and is sent with one"]


# what comes after a sampled turn -----------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), min_size=1, max_size=12)


@given(turns=st.lists(st.tuples(TEXT, TEXT, st.booleans()), min_size=1, max_size=4), last=TEXT)
def test_prompt_sample_and_suffix_read_like_the_whole_conversation(
    renderer: ChatRenderer, turns: list[tuple[str, str, bool]], last: str
) -> None:
    (end,) = renderer.end_of_turn_ids
    ids = renderer.render([user(turns[0][0])])
    whole: list[ChatMessage] = []
    for i, (question, reply, ended) in enumerate(turns):
        whole += [user(question), assistant(reply)]
        follow_up = turns[i + 1][0] if i + 1 < len(turns) else last
        sampled = renderer.encode_text(reply) + (end,) * ended
        ids += sampled + renderer.suffix([user(follow_up)], ended)
    whole.append(user(last))
    assert renderer.decode(ids, skip_special=False) == renderer.decode(renderer.render(whole), skip_special=False)


def test_ids_that_do_not_survive_decoding_stay_as_they_were_sampled(renderer: ChatRenderer) -> None:
    sampled = tuple(i for c in "hello" for i in renderer.encode_text(c)) + renderer.end_of_turn_ids
    assert sampled[:-1] != renderer.encode_text("hello")
    prompt = renderer.render([user("hi")])
    after = prompt + sampled + renderer.suffix([user("more")], sampled_ids_end_with_eot=True)
    assert after[: len(prompt) + len(sampled)] == prompt + sampled
    whole = renderer.render([user("hi"), assistant("hello"), user("more")])
    assert renderer.decode(after, skip_special=False) == renderer.decode(whole, skip_special=False)


def test_the_suffix_adds_the_end_of_turn_that_the_model_left_out_and_the_newline(renderer: ChatRenderer) -> None:
    cut = renderer.decode(renderer.suffix([user("go on")], False), skip_special=False)
    ended = renderer.decode(renderer.suffix([user("go on")], True), skip_special=False)
    assert cut == "<|im_end|>" + ended
    assert ended == "\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"


def test_the_suffix_of_a_tool_result_needs_no_call_before_it(renderer: ChatRenderer) -> None:
    text = renderer.decode(renderer.suffix([ChatMessage("tool", "42", tool_call_id="1")], True), skip_special=False)
    assert text == "\n<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("template", "append_only", "rewrites_history"),
    [
        (HISTORY_KEPT, True, False),
        (CHAT_TEMPLATE, True, False),
        (THOUGHTS_STRIPPED, True, True),
        (FIRST_TURN_DROPPED, False, True),
        (THOUGHT_IN_PROMPT, False, True),
    ],
    ids=["kept", "default", "thoughts stripped", "turn dropped", "thought in prompt"],
)
def test_what_a_template_does_to_history_is_found_out(
    tokenizer: Any, template: str, append_only: bool, rewrites_history: bool
) -> None:
    renderer = ChatRenderer(tokenizer, chat_template=template)
    assert renderer.append_only is append_only
    assert renderer.rewrites_history is rewrites_history


@pytest.mark.parametrize(
    ("template", "end_of_turn"),
    [
        (HISTORY_KEPT, ["<|im_end|>"]),
        (SPACE_BEFORE_END, ["<|im_end|>"]),
        (OTHER_END, ["<|endoftext|>"]),
        (HEADERS_ONLY, []),
    ],
    ids=["usual", "after a space", "not the eos", "headers only"],
)
def test_the_end_of_turn_is_read_off_the_template(tokenizer: Any, template: str, end_of_turn: list[str]) -> None:
    renderer = ChatRenderer(tokenizer, chat_template=template)
    assert tokenizer.convert_ids_to_tokens(list(renderer.end_of_turn_ids)) == end_of_turn


def test_what_stands_before_a_sampled_end_of_turn_is_not_added_after_it(tokenizer: Any) -> None:
    renderer = ChatRenderer(tokenizer, chat_template=SPACE_BEFORE_END)
    assert renderer.decode(renderer.suffix([user("x")], True), skip_special=False) == "[Q] x [/Q]"
    assert renderer.decode(renderer.suffix([user("x")], False), skip_special=False) == " <|im_end|>[Q] x [/Q]"


# text --------------------------------------------------------------------------------------------------------------


def test_only_ends_and_beginnings_are_hidden_from_the_text(renderer: ChatRenderer) -> None:
    ids = renderer.encode_text("<|im_start|><answer>é 7</answer><|endoftext|><|im_end|>")
    assert renderer.decode(ids) == "<|im_start|><answer>é 7</answer>"
    assert renderer.decode(ids, skip_special=False) == "<|im_start|><answer>é 7</answer><|endoftext|><|im_end|>"
    assert renderer.decode(()) == ""


def test_the_ends_of_generation_come_from_the_generation_config_too(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    edit_json(model / "generation_config.json", eos_token_id=[0, 2])
    assert ChatRenderer.from_model(model).eos_token_ids == (0, 2)
    (model / "generation_config.json").unlink()
    assert ChatRenderer.from_model(model).eos_token_ids == (2,)


# refusals ----------------------------------------------------------------------------------------------------------


def test_a_tokenizer_without_template_says_what_to_do_and_still_encodes_text() -> None:
    renderer = ChatRenderer(make_tiny_tokenizer(chat_template=None))
    with pytest.raises(ChatTemplateError, match=r"no chat template.*chat_template=…"):
        renderer.render([user("hello")])
    assert renderer.decode(renderer.encode_text("hello")) == "hello"
    assert not renderer.append_only


def test_a_template_that_rejects_the_messages_says_which_roles(tokenizer: Any) -> None:
    renderer = ChatRenderer(tokenizer, chat_template=ALTERNATING)
    with pytest.raises(ChatTemplateError, match="roles user, user: roles must alternate"):
        renderer.render([user("a"), user("b")])
    with pytest.raises(ChatTemplateError):
        renderer.suffix([assistant("a")], True)


def test_messages_that_can_not_be_shown_are_refused(renderer: ChatRenderer) -> None:
    with pytest.raises(RecoverableInputError, match="1 images"):
        renderer.render([ChatMessage("user", "look", images=(ImageContent("aGk="),))])
    with pytest.raises(ChatTemplateError, match="no messages"):
        renderer.render([])


def test_a_message_that_quotes_the_sentinel_is_kept_whole(tiny_model_dir: Path) -> None:
    renderer = ChatRenderer.from_model(tiny_model_dir)
    quoted = "before sentinel-reply-7f3a after"
    assert quoted in renderer.decode(renderer.suffix([ChatMessage("user", quoted)], True))


def test_half_a_surrogate_pair_is_refused_with_its_place(tiny_model_dir: Path) -> None:
    renderer = ChatRenderer.from_model(tiny_model_dir)
    with pytest.raises(RecoverableInputError, match=r"half of a surrogate pair"):
        renderer.render([ChatMessage("user", "a\ud800")])
