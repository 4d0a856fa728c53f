from __future__ import annotations

import random
from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llenvs_fast.core.errors import (
    AbortedError,
    BackendProtocolError,
    EmptyPromptError,
    GenerationError,
    InvalidSettingError,
    PromptTooLongError,
    RecoverableInputError,
)
from llenvs_fast.core.tools import ToolCall, ToolDefinition
from llenvs_fast.inference.backend import ModelBackend, run_requests, unwrap
from llenvs_fast.inference.backends.faulty import FaultyBackend
from llenvs_fast.inference.backends.scripted import Reply, ScriptedBackend
from llenvs_fast.inference.backends.scripted_cache import ScriptedCache
from llenvs_fast.inference.backends.scripted_tokens import END_ID, byte_renderer
from llenvs_fast.inference.protocol import (
    ChatMessage,
    Finished,
    GenerationRequest,
    GenerationResult,
    KVCapacity,
    SamplingParams,
    StopReason,
)

PARAMS = SamplingParams()


def ask(text: str, key: Hashable = 0, params: SamplingParams = PARAMS, **fields: Any) -> GenerationRequest:
    return GenerationRequest(key, params, messages=(ChatMessage("user", text),), **fields)


def answer(backend: ModelBackend, request: GenerationRequest) -> GenerationResult:
    return unwrap(run_requests(backend, [request])[0])


def texts(backend: ModelBackend, *prompts: str) -> list[str | None]:
    return [r.text for r in backend.generate_chat_batch([[ChatMessage("user", p)] for p in prompts], PARAMS)]


def polls_until_all_ended(backend: ModelBackend) -> list[list[Hashable]]:
    ends = []
    while backend.in_flight:
        ends.append([f.key for f in backend.poll()])
    return ends


# scripts --------------------------------------------------------------------------------------------------------------


def test_one_answer_is_the_answer_to_everything():
    assert texts(ScriptedBackend("yes"), "a", "b") == ["yes", "yes"]


def test_a_list_of_answers_goes_round_in_the_order_of_the_requests():
    assert texts(ScriptedBackend(["1", Reply("2")]), "a", "b", "c") == ["1", "2", "1"]


def test_a_mapping_answers_each_prompt_and_goes_round_for_each_prompt_alone():
    backend = ScriptedBackend({"a": ["1", "2"], "b": "x"})
    assert texts(backend, "a", "b", "a", "b", "a") == ["1", "x", "2", "x", "1"]


def test_a_function_sees_the_request():
    backend = ScriptedBackend(lambda r: f"{r.seed}:{r.messages[-1].content}")
    assert answer(backend, ask("hi", seed=7)).text == "7:hi"


def test_a_mapping_reads_the_prompts_text_where_a_request_has_ids_alone():
    renderer = byte_renderer()
    messages = [ChatMessage("user", "hi")]
    backend = ScriptedBackend({"<|start|>user\nhi<|end|><|start|>assistant\n": "ho"}, renderer=renderer)
    assert answer(backend, GenerationRequest(0, PARAMS, prompt_ids=renderer.render(messages))).text == "ho"


def test_a_prompt_that_the_script_lacks_fails_alone_and_names_the_nearest():
    ended = run_requests(ScriptedBackend({"echo 1": "1"}), [ask("echo 2", 0), ask("echo 1", 1)])
    assert isinstance(ended[0].error, GenerationError)
    assert "nearest: echo 1" in str(ended[0].error)
    assert unwrap(ended[1]).text == "1"


def test_an_exception_in_the_script_or_raised_by_it_ends_that_request_alone():
    boom = OSError("boom")

    def script(request: GenerationRequest) -> str | Exception:
        if request.key == 1:
            raise boom
        return boom if request.key == 2 else "fine"

    ended = run_requests(ScriptedBackend(script), [ask("q", key) for key in range(4)])
    assert [f.error for f in ended] == [None, boom, boom, None]


@pytest.mark.parametrize("script", [[], {"a": []}, [3]])
def test_a_script_that_can_answer_nothing_is_refused_when_it_is_given(script: Any):
    with pytest.raises(InvalidSettingError):
        ScriptedBackend(script)


# results --------------------------------------------------------------------------------------------------------------


def test_without_a_renderer_a_token_is_a_word():
    got = answer(ScriptedBackend("one two  three"), ask("a b"))
    assert (got.prompt_tokens, got.completion_tokens, got.token_ids) == (2, 3, None)


