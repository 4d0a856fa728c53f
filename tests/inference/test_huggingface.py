from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llenvs_fast.core.errors import EngineDeadError, GenerationError, InvalidSettingError, PromptTooLongError
from llenvs_fast.core.tools import ToolDefinition
from llenvs_fast.inference.backend import run_requests, unwrap
from llenvs_fast.inference.backends import HuggingFaceBackend
from llenvs_fast.inference.protocol import ChatMessage, GenerationRequest, GenerationResult, SamplingParams, StopReason
from tests.tiny_model import edit_json

torch = pytest.importorskip("torch")

from llenvs_fast.inference.backends.huggingface_sampling import Sampler, sample  # noqa: E402 - needs torch

PROMPTS = [
    "hello world",
    "what is one and one?",
    "the answer is yes and the question was no. " * 6,
    "once",
    "the user asks, the assistant answers",
]


@pytest.fixture(scope="module")
def backend(tiny_model_dir: Path) -> Iterator[HuggingFaceBackend]:
    with HuggingFaceBackend(tiny_model_dir, max_batch_size=8) as made:
        yield made


def conversation(text: str) -> list[ChatMessage]:
    return [ChatMessage("user", text)]


def generated(
    backend: HuggingFaceBackend, params: SamplingParams, prompts: Sequence[str] = PROMPTS
) -> list[GenerationResult]:
    return backend.generate_chat_batch([conversation(p) for p in prompts], params)


def alone(backend: HuggingFaceBackend, params: SamplingParams) -> list[GenerationResult]:
    return [generated(backend, params, [p])[0] for p in PROMPTS]


def request(backend: HuggingFaceBackend, key: Any, params: SamplingParams, prompt: str = PROMPTS[0], **fields: Any):
    return GenerationRequest(key, params, prompt_ids=backend.renderer.render(conversation(prompt)), **fields)


def test_greedy_replies_are_those_of_transformers_own_generate(backend: HuggingFaceBackend):
    for prompt in PROMPTS:
        ids = backend.renderer.render(conversation(prompt))
        theirs = backend.model.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False, pad_token_id=0)
        (ours,) = generated(backend, SamplingParams(max_tokens=24), [prompt])
        assert ours.prompt_ids == ids
        assert ours.token_ids == tuple(theirs[0, len(ids) :].tolist())


def test_a_batch_gives_what_each_prompt_gives_alone(backend: HuggingFaceBackend):
    params = SamplingParams(max_tokens=24, logprobs=True, num_logprobs=3)
    for together, single in zip(generated(backend, params), alone(backend, params), strict=True):
        assert replace(together, token_logprobs=None) == replace(single, token_logprobs=None)
        assert [e.logprob for e in together.token_logprobs] == pytest.approx(
            [e.logprob for e in single.token_logprobs], abs=1e-4
        )


def test_counts_and_reasons_are_each_replys_own_however_long_its_neighbours_run(backend: HuggingFaceBackend):
    lengths = [1, 30, 2, 17, 5]
    params = SamplingParams(extra={"ignore_eos": True})
    requests = [request(backend, n, params, p, max_tokens=n) for p, n in zip(PROMPTS, lengths, strict=True)]
    results = [unwrap(f) for f in run_requests(backend, requests)]
    assert [r.completion_tokens for r in results] == lengths
    assert [len(r.token_ids) for r in results] == lengths
    assert {r.finish_reason for r in results} == {StopReason.MAX_TOKENS}
    assert [r.prompt_tokens for r in results] == [len(r.prompt_ids) for r in requests]


@pytest.fixture
def ending_at(tiny_model_dir: Path, tmp_path: Path) -> Iterator[Callable[[int], HuggingFaceBackend]]:
    """Makes the model with one more end-of-text token."""
    made: list[HuggingFaceBackend] = []

    def make(token: int) -> HuggingFaceBackend:
        directory = shutil.copytree(tiny_model_dir, tmp_path / "model")
        ends = json.loads((directory / "generation_config.json").read_text())["eos_token_id"]
        edit_json(directory / "generation_config.json", eos_token_id=[ends, token])
        made.append(HuggingFaceBackend(directory, max_batch_size=8))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def test_a_reply_that_ends_early_in_a_long_batch_says_end_of_text(
    backend: HuggingFaceBackend, ending_at: Callable[[int], HuggingFaceBackend]
):
    params = SamplingParams(max_tokens=24)
    free = [r.token_ids for r in alone(backend, params)]
    end = free[0][3]
    ended = generated(ending_at(end), params)
    assert {r.finish_reason for r in ended} == {StopReason.END_OF_TEXT, StopReason.MAX_TOKENS}
    for got, whole in zip(ended, free, strict=True):
        expected = whole[: whole.index(end) + 1] if end in whole else whole
        assert got.token_ids == expected
        assert got.completion_tokens == len(expected)
        cut = len(expected) == 24 and expected[-1] not in (end, *backend.renderer.eos_token_ids)
        assert got.finish_reason is (StopReason.MAX_TOKENS if cut else StopReason.END_OF_TEXT)


