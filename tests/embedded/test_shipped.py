"""The model that ships: its files, and all its skills through the product with the real engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from llenvs_fast.core.registry import environment_registry
from llenvs_fast.core.tools import ToolCall, ToolDefinition, ToolParameter, ToolParameterType
from llenvs_fast.embedded.measure import LONG_SUMS
from llenvs_fast.embedded.train import CONTEXT
from llenvs_fast.evaluation import BatchResult, run_evaluation
from llenvs_fast.inference import SamplingParams
from llenvs_fast.inference.models import EMBEDDED_DIR, default_model, resolve_model
from llenvs_fast.inference.protocol import ChatMessage
from llenvs_fast.inference.rendering import ChatRenderer

if TYPE_CHECKING:
    from llenvs_fast.inference.backends import VLLMBackend

MARKS = ("<answer>", "</answer>", "<tool_call>", "</tool_call>", "<think>", "</think>", "<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer.from_model(EMBEDDED_DIR)


# files --------------------------------------------------------------------------------------------------------------


def test_it_is_small_and_needs_no_code_of_its_own() -> None:
    from safetensors import safe_open

    weights = EMBEDDED_DIR / "model.safetensors"
    assert weights.stat().st_size <= 8e6
    with safe_open(str(weights), "pt") as file:
        parameters = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    assert 1e6 <= parameters <= 3e6
    config = json.loads((EMBEDDED_DIR / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "auto_map" not in config
    assert config["max_position_embeddings"] == CONTEXT >= 2048
    assert default_model() == "embedded"
    assert Path(resolve_model("embedded").path) == EMBEDDED_DIR


def test_the_card_says_what_was_measured_and_what_it_is_not_for() -> None:
    card = (EMBEDDED_DIR / "README.md").read_text()
    assert "pass@1" in card
    assert "not for" in card
    assert f"{(EMBEDDED_DIR / 'model.safetensors').stat().st_size / 1e6:.1f} MB" in card


# tokenizer and template ---------------------------------------------------------------------------------------------


def test_tokens(renderer: ChatRenderer) -> None:
    tokenizer = renderer.tokenizer
    assert tokenizer.tokenize("20,481") == ["2", "0", ",", "4", "8", "1"]
    for mark in MARKS:
        assert len(tokenizer.encode(mark)) == 1
    assert tokenizer.eos_token == "<|im_end|>"
    assert renderer.end_of_turn_ids == (tokenizer.eos_token_id,)
    assert renderer.append_only
    assert not renderer.rewrites_history
    text = "<answer>7</answer> naïve 数字 \x00 🦊"
    assert renderer.decode(renderer.encode_text(text)) == text


def test_every_role_and_tools_are_shown(renderer: ChatRenderer) -> None:
    parameter = ToolParameter("city", ToolParameterType.STRING, "Where.")
    tool = ToolDefinition("weather", "Says the weather.", (parameter,))
    messages = [
        ChatMessage("system", "Be kind."),
        ChatMessage("user", "Is it raining?"),
        ChatMessage("assistant", "Let me see.", (ToolCall("a", "weather", {"city": "Bern"}),)),
        ChatMessage("tool", "no", tool_call_id="a", name="weather"),
        ChatMessage("assistant", "No."),
    ]
    text = renderer.decode(renderer.render(messages, tools=[tool]), skip_special=False)
    schema = json.dumps(tool.to_openai_schema())
    assert text == (
        f"<|im_start|>system\nBe kind.\n\n# Tools\n{schema}\nTo call a tool:\n<tool_call>\n"
        '{"name": ..., "arguments": {...}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nIs it raining?<|im_end|>\n"
        '<|im_start|>assistant\nLet me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n'
        "</tool_call><|im_end|>\n<|im_start|>tool\nno<|im_end|>\n<|im_start|>assistant\nNo.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_calls_as_the_wire_has_them_and_strange_roles(renderer: ChatRenderer) -> None:
    calls = [{"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}] * 2
    text = renderer.tokenizer.apply_chat_template(
        [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": calls}], tokenize=False
    )
    block = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    assert text.endswith(f"<|im_start|>assistant\n{block}\n{block}<|im_end|>\n")
    with pytest.raises(Exception, match="unknown role wizard: the roles are system, user, assistant and tool"):
        renderer.render([ChatMessage("wizard", "boo")])


# skills -------------------------------------------------------------------------------------------------------------


def evaluated(backend: VLLMBackend, name: str, adapter: str, tasks: int = 24, **options: Any) -> BatchResult:
    """Four samples of each task at temperature 1, on tasks that neither the training nor the card's figures have."""
    environment = environment_registry.get(name, adapter, size=tasks, seed=7_000, **options)
    batch = run_evaluation(
        environment,
        backend,
        num_samples=4,
        sampling_params=SamplingParams(temperature=1.0, max_tokens=300),
        system_prompt=environment.prompts.get("system"),
    )
    assert not any("error" in r.metadata for r in batch.trajectory_results)
    return batch


def pass_at_4(batch: BatchResult) -> float:
    won = [r.success for r in batch.trajectory_results]
    return sum(any(won[i : i + 4]) for i in range(0, len(won), 4)) / (len(won) / 4)


@pytest.mark.parametrize(
    ("name", "adapter", "options"),
    [
        ("leg_counting", "reasoning_gym", {}),
        ("chain_sum", "reasoning_gym", {}),
        ("game:GuessTheNumber-v0-easy", "gem", {}),
        ("chain_sum", "reasoning_gym", LONG_SUMS | {"tool_types": ["calculator"]}),
        ("chain_sum", "reasoning_gym", LONG_SUMS | {"tool_types": ["python"]}),
    ],
)
def test_it_is_neither_perfect_nor_hopeless(
    embedded_vllm: VLLMBackend, name: str, adapter: str, options: dict[str, Any]
) -> None:
    batch = evaluated(embedded_vllm, name, adapter, **options)
    assert 0.25 < batch.success_rate < 0.99
    assert pass_at_4(batch) > batch.success_rate


def test_it_halves_the_interval_over_several_turns(embedded_vllm: VLLMBackend) -> None:
    batch = evaluated(embedded_vllm, "game:GuessTheNumber-v0-hard", "gem", tasks=6)
    turns = [len(r.trajectory) for r in batch.trajectory_results if r.trajectory is not None]
    assert max(turns) >= 4
    assert batch.report is not None
    assert batch.report.reuse_lost_tokens == 0


def test_it_calls_the_tool_and_copies_the_result(embedded_vllm: VLLMBackend) -> None:
    batch = evaluated(
        embedded_vllm, "chain_sum", "reasoning_gym", tasks=6, tool_types=["calculator"], min_terms=6, max_terms=10
    )
    called = [r for r in batch.trajectory_results if r.trajectory and r.trajectory.transitions[0].action.tool_calls]
    assert len(called) > 0.9 * len(batch.trajectory_results)
    for result in (r for r in called if r.success):
        assert result.trajectory is not None
        tool, last = result.trajectory.transitions[0].next_state, result.trajectory.transitions[-1]
        assert last.extracted_action == tool.observation.messages[-1]["content"]
