"""The report says what came out, how sure that is, and what it cost."""

from __future__ import annotations

import pytest

from llenvs_fast.engine.report import LoopReport
from llenvs_fast.inference.protocol import EngineFigures
from llenvs_fast.reports.console import print_report, report_rows
from llenvs_fast.results.record import Ending, TrajectoryRecord
from llenvs_fast.results.summary import summarize


def record(task: int, sample: int, success: bool | None, status: Ending = Ending.FINISHED) -> TrajectoryRecord:
    failure = {"kind": "score_timeout"} if status is Ending.FAILED else None
    reward = None if success is None else float(success)
    return TrajectoryRecord(
        task_index=task, sample=sample, episode_id="e", status=status, reward=reward, success=success,
        metrics={} if success is None else {"correctness": reward}, failure=failure,
    )  # fmt: skip


LOOP = LoopReport(
    reported=8, wall_s=10.0, generating_s=7.0, stepping_s=1.0, peak_live=8,
    figures=EngineFigures(requests=8, prompt_tokens=1000, completion_tokens=2000, cached_tokens=750, engine_steps=300,
                          preemptions=0),
)  # fmt: skip


def test_the_report_to_the_letter() -> None:
    records = [record(t, s, success=(t, s) in {(0, 0), (0, 1), (1, 0)}) for t in range(2) for s in range(2)]
    rows = dict(report_rows(summarize(records), LOOP))
    assert rows == {
        "rollouts": "4 (2 tasks x 2 samples)",
        "accuracy": "0.750  95 % [0.301, 0.954]  (3/4)\n± 0.250 standard error with tasks as clusters",
        "pass@1": "0.750  (over 2 tasks)",
        "pass@2": "1.000  (over 2 tasks)",
        "mean reward": "0.750  (over 4 rollouts)",
        "correctness": "0.750  (over 4 rollouts)",
        "ended": "4 finished, 0 truncated, 0 failed",
        "speed": "200 tokens/s generated, 0.8 rollouts/s",
        "tokens": "1,000 prompt, 2,000 generated",
        "prefix-cache hits": "75.0% of prompt tokens",
        "engine steps": "300, 0 preemptions, at most 8 rollouts live",
        "time": "10.0 s: generating 70%, stepping 10%, host 20%",
    }


def test_failed_rollouts_stand_beside_the_score_with_both_denominators() -> None:
    records = [record(0, 0, True), record(1, 0, False), record(2, 0, None, Ending.FAILED)]
    rows = dict(report_rows(summarize(records), LOOP))
    assert rows["accuracy"].startswith("0.333")
    assert rows["accuracy"].endswith("(1/3), failed count as wrong")
    assert rows["without failed ones"].startswith("0.500")
    assert rows["ended"] == "2 finished, 0 truncated, 1 failed (1 score_timeout)"


def test_a_task_with_too_few_samples_is_not_counted_in_pass_at_k() -> None:
    records = [record(0, 0, True), record(0, 1, False), record(1, 0, True)]
    rows = dict(report_rows(summarize(records), LOOP))
    assert rows["pass@2"] == "1.000  (over 1 tasks)"
    assert rows["rollouts"] == "3 (2 tasks x 1 to 2 samples)"


def test_what_is_not_known_is_not_a_number() -> None:
    loop = LoopReport(reported=1, wall_s=1.0)
    rows = dict(report_rows(summarize([record(0, 0, None)]), loop))
    assert rows["accuracy"] == "not judged"
    assert rows["mean reward"] == "not available"
    assert "prefix-cache hits" not in rows
    assert "engine steps" not in rows


def test_a_run_of_nothing_can_be_reported() -> None:
    assert dict(report_rows(summarize([]), LoopReport()))["rollouts"].startswith("0 (0 tasks")


def test_the_report_goes_to_stdout_and_takes_any_title(capsys: pytest.CaptureFixture[str]) -> None:
    print_report("leg_counting | [red]model", summarize([record(0, 0, True)]), LOOP)
    out, err = capsys.readouterr()
    assert "leg_counting | [red]model" in out
    assert err == ""
