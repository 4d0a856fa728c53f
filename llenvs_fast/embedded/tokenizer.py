"""The tokenizer and chat template of the embedded model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

VOCABULARY = 1024
LONGEST_TOKEN = 24  # characters
END_OF_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKS = ("<answer>", "</answer>", "<tool_call>", "</tool_call>", "<think>", "</think>")

# ChatML. Tools are shown in the system turn; a call is a Hermes-style block in the assistant's turn.
CHAT_TEMPLATE = r"""{%- set system = (messages[0].content or '') if messages[0].role == 'system' else '' %}
{%- if system or tools %}{{ '<|im_start|>system\n' + system }}
{%- if tools %}{{ '\n\n' if system else '' }}{{ '# Tools\n' }}
{%- for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}
{{- 'To call a tool:\n<tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>' }}
{%- endif %}{{ '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role not in ('system', 'user', 'assistant', 'tool') %}
{{- raise_exception('unknown role ' + message.role + ': the roles are system, user, assistant and tool') }}
{%- endif %}
{%- if message.role != 'system' or not loop.first %}
{{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '\n' if message.content or not loop.first else '' }}{{ '<tool_call>\n{"name": ' + call.function.name | tojson }}
{%- set given = call.function.arguments %}
{{- ', "arguments": ' + (given if given is string else given | tojson) + '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


def make_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on `texts`: every byte has a token, digits stand alone.

    Merges cross spaces, which shortens the prompts of the trained tasks. The end of a turn is EOS; `MARKS` are tokens
    of their own that decoding keeps.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(MARKS),
        special_tokens=[END_OF_TEXT, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=LONGEST_TOKEN,
        show_progress=False,
    )
    raw.train_from_iterator(texts, trainer)
    raw.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token=END,
        pad_token=END_OF_TEXT,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
