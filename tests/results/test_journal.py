from __future__ import annotations

import gc
import json
import os
from pathlib import Path

import pytest

from llenvs_fast.core.errors import JournalError, SettingsMismatchError
from llenvs_fast.results import Journal, read_records
from tests.results.rows import SETTINGS, failed, record


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with three rows of different length, the second of them failed."""
    with Journal.create(tmp_path / "run", SETTINGS) as journal:
        journal.append([record(0, 0), failed(0, 1), record(1, 0, info={"text": "é 世界 " * 9})])
    return tmp_path / "run"


def lines(directory: Path) -> list[bytes]:
    return (directory / "results.jsonl").read_bytes().splitlines(keepends=True)


def keys(directory: Path) -> list[tuple[int, int]]:
    return [row.key for row in read_records(directory)]


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    rows = [record(i, s, info={"é": i}) for i in range(3) for s in range(2)]
    with Journal.create(tmp_path, SETTINGS) as journal:
        assert journal.done == frozenset()
        journal.append(rows[:2])
        journal.append([])
        journal.append(iter(rows[2:]))
        assert list(read_records(tmp_path)) == rows, "a run can be read while it is written"
    assert list(read_records(tmp_path)) == rows


def test_a_resumed_run_knows_what_is_done_and_failed_rows_are_not(run: Path) -> None:
    with Journal.resume(run, SETTINGS) as journal:
        assert journal.done == {(0, 0), (1, 0)}


def test_the_last_row_of_a_key_counts(run: Path) -> None:
    with Journal.resume(run, SETTINGS) as journal:
        journal.append([record(0, 1, reward=0.5)])
    assert keys(run) == [(0, 0), (1, 0), (0, 1)]
    assert [row.reward for row in read_records(run)][-1] == 0.5
    assert len(lines(run)) == 4, "the file itself is only ever appended to"
    with Journal.resume(run, SETTINGS) as journal:
        assert journal.done == {(0, 0), (0, 1), (1, 0)}


@pytest.mark.parametrize("cut", range(1, 51))
def test_a_torn_last_line_is_repaired(run: Path, cut: int) -> None:
    path = run / "results.jsonl"
    whole = lines(run)
    os.truncate(path, path.stat().st_size - cut)
    assert keys(run) == [(0, 0), (0, 1)], "readers leave it out"
    with Journal.resume(run, SETTINGS) as journal:
        assert journal.done == {(0, 0)}
        assert lines(run) == whole[:2]
        journal.append([record(1, 0)])
    assert keys(run) == [(0, 0), (0, 1), (1, 0)]


@pytest.mark.parametrize("remains", [b"\0" * 300, b"\0" * 300 + b"\n", b"\xff\xc3", b"{}\n", b"\n", b'{"prompt":[]'])
def test_remains_of_any_kind_at_the_end_are_cut_off(run: Path, remains: bytes) -> None:
    whole = lines(run)
    with (run / "results.jsonl").open("ab") as file:
        file.write(remains)
    Journal.resume(run, SETTINGS).close()
    assert lines(run) == whole


@pytest.mark.parametrize(
    "break_line",
    [
        lambda line: line[: len(line) // 2] + b"\n",
        lambda line: line[: len(line) // 2] + line,
        lambda line: line[:50] + b"\0" * 20 + line[70:],
        lambda line: b"\xff" + line,
        lambda line: b"\n",
        lambda line: b'{"task_index":0,"sample":1}\n',
        lambda line: line.replace(b"null", b"NaN").replace(b'{"prompt', b'{ "prompt'),
        lambda line: b'{"task_index":"0","sample":1,"episode_id":"e","status":"failed"}\n',
        lambda line: b'{"task_index":1e99,"sample":1,"episode_id":"e","status":"failed"}\n',
        lambda line: b'{"task_index":99999999999999999999,"sample":1,"episode_id":"e","status":"failed"}\n',
        lambda line: b"[" * 100_000 + b"\n",
    ],
    ids=["cut", "two in one", "zeros", "not UTF-8", "empty", "no status", "NaN", "text", "float", "huge", "deep"],
)
def test_a_broken_line_in_the_middle_is_named_with_its_remedy(run: Path, break_line) -> None:  # type: ignore[no-untyped-def]
    whole = lines(run)
    (run / "results.jsonl").write_bytes(whole[0] + break_line(whole[1]) + whole[2])
    with pytest.raises(JournalError, match=r"line 2 of .*results\.jsonl' is broken .*sed -i 2d"):
        Journal.resume(run, SETTINGS)
    with pytest.raises(JournalError, match="line 2 of"):
        list(read_records(run))
    (run / "results.jsonl").write_bytes(whole[0] + whole[2])
    Journal.resume(run, SETTINGS).close()


def test_a_text_that_looks_like_a_row_is_only_a_text(tmp_path: Path) -> None:
    text = record(9, 9).to_json_line().decode()
    rows = [record(1, 0, info={"text": text, "row": {"prompt": {"prompt": 1}}}), failed(2, 0)]
    rows.append(record(3, 0, tokens={"task_index": 5, "sample": 5, "status": "failed"}))
    with Journal.create(tmp_path, SETTINGS) as journal:
        journal.append(rows)
    assert list(read_records(tmp_path)) == rows
    with Journal.resume(tmp_path, SETTINGS) as journal:
        assert journal.done == {(1, 0), (3, 0)}


def test_rows_that_another_program_laid_out_are_read_too(run: Path) -> None:
    rows = [json.loads(line) for line in lines(run)]
    (run / "results.jsonl").write_text("".join(json.dumps(dict(reversed(row.items()))) + "\n" for row in rows))
    with Journal.resume(run, SETTINGS) as journal:
        assert journal.done == {(0, 0), (1, 0)}
    assert keys(run) == [(0, 0), (0, 1), (1, 0)]


def test_changed_settings_are_refused_and_nothing_is_touched(run: Path) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with pytest.raises(SettingsMismatchError, match=r"sampling_args\.temperature: saved 0\.7, current 0\.0"):
        Journal.resume(run, SETTINGS | {"sampling_args": {"temperature": 0.0, "stop": ["\n\n"]}})
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    Journal.resume(run, SETTINGS).close()


def test_a_run_that_grew_keeps_its_new_size(run: Path) -> None:
    Journal.resume(run, SETTINGS | {"num_examples": 100}).close()
    with pytest.raises(SettingsMismatchError, match="num_examples: saved 100, current 40"):
        Journal.resume(run, SETTINGS)


def test_resuming_a_finished_run_changes_nothing(run: Path) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    for _ in range(2):
        Journal.resume(run, SETTINGS).close()
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_a_run_is_not_overwritten(run: Path) -> None:
    with pytest.raises(JournalError, match=r"holds a run .*resume it, or choose another"):
        Journal.create(run, SETTINGS)


def test_results_of_another_program_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("{}\n")
    with pytest.raises(JournalError, match=r"no settings\.json"):
        Journal.resume(tmp_path, SETTINGS)
    with pytest.raises(JournalError, match="holds a run"):
        Journal.create(tmp_path, SETTINGS)
    assert (tmp_path / "results.jsonl").read_text() == "{}\n"


def test_a_run_that_died_before_its_first_row_is_resumed(run: Path) -> None:
    (run / "results.jsonl").unlink()
    with Journal.resume(run, SETTINGS) as journal:
        assert journal.done == frozenset()


@pytest.mark.parametrize("broken", ['{"env_id": ', "[" * 100_000], ids=["cut", "deep"])
def test_broken_settings_are_named(run: Path, broken: str) -> None:
    (run / "settings.json").write_text(broken)
    with pytest.raises(JournalError, match=r"settings\.json' is not JSON"):
        Journal.resume(run, SETTINGS)


def test_a_directory_without_results_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"can't read .*results\.jsonl': No such file"):
        list(read_records(tmp_path))


def test_a_run_in_use_names_the_process_and_is_free_afterwards(run: Path) -> None:
    with Journal.resume(run, SETTINGS), pytest.raises(JournalError, match=f"in use by process {os.getpid()}:"):
        Journal.resume(run, SETTINGS)
    Journal.resume(run, SETTINGS).close()


def test_a_failed_resume_lets_go_of_the_run(run: Path) -> None:
    for _ in range(2):
        with pytest.raises(SettingsMismatchError):
            Journal.resume(run, {})
    gc.collect()  # would warn of files left open
    Journal.resume(run, SETTINGS).close()


def test_a_closed_journal_says_so(run: Path) -> None:
    journal = Journal.resume(run, SETTINGS)
    journal.close()
    journal.close()
    for write in (lambda: journal.append([record()]), journal.flush, lambda: journal.write_metadata({})):
        with pytest.raises(JournalError, match="is closed: resume the run"):
            write()
    assert len(lines(run)) == 3


def test_an_append_that_fails_half_way_writes_nothing(run: Path) -> None:
    def rows():  # type: ignore[no-untyped-def]
        yield record(5, 0)
        raise KeyboardInterrupt

    with Journal.resume(run, SETTINGS) as journal, pytest.raises(KeyboardInterrupt):
        journal.append(rows())
    assert len(lines(run)) == 3


def test_a_known_secret_never_reaches_the_disk_and_the_run_resumes_without_it(tmp_path: Path) -> None:
    secret = 'sk-"CANARY"-123'
    settings = SETTINGS | {"api_key": secret, "base_url": f"http://h/{secret}"}
    leak = record(0, 1, info={"error": f"bad key {secret}", secret: [secret]})
    with Journal.create(tmp_path, settings, secrets=[secret]) as journal:
        journal.append([record(0, 0), leak])
        journal.write_metadata({"error": secret})
    for path in tmp_path.iterdir():
        assert "CANARY" not in path.read_text()
    assert len(list(read_records(tmp_path))) == 2
    with Journal.resume(tmp_path, settings | {"api_key": "another one"}, secrets=[secret]) as journal:
        assert len(journal.done) == 2


def test_metadata_is_replaced_as_a_whole(run: Path) -> None:
    with Journal.resume(run, SETTINGS) as journal:
        journal.write_metadata({"avg_reward": 0.5, "long": "x" * 1000})
        journal.write_metadata({"avg_reward": float("nan")})
    assert json.loads((run / "metadata.json").read_text()) == {"avg_reward": None}
    assert sorted(p.name for p in run.iterdir()) == ["lock", "metadata.json", "results.jsonl", "settings.json"]


def test_a_file_where_a_directory_is_needed_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(JournalError, match=r"can't create the run directory .*file.*choose another"):
            Journal.create(directory, SETTINGS)
