"""The journal of a run: every trajectory that ended, durable as soon as `append` returns.

Invariants: the results file is only ever appended to, by one process at a time, in whole lines; a row that `append`
accepted survives the death of this process (kill -9), and that of the machine once it is synced: with the first append
that comes a second or more after the last sync, by `flush` or by `close`. The journal knows rows and settings; what the
settings mean is the caller's business.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from llenvs_fast.core.errors import JournalError
from llenvs_fast.results.files import (
    LOCK,
    METADATA,
    RESULTS,
    SETTINGS,
    explained,
    read_whole,
    sync_directory,
    write_whole,
)
from llenvs_fast.results.jsonable import plain, to_json
from llenvs_fast.results.record import TrajectoryRecord
from llenvs_fast.results.rows import index_rows
from llenvs_fast.results.settings import check_resumable, kept_settings, known_secrets, without

SYNC_INTERVAL_S = 1.0


class Journal:
    """An open run directory. Make one with `create` or `resume`, and close it or use it as a context manager.

    `done` holds the (task_index, sample) pairs that had finished or been truncated when the journal was opened. Not for
    use by several threads at once.
    """

    def __init__(
        self, directory: Path, lock: FileIO, done: frozenset[tuple[int, int]], secrets: Collection[str]
    ) -> None:
        self.directory = directory
        self.done = done
        self._path = directory / RESULTS
        self._lock = lock
        self._secrets = known_secrets(secrets)
        with explained("open", self._path):
            self._file = FileIO(str(self._path), "ab")
            sync_directory(directory)
        self._synced_at = time.monotonic()
        _open_journals.add(self)

    @classmethod
    def create(cls, directory: Path | str, settings: Mapping[str, Any], *, secrets: Collection[str] = ()) -> Self:
        """Start a run in a new or empty directory.

        `secrets` are values (API keys) that are replaced wherever they turn up in what is written; settings whose name
        says that they are a secret are replaced anyway. Raises JournalError where the directory holds a run, is in use
        or can't be written.
        """
        directory = Path(directory)
        with explained("create the run directory", directory):
            directory.mkdir(parents=True, exist_ok=True)
        with _closing_on_error(_lock(directory)) as lock:
            for name in (SETTINGS, RESULTS):
                if (directory / name).exists():
                    raise JournalError(f"{str(directory)!r} holds a run ({name}): resume it, or choose another one")
            write_whole(directory / SETTINGS, kept_settings(settings, secrets))
            return cls(directory, lock, frozenset(), secrets)

    @classmethod
    def resume(cls, directory: Path | str, settings: Mapping[str, Any], *, secrets: Collection[str] = ()) -> Self:
        """Continue a run: check its settings, and cut a torn last line off.

        Raises SettingsMismatchError listing the changed settings, and JournalError where the directory holds no run, is
        in use, or has a broken line before its last.
        """
        directory = Path(directory)
        if not (directory / SETTINGS).is_file():
            raise JournalError(f"{str(directory)!r} holds no run (no {SETTINGS}): check the path, or start a new run")
        with _closing_on_error(_lock(directory)) as lock:
            saved, current = read_whole(directory / SETTINGS), kept_settings(settings, secrets)
            check_resumable(directory, saved, current)
            done = _repaired(directory / RESULTS)
            if current != saved:
                write_whole(directory / SETTINGS, current)
            return cls(directory, lock, done, secrets)

    def append(self, records: Iterable[TrajectoryRecord]) -> None:
        """Write the records in one go. Raises JournalError where they can't be written; then none of them is."""
        data = b"".join(self._line(record) for record in records)
        self._check_open()
        if not data:
            return
        with explained("write", self._path):
            self._write(data)
        if time.monotonic() - self._synced_at >= SYNC_INTERVAL_S:
            self.flush()

    def flush(self) -> None:
        """Force everything to the disk. Raises JournalError where the disk refuses."""
        self._check_open()
        with explained("write", self._path):
            os.fsync(self._file.fileno())
        self._synced_at = time.monotonic()

    @property
    def has_metadata(self) -> bool:
        return (self.directory / METADATA).exists()

    def write_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace `metadata.json`; NaN and infinities become null. Raises JournalError where it can't be written."""
        self._check_open()
        values, _ = plain(metadata)
        write_whole(self.directory / METADATA, kept_settings(values, self._secrets))

    def close(self) -> None:
        """Sync, and let others open the run. Closing twice is allowed."""
        if self._file.closed:
            return
        try:
            self.flush()
        finally:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, data: bytes) -> None:
        whole_bytes = self._file.seek(0, os.SEEK_END)
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except BaseException:
            self._cut_back(whole_bytes)
            raise

    def _cut_back(self, whole_bytes: int) -> None:
        """Take half a write back. Where even that fails, stop for good: the next line would be glued to the remains."""
        try:
            self._file.truncate(whole_bytes)
        except OSError:
            self._release()

    def _line(self, record: TrajectoryRecord) -> bytes:
        line = record.to_json_line()
        if any(to_json(secret)[1:-1].encode() in line for secret in self._secrets):
            line = to_json(without(record.to_json_row(), self._secrets)).encode() + b"\n"
        return line

    def _check_open(self) -> None:
        if self._file.closed:
            raise JournalError(f"the journal of {str(self.directory)!r} is closed: resume the run to write to it")

    def _release(self) -> None:
        self._file.close()
        self._lock.close()


def _repaired(path: Path) -> frozenset[tuple[int, int]]:
    """Cut the file back to its last whole line; what is done by then. A file that isn't there is an empty one."""
    with explained("open", path):
        path.touch()
    index = index_rows(path)
    with explained("repair", path):
        if path.stat().st_size > index.whole_bytes:
            os.truncate(path, index.whole_bytes)
    return index.done()


def _lock(directory: Path) -> FileIO:
    """The run directory for this process alone, until the returned file is closed or the process ends in any way."""
    path = directory / LOCK
    with explained("lock", path), _closing_on_error(FileIO(str(path), "a+")) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(file.fileno(), 32, 0).decode(errors="replace").strip() or "unknown"
            raise JournalError(
                f"{str(directory)!r} is in use by process {owner}: wait until it ends, or stop it, then resume"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n".encode())
        return file


@contextlib.contextmanager
def _closing_on_error(lock: FileIO) -> Iterator[FileIO]:
    try:
        yield lock
    except BaseException:
        lock.close()
        raise


_open_journals: weakref.WeakSet[Journal] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """A forked worker holds the lock too, and would keep it after the death of the run: let go of it."""
    for journal in list(_open_journals):
        journal._release()


os.register_at_fork(after_in_child=_leave_to_parent)