def test_max_tokens_cuts_words_in_text_and_ids_in_tokens():
    got = answer(ScriptedBackend("one  two three"), ask("q", max_tokens=2))
    assert (got.text, got.completion_tokens, got.finish_reason) == ("one  two", 2, StopReason.MAX_TOKENS)
    got = answer(ScriptedBackend.with_byte_tokens("one"), ask("q", max_tokens=3))
    assert (got.text, got.token_ids, got.finish_reason) == ("one", tuple(b"one"), StopReason.MAX_TOKENS)


def test_the_ids_of_a_reply_end_with_the_end_of_turn_and_the_text_does_not():
    got = answer(ScriptedBackend.with_byte_tokens("é!"), ask("q", max_tokens=4))
    assert got.token_ids == (*"é!".encode(), END_ID)
    assert (got.text, got.completion_tokens, got.finish_reason) == ("é!", 4, StopReason.END_OF_TEXT)


def test_given_ids_are_taken_as_sampled_though_they_are_not_those_of_their_text():
    got = answer(ScriptedBackend.with_byte_tokens(Reply(token_ids=(104, 999, 105))), ask("q"))
    assert got.token_ids == (104, 999, 105)
    assert got.text == "h\N{REPLACEMENT CHARACTER}i"


@pytest.mark.parametrize("make", [ScriptedBackend, ScriptedBackend.with_byte_tokens])
def test_a_stop_string_cuts_the_reply_and_is_told(make: Any):
    got = answer(make("hello world, hello"), ask("q", params=SamplingParams(stop_sequences=("never", "llo w"))))
    assert (got.text, got.finish_reason, got.stop_match) == ("he", StopReason.STOP_SEQUENCE, "llo w")
    assert got.token_ids in (None, tuple(b"hello w"))


def test_logprobs_are_given_where_asked_for_one_to_each_token():
    params = SamplingParams(logprobs=True)
    replies = [Reply("hi", logprobs=(-1.0, -2.0, -0.5)), "ho", Reply("x", logprobs=())]
    backend = ScriptedBackend.with_byte_tokens(replies)
    first, second, third = run_requests(backend, [ask("q", key, params) for key in range(3)])
    assert [(e.token, e.logprob) for e in unwrap(first).token_logprobs or ()] == [
        ("h", -1.0),
        ("i", -2.0),
        ("<|end|>", -0.5),
    ]
    assert [e.logprob for e in unwrap(second).token_logprobs or ()] == [0.0, 0.0, 0.0]
    assert isinstance(third.error, InvalidSettingError)
    assert answer(backend, ask("q")).token_logprobs is None


def test_tool_calls_are_replied_as_such_and_read_from_text():
    tool = ToolDefinition("add", "Adds.")
    call = ToolCall("call_0", "add", {"a": 1})
    text = 'So: <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    backend = ScriptedBackend.with_byte_tokens([Reply("So:", tool_calls=(call,)), text])
    given, read = (answer(backend, ask("q", key, tools=(tool,))) for key in range(2))
    assert (given.text, given.tool_calls, given.finish_reason) == ("So:", (call,), StopReason.TOOL_USE)
    assert (read.text, read.tool_calls, read.finish_reason) == ("So:", (call,), StopReason.TOOL_USE)
    assert b"<tool_call>" in bytes((given.token_ids or ())[:-1])


def test_bad_prompts_end_with_an_error_of_their_own():
    words = ScriptedBackend("ok")
    assert isinstance(run_requests(words, [ask("")])[0].error, EmptyPromptError)
    tokens = ScriptedBackend.with_byte_tokens("ok", max_model_len=10)
    ids = [(), (1,) * 9, (1,) * 10, (-1,)]
    ended = run_requests(tokens, [GenerationRequest(i, PARAMS, prompt_ids=p) for i, p in enumerate(ids)])
    errors = [EmptyPromptError, type(None), PromptTooLongError, RecoverableInputError]
    assert [type(f.error) for f in ended] == errors
    assert unwrap(ended[1]).completion_tokens == 1


# order and time -------------------------------------------------------------------------------------------------------


def test_nine_hundred_requests_that_end_out_of_order_keep_their_answers():
    rng = random.Random(0)
    backend = ScriptedBackend(lambda r: Reply(r.messages[-1].content, delay_steps=rng.randrange(20)))
    requests = [ask(f"echo {i}", (i, n)) for i in range(300) for n in range(3)]
    backend.submit(requests)
    ended: list[Finished] = []
    while backend.in_flight:
        ended += backend.poll()
    assert [f.key for f in ended] != [r.key for r in requests]
    assert sorted(f.key for f in ended) == [r.key for r in requests]
    assert all(unwrap(f).text == f"echo {f.key[0]}" for f in ended)


