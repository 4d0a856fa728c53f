"""`llenvs-fast --help` answers at once and loads nothing heavy."""

from __future__ import annotations

import statistics
import subprocess
import sys

from benchmarks.harness import Figure, spread, timed

HEAVY = ("torch", "vllm", "transformers", "numba")


def measure() -> list[Figure]:
    command = [sys.executable, "-X", "importtime", "-m", "llenvs_fast.cli.main", "eval", "run", "--help"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    modules = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in loaded.splitlines()}
    heavy = sorted(modules.intersection(HEAVY))
    plain = [sys.executable, "-m", "llenvs_fast.cli.main", "eval", "run", "--help"]
    seconds = [timed(lambda: subprocess.run(plain, capture_output=True, check=True)) for _ in range(9)]
    median = statistics.median(seconds)
    checked = f"loads none of {', '.join(HEAVY)}" if not heavy else f"LOADS {', '.join(heavy)}"
    met = median < 0.5 and not heavy
    return [Figure("cli_help", "eval run --help", median, "s", spread(seconds), len(seconds), "< 0.5", met, checked)]
