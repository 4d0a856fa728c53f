"""The worker of the tool `python` on a machine where no seccomp filter exists."""

from __future__ import annotations

from llenvs_fast.environments.tools import confinement
from llenvs_fast.environments.tools.python_worker import run

confinement._ARCHITECTURES.clear()

__all__ = ["run"]
