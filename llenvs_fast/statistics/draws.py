"""Random numbers by counting: draw j of resample b depends on the seed, b and j alone.

SplitMix64 (Steele, Lea and Flood 2014): a counter times an odd constant, mixed. So results don't depend on how many
threads share the work, nor on how it is cut into chunks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.statistics._jit import compiled, in_chunks, worth_compiling

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_CHUNK = 1 << 18


def streams(seed: int, first: int, last: int) -> NDArray[np.uint64]:
    """Where the streams of random numbers `first` … `last` − 1 of a seed start, one for each resample.

    Raises InvalidSettingError unless the seed is an integer with 0 ≤ seed < 2⁶⁴.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= int(seed) < 2**64:
        raise InvalidSettingError(f"seed is {seed!r}: give an integer from 0 to 2⁶⁴ − 1")
    key = _mixed(np.array([seed], dtype=np.uint64) + _STEP)
    return _mixed(key + np.arange(first, last, dtype=np.uint64) * _STEP)


def bits(starts: NDArray[np.uint64], count: int) -> NDArray[np.uint64]:
    """The first `count` numbers of 64 random bits of each stream: (b, count)."""
    return _mixed(starts[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _STEP)


def resampled_indices(starts: NDArray[np.uint64], n: int) -> NDArray[np.int64]:
    """n indices into n values, with replacement, from each stream: (b, n). Two from each number, its halves.

    The chances of two indices differ by less than one part in 2³² / n.
    """
    random, size = bits(starts, (n + 1) // 2), np.uint64(n)
    indices = np.empty((len(starts), n), dtype=np.int64)
    indices[:, 0::2] = (random >> _32) * size >> _32
    indices[:, 1::2] = ((random & _LOW) * size >> _32)[:, : n // 2]
    return indices


def resampled_sums(x: NDArray[np.float64], resamples: int, seed: int) -> NDArray[np.float64]:
    """Sums of `resamples` resamples, each of len(x) draws with replacement from x. The same draws for the same seed."""
    sums = np.empty(resamples)
    x = np.require(x, np.float64, ("C", "W"))

    def fast(begin: int, end: int) -> None:
        with np.errstate(over="ignore"):  # with the JIT off, counters wrap around as Python numbers
            _resampled_sums(x, streams(seed, begin, end), sums[begin:end])

    if worth_compiling(len(x) * resamples):
        in_chunks(fast, resamples, grain=1 + 2_000_000 // len(x))
    else:
        rows = max(1, _CHUNK // max(1, len(x)))
        for b in range(0, resamples, rows):
            starts = streams(seed, b, min(b + rows, resamples))
            sums[b : b + rows] = x[resampled_indices(starts, len(x))].sum(axis=1)
    return sums


def _mixed(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> _30)) * _FIRST
    z = (z ^ (z >> _27)) * _SECOND
    return z ^ (z >> _31)


@compiled("void(float64[::1], uint64[::1], float64[::1])")
def _resampled_sums(x: Any, starts: Any, out: Any) -> None:
    """x: (n,); starts, out: (b,). The draws of `resampled_indices`, mixed here as in `_mixed`."""
    n = np.uint64(len(x))
    for b in range(len(starts)):
        counter = starts[b]
        even, odd = 0.0, 0.0
        for _ in range(len(x) // 2):
            counter += _STEP
            z = (counter ^ (counter >> _30)) * _FIRST
            z = (z ^ (z >> _27)) * _SECOND
            z = z ^ (z >> _31)
            even += x[(z >> _32) * n >> _32]
            odd += x[(z & _LOW) * n >> _32]
        if len(x) % 2:
            counter += _STEP
            z = (counter ^ (counter >> _30)) * _FIRST
            z = (z ^ (z >> _27)) * _SECOND
            z = z ^ (z >> _31)
            even += x[(z >> _32) * n >> _32]
        out[b] = even + odd
