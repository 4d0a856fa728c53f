"""Run the benchmark cases named, or all; the last line is JSON."""

from __future__ import annotations

import importlib
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

CASES = (
    "cli_help", "prefix_tree", "scripted_throughput", "shared_prompt", "evaluation_wall", "many_turns",
    "statistics_kernels",
)  # fmt: skip


def main(names: list[str]) -> int:
    from benchmarks.harness import as_json, show

    unknown = set(names) - set(CASES)
    if unknown:
        print(f"no benchmark {', '.join(sorted(unknown))}: choose from {', '.join(CASES)}", file=sys.stderr)
        return 2
    figures = []
    for name in names or CASES:
        measured = importlib.import_module(f"benchmarks.{name}").measure()
        show(measured)
        figures += measured
    print(as_json(figures))
    return 0 if all(f.met for f in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
