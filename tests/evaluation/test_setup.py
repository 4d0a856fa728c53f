"""What is checked before a run: names, sampling arguments, and the model itself by one token."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from llenvs_fast.core.errors import ChatTemplateError, InvalidSettingError
from llenvs_fast.evaluation.setup import probe, sampling_params
from llenvs_fast.inference.backends import ScriptedBackend, VLLMBackend
from llenvs_fast.inference.protocol import SamplingParams
from llenvs_fast.inference.rendering import ChatRenderer


def test_sampling_arguments_become_fields_and_the_rest_goes_to_the_engine() -> None:
    params = sampling_params({"max_tokens": 5, "stop": "END", "top_p": 1, "min_p": 0.1})
    assert params == SamplingParams(
        max_tokens=5, temperature=1.0, top_p=1, stop_sequences=("END",), extra={"min_p": 0.1}
    )
    assert sampling_params({"stop": ["a", "b"]}).stop_sequences == ("a", "b")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"temperature": "hot"}, "temperature='hot': give a number"),
        ({"temperature": True}, "temperature=True: give a number"),
        ({"max_tokens": 1.5}, "max_tokens=1.5: give a whole number"),
        ({"max_tokens": None}, "max_tokens=None: give a whole number"),
        ({"logprobs": 1}, "logprobs=1: give true or false"),
        ({"stop": [1]}, r"stop_sequences=\(1,\): give a string or a list of strings"),
        ({"stop": 7}, "stop_sequences=7: give a string or a list of strings"),
        ({"n": 2}, "n=2: use -r for several samples"),
        ({"seed": 7}, "seed=7: use --seed"),
    ],
)
def test_a_sampling_argument_of_the_wrong_type_is_refused(args: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSettingError, match=says):
        sampling_params(args)


def test_a_sampling_argument_that_the_engine_does_not_know_is_one_error(tiny_vllm: VLLMBackend) -> None:
    with pytest.raises(InvalidSettingError, match=r"'tempurature'; nearest: temperature"):
        probe(tiny_vllm, sampling_params({"tempurature": 0.5}), None)
    with pytest.raises(InvalidSettingError, match=r"top_p must be in \(0, 1\]"):
        probe(tiny_vllm, sampling_params({"top_p": 7}), None)
    with pytest.raises(InvalidSettingError, match="seed=7 in extra: it would be every sample's"):
        probe(tiny_vllm, SamplingParams(extra={"seed": 7}), None)
    assert tiny_vllm.in_flight == 0


def test_a_model_without_a_chat_template_is_one_error(tiny_vllm: VLLMBackend) -> None:
    tokenizer = copy.deepcopy(tiny_vllm.renderer.tokenizer)
    tokenizer.chat_template = None
    with pytest.raises(ChatTemplateError, match="has no chat template: use an instruct model"):
        probe(ScriptedBackend("x", renderer=ChatRenderer(tokenizer)), SamplingParams(), None)


def test_a_template_that_refuses_the_system_role_is_one_error(tiny_vllm: VLLMBackend) -> None:
    no_system = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}hi"
    renderer = ChatRenderer(tiny_vllm.renderer.tokenizer, chat_template=no_system)
    probe(ScriptedBackend("x", renderer=renderer), SamplingParams(), None)
    with pytest.raises(ChatTemplateError, match="no system role"):
        probe(ScriptedBackend("x", renderer=renderer), SamplingParams(), "Be brief.")
