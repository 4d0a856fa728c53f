"""Any Python value as strict JSON.

A result must never be lost because of what an environment put into `info`, so `plain` raises for no value: what JSON
can't hold becomes text. NaN and infinities become null and are reported by path; they are never read as numbers.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import date, time, timedelta
from enum import Enum
from typing import Any

_MAX_DEPTH = 100
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def to_json(value: Any) -> str:
    """Compact JSON text of a value that `plain` returned, or of any other that is JSON already.

    Raises TypeError, ValueError or RecursionError for anything else, NaN among it.
    """
    return _ENCODER.encode(value)


def json_text(value: Any) -> str:
    """Compact JSON text of any value whatsoever, by way of `plain` where that is needed."""
    try:
        text = to_json(value)
        text.encode()
    except (TypeError, ValueError, RecursionError):
        return to_json(plain(value)[0])
    return text


def plain(value: Any) -> tuple[Any, list[str]]:
    """The value made of dict, list, str, int, float, bool and None only, and the dotted paths of non-finite numbers.

    Objects with fields become dicts, arrays and sets lists (sets in a fixed order), dates ISO text, bytes their text
    with `\\xNN` for what isn't UTF-8, lone surrogates U+FFFD, and everything else its `str`.
    """
    converter = _Converter()
    return converter.convert(value, ()), converter.non_finite


class _Converter:
    """One conversion: the paths of non-finite numbers found, and the containers it stands in (to notice cycles)."""

    def __init__(self) -> None:
        self.non_finite: list[str] = []
        self._inside: set[int] = set()

    def convert(self, value: Any, path: tuple[str, ...]) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, Enum):
            return self.convert(value.value, path)
        if isinstance(value, str):
            return _text(value)
        if isinstance(value, int):
            return _integer(value)
        if isinstance(value, float):
            return self._float(float(value), path)
        if id(value) in self._inside:
            return "<cycle>"
        if len(path) > _MAX_DEPTH:
            return "<nested too deep>"
        self._inside.add(id(value))
        try:
            return self._convert_object(value, path)
        except (Exception, SystemExit) as error:  # foreign code: __str__, tolist, __iter__ ... may do anything
            return f"<{type(value).__name__} without text: {type(error).__name__}>"
        finally:
            self._inside.discard(id(value))

    def _float(self, value: float, path: tuple[str, ...]) -> float | None:
        if value - value == 0.0:
            return value
        self.non_finite.append(".".join(path))
        return None

    def _convert_object(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, Mapping):
            return {(name := _key(key)): self.convert(item, (*path, name)) for key, item in value.items()}
        if isinstance(value, AbstractSet):
            value = sorted(value, key=lambda item: (type(item).__name__, repr(item)))
        if isinstance(value, list | tuple):
            return [self.convert(item, (*path, str(i))) for i, item in enumerate(value)]
        if isinstance(value, date | time):
            return value.isoformat()
        if isinstance(value, timedelta):
            return value.total_seconds()
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value).decode("utf-8", "backslashreplace")
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._convert_object({f.name: getattr(value, f.name) for f in dataclasses.fields(value)}, path)
        if hasattr(value, "dtype") and hasattr(value, "tolist"):  # arrays, tensors and their scalars
            items = value.tolist()
            return self._float(float(value), path) if type(items) is type(value) else self.convert(items, path)
        if callable(getattr(value, "model_dump", None)) and not isinstance(value, type):
            return self.convert(value.model_dump(), path)
        return _text(str(value))


def _integer(value: int) -> int | str:
    try:
        str(value)
    except ValueError:  # too many digits for Python to write or read
        return hex(value)
    return int(value)


def _key(key: Any) -> str:
    if isinstance(key, Enum):
        key = key.value
    if isinstance(key, str):
        return _text(key)
    if key is None or isinstance(key, bool):
        return json.dumps(key)
    return _text(str(key))


def _text(text: str) -> str:
    """The text with surrogate pairs joined and lone surrogates replaced: such text has no UTF-8 form."""
    if text.isascii():
        return str(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return str(text)