def test_a_delay_in_steps_is_the_number_of_polls_before_the_end():
    backend = ScriptedBackend({"a": Reply("a", delay_steps=2), "b": "b", "c": Reply(error=OSError(), delay_steps=1)})
    backend.submit([ask(p, p) for p in "abc"])
    assert polls_until_all_ended(backend) == [["b"], ["c"], ["a"]]


def test_a_delay_in_seconds_holds_a_reply_back_and_a_poll_waits_no_longer_than_told():
    backend = ScriptedBackend([Reply("slow", delay_s=0.05), Reply("slower", delay_s=60)])
    backend.submit([ask("q", 0), ask("q", 1)])
    assert backend.poll() == []
    assert [f.key for f in backend.poll(timeout_s=5)] == [0]
    assert backend.poll(timeout_s=0.01) == []
    backend.abort([1])
    assert [type(f.error) for f in backend.poll()] == [AbortedError]


def test_a_key_taken_back_and_used_again_ends_at_its_own_time():
    backend = ScriptedBackend([Reply("first", delay_steps=1), Reply("second", delay_steps=3)])
    backend.submit([ask("q", "k")])
    backend.abort(["k"])
    assert isinstance(backend.poll()[0].error, AbortedError)
    backend.submit([ask("q", "k")])
    assert polls_until_all_ended(backend) == [[], [], [], ["k"]]


def test_a_key_in_flight_is_refused_and_nothing_of_that_batch_is_taken():
    backend = ScriptedBackend("ok")
    backend.submit([ask("q", 1)])
    for batch in ([ask("q", 2), ask("q", 1)], [ask("q", 3), ask("q", 3)]):
        with pytest.raises(BackendProtocolError, match="in flight already"):
            backend.submit(batch)
    assert polls_until_all_ended(backend) == [[1]]


def test_what_was_asked_and_how_much_at_once_is_on_record():
    backend = ScriptedBackend("ok", record=True)
    requests = [ask("q", key) for key in range(5)]
    backend.submit(requests[:3])
    backend.poll()
    backend.submit(requests[3:])
    backend.poll()
    assert backend.recorded == requests
    assert backend.peak_in_flight == 3
    assert ScriptedBackend("ok").recorded == []


# faults ---------------------------------------------------------------------------------------------------------------


def test_faults_happen_as_ordered():
    backend = FaultyBackend(
        ScriptedBackend("ok"), lose=[0], duplicate=[2], unknown_keys=["?"], raise_at_poll={2: OSError("gone")}
    )
    backend.submit([ask("q", key) for key in "abc"])
    assert [f.key for f in backend.poll()] == ["?", "b", "c", "c"]
    assert backend.in_flight == 0
    with pytest.raises(OSError, match="gone"):
        backend.poll()
    assert backend.poll() == []


# the byte tokenizer ---------------------------------------------------------------------------------------------------


@given(st.text(max_size=30))
def test_every_text_comes_back_from_its_ids(text: str):
    renderer = byte_renderer()
    assert renderer.decode(renderer.encode_text(text), skip_special=False) == text


def test_a_conversation_grows_by_its_suffix():
    renderer = byte_renderer()
    assert renderer.append_only
    assert not renderer.rewrites_history
    assert renderer.end_of_turn_ids == (END_ID,)
    first, reply, then = ChatMessage("user", "hi"), ChatMessage("assistant", "ho"), ChatMessage("user", "hu")
    grown = renderer.render([first]) + tuple(b"ho") + renderer.suffix([then], False)
    ended = (*renderer.render([first]), *b"ho", END_ID, *renderer.suffix([then], True))
    assert grown == ended == renderer.render([first, reply, then])


# the engine's time and cache ------------------------------------------------------------------------------------------


def engine(script: Any, blocks: int = 100, max_sequences: int = 100, **options: Any) -> ScriptedBackend:
    capacity = KVCapacity(block_tokens=4, blocks=blocks, max_sequences=max_sequences, **options)
    return ScriptedBackend.with_byte_tokens(script, capacity=capacity)


def prompt(ids: str, key: Hashable, **fields: Any) -> GenerationRequest:
    return GenerationRequest(key, PARAMS, prompt_ids=tuple(ids.encode()), **fields)


