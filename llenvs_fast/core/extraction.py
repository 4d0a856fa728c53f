"""Answer extraction: from what a model wrote to the text that is scored.

The last match wins, and an answer that was begun and not finished is no answer. Every extractor reads the text a
bounded number of times from front to back, so its time grows with the length of the text and no faster.

Text that the model thought is not its answer: by default, extractors drop `<think>…</think>` blocks, everything up to
an orphan `</think>` (the template had opened the block), and everything from a `<think>` that never closes. A draft
inside the reasoning therefore can't win when no answer follows. `ignore_thinking=False` reads the raw text.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from llenvs_fast.core.registry import Registry

_THINK_OPEN = "<think>"
_THINK_CLOSE = "</think>"

Extraction = tuple[str | None, dict[str, Any]]


@runtime_checkable
class AnswerExtractor(Protocol):
    """Finds the answer in a model's text.

    `extract` returns the answer (None where there is none) and how it went: `extractor` names the extractor, `reason`
    says why there is no answer. An extractor that needs a form also has an `instruction`: the words that tell a model
    how to write its answer.
    """

    def extract(self, text: str) -> Extraction: ...


def strip_thinking(text: str) -> str:
    """`text` without its thinking: closed blocks, all up to an orphan `</think>`, all from an unclosed `<think>`."""
    if _THINK_OPEN not in text and _THINK_CLOSE not in text:
        return text
    kept: list[str] = []
    start = 0
    while (close := text.find(_THINK_CLOSE, start)) >= 0:
        opened = text.find(_THINK_OPEN, start, close)
        if opened >= 0:
            kept.append(text[start:opened])
        else:
            kept.clear()
        start = close + len(_THINK_CLOSE)
    opened = text.find(_THINK_OPEN, start)
    kept.append(text[start:] if opened < 0 else text[start:opened])
    return "".join(kept)


@dataclass(frozen=True)
class TagBasedExtractor:
    """The text between the last `<tag>` and the `</tag>` after it, stripped. Case does not matter.

    Where tags are nested, the innermost of the last pair counts.
    """

    tag: str = "answer"
    ignore_thinking: bool = True

    @property
    def instruction(self) -> str:
        return f"give only the final answer as <{self.tag}>…</{self.tag}>"

    def extract(self, text: str) -> Extraction:
        text = strip_thinking(text) if self.ignore_thinking else text
        opened: re.Match[str] | None = None
        closed: re.Match[str] | None = None
        for match in re.finditer(rf"<(/?){re.escape(self.tag)}>", text, re.IGNORECASE):
            if not match[1]:
                opened, closed = match, None
            elif closed is None:
                closed = match
        if opened is None:
            return _nothing("tag_based", "no_match")
        if closed is None:
            return _nothing("tag_based", "unclosed")
        return _found("tag_based", text[opened.end() : closed.start()])


@dataclass(frozen=True)
class BoxedExtractor:
    r"""The content of the last `\boxed{…}`, with balanced braces; `\{` and `\}` are text."""

    ignore_thinking: bool = True
    instruction: ClassVar[str] = r"give only the final answer as \boxed{…}"

    def extract(self, text: str) -> Extraction:
        text = strip_thinking(text) if self.ignore_thinking else text
        start = text.rfind("\\boxed{")
        if start < 0:
            return _nothing("boxed", "no_match")
        start += len("\\boxed{")
        depth = 1
        for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
            depth += {"{": 1, "}": -1}.get(match[0], 0)
            if depth == 0:
                return _found("boxed", text[start : match.start()])
        return _nothing("boxed", "unclosed")


_NUMBER = re.compile(
    r"(?:(?<![\w.)\]])[-+])?"  # a sign, not a minus between two terms
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"  # 1,234.5 or 1234.5 or .5
    r"(?:[eE][-+]?[0-9]+)?"
    r"(?: ?/ ?[0-9]+)?",  # a fraction stays text
    re.ASCII,
)


@dataclass(frozen=True)
class NumericExtractor:
    """The last number as text: `1,234.50` gives `1234.50`, `3 / 4` gives `3/4`, `−2` gives `-2`, `x-3` gives `3`."""

    ignore_thinking: bool = True

    def extract(self, text: str) -> Extraction:
        text = strip_thinking(text) if self.ignore_thinking else text
        last = deque(_NUMBER.finditer(text.replace("\N{MINUS SIGN}", "-")), maxlen=1)
        if not last:
            return _nothing("numeric", "no_match")
        return _found("numeric", last[0][0].replace(",", "").replace(" ", "").removeprefix("+"))


@dataclass(frozen=True)
class LastLineExtractor:
    """The last line that is not blank, stripped."""

    ignore_thinking: bool = True

    def extract(self, text: str) -> Extraction:
        text = strip_thinking(text) if self.ignore_thinking else text
        return _found("last_line", text.rstrip().rpartition("\n")[2])


@dataclass(frozen=True)
class RawExtractor:
    """The whole text as it is, thinking included unless `ignore_thinking`."""

    ignore_thinking: bool = False

    def extract(self, text: str) -> Extraction:
        text = strip_thinking(text) if self.ignore_thinking else text
        return (text, {"extractor": "raw"}) if text.strip() else _nothing("raw", "empty")


def _found(extractor: str, answer: str) -> Extraction:
    answer = answer.strip()
    return (answer, {"extractor": extractor}) if answer else _nothing(extractor, "empty")


def _nothing(extractor: str, reason: str) -> Extraction:
    return None, {"extractor": extractor, "reason": reason}


answer_extractor_registry: Registry[AnswerExtractor] = Registry("answer extractors")
answer_extractor_registry.register("tag_based", TagBasedExtractor)
answer_extractor_registry.register("boxed", BoxedExtractor)
answer_extractor_registry.register("numeric", NumericExtractor)
answer_extractor_registry.register("last_line", LastLineExtractor)
answer_extractor_registry.register("raw", RawExtractor)
