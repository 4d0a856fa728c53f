"""Compiling kernels with numba: on their first call, once, and never at the price of a result.

numba is imported by the first call of a kernel. Without numba, kernels run as the Python that they are. Where numba's
cache can't be used (read-only install, no home, an archive, a full disk), they are compiled with a cache in the
temporary directory, or with none. Kernels are serial, keep NaN (no fastmath) and let other threads run (nogil).
"""

from __future__ import annotations

import logging  # noqa: F401
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# Held while anything is compiled. A fork waits for it, so that no child inherits numba's own lock in a locked state.
# Before a fork, what was registered last runs first. Compiling takes the lock of `logging`, so that has to register
# before us: a fork that held it while it waits for us would wait forever.
_compiling = threading.RLock()
os.register_at_fork(before=_compiling.acquire, after_in_parent=_compiling.release, after_in_child=_compiling.release)


class Kernel:
    """A function on plain arrays, compiled for one signature at its first call. Call it with exactly these types."""

    def __init__(self, function: Callable[..., None], signature: str) -> None:
        self.function = function
        self.signature = signature
        self._fast: Callable[..., None] | None = None

    def __call__(self, *arrays: Any) -> None:
        (self._fast or self.compile())(*arrays)

    def compile(self) -> Callable[..., None]:
        """The function to call: the compiled one, or the Python one where there is no numba."""
        with _compiling:
            if self._fast is None:
                self._fast = self._compiled()
            return self._fast

    def _compiled(self) -> Callable[..., None]:
        try:
            import numba
        except ImportError:
            return self.function
        with suppress(Exception):  # whatever is wrong with a cache; what is wrong with the kernel is raised below
            return self._jitted(numba, cache=True)
        with suppress(Exception), _temporary_cache(numba):
            return self._jitted(numba, cache=True)
        return self._jitted(numba, cache=False)

    def _jitted(self, numba: Any, cache: bool) -> Callable[..., None]:
        fast: Callable[..., None] = numba.njit(self.signature, nogil=True, cache=cache)(self.function)
        return fast


def compiled(signature: str) -> Callable[[Callable[..., None]], Kernel]:
    """Decorate a kernel with the numba signature that it is called with."""
    return lambda function: Kernel(function, signature)


@contextmanager
def _temporary_cache(numba: Any) -> Iterator[None]:
    """numba's cache in the temporary directory. Only under the lock: where the cache lies is a global of numba."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(_own_temporary_directory())
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


def _own_temporary_directory() -> Path:
    """A directory that only this user can write to: a cache is code. Raises OSError where there can be none."""
    path = Path(tempfile.gettempdir()) / f"llenvs_fast-numba-{os.geteuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(f"{str(path)!r} belongs to others: remove it")
    return path
