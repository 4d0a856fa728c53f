"""`llenvs-fast env check`: put an environment through the conformance checks."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from llenvs_fast.cli.options import Count, JsonObject

if TYPE_CHECKING:
    from llenvs_fast.environments.conformance_kit import Report

_STYLES = {"passed": "green", "failed": "bold red", "skipped": "dim", "warning": "yellow"}


@click.command("check")
@click.argument("env_id")
@click.option("-a", "--env-args", type=JsonObject(), default="{}", help="For the environment, e.g. '{\"seed\": 7}'.")
@click.option("--tasks", type=Count(), default=3, show_default=True, help="Tasks to look at: the first and the last.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0, min_open=True), default=30.0, show_default=True,
    help="Seconds that one reset or step may take.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The report as JSON on stdout.")
def check(env_id: str, env_args: dict[str, Any], tasks: int, timeout_s: float, as_json: bool) -> None:
    """Check that the environment ENV_ID keeps the contract of environments (see `llenvs-fast env list`).

    Exit status 0: nothing failed, 1: something did, 2: the environment can't be made.

    Example: llenvs-fast env check leg_counting --tasks 2
    """
    from functools import partial

    from llenvs_fast.environments.conformance_process import check_in_process
    from llenvs_fast.evaluation.setup import open_environment

    report = check_in_process(partial(open_environment, env_id, env_args), tasks=tasks, timeout_s=timeout_s)
    if as_json:
        click.echo(json.dumps(report.to_json() | {"environment": env_id}, indent=2))
    if not report.made:
        click.echo(f"Error: {report.findings[-1].got}", err=True)
        sys.exit(2)
    if not as_json:
        _print(env_id, report)
    sys.exit(0 if report.ok else 1)


def _print(env_id: str, report: Report) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(env_id), box=box.ROUNDED, title_style="bold", padding=(0, 1))
    table.add_column("check", no_wrap=True)
    table.add_column("verdict")
    table.add_column("why")
    for finding in report.findings:
        verdict = Text(finding.verdict.value, style=_STYLES[finding.verdict.value])
        table.add_row(Text(finding.check), verdict, Text(finding.why))
    Console().print(table)
    counts = report.to_json()["counts"]
    click.echo(", ".join(f"{number} {verdict}" for verdict, number in counts.items() if number))
