"""Make the embedded model from nothing: `python -m llenvs_fast.embedded.train OUTPUT`.

Generates dialogues, trains a tokenizer and a small Llama on them, and writes OUTPUT as a model directory. The loss is
taken on what the assistant says. Small batches and a high rate matter: with large batches the same data teaches the
format only, and the loss stays near 1 for thousands of steps before the arithmetic is found.
"""

from __future__ import annotations

import copy
import json
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from llenvs_fast.embedded.dialogues import SKILLS, Dialogue
from llenvs_fast.embedded.tokenizer import VOCABULARY, make_tokenizer
from llenvs_fast.inference.rendering import ChatRenderer

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT = 2048
SORTED = 64  # batches whose examples are sorted by length together, so that little of a batch is padding
NOT_LEARNED = -100
LOG = "training_log.jsonl"


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides what comes out.

    Each stage says how many new dialogues of each skill it learns, and starts from the weights that the one before it
    saved, with a rate of its own that rises and falls. `held_out` of the first stage's are tested on and never learned.
    """

    stages: tuple[dict[str, int], ...] = (
        {"leg_counting": 26_000, "chain_sum": 60_000, "guess_the_number": 16_000, "tool_use": 26_000},
        {"leg_counting": 7_000, "chain_sum": 10_000, "guess_the_number": 2_000, "tool_use": 3_000},
    )
    held_out: int = 100
    hidden: int = 128
    layers: int = 5
    heads: int = 4
    batch: int = 8
    peak_rate: float = 2e-3
    warmup: int = 200
    seed: int = 0
    vocabulary: int = VOCABULARY
    log_every: int = 500


SMOKE = Recipe(
    stages=(
        {"leg_counting": 160, "chain_sum": 160, "guess_the_number": 40, "tool_use": 80},
        {"leg_counting": 80, "chain_sum": 8, "guess_the_number": 5, "tool_use": 8},
    ),
    held_out=8,
    hidden=64,
    layers=2,
    warmup=10,
    vocabulary=512,
    log_every=20,
)


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids of a dialogue and which of them the assistant said, both (T,)."""

    skill: str
    ids: tuple[int, ...]
    said: tuple[bool, ...]


# data ---------------------------------------------------------------------------------------------------------------


def encode(skill: str, dialogue: Dialogue, renderer: ChatRenderer) -> Example:
    """The ids as the engine loop would make them: each reply after its prompt, encoded apart."""
    ids: list[int] = []
    said: list[bool] = []
    messages, tools = dialogue.messages, dialogue.tools
    turns = [i for i, message in enumerate(messages) if message.role == "assistant"]
    for n, i in enumerate(turns):
        if n == 0:
            context = renderer.render(messages[:i], tools=tools)
        else:
            context = renderer.suffix(messages[turns[n - 1] + 1 : i], True, tools=tools)
        reply = renderer.encode_text(_reply_text(messages[i])) + renderer.end_of_turn_ids
        ids += [*context, *reply]
        said += [False] * len(context) + [True] * len(reply)
    return Example(skill, tuple(ids), tuple(said))


def _reply_text(message: Any) -> str:
    calls = "\n".join(
        f'<tool_call>\n{{"name": {json.dumps(c.name)}, "arguments": {json.dumps(c.arguments)}}}\n</tool_call>'
        for c in message.tool_calls
    )
    return f"{message.content or ''}{calls}"


