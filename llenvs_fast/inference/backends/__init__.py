"""Whoever generates: one file for each engine or provider.

The names below load their module, and with it torch, vLLM or a provider's client, when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llenvs_fast.inference.backends.huggingface import HuggingFaceBackend
    from llenvs_fast.inference.backends.scripted import ScriptedBackend
    from llenvs_fast.inference.backends.vllm import VLLMBackend

_HOMES = {
    "HuggingFaceBackend": "huggingface",
    "ScriptedBackend": "scripted",
    "VLLMBackend": "vllm",
}

__all__ = ["HuggingFaceBackend", "ScriptedBackend", "VLLMBackend"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
