"""From messages to token ids: what the model reads.

Token ids are the source of truth. A conversation is rendered in full once; after a sampled turn only the ids that come
next are made (`suffix`), so that nothing sampled is ever decoded and encoded again. Whatever the template and the
tokenizer say, a prompt begins with exactly one BOS or with none. Knows nothing of engines or environments.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from llenvs_fast.core.errors import ChatTemplateError, RecoverableInputError
from llenvs_fast.core.tools import ToolDefinition
from llenvs_fast.inference.protocol import ChatMessage

logger = logging.getLogger(__name__)

REMEMBERED_RENDERINGS = 256

_QUESTION = ChatMessage("user", "sentinel-question-7f3a")
_FOLLOW_UP = ChatMessage("user", "sentinel-follow-up-7f3a")
_REPLY = "sentinel-reply-7f3a"
_THOUGHT = "<think>"
_THOUGHTFUL_REPLY = f"{_THOUGHT}\nsentinel-thought-7f3a\n</think>\n\n{_REPLY}"


class ChatRenderer:
    """Renders conversations with a tokenizer's chat template, or with the one given here instead.

    `eos_token_ids` end a generation. `end_of_turn_ids` are the tokens (one or none) that the template puts after an
    assistant message and that a model may have sampled itself. `append_only` says that the template continues a
    conversation without touching what stands before, `rewrites_history` that an earlier reply, plain or with a thought
    in it, is shown differently once the conversation has moved on.
    """

    def __init__(
        self,
        tokenizer: Any,
        chat_template_kwargs: dict[str, Any] | None = None,
        *,
        chat_template: str | None = None,
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self.chat_template_kwargs = dict(chat_template_kwargs or {})
        self.bos_token_id: int | None = tokenizer.bos_token_id
        self.eos_token_ids = tuple(sorted({*eos_token_ids, tokenizer.eos_token_id} - {None}))
        self._adds_bos = self.bos_token_id is not None and tokenizer("a")["input_ids"][:1] == [self.bos_token_id]
        self._warned_of_bos = False
        self._rendered: dict[Hashable, tuple[int, ...]] = {}
        self.end_of_turn_ids = self._probe_end_of_turn()
        self.append_only = self._probe_growth(_REPLY)
        self.rewrites_history = not (self.append_only and self._probe_growth(_THOUGHTFUL_REPLY))
        hidden = {*self.eos_token_ids, *self.end_of_turn_ids, self.bos_token_id, tokenizer.pad_token_id}
        self._hidden_ids = frozenset(hidden - {None})
        self.token_text = lru_cache(maxsize=1 << 16)(self._token_text)

    @classmethod
    def from_model(
        cls,
        path: str | Path,
        chat_template_kwargs: dict[str, Any] | None = None,
        *,
        chat_template: str | None = None,
        trust_remote_code: bool = False,
    ) -> ChatRenderer:
        """The renderer of a model directory or Hugging Face id."""
        from transformers import AutoTokenizer, GenerationConfig

        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
        try:
            eos = GenerationConfig.from_pretrained(path).eos_token_id
        except OSError:  # the file is optional
            eos = None
        eos_token_ids = [eos] if isinstance(eos, int) else eos or ()
        return cls(tokenizer, chat_template_kwargs, chat_template=chat_template, eos_token_ids=eos_token_ids)

    # whole conversations -------------------------------------------------------------------------------------------

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolDefinition] = (),
        add_generation_prompt: bool = True,
    ) -> tuple[int, ...]:
        """The ids of a whole conversation. Raises ChatTemplateError where there is no template or it refuses."""
        return self.render_batch([messages], tools, add_generation_prompt)[0]

    def render_batch(
        self,
        conversations: Sequence[Sequence[ChatMessage]],
        tools: Sequence[ToolDefinition] = (),
        add_generation_prompt: bool = True,
    ) -> list[tuple[int, ...]]:
        """`render` of each; a conversation met twice, or again a short while later, is rendered once."""
        keys = [_key(messages, tools, add_generation_prompt) for messages in conversations]
        found = {key: self._rendered[key] for key in keys if key in self._rendered}
        new = {key: messages for key, messages in zip(keys, conversations, strict=True) if key not in found}
        encoded = self._encode([self._text(messages, tools, add_generation_prompt) for messages in new.values()])
        for key, ids in zip(new, encoded, strict=True):
            found[key] = self._remember(key, self._with_one_bos(ids))
        return [found[key] for key in keys]

    # what comes after a sampled turn -------------------------------------------------------------------------------

    def suffix(
        self,
        new_messages: Sequence[ChatMessage],
        sampled_ids_end_with_eot: bool,
        tools: Sequence[ToolDefinition] = (),
    ) -> tuple[int, ...]:
        """The ids between a sampled assistant turn and the next one.

        These are the end of the turn, unless the model sampled it itself, whatever else the template puts there, the
        new messages, and the prompt of the next reply. The cost does not grow with the conversation.
        """
        key = _key(new_messages, tools, ("suffix", sampled_ids_end_with_eot))
        if key in self._rendered:
            return self._rendered[key]
        ids = self._encode([self._text_after(_REPLY, new_messages, tools)])[0]
        if sampled_ids_end_with_eot:
            end = next((i for i, token in enumerate(ids) if token in self.end_of_turn_ids), -1)
            ids = ids[end + 1 :]
        return self._remember(key, tuple(ids))

    # text ----------------------------------------------------------------------------------------------------------

    def encode_text(self, text: str) -> tuple[int, ...]:
        """The ids of a raw prompt, with one BOS where the tokenizer adds it by itself or the text begins with it."""
        return self._with_one_bos(self._encode([text])[0])

    def shows_verbatim(self, reply: str) -> bool:
        """Whether the template goes on from this reply as it was sampled, in a conversation that moves on."""
        return self.append_only and (not self.rewrites_history or _THOUGHT not in reply)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of `ids`.

        `skip_special` hides BOS, EOS, end of turn and padding. Other added tokens, such as `<answer>`, stay.
        """
        shown = [i for i in ids if i not in self._hidden_ids] if skip_special else list(ids)
        text: str = self.tokenizer.decode(shown, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def _token_text(self, token_id: int) -> str:
        return self.decode([token_id], skip_special=False)

    # the tokenizer and its template --------------------------------------------------------------------------------

    def _text(self, messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition], prompt_reply: bool) -> str:
        if not messages:
            raise ChatTemplateError("the conversation has no messages: give at least one")
        if not (self.chat_template or self.tokenizer.chat_template):
            name = self.tokenizer.name_or_path or type(self.tokenizer).__name__
            raise ChatTemplateError(
                f"the tokenizer of {name} has no chat template: use an instruct model, give a template "
                f"(chat_template=…), or send raw text with encode_text"
            )
        for i, message in enumerate(messages):
            if message.images:
                raise RecoverableInputError(f"message {i} has {len(message.images)} images, and only text is rendered")
        try:
            text: str = self.tokenizer.apply_chat_template(
                [m.to_template_dict() for m in messages],
                tools=[t.to_openai_schema() for t in tools] or None,
                chat_template=self.chat_template,
                add_generation_prompt=prompt_reply,
                tokenize=False,
                **self.chat_template_kwargs,
            )
        except (TemplateError, TypeError, ValueError) as error:
            roles = ", ".join(m.role for m in messages[:12]) + ", …" * (len(messages) > 12)
            raise ChatTemplateError(f"the chat template rejects a conversation of roles {roles}: {error}") from error
        return text

    def _text_after(self, sentinel: str, new: Sequence[ChatMessage], tools: Sequence[ToolDefinition] = ()) -> str:
        text = self._text([_QUESTION, ChatMessage("assistant", _REPLY), *new], tools, prompt_reply=True)
        _, found, after = text.partition(sentinel)  # the first: what comes after may quote it
        if not found:
            raise ChatTemplateError("the chat template leaves out what the assistant said: give another one")
        return after

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        for text in texts:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise RecoverableInputError(
                    f"the prompt has {text[error.start]!r} at character {error.start}, half of a surrogate pair: it is "
                    "no text, decode it with errors='replace' where it comes from"
                ) from error
        ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"]
        return ids

    def _with_one_bos(self, ids: list[int]) -> tuple[int, ...]:
        bos = self.bos_token_id
        if bos is None:
            return tuple(ids)
        written = next((n for n, token in enumerate(ids) if token != bos), len(ids))
        if written > 1 and not self._warned_of_bos:
            self._warned_of_bos = True
            logger.warning("a prompt began with %d BOS tokens, and is sent with one", written)
        return (bos,) * (self._adds_bos or written > 0) + tuple(ids[written:])

    def _remember(self, key: Hashable, ids: tuple[int, ...]) -> tuple[int, ...]:
        while len(self._rendered) >= REMEMBERED_RENDERINGS:
            del self._rendered[next(iter(self._rendered))]
        self._rendered[key] = ids
        return ids

    # probes --------------------------------------------------------------------------------------------------------

    def _probe_end_of_turn(self) -> tuple[int, ...]:
        """A token that isn't an EOS counts as the end of a turn if it ends the user's turns too."""
        try:
            after_reply, after_user = (
                self._first_special(self._text_after(said, [_FOLLOW_UP])) for said in (_REPLY, str(_FOLLOW_UP.content))
            )
        except ChatTemplateError:
            return ()
        if after_reply is None or (after_reply not in self.eos_token_ids and after_reply != after_user):
            return ()
        return (after_reply,)

    def _first_special(self, text: str) -> int | None:
        """The added token that the text begins with, whitespace aside."""
        for token in self._encode([text])[0]:
            if token in self.eos_token_ids or token in self.tokenizer.added_tokens_decoder:
                return token
            if self.decode([token], skip_special=False).strip():
                return None
        return None

    def _probe_growth(self, reply: str) -> bool:
        """Whether question, reply and follow-up read like the question's prompt + the reply + the suffix."""
        try:
            before = self._text([_QUESTION], (), prompt_reply=True)
            whole = self._text([_QUESTION, ChatMessage("assistant", reply), _FOLLOW_UP], (), prompt_reply=True)
            return whole == before + reply + self._text_after(_REPLY, [_FOLLOW_UP])
        except ChatTemplateError:
            return False


def _key(messages: Sequence[ChatMessage], tools: Sequence[ToolDefinition], how: Hashable) -> Hashable:
    key = (tuple(messages), tuple(tools), how)
    try:
        hash(key)
    except TypeError:  # tool calls and schemas hold dictionaries
        return repr(key)
    return key
