"""One trajectory as it is kept: the row type of the journal, the tables and the summary.

A record says what happened and holds nothing alive: no state, no environment, no engine object. A missing reward is
None, never 0, and a failed trajectory carries its failure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from numbers import Real
from typing import Any

from llenvs_fast.core.errors import BadRewardError
from llenvs_fast.results.jsonable import plain, to_json


class Ending(StrEnum):
    """How a trajectory ended. Truncated: by a limit (steps, tokens), and still scored."""

    FINISHED = "finished"
    TRUNCATED = "truncated"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRecord:
    """The `sample`-th trajectory of task `task_index`.

    `reward` is None where no signal had a number, `success` None where the environment doesn't judge. `prompt` and
    `completion` are lists of chat messages. `metrics` has the last value of each signal by name, `timing` has
    `generation_ms` and `scoring_ms`, `failure` the fields of `core.Failure`, `truncated_by` the limit that cut a
    truncated one. `tokens`, where kept, has the exact ids and log-probabilities, turn by turn. `cached_tokens` is None
    where the backend doesn't tell.
    """

    task_index: int
    sample: int
    episode_id: str
    status: Ending
    reward: float | None = None
    success: bool | None = None
    prompt: list[dict[str, Any]] = field(default_factory=list)
    completion: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, float | None] = field(default_factory=dict)
    task: dict[str, Any] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)
    turns: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    finish_reason: str | None = None
    seed: int | None = None
    truncated_by: str | None = None
    failure: dict[str, Any] | None = None
    tokens: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Raises BadRewardError where `reward` is neither a number nor None."""
        if self.reward is not None and not isinstance(self.reward, Real):
            raise BadRewardError(
                f"trajectory {self.key} has reward {self.reward!r:.200}: give one number, or None for no score"
            )

    @property
    def key(self) -> tuple[int, int]:
        """(task_index, sample), which names a trajectory within its run."""
        return self.task_index, self.sample

    def to_json_row(self) -> dict[str, Any]:
        """The row as plain JSON values. A non-finite number is null, and `non_finite` lists its path."""
        row, non_finite = plain(self._columns())
        return _keyed(row, self, non_finite)

    def to_json_line(self) -> bytes:
        """The row as one line of UTF-8, newline included."""
        try:
            text = to_json(_keyed(self._columns(), self, [])).encode()
        except (TypeError, ValueError, RecursionError):  # some value isn't JSON yet
            text = to_json(self.to_json_row()).encode()
        return text + b"\n"

    @classmethod
    def from_json_row(cls, row: dict[str, Any]) -> TrajectoryRecord:
        """The record of a row; keys that it doesn't know are ignored. Raises ValueError for what isn't a row."""
        if not isinstance(row, dict):
            raise ValueError(f"a row is a JSON object, this is {row!r:.80}")
        missing = [name for name in ("task_index", "sample", "episode_id", "status") if name not in row]
        if missing:
            raise ValueError(f"the row lacks {', '.join(missing)}")
        known = {name: row[name] for name in _FIELDS if name in row}
        return cls(**{**known, "status": Ending(row["status"])})

    def _columns(self) -> dict[str, Any]:
        """All but the key: first the keys of the documented format, then ours."""
        return {name: getattr(self, name) for name in _COLUMNS}


_FIELDS = tuple(f.name for f in fields(TrajectoryRecord))
_DOCUMENTED = ("prompt", "completion", "reward", "metrics", "task", "info", "timing")
_KEY = ("task_index", "sample", "status")
_COLUMNS = (*_DOCUMENTED, *(name for name in _FIELDS if name not in (*_DOCUMENTED, *_KEY)))


def _keyed(row: dict[str, Any], record: TrajectoryRecord, non_finite: list[str]) -> dict[str, Any]:
    """The row with its key at the end of the line, where `rows.py` finds it without parsing the rest."""
    if non_finite:
        row["non_finite"] = non_finite
    task_index = int(record.task_index)
    return row | {
        "example_id": task_index,  # what other readers of such files call it
        "task_index": task_index,
        "sample": int(record.sample),
        "status": Ending(record.status).value,
    }