def test_the_end_of_text_as_the_last_allowed_token_is_an_end_of_text(
    backend: HuggingFaceBackend, ending_at: Callable[[int], HuggingFaceBackend]
):
    (free,) = generated(backend, SamplingParams(max_tokens=4), PROMPTS[:1])
    assert len(set(free.token_ids)) == 4  # else the end would come sooner
    (got,) = generated(ending_at(free.token_ids[3]), SamplingParams(max_tokens=4), PROMPTS[:1])
    assert (got.finish_reason, got.completion_tokens) == (StopReason.END_OF_TEXT, 4)


def test_the_end_of_text_as_the_first_token_is_an_empty_answer(
    backend: HuggingFaceBackend, ending_at: Callable[[int], HuggingFaceBackend]
):
    (free,) = generated(backend, SamplingParams(max_tokens=1), PROMPTS[:1])
    (got,) = generated(ending_at(free.token_ids[0]), SamplingParams(max_tokens=4), PROMPTS[:1])
    assert (got.text, got.token_ids, got.finish_reason) == ("", free.token_ids, StopReason.END_OF_TEXT)


def test_a_stop_string_over_a_token_border_cuts_the_text_and_keeps_the_ids(backend: HuggingFaceBackend):
    free = alone(backend, SamplingParams(max_tokens=24))
    decode = backend.renderer.decode
    stops = []
    for result in free:
        before = len(decode(result.token_ids[:11]))
        stops.append(result.text[before - 1 : before + 1])
    for prompt, whole, stop in zip(PROMPTS, free, stops, strict=True):
        (got,) = generated(backend, SamplingParams(max_tokens=24, stop_sequences=("never said", stop)), [prompt])
        assert got.text == whole.text[: whole.text.index(stop)]
        assert (got.finish_reason, got.stop_match) == (StopReason.STOP_SEQUENCE, stop)
        assert stop in decode(got.token_ids)
        assert stop not in decode(got.token_ids[:-1])
        assert got.token_ids == whole.token_ids[: got.completion_tokens]


def test_seeds_decide_the_draw_in_any_company(backend: HuggingFaceBackend):
    warm = SamplingParams(max_tokens=12, temperature=1.0)
    narrow = replace(warm, top_p=0.8, top_k=20)
    mixed = [request(backend, i, (warm, narrow)[i % 2], seed=i) for i in range(8)]
    together = [unwrap(f).token_ids for f in run_requests(backend, mixed)]
    by_itself = [unwrap(run_requests(backend, [r])[0]).token_ids for r in mixed]
    assert together == by_itself
    assert len(set(together)) == 8


def test_samples_without_a_seed_differ_and_come_again_with_the_same_backend_seed(tiny_model_dir: Path):
    params = SamplingParams(max_tokens=12, temperature=1.0)
    runs = []
    for _ in range(2):
        with HuggingFaceBackend(tiny_model_dir, seed=5) as made:
            runs.append([r.text for r in generated(made, params, PROMPTS[:1] * 4)])
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 4


def test_a_batch_is_as_large_as_allowed_and_replies_come_as_they_end(backend: HuggingFaceBackend):
    params = SamplingParams(extra={"ignore_eos": True})
    requests = [request(backend, i, params, max_tokens=3 + 4 * (i % 2)) for i in range(10)]  # batches of 8 and 2
    before = backend.figures.copy()
    backend.submit(requests)
    ends: list[tuple[int, list[Any]]] = []
    while backend.in_flight:
        finished = backend.poll()
        if finished:
            ends.append((backend.figures.since(before).engine_steps, [f.key for f in finished]))
    assert ends == [(3, [0, 2, 4, 6]), (7, [1, 3, 5, 7]), (10, [8]), (14, [9])]
    assert backend.figures.since(before).completion_tokens == 10 * 5


def test_a_prompt_too_long_costs_only_itself(tiny_model_dir: Path):
    with HuggingFaceBackend(tiny_model_dir, max_model_len=128) as made:
        params = SamplingParams(max_tokens=3)
        ids = [(7,) * n for n in (5, 127, 128, 129, 5000)]
        ends = run_requests(made, [GenerationRequest(len(i), params, prompt_ids=i) for i in ids])
    assert [f.result.completion_tokens for f in ends[:2]] == [3, 1]
    assert [type(f.error) for f in ends[2:]] == [PromptTooLongError] * 3


