"""The real engine with a tiny model in float32, held against a plain forward pass of transformers."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from llenvs_fast.core.errors import (
    AbortedError,
    BackendProtocolError,
    EmptyPromptError,
    EngineDeadError,
    GenerationError,
    InvalidSettingError,
    LLEnvsError,
    PromptTooLongError,
    RecoverableInputError,
)
from llenvs_fast.core.tools import ToolDefinition
from llenvs_fast.inference.backend import run_requests, unwrap
from llenvs_fast.inference.backends import VLLMBackend
from llenvs_fast.inference.protocol import (
    ChatMessage,
    Finished,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    StopReason,
)

pytest.importorskip("vllm")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

KV_BYTES_PER_TOKEN = 2 * 2 * 64 * 4  # keys and values, layers, hidden, float32


@pytest.fixture(scope="module")
def small_vllm(tiny_model_dir: Path, tiny_vllm: VLLMBackend) -> Iterator[VLLMBackend]:
    """A second engine beside the first: context 128, a KV cache of 12 blocks of 32 tokens."""
    with VLLMBackend(
        tiny_model_dir, dtype="float32", max_model_len=128, kv_cache_memory_bytes=12 * 32 * KV_BYTES_PER_TOKEN
    ) as backend:
        yield backend


def token(backend: VLLMBackend, text: str) -> int:
    (token_id,) = backend.renderer.encode_text(text)
    return token_id


def words(backend: VLLMBackend, count: int, start: int = 0) -> tuple[int, ...]:
    """A prompt of `count` tokens."""
    return tuple(10 + (7 * i + start) % 300 for i in range(count))


def request(key: Hashable, prompt_ids: Sequence[int], seed: int | None = None, **params: Any) -> GenerationRequest:
    return GenerationRequest(key, SamplingParams(**params), prompt_ids=tuple(prompt_ids), seed=seed)


def results(backend: VLLMBackend, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
    return [unwrap(f) for f in run_requests(backend, requests)]


def one(backend: VLLMBackend, prompt_ids: Sequence[int], seed: int | None = None, **params: Any) -> GenerationResult:
    return results(backend, [request("one", prompt_ids, seed, **params)])[0]


def drain(backend: VLLMBackend) -> list[Finished]:
    ended: list[Finished] = []
    while backend.in_flight:
        ended += backend.poll()
    return ended


# what comes out ----------------------------------------------------------------------------------------------------


def test_greedy_ids_are_the_likeliest_ones_and_logprobs_are_raw(tiny_vllm: VLLMBackend, tiny_model_dir: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).eval()
    prompts = [words(tiny_vllm, n, start=n) for n in (1, 31, 32, 33, 70)]
    for temperature in (0.0, 0.7):
        requests = [
            request(i, ids, seed=i, max_tokens=16, temperature=temperature, logprobs=True, num_logprobs=3)
            for i, ids in enumerate(prompts)
        ]
        for ids, result in zip(prompts, results(tiny_vllm, requests), strict=True):
            sampled, logprobs = result.token_ids, result.token_logprobs
            assert sampled is not None
            assert logprobs is not None
            with torch.no_grad():
                logits = model(torch.tensor([ids + sampled])).logits[0, len(ids) - 1 : -1]
            expected = torch.log_softmax(logits, -1)
            if temperature == 0.0:
                assert sampled == tuple(expected.argmax(-1).tolist())
            assert [entry.token_id for entry in logprobs] == list(sampled)
            for position, entry in enumerate(logprobs):
                assert entry.logprob == pytest.approx(expected[position, entry.token_id].item(), abs=1e-3)
                assert entry.top_logprobs is not None
                best = max(entry.top_logprobs.values())
                assert best == pytest.approx(expected[position].max().item(), abs=1e-3)


def test_a_result_holds_the_ids_that_were_read_and_sampled_and_the_text_they_mean(tiny_vllm: VLLMBackend) -> None:
    prompt = words(tiny_vllm, 40)
    result = one(tiny_vllm, prompt, max_tokens=12, extra={"ignore_eos": True})
    assert result.prompt_ids == prompt
    assert result.token_ids is not None
    assert len(result.token_ids) == result.completion_tokens == 12
    assert result.prompt_tokens == 40
    assert result.text == tiny_vllm.renderer.decode(result.token_ids)
    assert result.finish_reason is StopReason.MAX_TOKENS
    assert result.stop_match is None


def test_results_come_back_by_key_however_they_finish(tiny_vllm: VLLMBackend) -> None:
    requests = [
        request(("task", i), words(tiny_vllm, 5 + i % 7, start=i), seed=i, temperature=1.0, max_tokens=1 + 13 * i % 31)
        for i in range(96)
    ]
    tiny_vllm.submit(requests)
    assert tiny_vllm.in_flight == 96
    ended = {finished.key: unwrap(finished) for finished in drain(tiny_vllm)}
    assert list(ended) != [r.key for r in requests]
    for r in requests:
        assert ended[r.key].prompt_ids == r.prompt_ids
        assert ended[r.key].completion_tokens <= r.params.max_tokens


def test_the_model_ending_its_turn_at_once_is_an_empty_text(tiny_vllm: VLLMBackend) -> None:
    end = tiny_vllm.renderer.eos_token_ids[0]
    for stop in ((), ("never",)):
        result = one(tiny_vllm, words(tiny_vllm, 9), stop_sequences=stop, extra={"allowed_token_ids": [end]})
        assert result.text == ""
        assert result.token_ids == (end,)
        assert result.finish_reason is StopReason.END_OF_TEXT
        assert result.stop_match is None


def test_an_end_of_turn_on_the_last_allowed_token_is_an_end_of_turn(tiny_vllm: VLLMBackend) -> None:
    end = tiny_vllm.renderer.eos_token_ids[0]
    ends_at_five = {"min_tokens": 4, "logit_bias": {end: 100.0}}
    result = one(tiny_vllm, words(tiny_vllm, 9), max_tokens=5, extra=ends_at_five)
    assert result.token_ids is not None
    assert result.token_ids[-1] == end
    assert len(result.token_ids) == 5
    assert result.finish_reason is StopReason.END_OF_TEXT
    cut = one(tiny_vllm, words(tiny_vllm, 9), max_tokens=4, extra=ends_at_five)
    assert cut.finish_reason is StopReason.MAX_TOKENS


def test_a_stop_string_across_tokens_is_cut_from_the_text_and_kept_in_the_ids(tiny_vllm: VLLMBackend) -> None:
    hello, world = token(tiny_vllm, "hello"), token(tiny_vllm, " world")
    only_these = {"allowed_token_ids": [hello, world]}
    prompt = words(tiny_vllm, 9)
    result = one(tiny_vllm, prompt, seed=1, temperature=2.0, stop_sequences=("zzz", "llo w"), extra=only_these)
    assert result.finish_reason is StopReason.STOP_SEQUENCE
    assert result.stop_match == "llo w"
    assert result.token_ids is not None
    assert result.text is not None
    assert result.token_ids[-2:] == (hello, world)
    assert "llo w" not in result.text
    assert tiny_vllm.renderer.decode(result.token_ids) == result.text + "llo world"


def test_added_tokens_can_be_read_and_stopped_at(tiny_vllm: VLLMBackend) -> None:
    answer = token(tiny_vllm, "<answer>")
    only_answers = {"allowed_token_ids": [answer]}
    shown = one(tiny_vllm, words(tiny_vllm, 9), max_tokens=2, extra=only_answers)
    assert shown.text == "<answer><answer>"
    stopped = one(tiny_vllm, words(tiny_vllm, 9), stop_sequences=("r><an",), extra=only_answers)
    assert stopped.text == "<answe"
    assert stopped.token_ids == (answer, answer)
    by_id = one(tiny_vllm, words(tiny_vllm, 9), extra=only_answers | {"stop_token_ids": [answer]})
    assert by_id.finish_reason is StopReason.STOP_SEQUENCE
    assert by_id.stop_match == answer


# seeds -------------------------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_sample_in_any_company(tiny_vllm: VLLMBackend) -> None:
    prompt = words(tiny_vllm, 20)
    requests = [request(i, prompt, seed=1000 + i, temperature=1.0, max_tokens=12) for i in range(16)]
    together = [r.token_ids for r in results(tiny_vllm, requests)]
    assert len(set(together)) == 16
    others = [request(("other", i), words(tiny_vllm, 3 + i, i), temperature=1.0, max_tokens=9) for i in range(8)]
    backwards = results(tiny_vllm, others + requests[::-1])
    assert [r.token_ids for r in backwards[8:]] == together[::-1]
    assert [one(tiny_vllm, prompt, 1000 + i, temperature=1.0, max_tokens=12).token_ids for i in (3, 11)] == [
        together[3],
        together[11],
    ]


# bad requests ------------------------------------------------------------------------------------------------------


def test_a_prompt_that_can_not_run_ends_alone(small_vllm: VLLMBackend) -> None:
    lengths = (5, 127, 128, 129, 5000, 0)
    requests = [request(n, words(small_vllm, n), max_tokens=16, extra={"ignore_eos": True}) for n in lengths]
    requests += [request("wrong id", (5, 10_000)), request("negative id", (5, -1))]
    ended = {f.key: f for f in run_requests(small_vllm, requests)}
    assert unwrap(ended[5]).completion_tokens == 16
    assert unwrap(ended[127]).completion_tokens == 1
    assert unwrap(ended[127]).finish_reason is StopReason.MAX_TOKENS
    for n in (128, 129, 5000):
        with pytest.raises(PromptTooLongError, match=rf"{n} tokens and the context 128.*max_model_len"):
            unwrap(ended[n])
    with pytest.raises(EmptyPromptError):
        unwrap(ended[0])
    for key in ("wrong id", "negative id"):
        with pytest.raises(RecoverableInputError, match="outside the model's vocabulary"):
            unwrap(ended[key])


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"max_tokens": 0},
        {"extra": {"no_such_option": 1}},
        {"extra": {"n": 4}},
        {"logprobs": True, "num_logprobs": 10_000},
        {"extra": {"allowed_token_ids": []}},
    ],
    ids=str,
)
def test_sampling_parameters_that_can_not_be_end_that_request_alone(
    tiny_vllm: VLLMBackend, params: dict[str, Any]
) -> None:
    good, bad = run_requests(
        tiny_vllm, [request("good", words(tiny_vllm, 9), max_tokens=4), request("bad", words(tiny_vllm, 9), **params)]
    )
    assert unwrap(good).completion_tokens > 0
    assert isinstance(bad.error, ValueError)
    assert isinstance(bad.error, LLEnvsError)


def test_a_key_in_flight_is_refused_and_nothing_of_that_batch_starts(tiny_vllm: VLLMBackend) -> None:
    prompt = words(tiny_vllm, 9)
    tiny_vllm.submit([request("a", prompt, max_tokens=4)])
    for batch in (["b", "a"], ["c", "c"]):
        with pytest.raises(BackendProtocolError, match="in flight"):
            tiny_vllm.submit([request(key, prompt) for key in batch])
    assert [f.key for f in drain(tiny_vllm)] == ["a"]


# stopping half-way -------------------------------------------------------------------------------------------------


def test_aborted_requests_end_once_and_the_others_go_on(tiny_vllm: VLLMBackend) -> None:
    before = tiny_vllm._engine.get_num_unfinished_requests()
    forty = {"max_tokens": 40, "extra": {"ignore_eos": True}}
    tiny_vllm.submit([request(i, words(tiny_vllm, 9, i), **forty) for i in range(10)])
    for _ in range(5):
        assert tiny_vllm.poll() == []
    tiny_vllm.abort([0, 2, 4, 6, 8, "no such key"])
    assert tiny_vllm._engine.get_num_unfinished_requests() == before + 5
    ended = drain(tiny_vllm)
    assert sorted(f.key for f in ended if f.result is not None) == [1, 3, 5, 7, 9]
    assert sorted(f.key for f in ended if isinstance(f.error, AbortedError)) == [0, 2, 4, 6, 8]
    assert len(ended) == 10
    tiny_vllm.abort([1, 2])
    assert tiny_vllm.poll() == []


def test_the_engine_can_be_used_again_after_an_interrupt(tiny_vllm: VLLMBackend) -> None:
    question = [[ChatMessage("user", f"what is {i}?")] for i in range(32)]
    expected = tiny_vllm.generate_chat_batch(question, SamplingParams(max_tokens=8))

    def generate_until(ctrl_c: threading.Timer) -> None:
        ctrl_c.start()
        while True:
            tiny_vllm.generate_chat_batch(question, SamplingParams(max_tokens=400, extra={"ignore_eos": True}))

    for delay_s in (0.02, 0.1):
        ctrl_c = threading.Timer(delay_s, signal.raise_signal, [signal.SIGINT])
        with pytest.raises(KeyboardInterrupt):
            generate_until(ctrl_c)
        ctrl_c.join()
        drain(tiny_vllm)
        assert tiny_vllm._engine.get_num_unfinished_requests() == 0
        again = tiny_vllm.generate_chat_batch(question, SamplingParams(max_tokens=8))
        assert [r.token_ids for r in again] == [r.token_ids for r in expected]


# the KV cache ------------------------------------------------------------------------------------------------------


def test_a_prompt_met_again_is_read_from_the_cache_until_it_is_reset(tiny_vllm: VLLMBackend) -> None:
    tiny_vllm.reset_prefix_cache()
    prompt = words(tiny_vllm, 100, start=3)
    before = tiny_vllm.figures.copy()
    cached = [one(tiny_vllm, prompt, max_tokens=1).cached_tokens for _ in range(2)]
    assert cached == [0, 96]
    spent = tiny_vllm.figures.since(before)
    assert (spent.requests, spent.prompt_tokens, spent.completion_tokens, spent.cached_tokens) == (2, 200, 2, 96)
    tiny_vllm.submit([request("running", prompt, max_tokens=8)])
    tiny_vllm.poll()
    with pytest.raises(GenerationError, match="in use by 1 request"):
        tiny_vllm.reset_prefix_cache()
    tiny_vllm.abort(["running"])
    drain(tiny_vllm)
    tiny_vllm.reset_prefix_cache()
    assert one(tiny_vllm, prompt, max_tokens=1).cached_tokens == 0


def test_preemptions_are_counted_and_change_no_sample(small_vllm: VLLMBackend, tiny_vllm: VLLMBackend) -> None:
    assert small_vllm.capacity is not None
    assert (small_vllm.capacity.block_tokens, small_vllm.capacity.blocks) == (32, 11)
    requests = [
        request(i, words(small_vllm, 40, i), seed=i, temperature=1.0, max_tokens=80, extra={"ignore_eos": True})
        for i in range(12)
    ]
    before = small_vllm.figures.copy()
    crowded = results(small_vllm, requests)
    roomy = results(tiny_vllm, requests)
    assert [r.token_ids for r in crowded] == [r.token_ids for r in roomy]
    preemptions = small_vllm.figures.since(before).preemptions
    assert preemptions is not None
    assert preemptions > 0
    assert tiny_vllm.figures.preemptions == 0


# tools -------------------------------------------------------------------------------------------------------------


def test_the_model_reads_the_tools_it_may_call(tiny_vllm: VLLMBackend) -> None:
    tools = [ToolDefinition("look_up", "Finds a word.")]
    question = [[ChatMessage("user", "hello")]]
    (told,) = tiny_vllm.generate_with_tools_batch(question, tools, SamplingParams(max_tokens=4))
    assert told.prompt_ids is not None
    assert "look_up" in tiny_vllm.renderer.decode(told.prompt_ids)
    (untold,) = tiny_vllm.generate_with_tools_batch(question, tools, SamplingParams(max_tokens=4), tool_choice="none")
    assert untold.prompt_ids == tiny_vllm.renderer.render(question[0])
    with pytest.raises(InvalidSettingError, match="required"):
        tiny_vllm.generate_with_tools_batch(question, tools, SamplingParams(max_tokens=4), tool_choice="required")


# life --------------------------------------------------------------------------------------------------------------


def test_when_the_engine_fails_every_request_ends_and_a_new_engine_does_the_work(tiny_model_dir: Path) -> None:
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 64, "kv_cache_memory_bytes": 1 << 20}
    first = VLLMBackend(tiny_model_dir, **options)
    prompt = words(first, 9)
    expected = one(first, prompt, max_tokens=8)
    first.submit([request(i, prompt, max_tokens=8) for i in range(3)] + [request("bad", ())])
    first._engine.engine_core.engine_core.model_executor = None  # as good as a crash of the device
    ended = first.poll()
    assert sorted(str(f.key) for f in ended if isinstance(f.error, EngineDeadError)) == ["0", "1", "2"]
    assert [f.key for f in ended if isinstance(f.error, EmptyPromptError)] == ["bad"]
    assert first.in_flight == 0
    with pytest.raises(EngineDeadError, match="new backend"):
        first.submit([request("late", prompt)])
    first.close()
    first.close()
    with VLLMBackend(tiny_model_dir, **options) as second:
        assert one(second, prompt, max_tokens=8).token_ids == expected.token_ids
    with pytest.raises(EngineDeadError, match="closed"):
        second.submit([request("late", prompt)])


@pytest.mark.slow
def test_when_the_engines_own_process_is_killed_every_request_ends(tiny_model_dir: Path) -> None:
    long = {"max_tokens": 50, "extra": {"ignore_eos": True}}
    with VLLMBackend(
        tiny_model_dir, dtype="float32", max_model_len=64, kv_cache_memory_bytes=1 << 20, engine_process=True
    ) as backend:
        prompt = words(backend, 9)
        assert one(backend, prompt, **long).completion_tokens == 50
        backend.submit([request(i, prompt, **long) for i in range(3)])
        for process in backend._engine.engine_core.resources.engine_manager.processes:
            process.kill()
            process.join()
        ended = drain(backend)
        assert sorted(str(f.key) for f in ended if isinstance(f.error, EngineDeadError)) == ["0", "1", "2"]
        with pytest.raises(EngineDeadError, match="new backend"):
            backend.submit([request("late", prompt)])


def test_importing_the_backend_loads_no_heavy_package() -> None:
    code = """
import sys
from llenvs_fast.inference.backends import VLLMBackend
print(sorted({"torch", "vllm", "transformers", "numba"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_plain_script_can_run_the_engine_in_a_thread_and_owns_stdout(tiny_model_dir: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""
import threading
from llenvs_fast.inference.backends import VLLMBackend
from llenvs_fast.inference.protocol import ChatMessage, SamplingParams

def work():
    with VLLMBackend({str(tiny_model_dir)!r}, max_model_len=64, kv_cache_memory_bytes=1 << 20) as backend:
        print(backend.generate_chat([ChatMessage("user", "hello")], SamplingParams(max_tokens=3)).completion_tokens)

thread = threading.Thread(target=work)
thread.start()
thread.join()
""")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3\n"


def test_an_engine_can_start_after_numba_was_used(tiny_vllm: VLLMBackend) -> None:
    """vLLM's look through all loaded modules meets numba's, whose compiler it could not read."""
    pytest.importorskip("numba")
    from vllm.triton_utils import dispatcher

    dispatcher._rebind_kernels([])
