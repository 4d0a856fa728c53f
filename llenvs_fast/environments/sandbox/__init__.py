"""Killable worker processes for code and text that can't be trusted.

`SandboxPool(module)` runs named functions of a module in workers that are limited, filtered and replaced when they hang
or die. See `calls` for what goes in and out, `inside` for what such a function may use.
"""

from llenvs_fast.environments.sandbox.calls import Call, Limits, Outcome, SandboxError, Status
from llenvs_fast.environments.sandbox.pool import SandboxPool

__all__ = ["Call", "Limits", "Outcome", "SandboxError", "SandboxPool", "Status"]
