"""The worker of the tool `python` on a machine where no seccomp filter exists."""

from __future__ import annotations

from llenvs_fast.environments.sandbox import seccomp
from llenvs_fast.environments.tools.python_worker import run

seccomp._ARCHITECTURES.clear()

__all__ = ["run"]