def train_tokenizer(dialogues: dict[str, list[Dialogue]], vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer of the same number of dialogues of each skill, as its own template shows them."""
    fewest = min(2000, *(len(of_skill) for of_skill in dialogues.values()))
    shown = make_tokenizer(["untrained"], vocabulary)
    texts = [
        str(
            shown.apply_chat_template(
                [m.to_template_dict() for m in dialogue.messages],
                tools=[t.to_openai_schema() for t in dialogue.tools] or None,
                tokenize=False,
            )
        )
        for of_skill in dialogues.values()
        for dialogue in of_skill[:fewest]
    ]
    return make_tokenizer(texts, vocabulary)


def batches(examples: Sequence[Example], size: int, rng: random.Random) -> Iterator[list[Example]]:
    """All examples once, in random order, those of a batch of about one length."""
    order = list(examples)
    rng.shuffle(order)
    for start in range(0, len(order), size * SORTED):
        chunk = sorted(order[start : start + size * SORTED], key=lambda e: len(e.ids))
        cut = [chunk[i : i + size] for i in range(0, len(chunk), size)]
        rng.shuffle(cut)
        yield from cut


def tensors(batch: Sequence[Example], pad: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and labels, both (B, T): the label of a position is the id that comes next, if the assistant said it."""
    import torch

    longest = max(len(e.ids) for e in batch)
    ids = torch.full((len(batch), longest), pad)
    labels = torch.full((len(batch), longest), NOT_LEARNED)
    for row, example in enumerate(batch):
        own = torch.tensor(example.ids)
        ids[row, : len(own)] = own
        labels[row, : len(own) - 1] = own[1:].masked_fill(~torch.tensor(example.said[1:]), NOT_LEARNED)
    return ids, labels


# model --------------------------------------------------------------------------------------------------------------


def make_model(recipe: Recipe, tokenizer: Any) -> LlamaForCausalLM:
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(recipe.seed)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden,
        intermediate_size=recipe.hidden * 5 // 2,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        **ends,
    )
    model = LlamaForCausalLM(config).float()
    model.generation_config = GenerationConfig(**ends)
    return model


