from __future__ import annotations

import json
import os
import re
from datetime import datetime
from pathlib import Path
from typing import Any

from llenvs_fast.results import Journal, latest_incomplete, run_directory, run_metadata, runs_directory, summarize
from tests.results.rows import failed, record

SETTINGS = {"env_id": "owner/env", "model": "org/model", "num_examples": 2, "rollouts_per_example": 1}


def make_run(directory: Path, *rows: Any, age_s: int = 0, **settings: Any) -> Path:
    with Journal.create(directory, SETTINGS | settings) as journal:
        journal.append(rows)
    os.utime(directory / "results.jsonl", (1e9 - age_s, 1e9 - age_s))
    return directory


def test_runs_lie_where_the_documentation_says(tmp_path: Path) -> None:
    path = run_directory(tmp_path, "owner/env", "org/model")
    assert path.parent == tmp_path / "evals" / "owner--env--org--model"
    assert path.parent == runs_directory(tmp_path, "owner/env", "org/model")
    assert re.fullmatch("[0-9a-f]{8}", path.name)
    assert path != run_directory(tmp_path, "owner/env", "org/model")


def test_a_long_model_path_still_makes_a_name_of_its_own(tmp_path: Path) -> None:
    paths = {run_directory(tmp_path, "env", "/" + "päth/" * 99 + end).parent for end in "ab"}
    assert len(paths) == 2
    for path in paths:
        path.mkdir(parents=True)


def test_the_run_written_to_last_among_the_incomplete_is_found(tmp_path: Path) -> None:
    make_run(tmp_path / "complete", record(0), record(1), age_s=0)
    failed_run = make_run(tmp_path / "failed", record(0), failed(1), age_s=10)
    older = make_run(tmp_path / "older", record(0), age_s=20)
    make_run(tmp_path / "broken", record(0), age_s=5).joinpath("settings.json").write_text("{")
    assert latest_incomplete(tmp_path) == failed_run
    with Journal.resume(failed_run, SETTINGS) as journal:
        journal.append([record(1)])
    assert latest_incomplete(tmp_path) == older


def test_only_a_run_that_could_be_resumed_is_found(tmp_path: Path) -> None:
    make_run(tmp_path / "hotter", age_s=0, temperature=1.0)
    make_run(tmp_path / "larger", age_s=1, num_examples=9)
    complete = make_run(tmp_path / "complete", record(0), record(1), age_s=2)
    assert latest_incomplete(tmp_path, SETTINGS) is None
    assert latest_incomplete(tmp_path, SETTINGS | {"num_examples": 3}) == complete, "more examples: work is left"


def test_no_runs_is_no_error(tmp_path: Path) -> None:
    assert latest_incomplete(tmp_path / "nowhere") is None


def test_metadata_has_the_documented_keys_first_at_the_start_and_at_the_end(tmp_path: Path) -> None:
    documented = ["env_id", "model", "num_examples", "rollouts_per_example", "avg_reward", "avg_metrics", "time_ms"]
    documented += ["sampling_args", "env_args", "date", "time"]
    started = datetime(2026, 3, 3, 14, 23, 45)
    with Journal.create(tmp_path, SETTINGS) as journal:
        rows: list[Any] = []
        for _ in range(2):
            journal.write_metadata(run_metadata(SETTINGS, started, 12345.0, summarize(rows)))
            written = json.loads((tmp_path / "metadata.json").read_text())
            assert list(written)[:11] == documented
            assert (written["date"], written["time"]) == ("2026-03-03", "14:23:45")
            assert written["avg_reward"] == (1.0 if rows else None)
            rows = [record(0), failed(1)]
