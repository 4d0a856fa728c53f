"""A model small enough to build in a test: a random Llama with a byte-level tokenizer and a ChatML-like template.

`make_tiny_model` writes a directory that transformers and vLLM load like any other model. The same arguments write the
same weights, so what it says greedily never changes. What it says makes no sense; that it says it is the test.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CHAT_TEMPLATE = r"""{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}
{% endif %}Tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in (messages[1:] if messages[0].role == 'system' else messages) %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
{{ '\n<tool_call>\n' }}{{ call.function | tojson }}{{ '\n</tool_call>' }}
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>")
ANSWER_TOKENS = ("<answer>", "</answer>")

_TEXT = (
    "hello world, the answer is yes and the question was no. once there was a small model that could only say "
    "a few words, and it said them again and again. what is one and one? one and one is two. the user asks, the "
    "assistant answers, the system tells them how. tools are called with a name and arguments. "
) * 4


def make_tiny_model(
    directory: str | Path,
    *,
    context: int = 2048,
    hidden: int = 64,
    layers: int = 2,
    vocabulary: int = 384,
    seed: int = 0,
    chat_template: str | None = CHAT_TEMPLATE,
    bos: bool = False,
    tie_embeddings: bool = True,
) -> Path:
    """Write a model in float32 with at most `vocabulary` tokens to `directory`, and return it.

    `chat_template=None` leaves the template out. `bos` sets the trap of two BOS: the tokenizer adds `<s>` when it
    encodes and the template begins with it too. End of turn and end of text are both `<|im_end|>`.
    """
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    directory = Path(directory)
    tokenizer = make_tiny_tokenizer(vocabulary=vocabulary, chat_template=chat_template, bos=bos)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=tie_embeddings,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.2,  # far from 0: the next token then depends on all tokens, not on the last alone
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).float()
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def make_tiny_tokenizer(
    *, vocabulary: int = 384, chat_template: str | None = CHAT_TEMPLATE, bos: bool = False
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: every byte has a token, digits stand alone, `<answer>` and `</answer>` are tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(ANSWER_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([_TEXT], trainer)
    raw.add_tokens([AddedToken(t, special=False, normalized=False) for t in ANSWER_TOKENS])
    options: dict[str, Any] = {}
    if bos:
        options["bos_token"] = "<s>"
        raw.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", raw.token_to_id("<s>"))]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        **options,
    )
    if chat_template is not None:
        tokenizer.chat_template = "{{ bos_token }}" * bos + chat_template
    return tokenizer


def edit_json(path: Path, **fields: Any) -> None:
    """Set fields of a JSON file, such as a model's generation_config.json."""
    path.write_text(json.dumps(json.loads(path.read_text()) | fields, indent=2))