def learned(model: LlamaForCausalLM, batch: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (N, V) of the N positions that are learned, and what stands there (N,)."""
    ids, labels = tensors(batch)
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    at = labels != NOT_LEARNED
    return model.lm_head(hidden[at]), labels[at]


def rate_at(step: int, steps: int, recipe: Recipe) -> float:
    """Linear warm-up, then a cosine down to zero."""
    if step < recipe.warmup:
        return recipe.peak_rate * (step + 1) / recipe.warmup
    return recipe.peak_rate * 0.5 * (1 + math.cos(math.pi * (step - recipe.warmup) / max(steps - recipe.warmup, 1)))


def optimizer_of(model: LlamaForCausalLM) -> torch.optim.Optimizer:
    import torch

    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)


def test(model: LlamaForCausalLM, held_out: dict[str, list[Example]]) -> dict[str, dict[str, float]]:
    """Of each skill the loss, and the share of dialogues whose every learned token is the likeliest one."""
    import torch

    figures = {}
    with torch.inference_mode():
        for skill, examples in held_out.items():
            losses, right = [], 0
            for example in examples:
                logits, wanted = learned(model, [example])
                losses.append(torch.nn.functional.cross_entropy(logits, wanted).item())
                right += bool((logits.argmax(-1) == wanted).all())
            figures[skill] = {"loss": sum(losses) / len(losses), "exact": right / len(examples)}
    return figures


# training -----------------------------------------------------------------------------------------------------------


def train(recipe: Recipe, output: Path, first_stage: int = 0) -> dict[str, Any]:
    """Write the model to `output`, and a line of JSON for each test to `training_log.jsonl` in it; return the last one.

    `first_stage` above 0 goes on with what `output` holds from earlier stages.
    """
    line: dict[str, Any] = {}
    for stage in range(first_stage, len(recipe.stages)):
        line = _train_stage(recipe, stage, output)
    return line


def _train_stage(recipe: Recipe, stage: int, output: Path) -> dict[str, Any]:
    started = time.monotonic()
    examples, held_out = prepared(recipe, stage, output)
    model = load_or_make_model(recipe, stage, output)
    optimizer = optimizer_of(model)
    steps = math.ceil(len(examples) / recipe.batch)
    click.echo(
        f"stage {stage}: {sum(p.numel() for p in model.parameters()):,} parameters, {len(examples):,} dialogues of "
        f"{sum(len(e.ids) for e in examples) / len(examples):.0f} tokens, {steps:,} steps, "
        f"data in {time.monotonic() - started:.0f} s"
    )
    line: dict[str, Any] = {}
    losses: list[float] = []
    with (output / LOG).open("a" if stage else "w") as log:
        for step, batch in enumerate(batches(examples, recipe.batch, random.Random(recipe.seed + stage)), start=1):
            losses.append(learn(model, optimizer, batch, rate_at(step - 1, steps, recipe)))
            if step % recipe.log_every == 0 or step == steps:
                line = {"stage": stage, "step": step, "loss": sum(losses) / len(losses)}
                line |= {"s": round(time.monotonic() - started), "held_out": test(model, held_out)}
                losses.clear()
                log.write(json.dumps(line) + "\n")
                log.flush()
                click.echo(json.dumps(line))
                save(model, output)  # what has been learned by now survives whatever comes
    return line


def prepared(recipe: Recipe, stage: int, output: Path) -> tuple[list[Example], dict[str, list[Example]]]:
    """What a stage learns, and the first stage's dialogues that are held out. The first stage makes the tokenizer."""

    def made(number: int, most: int | None = None) -> dict[str, list[Dialogue]]:
        firsts = {skill: sum(s[skill] for s in recipe.stages[:number]) for skill in recipe.stages[number]}
        return {
            skill: list(islice(SKILLS[skill](n, random.Random(recipe.seed + number), firsts[skill]), most))
            for skill, n in recipe.stages[number].items()
        }

    from transformers import AutoTokenizer

    dialogues = made(stage)
    if stage == 0:
        output.mkdir(parents=True, exist_ok=True)
        train_tokenizer(dialogues, recipe.vocabulary).save_pretrained(output)
    renderer = ChatRenderer(AutoTokenizer.from_pretrained(output))
    examples = {skill: [encode(skill, d, renderer) for d in of_skill] for skill, of_skill in dialogues.items()}
    if stage == 0:
        held_out = {skill: of_skill[: recipe.held_out] for skill, of_skill in examples.items()}
        return [e for of_skill in examples.values() for e in of_skill[recipe.held_out :]], held_out
    held_out = {
        skill: [encode(skill, d, renderer) for d in of_skill] for skill, of_skill in made(0, recipe.held_out).items()
    }
    return [e for of_skill in examples.values() for e in of_skill], held_out


def load_or_make_model(recipe: Recipe, stage: int, output: Path) -> LlamaForCausalLM:
    """The model that a stage starts from, in float32: a new one, or what the stage before saved."""
    from transformers import AutoTokenizer, LlamaForCausalLM

    if stage == 0:
        return make_model(recipe, AutoTokenizer.from_pretrained(output))
    return LlamaForCausalLM.from_pretrained(output).float()


def learn(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, batch: Sequence[Example], rate: float) -> float:
    """One step at this rate; the loss before it."""
    import torch

    for group in optimizer.param_groups:
        group["lr"] = rate
    logits, wanted = learned(model, batch)
    loss = torch.nn.functional.cross_entropy(logits, wanted)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


def save(model: LlamaForCausalLM, output: Path) -> None:
    """Write the weights in bfloat16, and go on in float32."""
    copy.deepcopy(model).bfloat16().save_pretrained(output)


@click.command()
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--smoke", is_flag=True, help="A run of seconds that learns nothing: does it all work?")
@click.option("--stage", type=click.IntRange(0, 1), default=0, help="Go on from this stage with what OUTPUT holds.")
@click.option("--threads", type=click.IntRange(min=1), default=os.cpu_count(), help="[default: all]")
def main(output: Path, smoke: bool, stage: int, threads: int) -> None:
    """Train the embedded model from nothing and write it to the directory OUTPUT."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.set_num_threads(threads)
    train(SMOKE if smoke else Recipe(), output, stage)


if __name__ == "__main__":
    main()
