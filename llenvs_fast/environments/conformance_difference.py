"""Where two values first differ, in words: for states and results whose hidden part is anybody's object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from llenvs_fast.environments.conformance_kit import short

MAX_DEPTH = 60


def difference(a: object, b: object, path: str = "", depth: int = 0) -> str | None:
    """`path: a and b` of the first difference, None where there is none.

    Values are compared by their parts where they have any, so objects without `__eq__` and arrays compare too. NaN
    equals NaN. Parts deeper than MAX_DEPTH are taken as equal.
    """
    if a is b or depth > MAX_DEPTH:
        return None
    if type(a) is not type(b):
        return _told(path, a, b)
    if (parts := _parts(a)) is None:
        return None if _equal(a, b) else _told(path, a, b)
    others = _parts(b) or {}
    if list(parts) != list(others):
        return _told(path, a, b)
    found = (difference(part, others[name], path + name, depth + 1) for name, part in parts.items())
    return next((one for one in found if one is not None), None)


def _parts(value: Any) -> dict[str, Any] | None:
    """The parts of a value by the way to them; None of a value that has none."""
    if is_dataclass(value) and not isinstance(value, type):
        own = {f".{f.name}": getattr(value, f.name, None) for f in fields(value)}
        return own | {f".{name}": part for name, part in getattr(value, "__dict__", {}).items()}
    if isinstance(value, Mapping):
        return {f"[{short(key)}]": value[key] for key in sorted(value, key=repr)}
    if isinstance(value, list | tuple):
        return {f"[{i}]": part for i, part in enumerate(value)}
    if type(value).__eq__ is object.__eq__ and hasattr(value, "__dict__"):
        return {f".{name}": part for name, part in vars(value).items()}
    return None


def _equal(a: Any, b: Any) -> bool:
    try:
        equal = a == b
        if hasattr(equal, "all"):  # an array
            return getattr(a, "shape", None) == getattr(b, "shape", None) and bool(equal.all())
        return bool(equal) or (a != a and b != b) or _says_nothing(a)
    except Exception:
        return repr(a) == repr(b)


def _says_nothing(value: Any) -> bool:
    """Functions, generators, plain objects: they have no parts to tell them apart by, only an address."""
    return type(value).__eq__ is object.__eq__


def _told(path: str, a: object, b: object) -> str:
    return f"{path.lstrip('.') or 'all'}: {short(a)} and {short(b)}"
