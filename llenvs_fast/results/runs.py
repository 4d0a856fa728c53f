"""Finding a run to resume, and the documented `metadata.json`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from llenvs_fast.core.errors import JournalError, SettingsMismatchError
from llenvs_fast.results.files import RESULTS, SETTINGS, read_whole
from llenvs_fast.results.rows import index_rows
from llenvs_fast.results.settings import check_resumable, kept_settings
from llenvs_fast.results.summary import RunSummary


def latest_incomplete(
    runs: Path | str, settings: Mapping[str, Any] | None = None, *, secrets: Collection[str] = ()
) -> Path | None:
    """The run directory under `runs` that was written to last among those with work left, or None.

    A run is complete with num_examples × rollouts_per_example trajectories finished or truncated. With `settings`, only
    runs that these settings and secrets could resume are looked at, and theirs is the count. Broken runs are passed
    over.
    """
    found = [path.parent for path in Path(runs).glob(f"*/{RESULTS}")]
    for directory in sorted(found, key=lambda d: (d / RESULTS).stat().st_mtime_ns, reverse=True):
        try:
            saved = read_whole(directory / SETTINGS)
            wanted = saved if settings is None else kept_settings(settings, secrets)
            check_resumable(directory, saved, wanted)
            trajectories = wanted["num_examples"] * wanted["rollouts_per_example"]
            if len(index_rows(directory / RESULTS).done()) < trajectories:
                return directory
        except (SettingsMismatchError, JournalError, KeyError, TypeError):
            continue
    return None


def run_metadata(settings: Mapping[str, Any], started: datetime, time_ms: float, summary: RunSummary) -> dict[str, Any]:
    """`metadata.json` as documented, then what else the summary says.

    `settings` has env_id, model, num_examples, rollouts_per_example and, where given, sampling_args and env_args.
    `time_ms` is the wall time of this part of the run. Raises KeyError for a setting that is missing.
    """
    metrics = {name: mean.value for name, mean in summary.metrics.items()}
    return {
        **{name: settings[name] for name in ("env_id", "model", "num_examples", "rollouts_per_example")},
        "avg_reward": summary.mean_reward,
        "avg_metrics": metrics,
        "time_ms": time_ms,
        "sampling_args": settings.get("sampling_args", {}),
        "env_args": settings.get("env_args", {}),
        "date": started.strftime("%Y-%m-%d"),
        "time": started.strftime("%H:%M:%S"),
        "pass_at_k": {str(k): mean.value for k, mean in summary.pass_at_k.items()},
        "rollouts": summary.rollouts,
        "failed": summary.failed,
    }
