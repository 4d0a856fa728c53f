"""A tokenizer of 258 tokens: the bytes of UTF-8, the start of a message and its end.

With it a scripted backend deals in token ids, and the real `ChatRenderer` in real templates, without any model. Every
text comes back from its ids as it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from llenvs_fast.inference.rendering import ChatRenderer

END_ID, START_ID = 256, 257
_SPECIAL = {"<|end|>": END_ID, "<|start|>": START_ID}
_SPLIT = re.compile("(" + "|".join(map(re.escape, _SPECIAL)) + ")")


def byte_renderer() -> ChatRenderer:
    return ChatRenderer(ByteTokenizer())


class ByteTokenizer:
    """The part of a transformers tokenizer that `ChatRenderer` uses."""

    name_or_path = "bytes"
    bos_token_id: int | None = None
    eos_token_id: int | None = END_ID
    pad_token_id: int | None = None
    chat_template = "<|start|>{role}\n{content}<|end|>"
    added_tokens_decoder: ClassVar[dict[int, str]] = {i: text for text, i in _SPECIAL.items()}

    def __call__(self, texts: str | Sequence[str], **options: Any) -> dict[str, Any]:
        """The ids of one text or of many, as transformers returns them. Options don't matter: nothing is ever added."""
        del options
        ids = _encode(texts) if isinstance(texts, str) else [_encode(text) for text in texts]
        return {"input_ids": ids}

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        """Text; an id that is no token and bytes that are no text show as U+FFFD."""
        del options
        try:
            raw = bytes(ids)
        except ValueError:
            raw = b"".join(_bytes_of(i) for i in ids)
        return raw.decode("utf-8", errors="replace")

    def apply_chat_template(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        **options: Any,
    ) -> str:
        """The text of a conversation; here templates are for `str.format`, with a role and a content."""
        del options
        template = chat_template or self.chat_template
        parts = [template.format(role="tools", content="\n".join(map(json.dumps, tools)))] if tools else []
        parts += [template.format(role=m["role"], content=_content(m)) for m in messages]
        return "".join(parts) + "<|start|>assistant\n" * add_generation_prompt


def _content(message: dict[str, Any]) -> str:
    calls = [f"<tool_call>{json.dumps(call['function'])}</tool_call>" for call in message.get("tool_calls", ())]
    return "\n".join([message["content"], *calls]) if message["content"] else "\n".join(calls)


def _encode(text: str) -> list[int]:
    ids: list[int] = []
    for piece in _SPLIT.split(text):
        if piece in _SPECIAL:
            ids.append(_SPECIAL[piece])
        else:
            ids.extend(piece.encode())
    return ids


def _bytes_of(token_id: int) -> bytes:
    if 0 <= token_id < 256:
        return bytes((token_id,))
    return ByteTokenizer.added_tokens_decoder.get(token_id, "\N{REPLACEMENT CHARACTER}").encode()
