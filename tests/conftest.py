"""Fixtures that many rooms share. The engine is started once for the whole suite, by the first test that asks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.tiny_model import make_tiny_model

if TYPE_CHECKING:
    from llenvs_fast.inference.backends import VLLMBackend

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two threads on two busy cores are slower than one
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny_vllm(tiny_model_dir: Path) -> Iterator[VLLMBackend]:
    """The real engine with the tiny model: float32, context 512, 4,096 tokens of KV cache in blocks of 32."""
    pytest.importorskip("vllm")
    from llenvs_fast.inference.backends import VLLMBackend

    kv_bytes = 4096 * 2 * 2 * 64 * 4  # tokens × (keys and values) × layers × hidden × bytes of float32
    with VLLMBackend(
        str(tiny_model_dir), dtype="float32", max_model_len=512, kv_cache_memory_bytes=kv_bytes, max_num_seqs=64
    ) as backend:
        yield backend


@pytest.fixture(scope="session")
def embedded_vllm() -> Iterator[VLLMBackend]:
    """The real engine with the model that ships: float32, its whole context, 32,768 tokens of KV cache."""
    pytest.importorskip("vllm")
    from llenvs_fast.inference.backends import VLLMBackend

    kv_bytes = 32_768 * 2 * 5 * 128 * 4
    with VLLMBackend("embedded", dtype="float32", kv_cache_memory_bytes=kv_bytes, max_num_seqs=128) as backend:
        yield backend
