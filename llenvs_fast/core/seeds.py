"""Seeds derived by a counter-based hash: no draw depends on batch size, schedule, resume or replica."""

from __future__ import annotations

import hashlib

_BITS = 63  # what torch generators and vLLM accept as a non-negative seed


def derive_seed(run_seed: int, task: int | str, sample: int, turn: int) -> int:
    """Seed of one turn, in [0, 2**63), the same wherever and whenever that turn is generated."""
    key = f"{run_seed}|{task!r}|{sample}|{turn}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> (64 - _BITS)