def test_each_step_makes_one_token_of_every_running_sequence():
    backend = engine({"a": "12345", "b": "1"})  # and the end of turn
    backend.submit([prompt("a", "a"), prompt("b", "b")])
    assert polls_until_all_ended(backend) == [[], ["b"], [], [], [], ["a"]]
    assert backend.figures.engine_steps == 6
    assert backend.figures.completion_tokens == 8
    assert backend.figures.preemptions == 0


def test_no_more_sequences_run_than_allowed_and_the_others_wait_in_order():
    backend = engine("12", max_sequences=2)
    backend.submit([prompt(key, key) for key in "abcde"])
    assert polls_until_all_ended(backend) == [[], [], ["a", "b"], [], [], ["c", "d"], [], [], ["e"]]


def test_a_sequence_waits_until_its_blocks_are_free():
    backend = engine("123", blocks=3)  # 8 + 4 tokens: 3 blocks
    backend.submit([prompt("aaaaaaaa", 0), prompt("bbbbbbbb", 1)])
    assert polls_until_all_ended(backend) == [[], [], [], [0], [], [], [], [1]]


def test_a_sequence_that_never_fits_is_an_error_of_its_own():
    backend = engine("123", blocks=3)
    ended = run_requests(backend, [prompt("a" * 9, 0), prompt("a" * 8, 1)])
    assert isinstance(ended[0].error, RecoverableInputError)
    assert ended[1].error is None


def test_shared_beginnings_are_read_once_and_continuations_find_what_was_said():
    backend = engine("xy")
    first, second = (answer(backend, prompt("aaaabbbbc", key)) for key in (0, 1))
    assert (first.cached_tokens, second.cached_tokens) == (0, 8)
    longer = GenerationRequest(2, PARAMS, prompt_ids=(first.prompt_ids or ()) + (first.token_ids or ()) + (7,))
    assert answer(backend, longer).cached_tokens == 8  # the block of c, x, y and the end was never read to its end
    assert answer(backend, GenerationRequest(3, PARAMS, prompt_ids=(*(longer.prompt_ids or ()), 8))).cached_tokens == 12
    assert backend.figures.cached_tokens == 28


def test_the_last_prompt_token_is_always_computed():
    backend = engine("xy")
    assert [answer(backend, prompt("aaaabbbb", key)).cached_tokens for key in range(2)] == [0, 4]


def test_without_prefix_caching_nothing_is_found():
    backend = engine("xy", prefix_caching=False)
    assert [answer(backend, prompt("aaaabbbbc", key)).cached_tokens for key in range(2)] == [0, 0]


def test_the_least_recently_used_blocks_go_first():
    backend = engine("x", blocks=8)  # 4 blocks hold a prompt of 12 with its reply
    for ids in ("aaaa" * 3, "bbbb" * 3):
        answer(backend, prompt(ids, 0))
    answer(backend, prompt("aaaa" * 3, 0))
    answer(backend, prompt("cccc" * 3, 0))
    assert answer(backend, prompt("aaaa" * 3, 0)).cached_tokens == 8
    assert answer(backend, prompt("bbbb" * 3, 0)).cached_tokens == 0


def test_an_aborted_sequence_gives_its_blocks_back():
    backend = engine("123", blocks=3)
    backend.submit([prompt("aaaaaaaa", 0), prompt("bbbbbbbb", 1)])
    backend.poll()
    backend.abort([0])
    assert polls_until_all_ended(backend) == [[0], [], [], [1]]


actions = st.lists(st.tuples(st.integers(0, 5), st.text("ab", min_size=1, max_size=24), st.integers(1, 9)), max_size=40)


@given(actions, st.integers(8, 20))
def test_the_cache_never_holds_more_than_its_capacity_and_gives_everything_back(
    steps: list[tuple[int, str, int]], blocks: int
):
    cache = ScriptedCache(KVCapacity(block_tokens=4, blocks=blocks, max_sequences=6))
    running: dict[int, tuple[int, ...]] = {}
    for key, text, reply in steps:
        if key in running:
            cache.release(key, running.pop(key))
        else:
            ids = tuple(text.encode())
            found = cache.acquire(key, ids, len(ids) + reply)
            if found is not None:
                running[key] = ids + (99,) * (reply - 1)
                assert found < len(ids)
                assert found % 4 == 0
        assert 0 <= cache.free_blocks <= blocks
    for key in running:
        cache.release(key)
    everything = tuple(range(4 * blocks - 1))
    assert cache.acquire("all", everything, len(everything) + 1) is not None


def test_a_kv_cache_without_token_ids_makes_no_sense():
    with pytest.raises(InvalidSettingError, match="renderer"):
        ScriptedBackend("ok", capacity=KVCapacity(4, 4, 4))
