"""The README is true: its commands and its code run, its make targets exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from llenvs_fast.cli.main import cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SMALL = ["--engine-args", '{"dtype": "float32", "max_model_len": 1024, "kv_cache_memory_bytes": 33554432}']


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines]


def test_the_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"`?make (\w+)", README))
    assert targets >= {"demo", "test", "bench", "lint"}
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"the README says make {target}"


def test_the_extras_exist() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    for names in re.findall(r"llenvs-fast\[([\w,-]+)\]", README):
        for name in names.split(","):
            assert re.search(rf"^{name} = \[", pyproject, re.MULTILINE), f"the README says [{name}]"


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer tasks. The last one resumes what is complete by then, and says so."""
    pytest.importorskip("vllm")
    monkeypatch.chdir(tmp_path)
    ours = [words for words in commands() if words and words[0] == "llenvs-fast"]
    assert len(ours) >= 4
    for words in ours:
        arguments = words[1:]
        if arguments[0] == "eval":
            arguments = ["2" if w in ("50", "4") else w for w in arguments] + SMALL
        result = CliRunner().invoke(cli, arguments)
        if "-R" in words:
            assert "has no incomplete run" in str(result.exception)
        else:
            assert result.exit_code == 0, f"{words}: {result.output} {result.exception}"


def test_the_python_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm")
    monkeypatch.chdir(tmp_path)
    (saved,) = [b for b in blocks("python") if "write_parquet" in b]
    (evaluation,) = [b for b in blocks("python") if "run_evaluation" in b]
    assert 'VLLMBackend("embedded")' in evaluation
    exec(compile(evaluation, "README.md", "exec"), {})

    from llenvs_fast.results.journal import Journal
    from llenvs_fast.results.record import Ending, TrajectoryRecord

    (directory,) = re.findall(r'write_parquet\("([^"]+)"', saved)
    with Journal.create(directory, {"num_examples": 1}) as journal:
        journal.append([TrajectoryRecord(task_index=0, sample=0, episode_id="e", status=Ending.FINISHED)])
    exec(compile(saved, "README.md", "exec"), {})
    assert (tmp_path / "rollouts.parquet").exists()


def test_the_environments_counted_are_those_listed() -> None:
    listed = CliRunner().invoke(cli, ["env", "list"]).output.splitlines()
    assert f"{len(listed)} environments" in README
