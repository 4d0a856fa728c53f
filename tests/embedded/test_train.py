"""The training from nothing, short; and that it reads dialogues as the engine loop will."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llenvs_fast.embedded.dialogues import SKILLS, leg_counting
from llenvs_fast.embedded.tokenizer import END, START, make_tokenizer
from llenvs_fast.embedded.train import NOT_LEARNED, SMOKE, Example, batches, encode, rate_at, tensors, train
from llenvs_fast.inference.models import EMBEDDED_DIR
from llenvs_fast.inference.rendering import ChatRenderer


@pytest.fixture(scope="module")
def renderer() -> ChatRenderer:
    return ChatRenderer.from_model(EMBEDDED_DIR)


@pytest.mark.parametrize("skill", SKILLS)
def test_what_is_learned_is_what_the_assistant_says(skill: str, renderer: ChatRenderer) -> None:
    """Against the obvious way: find the assistant's turns in the ids of the rendered conversation."""
    start, end = (renderer.tokenizer.convert_tokens_to_ids(mark) for mark in (START, END))
    for dialogue in SKILLS[skill](10, random.Random(0), 0):
        example = encode(skill, dialogue, renderer)
        whole = renderer.render(dialogue.messages, tools=dialogue.tools, add_generation_prompt=False)
        assert renderer.decode(whole, skip_special=False) == renderer.decode(example.ids, skip_special=False) + "\n"
        learned = [i for i, said in zip(example.ids, example.said, strict=True) if said]
        turns = renderer.decode(example.ids, skip_special=False).split("<|im_start|>assistant\n")[1:]
        assert renderer.decode(learned, skip_special=False) == "".join(t.split(END)[0] + END for t in turns)
        assert not any(said for i, said in zip(example.ids, example.said, strict=True) if i == start)
        assert sum(said for i, said in zip(example.ids, example.said, strict=True) if i == end) == len(turns)


def test_a_label_is_the_next_id_where_the_assistant_said_it() -> None:
    batch = [Example("a", (5, 6, 7, 8), (False, False, True, True)), Example("b", (9, 4), (False, True))]
    ids, labels = tensors(batch, pad=0)
    no = NOT_LEARNED
    assert ids.tolist() == [[5, 6, 7, 8], [9, 4, 0, 0]]
    assert labels.tolist() == [[no, 7, 8, no], [4, no, no, no]]


def test_stages_share_no_task() -> None:
    """A later stage begins where the earlier one ended, and its dialogues differ."""
    earlier = {d.messages[-2].content for d in leg_counting(50, random.Random(0))}
    later = [d.messages[-2].content for d in leg_counting(50, random.Random(1), 50)]
    whole = [d.messages[-2].content for d in leg_counting(100, random.Random(0))]
    assert not earlier & set(later)
    assert whole[50:] == later


def test_every_example_is_in_one_batch_with_others_of_its_length() -> None:
    rng = random.Random(0)
    examples = [Example(str(i), (1,) * rng.randint(10, 400), ()) for i in range(1001)]
    made = list(batches(examples, 8, rng))
    assert sorted(e.skill for batch in made for e in batch) == sorted(e.skill for e in examples)
    padding = sum(max(len(e.ids) for e in b) * len(b) - sum(len(e.ids) for e in b) for b in made)
    assert padding < 0.05 * sum(len(e.ids) for e in examples)
    assert [len(b[0].ids) for b in made[:20]] != sorted(len(b[0].ids) for b in made[:20])


def test_the_rate_rises_and_falls_to_zero() -> None:
    rates = [rate_at(step, 1000, replace(SMOKE, warmup=100)) for step in range(1001)]
    assert max(rates) == rates[100] == SMOKE.peak_rate
    assert rates[:100] == sorted(rates[:100])
    assert rates[100:] == sorted(rates[100:], reverse=True)
    assert rates[1000] == pytest.approx(0.0)


def test_digits_stand_alone_and_any_text_comes_back() -> None:
    tokenizer = make_tokenizer(["1234 and 12 and 1212", "and and and"])
    assert tokenizer.tokenize("1212") == ["1", "2", "1", "2"]
    text = "naïve 数字 \x00\n\t<answer>-12</answer> 🦊"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_smoke_run_writes_a_model_that_loads(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "llenvs_fast.embedded.train", str(tmp_path / "new"), "--smoke", "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "parameters" in done.stdout
    log = [json.loads(line) for line in (tmp_path / "new" / "training_log.jsonl").read_text().splitlines()]
    assert [line["stage"] for line in log] == sorted(line["stage"] for line in log)
    assert log[-1]["loss"] < 0.8 * log[0]["loss"]
    assert set(log[-1]["held_out"]) == set(SKILLS)

    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "new")
    assert type(model).__name__ == "LlamaForCausalLM"
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "1 + 1 ="}], add_generation_prompt=True)
    out = model.generate(**tokenizer.pad({"input_ids": [ids["input_ids"]]}, return_tensors="pt"), max_new_tokens=4)
    assert out.shape[1] > len(ids["input_ids"])


def test_the_same_recipe_makes_the_same_weights(tmp_path: Path) -> None:
    """In one go, and stopped and gone on with after the first stage."""
    stage = {"leg_counting": 40, "chain_sum": 40}
    few = replace(SMOKE, stages=(stage, stage), held_out=2)
    whole = train(few, tmp_path / "a") | {"s": 0}
    train(replace(few, stages=(stage,)), tmp_path / "b")
    assert train(few, tmp_path / "b", first_stage=1) | {"s": 0} == whole
    a, b = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b"))
    assert a == b
