"""The settings that make a run what it is: which keys are kept, which secrets aren't, what may change on resume.

Only `num_examples` may change between the parts of a run, and only grow: more of the same is still the same run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from llenvs_fast.core.errors import JournalError, SettingsMismatchError
from llenvs_fast.results.jsonable import plain, to_json

GROWING = "num_examples"
REDACTED = "[redacted]"

_MIN_SECRET_CHARS = 8  # shorter "keys" are placeholders such as EMPTY, and would be found in ordinary text
_SECRET_NAME = re.compile(
    r"^token$|(^|[_\-])(api[_\-]?key|(access|auth|bearer|refresh|hf)[_\-]token|secret([_\-]?key)?|password|passwd"
    r"|authorization|credentials?|cookie)$",  # but not eos_token or max_tokens
    re.IGNORECASE,
)
_ABSENT = object()


def kept_settings(settings: Mapping[str, Any], secrets: Collection[str] = ()) -> dict[str, Any]:
    """The settings as plain JSON, with the values of secret-looking keys and all given secrets replaced.

    "Name: value" texts, as HTTP headers are written, are judged by their name. Raises JournalError for NaN and
    infinities, which JSON can't keep.
    """
    values, non_finite = plain(settings)
    if non_finite:
        raise JournalError(f"setting {non_finite[0]!r} is not a finite number: give one, or leave the setting out")
    return {name: _without_named_secrets(name, without(value, secrets)) for name, value in values.items()}


def known_secrets(secrets: Collection[str]) -> tuple[str, ...]:
    """The secrets that are long enough to be searched for, longest first."""
    return tuple(sorted({s for s in secrets if len(s) >= _MIN_SECRET_CHARS}, key=lambda s: (-len(s), s)))


def without(value: Any, secrets: Collection[str]) -> Any:
    """A plain JSON value with the given secrets replaced in all of its texts."""
    if isinstance(value, dict):
        return {without(key, secrets): without(item, secrets) for key, item in value.items()}
    if isinstance(value, list):
        return [without(item, secrets) for item in value]
    if isinstance(value, str):
        for secret in known_secrets(secrets):
            value = value.replace(secret, REDACTED)
    return value


def _without_named_secrets(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_named_secrets(key, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_named_secrets(name, item) for item in value]
    if not isinstance(value, str):
        return value
    if _SECRET_NAME.search(name):
        return REDACTED
    head, colon, _ = value.partition(":")
    return f"{head}: {REDACTED}" if colon and _SECRET_NAME.search(head.strip()) else value


def check_resumable(directory: Any, saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Raises SettingsMismatchError listing every field in which the two differ, but for a `num_examples` that grew."""
    old, new = dict(_flattened(saved)), dict(_flattened(current))
    changes = [
        f"{path}: saved {_shown(old, path)}, current {_shown(new, path)}"
        for path in sorted(old.keys() | new.keys())
        if old.get(path, _ABSENT) != new.get(path, _ABSENT) and not _grew(path, old.get(path), new.get(path))
    ]
    if changes:
        raise SettingsMismatchError(
            f"can't resume the run in {str(directory)!r}, its settings differ: {'; '.join(changes)}. "
            f"Use the saved values, or start a new run ({GROWING} alone may differ, and only grow)"
        )


def _grew(path: str, saved: Any, current: Any) -> bool:
    return path.rpartition(".")[2] == GROWING and type(saved) is int and type(current) is int and current >= saved


def _shown(fields: Mapping[str, Any], path: str) -> str:
    return to_json(fields[path]) if path in fields else "absent"


def _flattened(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted path, value) of all leaves; an empty dict is a leaf."""
    for name, item in value.items():
        if isinstance(item, dict) and item:
            yield from _flattened(item, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", item
