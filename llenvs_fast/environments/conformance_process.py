"""The conformance checks in a process of their own, for what threads can't contain.

An environment that ends the process, or that holds the interpreter for ever (a number too large, a regular
expression's worst case), takes only that process with it: the check under way has failed, the rest are skipped.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

from llenvs_fast.core.environment import Environment
from llenvs_fast.environments.conformance import CHECKS, MADE, check_environment
from llenvs_fast.environments.conformance_kit import Finding, Report, Verdict

START_S = 120.0  # for imports, before anything of the environment is called
GRACE_S = 5.0  # a call that overruns is reported from inside; only silence of this much more is ended from outside


def check_in_process(
    factory: Callable[[], Environment],
    *,
    tasks: int = 3,
    timeout_s: float = 30.0,
    on_finding: Callable[[Finding], None] = lambda finding: None,
) -> Report:
    """`check_environment` in a new process. `factory` must be picklable, such as a class or a partial of a function.

    `on_finding` is called with each finding as it comes. Output that the environment prints goes to stderr.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_check, args=(theirs, factory, tasks, timeout_s), daemon=True)
    process.start()
    theirs.close()
    watch = _Watch(on_finding)
    try:
        while watch.report is None and ours.poll(START_S if not watch.check else timeout_s + GRACE_S):
            watch.take(*ours.recv())
        hung = watch.report is None
    except EOFError:
        hung = False
    finally:
        if watch.report is None:
            process.join(0 if ours.closed else 1.0)
        if process.is_alive():
            process.kill()
        process.join()
        ours.close()
    return watch.report or watch.cut_short(hung, process.exitcode)


@dataclass
class _Watch:
    """What has been heard from the process."""

    on_finding: Callable[[Finding], None]
    check: str = ""
    call: str = ""
    findings: list[Finding] = field(default_factory=list)
    report: Report | None = None

    def take(self, kind: str, what: Any) -> None:
        if kind == "report":
            self.report = what
        elif kind == "finding":
            self.findings.append(what)
            self.on_finding(what)
        elif kind == "check":
            self.check, self.call = what, ""
        else:
            self.call = what

    def cut_short(self, hung: bool, exit_code: int | None) -> Report:
        """The report of a process that did not live to give one."""
        got = f"it holds the interpreter, so that not even a limit ends it, in {self.call or 'its start'}"
        if not hung:
            got = f"{_death(exit_code)} in {self.call or 'its start'}"
        made = self.check not in ("", MADE)
        lost = Finding(self.check or MADE, "The process lives.", Verdict.FAILED, "the process to live", got)
        lost = replace(lost, remedy="run what can do this in a process of its own (environments.sandbox)")
        seen = {*(finding.check for finding in self.findings), lost.check}
        left = [check for check in CHECKS if check.name not in seen]
        rest = [check.finding(Verdict.SKIPPED, note="the process was lost") for check in left]
        for finding in [lost, *(rest if made else ())]:
            self.findings.append(finding)
            self.on_finding(finding)
        return Report("", tuple(self.findings), made)


def _death(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"the process died of {signal.Signals(-exit_code).name}"
    return f"the process ended with exit status {exit_code}"


def _check(report_to: Connection, factory: Callable[[], Environment], tasks: int, timeout_s: float) -> None:
    """In the process."""
    os.dup2(2, 1)  # what the environment prints must not mix with a report in JSON
    sending = threading.Lock()

    def heard(kind: str, what: object) -> None:
        with sending:
            report_to.send((kind, what))

    heard("report", check_environment(factory, tasks=tasks, timeout_s=timeout_s, heard=heard))
    sys.stdout.flush()
    os._exit(0)  # threads that were left behind in a call must not hold the end up
