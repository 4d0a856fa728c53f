"""Where runs lie on disk, and how their small files are written.

A run directory holds `results.jsonl` (the journal), `settings.json` (what the run is) and `metadata.json` (what came
out). The small files are replaced as a whole, so a reader never sees half of one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llenvs_fast.core.errors import JournalError

RESULTS = "results.jsonl"
SETTINGS = "settings.json"
METADATA = "metadata.json"
LOCK = "lock"

_MAX_NAME_BYTES = 200  # file systems allow 255 to a name

_NO_SPACE = "free some space, then resume the run"
_NOT_ALLOWED = "choose a directory that you may write to"
_NOT_A_DIRECTORY = "a file stands where a directory is needed: move it, or choose another directory"
_REMEDIES = {
    errno.ENOSPC: _NO_SPACE,
    errno.EDQUOT: _NO_SPACE,
    errno.EFBIG: _NO_SPACE,
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EROFS: _NOT_ALLOWED,
    errno.ENOTDIR: _NOT_A_DIRECTORY,
    errno.EEXIST: _NOT_A_DIRECTORY,
    errno.ENOENT: "check the path",
}


@contextmanager
def explained(doing: str, path: Path) -> Iterator[None]:
    """Turn an OSError into a JournalError that names the path, the reason and the remedy."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "check the disk, or choose another directory")
        raise JournalError(f"can't {doing} {str(path)!r}: {error.strerror or error}; {remedy}") from error


def runs_directory(base: Path | str, env_id: str, model: str) -> Path:
    """`{base}/evals/{env_id}--{model}`, which holds the runs of this environment with this model."""
    name = f"{env_id}--{model}".replace("/", "--")
    encoded = name.encode()
    if len(encoded) > _MAX_NAME_BYTES:
        digest = hashlib.blake2b(encoded, digest_size=4).hexdigest()
        name = f"{encoded[:_MAX_NAME_BYTES].decode(errors='ignore')}-{digest}"
    return Path(base) / "evals" / name


def run_directory(base: Path | str, env_id: str, model: str) -> Path:
    """A path for a new run: `{base}/evals/{env_id}--{model}/{8 hex digits}`. Nothing is created."""
    return runs_directory(base, env_id, model) / uuid.uuid4().hex[:8]


def write_whole(path: Path, value: Any) -> None:
    """Write a JSON file so that after a crash it is either the old one or the new one. Raises JournalError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with explained("write", path):
        try:
            with draft.open("w", encoding="utf-8") as file:
                json.dump(value, file, ensure_ascii=False, allow_nan=False, indent=2)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make names that were just created or replaced in a directory durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_whole(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises JournalError where there is none."""
    with explained("read", path):
        data = path.read_bytes()
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise JournalError(f"{str(path)!r} is not JSON ({error}): restore it, or start a new run") from error
    if not isinstance(value, dict):
        raise JournalError(f"{str(path)!r} holds a JSON {type(value).__name__}, not an object: start a new run")
    return value
