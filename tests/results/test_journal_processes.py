"""What a journal keeps when its process dies, its disk is full, or another process wants it too."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from llenvs_fast.core.errors import JournalError
from llenvs_fast.results import Journal, read_records, summarize
from tests.results.rows import SETTINGS, record

ROOT = Path(__file__).parents[2]
TASKS, SAMPLES = 40, 4
ALL = {(task, sample) for task in range(TASKS) for sample in range(SAMPLES)}


def start(program: str, *arguments: str, **options: object) -> subprocess.Popen[str]:
    prologue = "import sys, time\nfrom llenvs_fast.results import Journal\nfrom tests.results.rows import *\n"
    return subprocess.Popen(
        [sys.executable, "-c", prologue + textwrap.dedent(program), *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )


WORK = """
    from pathlib import Path
    directory = Path(sys.argv[1])
    open_run = Journal.resume if directory.exists() else Journal.create
    with open_run(directory, SETTINGS) as journal:
        print("open", flush=True)
        todo = [(t, s) for t in range(40) for s in range(4) if (t, s) not in journal.done]
        for at in range(0, len(todo), 3):
            batch = todo[at : at + 3]
            journal.append([record(t, s, reward=t % 2, success=bool(t % 2), info={"x": "y" * 5000}) for t, s in batch])
            print(*(f"{t},{s}" for t, s in batch), flush=True)
            time.sleep(0.002)
"""


def acknowledged(output: str) -> list[tuple[int, int]]:
    whole = output[: output.rfind("\n") + 1]
    return [(int(t), int(s)) for t, s in re.findall(r"(\d+),(\d+)", whole)]


def test_killed_ten_times_no_acknowledged_row_is_lost_and_none_is_done_twice(tmp_path: Path) -> None:
    directory, known, when = tmp_path / "run", [], random.Random(7)
    for _ in range(10):
        worker = start(WORK, str(directory))
        assert worker.stdout is not None
        head = worker.stdout.readline()
        time.sleep(when.uniform(0, 0.02))
        worker.send_signal(signal.SIGKILL)
        known += acknowledged(head + worker.communicate()[0])
        assert set(known) <= {row.key for row in read_records(directory)}
    rest = start(WORK, str(directory))
    known += acknowledged(rest.communicate()[0])
    assert rest.returncode == 0
    rows = [row.key for row in read_records(directory)]
    assert len(known) == len(set(known)), "nothing that was acknowledged was done again"
    assert len(rows) == len((directory / "results.jsonl").read_bytes().splitlines()) == 160
    assert set(rows) == ALL

    uninterrupted = [record(t, s, reward=t % 2, success=bool(t % 2)) for t, s in sorted(ALL)]
    assert summarize(read_records(directory)) == summarize(uninterrupted)


def test_of_processes_that_resume_at_once_one_works_at_a_time(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    Journal.create(directory, SETTINGS).close()
    workers = [start(WORK, str(directory), stderr=subprocess.PIPE) for _ in range(3)]
    for worker in workers:
        _, errors = worker.communicate()
        if worker.returncode:
            assert re.search(r"JournalError: .* is in use by process (\d+|unknown):", errors), errors
    assert any(worker.returncode == 0 for worker in workers)
    assert sorted(row.key for row in read_records(directory)) == sorted(ALL)
    assert len((directory / "results.jsonl").read_bytes().splitlines()) == 160


def test_the_lock_names_its_process_and_dies_with_it_even_when_it_left_children(tmp_path: Path) -> None:
    program = """
        import os
        journal = Journal.create(sys.argv[1], SETTINGS)
        child = os.fork()
        if child == 0:
            try:
                journal.append([record()])
            except Exception as error:
                os.write(1, f"child: {error}\\n".encode())
            time.sleep(60)
            os._exit(0)
        os.write(1, f"parent of {child}\\n".encode())
        time.sleep(60)
    """
    parent = start(program, str(tmp_path / "run"))
    assert parent.stdout is not None
    output = parent.stdout.readline() + parent.stdout.readline()
    try:
        assert "child: the journal of" in output, "a forked worker can't write to it"
        with pytest.raises(JournalError, match=f"in use by process {parent.pid}:"):
            Journal.resume(tmp_path / "run", SETTINGS)
        parent.kill()
        parent.wait()
        Journal.resume(tmp_path / "run", SETTINGS).close()
    finally:
        os.kill(int(re.search(r"parent of (\d+)", output)[1]), signal.SIGKILL)  # type: ignore[index]
        parent.stdout.close()


def test_a_full_disk_is_one_error_and_leaves_whole_lines(tmp_path: Path) -> None:
    program = """
        import resource
        from llenvs_fast.core.errors import JournalError
        with Journal.create(sys.argv[1], SETTINGS) as journal:
            line = len(record(0, 0).to_json_line())
            resource.setrlimit(resource.RLIMIT_FSIZE, (5 * line + 50, resource.RLIM_INFINITY))
            journal.append([record(0, s) for s in range(4)])
            try:
                journal.append([record(1, s) for s in range(4)])
            except JournalError as error:
                print(error, flush=True)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            journal.append([record(2, 0)])
    """
    worker = start(program, str(tmp_path))
    output, _ = worker.communicate()
    assert worker.returncode == 0
    assert re.search(r"can't write '.*results\.jsonl': File too large; free some space, then resume", output)
    assert [row.key for row in read_records(tmp_path)] == [(0, 0), (0, 1), (0, 2), (0, 3), (2, 0)]
    Journal.resume(tmp_path, SETTINGS).close()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which only root may")
def test_a_directory_of_others_is_named_with_the_remedy(tmp_path: Path) -> None:
    program = """
        import os
        from llenvs_fast.core.errors import JournalError
        os.setuid(65534)
        try:
            Journal.create(sys.argv[1], SETTINGS)
        except JournalError as error:
            print(error)
    """
    output, _ = start(program, str(tmp_path / "run")).communicate()
    assert re.search(r"can't create the run directory '.*run': Permission denied; choose a directory that you", output)
