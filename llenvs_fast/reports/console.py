"""The report of a run on a terminal: what came out, how sure that is, and what it cost."""

from __future__ import annotations

import math

from llenvs_fast.engine.report import LoopReport
from llenvs_fast.results.summary import Mean, Rate, RunSummary

_CAUSES = {
    "template": "the chat template",
    "reply": "replies shown otherwise",
    "history": "the window over the history",
    "turn_info": "turn info",
    "prompt": "changed prompts",
    "parked": "parking",
}


def print_report(title: str, summary: RunSummary, loop: LoopReport) -> None:
    """Print the report on stdout."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), box=box.ROUNDED, show_header=False, title_style="bold", padding=(0, 1))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for label, value in report_rows(summary, loop):
        table.add_row(Text(label), Text(value))
    console = Console()
    console.print(table)


def report_rows(summary: RunSummary, loop: LoopReport) -> list[tuple[str, str]]:
    """(label, value) of every line of the report."""
    return [*_outcome_rows(summary), *_engine_rows(loop)]


def _outcome_rows(s: RunSummary) -> list[tuple[str, str]]:
    few, most = s.samples_per_task
    samples = f"{most}" if few == most else f"{few} to {most}"
    rows = [("rollouts", f"{s.rollouts:,} ({s.tasks:,} tasks x {samples} samples)"), ("accuracy", _accuracy(s))]
    if s.failed and s.scored_accuracy is not None:
        rows.append(("without failed ones", _rate(s.scored_accuracy)))
    rows += [(f"pass@{k}", _mean(mean, "tasks")) for k, mean in s.pass_at_k.items()]
    rows.append(("mean reward", _mean(s.reward, "rollouts")))
    rows += [(name, _mean(mean, "rollouts")) for name, mean in s.metrics.items()]
    kinds = ", ".join(f"{n} {kind}" for kind, n in s.failure_kinds.items())
    ended = f"{s.finished:,} finished, {s.truncated:,} truncated, {s.failed:,} failed"
    rows.append(("ended", f"{ended} ({kinds})" if kinds else ended))
    return rows


def _accuracy(s: RunSummary) -> str:
    if s.accuracy is None:
        return "not judged"
    text = f"{_rate(s.accuracy)}, failed count as wrong" if s.failed else _rate(s.accuracy)
    if s.accuracy_cluster_se is not None and s.samples_per_task[1] > 1:
        text += f"\n± {s.accuracy_cluster_se:.3f} standard error with tasks as clusters"
    return text


def _rate(rate: Rate) -> str:
    return f"{rate.value:.3f}  95 % [{rate.low:.3f}, {rate.high:.3f}]  ({rate.successes:,}/{rate.n:,})"


def _mean(mean: Mean, of: str) -> str:
    if mean.value is None or math.isnan(mean.value):
        return "not available"
    return f"{mean.value:.3f}  (over {mean.n:,} {of})"


def _engine_rows(loop: LoopReport) -> list[tuple[str, str]]:
    f, wall = loop.figures, max(loop.wall_s, 1e-9)
    rows = [("speed", f"{f.completion_tokens / wall:,.0f} tokens/s generated, {loop.reported / wall:,.1f} rollouts/s")]
    tokens = f"{f.prompt_tokens:,} prompt, {f.completion_tokens:,} generated"
    rows.append(("tokens", tokens))
    if f.cached_tokens is not None and f.prompt_tokens:
        rows.append(("prefix-cache hits", f"{f.cached_tokens / f.prompt_tokens:.1%} of prompt tokens"))
    if loop.hit_rate_of_bound is not None:
        bound = f"{loop.hit_rate_of_bound:.1%} of what whole blocks of earlier context allow"
        rows.append(("from turn 2 on", f"{loop.later_cached_tokens or 0:,} of {loop.later_prompt_tokens:,}, {bound}"))
    if loop.reuse_lost_tokens:
        causes = ", ".join(f"{tokens:,} to {_CAUSES.get(cause, cause)}" for cause, tokens in loop.lost_tokens.items())
        rows.append(("reuse lost", f"{causes} (tokens)"))
    if f.engine_steps is not None:
        preempted = "" if f.preemptions is None else f", {f.preemptions:,} preemptions"
        parked = f"{loop.parkings:,} parked, " if loop.parkings else ""
        live = f"at most {loop.peak_live:,} rollouts live"
        rows.append(("engine steps", f"{f.engine_steps:,}{preempted}, {parked}{live}"))
    parts = (("generating", loop.generating_s), ("stepping", loop.stepping_s), ("host", loop.host_s))
    split = ", ".join(f"{name} {seconds / wall:.0%}" for name, seconds in parts)
    rows.append(("time", f"{loop.wall_s:.1f} s: {split}"))
    return rows
