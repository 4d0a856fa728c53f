"""Compiling kernels with numba: on their first call, once, and never at the price of a result.

Little work, and any work where there is no numba, is done with NumPy: `worth_compiling` says which, by the size of the
work alone, so that a call always takes the same path. numba is imported by the first call of a kernel. Where its cache
can't be used (read-only install, no home, an archive, a full disk), kernels are compiled with a cache in the temporary
directory, or with none. With the JIT off (NUMBA_DISABLE_JIT=1) they run as the Python that they are.

Kernels are serial, keep NaN (no fastmath), give inf or NaN for x / 0 and let other threads run (nogil). They are run in
threads of ours (`in_chunks`): numba's own parallel loops may not be entered from two threads at once, nor after a fork.
"""

from __future__ import annotations

import logging  # noqa: F401
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

# Held while anything is compiled. A fork waits for it, so that no child inherits numba's own lock in a locked state.
# Before a fork, what was registered last runs first. Compiling takes the lock of `logging`, so that has to register
# before us: a fork that held it while it waits for us would wait forever.
_compiling = threading.RLock()
os.register_at_fork(before=_compiling.acquire, after_in_parent=_compiling.release, after_in_child=_compiling.release)


SMALL = 500_000
"""Work, in inner steps, that NumPy does sooner than numba is loaded."""

_kernels: list[Kernel] = []


class Kernel:
    """A function on plain arrays, compiled for its signatures at its first call. Call it with exactly these types."""

    def __init__(self, function: Callable[..., Any], signatures: tuple[str, ...]) -> None:
        self.function = function
        self.signatures = signatures
        self._fast: Callable[..., Any] | None = None
        _kernels.append(self)

    def __call__(self, *arguments: Any) -> Any:
        return (self._fast or self.compile())(*arguments)

    def compile(self) -> Callable[..., Any]:
        """The function to call: the compiled one, or the Python one where there is no numba."""
        with _compiling:
            if self._fast is None:
                self._fast = self._compiled()
            return self._fast

    def _compiled(self) -> Callable[..., Any]:
        numba = _numba()
        if numba is None:
            return self.function
        with suppress(Exception):  # whatever is wrong with a cache; what is wrong with the kernel is raised below
            return self._jitted(numba, cache=True)
        with suppress(Exception), _temporary_cache(numba):
            return self._jitted(numba, cache=True)
        return self._jitted(numba, cache=False)

    def _jitted(self, numba: Any, cache: bool) -> Callable[..., Any]:
        jit = numba.njit(list(self.signatures), nogil=True, error_model="numpy", cache=cache)
        fast: Callable[..., Any] = jit(self.function)
        return fast


def compiled(*signatures: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorate a kernel with the numba signatures that it is called with. It may call no other kernel."""
    return lambda function: Kernel(function, signatures)


def worth_compiling(work: int) -> bool:
    """Whether `work` inner steps are for kernels rather than for NumPy: many steps, and there is numba."""
    return work > SMALL and _numba() is not None


def warm_up() -> threading.Thread:
    """Compile all kernels, or load them from the cache, in the background: for programs that soon have large inputs.

    Returns the thread that does it, already started. A kernel called meanwhile is waited for, or compiled first.
    """
    thread = threading.Thread(target=lambda: [kernel.compile() for kernel in _kernels], name="llenvs_fast-warm-up")
    thread.start()
    return thread


def in_chunks(work: Callable[[int, int], object], n: int, grain: int) -> None:
    """Call work(begin, end) over 0 … n, from several threads where each gets at least `grain` items.

    At most as many threads as this process has cores, and as NUMBA_NUM_THREADS allows.
    """
    threads = min(_cores(), n // grain)
    if threads > 1:
        bounds = [n * i // (4 * threads) for i in range(4 * threads + 1)]
        with suppress(RuntimeError):  # no new threads: the interpreter is ending
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(threads) as pool:
                for _ in pool.map(work, bounds[:-1], bounds[1:]):
                    pass
                return
    work(0, n)


def _cores() -> int:
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("NUMBA_NUM_THREADS", "")
    return min(mine, int(limit)) if limit.isdigit() and int(limit) else mine


@cache
def _numba() -> Any:
    """The module, or None. A fork waits while it is imported."""
    with _compiling:
        try:
            import numba
        except ImportError:
            return None
    return numba


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
