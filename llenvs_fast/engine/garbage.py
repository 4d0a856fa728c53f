"""The garbage collector, told that many small objects are meant to live."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (100_000, 20, 20)


_lock = threading.Lock()
_inside = 0
_before = gc.get_threshold()


@contextmanager
def patient_collector() -> Iterator[None]:
    """Collect rarely while the block runs.

    With thousands of trajectories open, Python's default (a collection every 700 new objects) walks the same living
    objects again and again; nothing in the loop makes cycles. The thresholds are the process's own: the last block to
    end, in whatever thread, puts them back.
    """
    global _inside, _before
    with _lock:
        if _inside == 0:
            _before = gc.get_threshold()
            if gc.isenabled() and _before[0] < _THRESHOLDS[0]:
                gc.set_threshold(*_THRESHOLDS)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                gc.set_threshold(*_before)
