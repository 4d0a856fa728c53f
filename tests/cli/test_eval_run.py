"""`llenvs-fast eval run` for real: a process of its own, the real engine, the default model, a real environment."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("vllm")

ENGINE = {"dtype": "float32", "max_model_len": 512, "kv_cache_memory_bytes": 1 << 24, "max_num_seqs": 16}


def command(*words: str) -> list[str]:
    options = ["--engine-args", json.dumps(ENGINE), "-T", "1.0"]
    return [sys.executable, "-m", "llenvs_fast.cli.main", "eval", "run", "leg_counting", *options, *words]


def run(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), cwd=cwd, capture_output=True, text=True, timeout=240, check=False)


def rows(cwd: Path) -> list[dict]:
    (file,) = cwd.glob("outputs/evals/*/*/results.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_run_reports_saves_and_is_done(tmp_path: Path) -> None:
    done = run(tmp_path, "-n", "3", "-r", "4", "-t", "16", "-s", "--save-tokens")
    assert done.returncode == 0, done.stderr
    for line in ("rollouts", "accuracy", "95 % [", "pass@1", "pass@2", "pass@4", "mean reward", "truncated", "tokens/s",
                 "prefix-cache hits", "engine steps", "generating"):  # fmt: skip
        assert line in done.stdout, f"{line!r} is missing in {done.stdout}"
    assert "INFO" not in done.stdout + done.stderr
    saved = rows(tmp_path)
    assert sorted((r["task_index"], r["sample"]) for r in saved) == [(t, s) for t in range(3) for s in range(4)]
    first = saved[0]
    assert list(first)[:7] == ["prompt", "completion", "reward", "metrics", "task", "info", "timing"]
    assert [m["role"] for m in first["prompt"]] == ["system", "user"]
    assert first["completion"][0]["role"] == "assistant"
    (turn,) = first["tokens"]["turns"]
    assert len(turn["token_ids"]) == first["completion_tokens"] <= 16
    assert len({r["seed"] for r in saved}) == 12
    (metadata,) = tmp_path.glob("outputs/evals/*/*/metadata.json")
    assert json.loads(metadata.read_text())["num_examples"] == 3

    again = run(tmp_path, "-n", "3", "-r", "4", "-t", "16", "-R")
    assert again.returncode == 1
    assert "no incomplete run" in again.stderr
    (directory,) = tmp_path.glob("outputs/evals/*/*")
    again = run(tmp_path, "-n", "3", "-r", "4", "-t", "16", "-R", str(directory))
    assert again.returncode == 0, again.stderr
    assert "0 of them still to run" in again.stderr
    assert "pass@4" in again.stdout
    assert rows(tmp_path) == saved

    other = run(tmp_path, "-n", "3", "-r", "4", "-t", "17", "-R", str(directory))
    assert other.returncode == 1
    assert "sampling_args.max_tokens: saved 16, current 17" in other.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_is_resumed_to_the_same_rows(how: int, tmp_path: Path) -> None:
    words = ("-n", "60", "-r", "2", "-t", "64", "-c", "4", "-s")
    with subprocess.Popen(
        command(*words), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and process.poll() is None:
            if sum(f.read_bytes().count(b"\n") for f in tmp_path.glob("outputs/evals/*/*/results.jsonl")) >= 8:
                break
            time.sleep(0.02)
        process.send_signal(how)
        out, err = process.communicate(timeout=60)
    kept = rows(tmp_path)
    assert 8 <= len(kept) < 120, err
    if how == signal.SIGINT:
        assert process.returncode == 130, err
        assert "stopping" in err
        assert "rollouts" in out
        resume = re.search(r"resume with: llenvs-fast (.*)", err)
        assert resume is not None, err
        words = tuple(shlex.split(resume.group(1))[3 + len(command()) - 6 :])
    else:
        words = (*words, "-R")
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "still to run" in done.stderr
    assert "120 (60 tasks x 2 samples)" in done.stdout
    saved = rows(tmp_path)
    assert saved[: len(kept)] == kept
    assert sorted((r["task_index"], r["sample"]) for r in saved) == [(t, s) for t in range(60) for s in range(2)]


def test_a_second_interrupt_exits_at_once(tmp_path: Path) -> None:
    script = (
        "import os, signal, time\n"
        "from llenvs_fast.cli.interrupt import Interrupt\n"
        "with Interrupt() as interrupt:\n"
        "    interrupt.arm()\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    assert interrupt.stop.is_set()\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(60)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 130
    assert "once more to exit at once" in done.stderr


def test_a_full_disk_stops_the_run_and_leaves_whole_rows(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk: the write fails the same way."""
    limited = f"ulimit -f 24; exec {shlex.join(command('-n', '200', '-r', '1', '-t', '8', '-s'))}"
    done = subprocess.run(
        ["bash", "-c", limited], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Error: can't write" in done.stderr
    assert "results.jsonl" in done.stderr
    assert 1 <= len(rows(tmp_path)) < 200
