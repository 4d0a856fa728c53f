"""Reading the lines of `results.jsonl`.

The file is append-only: a trajectory that is run again gets another line, and the last line of a key counts. What
stands after the last whole line is the remains of a write that was cut short, and no row. The key of a row stands at
the end of its line, so that an index of a large file needs no parsing.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llenvs_fast.core.errors import JournalError
from llenvs_fast.results.files import RESULTS, explained
from llenvs_fast.results.record import Ending, TrajectoryRecord

_READ_BYTES = 1 << 20
_TAIL_BYTES = 128
_START = b'{"prompt":'
_TAIL = re.compile(rb',"task_index":(\d{1,18}),"sample":(\d{1,18}),"status":"(finished|truncated|failed)"\}\n\Z')
_ENDINGS = tuple(Ending)
_CODES = {ending.value.encode(): code for code, ending in enumerate(_ENDINGS)}
_FAILED = _ENDINGS.index(Ending.FAILED)


@dataclass(frozen=True, slots=True)
class RowIndex:
    """The keys of all N whole lines in file order; `whole_bytes` is where the last of them ends."""

    task_index: NDArray[np.int64]  # (N,)
    sample: NDArray[np.int64]  # (N,)
    ending: NDArray[np.uint8]  # (N,) position in `Ending`
    whole_bytes: int

    def current(self) -> NDArray[np.bool_]:
        """(N,) whether a line is the last one of its key."""
        order = np.lexsort((self.sample, self.task_index))  # stable: lines of one key stay in file order
        last = np.ones(len(order), dtype=np.bool_)
        task_index, sample = self.task_index[order], self.sample[order]
        last[:-1] = (task_index[1:] != task_index[:-1]) | (sample[1:] != sample[:-1])
        current = np.empty_like(last)
        current[order] = last
        return current

    def done(self) -> frozenset[tuple[int, int]]:
        """The (task_index, sample) pairs that finished or were truncated; a failed one is to be run again."""
        rows = self.current() & (self.ending != _FAILED)
        return frozenset(zip(self.task_index[rows].tolist(), self.sample[rows].tolist(), strict=True))


def index_rows(path: Path) -> RowIndex:
    """Read the keys of a results file. Raises JournalError for a line that is broken and not the last one."""
    task_index, sample, ending = array("q"), array("q"), array("B")
    whole_bytes = 0
    broken: ValueError | None = None
    if path.exists() and not path.is_file():
        raise JournalError(f"{str(path)!r} is no file: restore it, or start a new run")
    with explained("read", path), path.open("rb", buffering=_READ_BYTES) as file:
        for number, line in enumerate(file, 1):
            if broken is not None:
                raise _broken_line(path, number - 1, broken)
            try:
                key = _key_of(line)
            except ValueError as error:
                broken = error
                continue
            task_index.append(key[0])
            sample.append(key[1])
            ending.append(key[2])
            whole_bytes += len(line)
    return RowIndex(
        np.frombuffer(task_index, dtype=np.int64),
        np.frombuffer(sample, dtype=np.int64),
        np.frombuffer(ending, dtype=np.uint8),
        whole_bytes,
    )


def _key_of(line: bytes) -> tuple[int, int, int]:
    """(task_index, sample, code of the ending) of a line. Raises ValueError where it isn't a whole row.

    A line is torn by a write that stopped half-way (two rows in one line, if something was appended after it) or by
    lost disk blocks (filled with zeros). Only a line with a sign of either, or one in another layout, is parsed.
    """
    tail = _TAIL.search(line[-_TAIL_BYTES:])
    if tail and line.startswith(_START) and line.find(_START, 1) < 0 and b"\0" not in line:
        return int(tail[1]), int(tail[2]), _CODES[tail[3]]
    record = _parse(line)
    for name in ("task_index", "sample"):
        value = getattr(record, name)
        if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"{name} is {value!r:.80}, no index")
    return record.task_index, record.sample, _ENDINGS.index(record.status)


def _parse(line: bytes) -> TrajectoryRecord:
    if not line.endswith(b"\n"):
        raise ValueError("the line has no end")
    try:
        row = json.loads(line, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return TrajectoryRecord.from_json_row(row)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _broken_line(path: Path, number: int, error: Exception) -> JournalError:
    return JournalError(
        f"line {number} of {str(path)!r} is broken ({error}): delete it (sed -i {number}d), then resume the run to do "
        "its trajectory again"
    )


def read_records(directory: Path | str) -> Iterator[TrajectoryRecord]:
    """The records of a run in file order, the last one of each key only. Memory grows with the keys, not with the rows.

    A run may be read while it is written: what is appended after the call started is left out.
    Raises JournalError where the directory holds no results or a line is broken.
    """
    path = Path(directory) / RESULTS
    current = index_rows(path).current()
    with explained("read", path), path.open("rb", buffering=_READ_BYTES) as file:
        for number, (line, wanted) in enumerate(zip(file, current.tolist(), strict=False), 1):
            if not wanted:
                continue
            try:
                record = _parse(line)
            except (ValueError, TypeError) as error:
                raise _broken_line(path, number, error) from error
            yield record
