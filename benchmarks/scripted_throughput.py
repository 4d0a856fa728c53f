"""What the loop itself costs: 50,000 one-turn trajectories against a backend that answers at once."""

from __future__ import annotations

import statistics

from benchmarks.harness import Figure, spread, timed
from llenvs_fast.evaluation import TrajectoryRunner
from llenvs_fast.inference.backends import ScriptedBackend
from tests.worlds import EchoWorld

TRAJECTORIES = 50_000


def rate(concurrency: int) -> float:
    """Trajectories per second with so many live at once."""
    world = EchoWorld(size=TRAJECTORIES)
    backend = ScriptedBackend(lambda request: request.messages[-1].content.removeprefix("echo "))
    runner = TrajectoryRunner(world, backend)
    results = []
    seconds = timed(lambda: results.append(runner.run_batch(range(TRAJECTORIES), batch_size=concurrency)))
    assert results[0].success_rate == 1.0, "a reply reached the wrong trajectory"
    assert results[0].report.peak_live <= concurrency
    return TRAJECTORIES / seconds


def measure() -> list[Figure]:
    rate(64)
    few, many = [], []
    for _ in range(5):
        few.append(rate(64))
        many.append(rate(4096))
    checked = "all replies right, cap kept"
    figures = [
        Figure("scripted_throughput", f"concurrency {c}", statistics.median(r), "trajectories/s", spread(r), len(r),
               ">= 5,000", statistics.median(r) >= 5_000, checked)
        for c, r in ((64, few), (4096, many))
    ]
    gain = [m / f for m, f in zip(many, few, strict=True)]
    median = statistics.median(gain)
    what = "4,096 over 64"
    figures.append(Figure("scripted_throughput", what, median, "x", spread(gain), 5, ">= 1", median >= 1.0, checked))
    return figures
