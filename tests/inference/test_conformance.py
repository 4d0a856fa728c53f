"""Every backend of this package keeps the contract, and the suite notices each way of breaking it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from llenvs_fast.inference.backend import ModelBackend
from llenvs_fast.inference.backends.faulty import FaultyBackend
from llenvs_fast.inference.backends.scripted import Reply, ScriptedBackend
from llenvs_fast.inference.conformance import check_backend
from llenvs_fast.inference.protocol import (
    BackendCapabilities,
    ChatMessage,
    Finished,
    GenerationRequest,
    GenerationResult,
    KVCapacity,
    SamplingParams,
    StopReason,
)


def echo(request: GenerationRequest) -> str:
    return f"You said: {request.messages[-1].content}"


def seeded_echo(request: GenerationRequest) -> Reply:
    return Reply(f"{request.seed} {echo(request)}", delay_steps=len(request.messages[-1].content or "") % 3)


SEEDED = BackendCapabilities(supports_logprobs=True, supports_seed=True, max_context_length=300)
SMALL_CACHE = KVCapacity(block_tokens=16, blocks=64, max_sequences=3)


def test_a_scripted_backend_that_reads_messages_keeps_the_contract():
    seen = check_backend(lambda: ScriptedBackend(echo))
    assert set(seen.unreached) == {
        "a_bad_prompt_costs_only_itself",
        "text_and_ids_agree",
        "logprobs_are_those_of_the_sampled_tokens",
        "a_seed_decides_the_draw",
    }


def test_a_scripted_backend_that_reads_token_ids_keeps_all_of_the_contract():
    backend = ScriptedBackend.with_byte_tokens(seeded_echo, max_model_len=300, capabilities=SEEDED)
    assert check_backend(lambda: backend, SamplingParams(max_tokens=24)).unreached == {}


def test_a_scripted_backend_with_a_kv_cache_keeps_the_contract():
    backend = ScriptedBackend.with_byte_tokens(echo, max_model_len=300, capacity=SMALL_CACHE)
    assert set(check_backend(lambda: backend).unreached) == {"a_seed_decides_the_draw"}


def test_a_backend_that_only_generates_batches_keeps_the_contract():
    class Plain(ModelBackend):
        capabilities = BackendCapabilities()
        model_name = "plain"

        def generate_chat_batch(
            self,
            messages_batch: Sequence[Sequence[ChatMessage]],
            params: SamplingParams,
            *,
            seeds: Sequence[int | None] | None = None,
        ) -> list[GenerationResult]:
            inner = ScriptedBackend(echo)
            return inner.generate_chat_batch(messages_batch, params)

    assert "every_request_ends_once" in check_backend(Plain).kept


def test_the_huggingface_backend_keeps_all_of_the_contract(tiny_model_dir: Path):
    pytest.importorskip("torch")
    from llenvs_fast.inference.backends import HuggingFaceBackend

    seen = check_backend(lambda: HuggingFaceBackend(tiny_model_dir, max_batch_size=5, max_model_len=200))
    assert seen.unreached == {}


def test_the_vllm_backend_keeps_all_of_the_contract(tiny_vllm: ModelBackend):
    assert check_backend(lambda: tiny_vllm, close=False).unreached == {}


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ({"lose": [3]}, r"every_request_ends_once.* never ended"),
        ({"duplicate": [3]}, r"every_request_ends_once.* ended twice"),
        ({"unknown_keys": ["x"]}, r"every_request_ends_once.*'x' ended, which was not in flight"),
        ({"raise_at_poll": {1: OSError("gone")}}, r"every_request_ends_once.*OSError: gone"),
    ],
)
def test_ends_that_are_lost_doubled_invented_or_broken_are_noticed(fault: dict, rule: str):
    with pytest.raises(AssertionError, match=rule):
        check_backend(lambda: FaultyBackend(ScriptedBackend.with_byte_tokens(echo), **fault))


class Broken(ScriptedBackend):
    """A scripted backend whose ends are spoiled by `spoil`."""

    def poll(self, timeout_s: float = 0.0) -> list[Finished]:
        return self.spoil(super().poll(timeout_s))

    def spoil(self, ended: list[Finished]) -> list[Finished]:
        return ended


def changed(ended: list[Finished], **fields: object) -> list[Finished]:
    return [f if f.result is None else replace(f, result=replace(f.result, **fields)) for f in ended]


class SwapsResults(Broken):
    def spoil(self, ended: list[Finished]) -> list[Finished]:
        return [Finished(a.key, b.result, b.error) for a, b in zip(ended, ended[::-1], strict=True)]


class IgnoresMaxTokens(Broken):
    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        super().submit([replace(r, max_tokens=1000) for r in requests])


class ShowsTheEnd(Broken):
    def spoil(self, ended: list[Finished]) -> list[Finished]:
        return changed(ended, text="<|end|>")


class CallsEverythingTheEnd(Broken):
    def spoil(self, ended: list[Finished]) -> list[Finished]:
        return changed(ended, finish_reason=StopReason.END_OF_TEXT)


class CountsTwice(Broken):
    def spoil(self, ended: list[Finished]) -> list[Finished]:
        self.figures.completion_tokens += sum(f.result.completion_tokens for f in ended if f.result)
        return ended


class IgnoresStopStrings(Broken):
    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        super().submit([replace(r, params=replace(r.params, stop_sequences=())) for r in requests])


class TakesKeysTwice(Broken):
    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        self._keys.difference_update([r.key for r in requests])
        super().submit(requests)


class RaisesForABadPrompt(Broken):
    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        for request in requests:
            self._checked_prompt(request)
        super().submit(requests)


class ForgetsLogprobs(Broken):
    def spoil(self, ended: list[Finished]) -> list[Finished]:
        return changed(ended, token_logprobs=None)


class IgnoresSeeds(Broken):
    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        super().submit([replace(r, seed=7) for r in requests])


class ClosesOnce(Broken):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (SwapsResults, "results_belong_to_their_requests"),
        (IgnoresMaxTokens, "a_turn_is_no_longer_than_max_tokens"),
        (ShowsTheEnd, "text_and_ids_agree"),
        (CallsEverythingTheEnd, "text_and_ids_agree"),
        (CountsTwice, "figures_add_up"),
        (IgnoresStopStrings, "a_stop_string_cuts_the_text"),
        (TakesKeysTwice, "a_key_in_flight_is_refused"),
        (RaisesForABadPrompt, "a_bad_prompt_costs_only_itself"),
        (ForgetsLogprobs, "logprobs_are_those_of_the_sampled_tokens"),
        (IgnoresSeeds, "a_seed_decides_the_draw"),
        (ClosesOnce, "closing_twice_is_safe"),
    ],
)
def test_a_backend_that_breaks_a_rule_is_told_which(kind: type[Broken], rule: str):
    backend = kind.with_byte_tokens(seeded_echo, max_model_len=300, capabilities=SEEDED)
    with pytest.raises(AssertionError, match=rf"- {rule}: "):
        check_backend(lambda: backend, SamplingParams(max_tokens=24), patience_s=0.2)


def test_swapped_results_are_noticed_where_a_backend_deals_in_text_alone():
    with pytest.raises(AssertionError, match=r"- results_belong_to_their_requests: .*got the result of one with"):
        check_backend(lambda: SwapsResults(echo), patience_s=0.2)
