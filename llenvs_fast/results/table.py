"""Results as Arrow tables and Parquet files.

One fixed schema for every run: what has a free form is a column of JSON text, so that no content can break a file. The
journal stays the source; a table can always be made from it again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llenvs_fast.results.files import explained
from llenvs_fast.results.jsonable import json_text, plain
from llenvs_fast.results.record import TrajectoryRecord
from llenvs_fast.results.rows import read_records

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 1000

_FREE_FORM = ("prompt", "completion", "metrics", "task", "info", "timing", "failure", "tokens")
_TYPED = tuple(f.name for f in fields(TrajectoryRecord) if f.name not in _FREE_FORM)


def schema() -> pa.Schema:
    """The columns of a table of results; those in free form hold JSON text."""
    import pyarrow as pa

    integer, text = pa.int64(), pa.large_string()
    return pa.schema(
        [
            pa.field("task_index", integer, nullable=False),
            pa.field("sample", integer, nullable=False),
            pa.field("episode_id", text, nullable=False),
            pa.field("status", text, nullable=False),
            pa.field("reward", pa.float64()),
            pa.field("success", pa.bool_()),
            pa.field("turns", integer, nullable=False),
            pa.field("prompt_tokens", integer, nullable=False),
            pa.field("completion_tokens", integer, nullable=False),
            pa.field("cached_tokens", integer),
            pa.field("finish_reason", text),
            pa.field("seed", integer),
            pa.field("truncated_by", text),
            *(pa.field(name, text) for name in _FREE_FORM),
        ]
    )


def to_table(records: Iterable[TrajectoryRecord]) -> pa.Table:
    """All records in one table, in their order."""
    import pyarrow as pa

    return pa.Table.from_batches(_batches(records), schema=schema())


def write_parquet(source: Path | str | Iterable[TrajectoryRecord], path: Path | str) -> int:
    """Write a run directory or records to a Parquet file, batch by batch, and return the number of rows.

    The file appears whole or not at all. Raises JournalError where it can't be written.
    """
    import pyarrow.parquet as pq

    path = Path(path)
    records = read_records(source) if isinstance(source, Path | str) else source
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    rows = 0
    with explained("write", path):
        try:
            with pq.ParquetWriter(draft, schema(), compression="zstd") as writer:
                for batch in _batches(records):
                    writer.write_batch(batch)
                    rows += batch.num_rows
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
    return rows


def read_parquet(path: Path | str) -> Iterator[TrajectoryRecord]:
    """The records of a Parquet file that `write_parquet` made, batch by batch."""
    import pyarrow.parquet as pq

    with explained("read", Path(path)), pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            for row in batch.to_pylist():
                free_form = {name: json.loads(row[name]) for name in _FREE_FORM}
                yield TrajectoryRecord.from_json_row(row | free_form)


def _batches(records: Iterable[TrajectoryRecord]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    columns = schema()
    rows = map(_row, records)
    while batch := list(islice(rows, BATCH_ROWS)):
        yield pa.RecordBatch.from_pylist(batch, schema=columns)


def _row(record: TrajectoryRecord) -> dict[str, Any]:
    row: dict[str, Any] = plain({name: getattr(record, name) for name in _TYPED})[0]
    return row | {name: json_text(getattr(record, name)) for name in _FREE_FORM}
