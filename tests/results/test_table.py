from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from llenvs_fast.core.errors import JournalError
from llenvs_fast.results import Journal, TrajectoryRecord, read_parquet, to_table, write_parquet
from llenvs_fast.results.table import BATCH_ROWS, schema
from tests.results.rows import SETTINGS, failed, record

AWKWARD = [
    record(0, info={}, metrics={}, task={}, timing={}),
    record(1, completion=[{"role": "assistant", "content": "a"}]),
    record(2, completion=[{"role": "assistant", "content": ["b", {"type": "image"}]}], prompt=[]),
    record(3, reward=None, success=None, metrics={"m": None}, seed=None, finish_reason=None),
    record(4, reward=np.float32(0.5), turns=np.int64(3), success=np.bool_(False)),
    record(5, info={"a": {"b": None, "c": [None, {}]}, "answer": 1}),
    record(6, info={"set": {1, 2}, "when": datetime(2026, 3, 3), "answer": "one"}),
    record(7, reward=float("nan"), info={"text": "\ud800\x00"}),
    failed(8),
    record(9, tokens={"turns": [{"token_ids": [1, 2], "logprobs": [-0.5, None]}]}, cached_tokens=3),
]


def as_journalled(row: TrajectoryRecord) -> TrajectoryRecord:
    return TrajectoryRecord.from_json_row(row.to_json_row())


def test_awkward_records_survive_parquet(tmp_path: Path) -> None:
    assert write_parquet(AWKWARD, tmp_path / "results.parquet") == len(AWKWARD)
    assert list(read_parquet(tmp_path / "results.parquet")) == [as_journalled(row) for row in AWKWARD]


@pytest.mark.parametrize("rows", [[], AWKWARD[:1], AWKWARD], ids=len)
def test_every_table_has_the_same_schema(rows: list[TrajectoryRecord]) -> None:
    table = to_table(rows)
    assert table.schema == schema()
    assert table.num_rows == len(rows)


def test_every_field_of_a_record_has_a_column() -> None:
    columns = set(AWKWARD[0].to_json_row()) - {"example_id"}
    assert set(schema().names) == columns


def test_free_form_columns_hold_json_text() -> None:
    table = to_table(AWKWARD)
    assert json.loads(table["completion"][2].as_py())[0]["content"][0] == "b"
    assert table["failure"][0].as_py() == "null"
    assert table["reward"][3].as_py() is None


def test_a_run_directory_is_written_in_batches(tmp_path: Path) -> None:
    rows = [record(i) for i in range(BATCH_ROWS + 5)]
    with Journal.create(tmp_path / "run", SETTINGS) as journal:
        journal.append([failed(0), *rows])
    assert write_parquet(tmp_path / "run", tmp_path / "results.parquet") == len(rows)
    assert pq.ParquetFile(tmp_path / "results.parquet").num_row_groups == 2
    assert list(read_parquet(tmp_path / "results.parquet")) == rows


def test_a_file_that_cannot_be_written_is_named_and_an_old_one_stays(tmp_path: Path) -> None:
    def broken():  # type: ignore[no-untyped-def]
        yield record()
        raise RuntimeError("reader died")

    write_parquet(AWKWARD[:2], tmp_path / "results.parquet")
    with pytest.raises(RuntimeError, match="reader died"):
        write_parquet(broken(), tmp_path / "results.parquet")
    assert len(list(read_parquet(tmp_path / "results.parquet"))) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["results.parquet"]
    with pytest.raises(JournalError, match=r"can't write .*nowhere"):
        write_parquet([], tmp_path / "nowhere" / "results.parquet")


def test_importing_results_loads_neither_arrow_nor_numba() -> None:
    program = "import sys, llenvs_fast.results; assert not {'pyarrow', 'numba', 'torch'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2]).returncode == 0
