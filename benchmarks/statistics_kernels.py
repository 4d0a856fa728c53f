"""The statistics against the peers that people use: pass@k, bootstrap, grouped quantiles, Wilson, the first call."""

from __future__ import annotations

import statistics
import subprocess
import sys

import numpy as np

from benchmarks.harness import Figure, ratios, spread, timed
from llenvs_fast.statistics import bootstrap_mean, grouped_quantiles, pass_at_k, wilson_interval

KS = (1, 2, 4, 8, 16, 32, 64, 100)


def measure() -> list[Figure]:
    return [_pass_at_k(), *_bootstrap(), _quantiles(), *_wilson(), _first_call(), _first_kernel()]


def _faster(what: str, found: list[float], bar: float, checked: str) -> Figure:
    times = [1 / r for r in found]
    median = statistics.median(times)
    return Figure("statistics", what, median, "x", spread(times), len(times), f">= {bar:g}", median >= bar, checked)


def _human_eval_pass_at_k(n: int, c: int, k: int) -> float:
    """The estimator of one task as published with HumanEval."""
    if n - c < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))


def _pass_at_k() -> Figure:
    rng = np.random.default_rng(0)
    tasks, sample = 1_000_000, 2_000
    n = rng.integers(100, 201, tasks)
    c = rng.integers(0, n + 1)
    expected = [[_human_eval_pass_at_k(a, b, k) for k in KS] for a, b in zip(n[:sample], c[:sample], strict=True)]
    np.testing.assert_allclose(pass_at_k(n, c, KS)[:sample], expected, atol=1e-12)

    def peer() -> None:
        for a, b in zip(n[:sample].tolist(), c[:sample].tolist(), strict=True):
            for k in KS:
                _human_eval_pass_at_k(a, b, k)

    found = ratios(lambda: pass_at_k(n, c, KS), peer)
    scaled = [r * sample / tasks for r in found]
    return _faster("pass@k, 10^6 tasks x 8 k, over HumanEval's estimator (scaled)", scaled, 200, "equal to the peer's")


def _bootstrap() -> list[Figure]:
    import scipy.stats

    x = np.random.default_rng(1).exponential(size=10_000)
    ours = bootstrap_mean(x, resamples=10_000)
    peer_options = {"n_resamples": 10_000, "method": "percentile", "batch": 500}
    theirs = scipy.stats.bootstrap((x,), np.mean, **peer_options).confidence_interval
    np.testing.assert_allclose([ours.low, ours.high], theirs, rtol=2e-3)
    seconds = [timed(lambda: bootstrap_mean(x, resamples=10_000)) for _ in range(7)]
    peer = statistics.median(timed(lambda: scipy.stats.bootstrap((x,), np.mean, **peer_options)) for _ in range(3))
    checked = "bounds within 0.2 %"
    median = statistics.median(seconds)
    return [
        _faster("bootstrap, 10^4 x 10^4, over scipy's percentile", [s / peer for s in seconds], 10, checked),
        Figure("statistics", "the same", median, "s", spread(seconds), 7, "< 2", median < 2, checked),
    ]


def _quantiles() -> Figure:
    import pandas as pd
    import polars as pl

    rng = np.random.default_rng(2)
    x, groups = rng.normal(size=10_000_000), rng.integers(0, 100_000, 10_000_000)
    q = [0.25, 0.5, 0.75]
    frame = pl.DataFrame({"g": groups, "x": x})
    columns = [pl.col("x").quantile(p, "linear").alias(str(p)) for p in q]
    theirs = frame.group_by("g").agg(columns).sort("g")
    ours = grouped_quantiles(x, groups, q)
    np.testing.assert_allclose(ours.values, theirs.select(str(p) for p in q).to_numpy(), rtol=1e-12)
    pandas_frame = pd.DataFrame({"g": groups, "x": x})
    pandas_s = timed(lambda: pandas_frame.groupby("g")["x"].quantile(q))
    polars_s = timed(lambda: frame.group_by("g").agg(columns))
    peer = (
        (lambda: frame.group_by("g").agg(columns))
        if polars_s < pandas_s
        else (lambda: pandas_frame.groupby("g")["x"].quantile(q))
    )
    name = "polars" if polars_s < pandas_s else "pandas"
    found = ratios(lambda: grouped_quantiles(x, groups, q), peer, at_least=3, at_most=5)
    return _faster(f"quartiles of 10^7 values in 10^5 groups, over {name}", found, 1.5, "equal to the peer's")


def _wilson() -> list[Figure]:
    from statsmodels.stats.proportion import proportion_confint

    rng = np.random.default_rng(3)
    n = rng.integers(1, 1000, 1_000_000)
    s = rng.binomial(n, 0.5)
    np.testing.assert_allclose(wilson_interval(s, n), proportion_confint(s, n, method="wilson"), atol=1e-9)
    over_peer = ratios(lambda: wilson_interval(s, n), lambda: proportion_confint(s, n, method="wilson"))
    over_copy = ratios(lambda: wilson_interval(s, n), lambda: (s.copy(), n.copy()))  # as many bytes in and out
    median = statistics.median(over_copy)
    return [
        _faster("Wilson for 10^6 pairs, over statsmodels", over_peer, 5, "equal to the peer's"),
        Figure("statistics", "the same, time over a copy of 2 columns", median, "x", spread(over_copy), len(over_copy),
               "<= 3", median <= 3, "equal to statsmodels'"),
    ]  # fmt: skip


def _first_call() -> Figure:
    code = (  # what a report of ten rows asks for
        "import sys, time; t = time.perf_counter()\n"
        "from llenvs_fast.statistics import *\n"
        "mean_pass_at_k([4] * 10, [2] * 10, [1, 2, 4]); wilson_interval(7, 10)\n"
        "clustered_mean([1.0, 0.0] * 20, list(range(10)) * 4)\n"
        "mean_interval([1.0, 0.0] * 5); quantiles([1.0, 0.0] * 5, [0.25, 0.5, 0.75]); bootstrap_mean([1.0, 0.0] * 5)\n"
        "assert 'numba' not in sys.modules\n"
        "print(time.perf_counter() - t)"
    )
    return _in_new_processes("first report of 10 rows in a new process, NumPy included", code, 0.3, "numba not loaded")


def _first_kernel() -> Figure:
    code = (
        "import sys, time; t = time.perf_counter()\n"
        "from llenvs_fast.statistics import _jit, grouped_quantiles, pass_at_k, wilson_interval\n"
        "_jit.SMALL = -1\n"  # kernels for little work too
        "pass_at_k([4] * 10, [2] * 10, [1, 2, 4]); wilson_interval([7] * 10, 10)\n"
        "grouped_quantiles([1.0, 0.0] * 5, [0] * 10, [0.5])\n"
        "assert 'numba' in sys.modules\n"
        "print(time.perf_counter() - t)"
    )
    return _in_new_processes("the same by five kernels from numba's cache", code, 1.5, "numba loaded")


def _in_new_processes(what: str, code: str, bar: float, checked: str) -> Figure:
    def once() -> float:
        return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)

    once()  # compiles, where something is to be compiled
    seconds = [once() for _ in range(7)]
    median = statistics.median(seconds)
    return Figure("statistics", what, median, "s", spread(seconds), 7, f"< {bar:g}", median < bar, checked)
