"""What a model is, in 16 digits: enough to tell that a run is resumed with another one."""

from __future__ import annotations

import hashlib
from pathlib import Path

from llenvs_fast.inference.models import ModelSource, ResolvedModel

_READ_WHOLE = {".json", ".jinja", ".model", ".txt"}
_WEIGHTS = {".safetensors", ".bin", ".gguf", ".pt"}


def fingerprint(model: ResolvedModel) -> str | None:
    """A digest of the configuration, tokenizer and chat template, and of the weights' names and sizes.

    None for a model of the hub that is not in the cache yet: its files are not known before it is loaded.
    """
    directory = _cached(model.path) if model.source is ModelSource.HUB else Path(model.path)
    if directory is None:
        return None
    digest = hashlib.sha256()
    for path in sorted(p for p in directory.iterdir() if p.is_file()):
        if path.suffix in _READ_WHOLE:
            digest.update(path.name.encode() + path.read_bytes())
        elif path.suffix in _WEIGHTS:
            digest.update(f"{path.name} {path.stat().st_size}".encode())
    return digest.hexdigest()[:16]


def _cached(hub_id: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(hub_id, "config.json")
    return Path(found).parent if isinstance(found, str) else None
