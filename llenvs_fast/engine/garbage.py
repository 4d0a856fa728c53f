"""The garbage collector, told that many small objects are meant to live."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (100_000, 20, 20)


@contextmanager
def patient_collector() -> Iterator[None]:
    """Collect rarely while the block runs.

    With thousands of trajectories open, Python's default (a collection every 700 new objects) walks the same living
    objects again and again; nothing in the loop makes cycles. The thresholds are the process's own, so they are put
    back at the end.
    """
    before = gc.get_threshold()
    if gc.isenabled() and before[0] < _THRESHOLDS[0]:
        gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
