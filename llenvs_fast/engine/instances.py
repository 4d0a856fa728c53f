"""Instances of a stateful environment, one a trajectory, each closed exactly once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from llenvs_fast.core.environment import Environment

logger = logging.getLogger("llenvs_fast.engine")

_CLOSE_TIMEOUT_S = 5.0


class Instances:
    """Makes an instance when a trajectory first needs one. Safe from many threads."""

    def __init__(self, factory: Callable[[], Environment]) -> None:
        self._factory = factory
        self._instances: dict[int, Environment] = {}
        self._lock = threading.Lock()
        self._closed = False

    def has(self, position: int) -> bool:
        return position in self._instances

    def of(self, position: int) -> Environment:
        """The trajectory's instance. Raises what the factory raises, RuntimeError once all are closed."""
        if (known := self._instances.get(position)) is not None:
            return known
        made = self._factory()
        with self._lock:
            if not self._closed:
                self._instances[position] = made
                return made
        _close(made)
        raise RuntimeError("the run is over: no more environments are made")

    def close_one(self, position: int) -> None:
        """Close a trajectory's instance; nothing where it has none, or had it closed before."""
        with self._lock:
            instance = self._instances.pop(position, None)
        if instance is not None:
            _close(instance)

    def close(self) -> None:
        """Close all that are left, side by side. One that hangs is left behind after a few seconds, with a warning."""
        with self._lock:
            self._closed = True
            left, self._instances = list(self._instances.values()), {}
        threads = [threading.Thread(target=_close, args=(instance,), daemon=True) for instance in left]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_CLOSE_TIMEOUT_S)
        hanging = sum(thread.is_alive() for thread in threads)
        if hanging:
            logger.warning("%d environments have not closed within %g s: left behind", hanging, _CLOSE_TIMEOUT_S)


def _close(instance: Environment) -> None:
    close = getattr(instance, "close", None)
    if close is None:
        return
    try:
        close()
    except Exception:
        logger.warning("an environment raised when it was closed", exc_info=True)