def test_a_batch_in_which_the_model_fails_ends_with_errors_and_the_next_one_goes_on(backend: HuggingFaceBackend):
    def fail(*args: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    with backend.model.register_forward_pre_hook(fail):
        ends = run_requests(backend, [request(backend, i, SamplingParams(max_tokens=3)) for i in range(3)])
    assert [type(f.error) for f in ends] == [GenerationError] * 3
    assert "max_batch_size=8" in str(ends[0].error)
    assert generated(backend, SamplingParams(max_tokens=3), PROMPTS[:1])[0].completion_tokens == 3


def test_aborted_rows_leave_the_others_as_they_were(backend: HuggingFaceBackend):
    params = SamplingParams(max_tokens=12)
    expected = [r.token_ids for r in alone(backend, params)]
    backend.submit([request(backend, i, params, p) for i, p in enumerate(PROMPTS)])
    backend.poll()
    backend.abort([0, 1, 2])
    ended = {}
    while backend.in_flight:
        ended |= {f.key: f for f in backend.poll()}
    assert [ended[i].error is None for i in range(5)] == [False, False, False, True, True]
    assert [unwrap(ended[i]).token_ids for i in (3, 4)] == expected[3:]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=-1),
        SamplingParams(top_p=0),
        SamplingParams(max_tokens=0),
        SamplingParams(extra={"temprature": 1.0}),
    ],
)
def test_sampling_parameters_that_make_no_sense_are_refused(backend: HuggingFaceBackend, params: SamplingParams):
    (ended,) = run_requests(backend, [request(backend, "bad", params)])
    assert isinstance(ended.error, InvalidSettingError)


def test_extra_wins_over_the_fields(backend: HuggingFaceBackend):
    (got,) = generated(backend, SamplingParams(max_tokens=9, extra={"max_tokens": 2}), PROMPTS[:1])
    assert got.completion_tokens == 2


def test_tools_are_shown_to_the_model_unless_the_choice_is_none(backend: HuggingFaceBackend):
    tool = ToolDefinition("add", "Adds two numbers.")
    shown, hidden = (
        backend.generate_with_tools(conversation("add 1 and 1"), [tool], SamplingParams(max_tokens=2), choice)
        for choice in ("auto", "none")
    )
    assert "Adds two numbers." in backend.renderer.decode(shown.prompt_ids)
    assert "Adds two numbers." not in backend.renderer.decode(hidden.prompt_ids)


def test_a_closed_backend_refuses_requests_and_ends_those_in_flight(tiny_model_dir: Path):
    made = HuggingFaceBackend(tiny_model_dir)
    made.submit([request(made, 0, SamplingParams(max_tokens=50))])
    made.close()
    assert [f.key for f in made.poll()] == [0]
    with pytest.raises(EngineDeadError, match="closed"):
        made.submit([request(made, 1, SamplingParams())])


# sampling -------------------------------------------------------------------------------------------------------------


def draws(logits: list[float], count: int = 4000, **params: Any) -> list[float]:
    """How often each token is drawn, as a share."""
    samplers = [Sampler(SamplingParams(**params), random.Random(i)) for i in range(count)]
    sample(torch.tensor([logits] * count), samplers)
    return [sum(s.ids[0] == token for s in samplers) / count for token in range(len(logits))]


def test_draws_follow_the_softmax_at_the_given_temperature():
    expected = torch.softmax(torch.tensor([2.0, 1.0, 0.0]) / 0.5, -1).tolist()
    assert draws([2.0, 1.0, 0.0], temperature=0.5) == pytest.approx(expected, abs=0.03)


def test_top_k_and_top_p_cut_the_unlikely_tokens_and_no_more():
    assert draws([0.0, 3.0, 1.0, 2.9], temperature=1.0, top_k=2) == pytest.approx([0, 0.525, 0, 0.475], abs=0.03)
    nearly = [0.5, 0.3, 0.15, 0.05]
    logits = torch.tensor(nearly).log().tolist()
    assert draws(logits, temperature=1.0, top_p=0.79) == pytest.approx([0.625, 0.375, 0, 0], abs=0.03)
    assert draws(logits, temperature=1.0, top_p=0.81)[2] > 0
    assert draws(logits, temperature=1.0, top_p=1e-9) == [1, 0, 0, 0]


def test_logprobs_are_raw_whatever_the_temperature_and_the_filters():
    params = SamplingParams(temperature=0.5, top_k=1, logprobs=True, num_logprobs=2)
    sampler = Sampler(params, random.Random(0))
    sample(torch.tensor([[2.0, 1.0, 0.0]]), [sampler])
    (entry,) = sampler.logprobs
    assert entry.sampled == pytest.approx(-0.4076, abs=1e-4)
    assert entry.top == {0: pytest.approx(-0.4076, abs=1e-4), 1: pytest.approx(-1.4076, abs=1e-4)}


def test_penalties_count_what_was_sampled_and_nothing_else():
    logits = torch.tensor([[1.0, 0.88, 0.0]] * 2)
    penalized = Sampler(SamplingParams(presence_penalty=0.05, frequency_penalty=0.1), random.Random(0))
    plain = Sampler(SamplingParams(), random.Random(0))
    for _ in range(5):
        sample(logits, [penalized, plain])
    assert penalized.ids == [0, 1, 0, 0, 1]
    assert plain.ids == [0, 0, 0, 0, 0]
