"""The contract of an environment as a set of checks that any environment can be put through.

    from llenvs_fast.environments.conformance import check_environment

    def test_my_environment_keeps_the_contract():
        report = check_environment(MyEnvironment, tasks=3)
        assert report.ok, report.failures()

Each check states one rule in its docstring. A check that can't be made, since the environment has nothing of what it
looks at or since it builds on one that failed, is skipped with the reason. A broken environment never raises: it is a
failed check. What takes the whole process down, or holds the interpreter for ever, needs `check_in_process`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from llenvs_fast.core.environment import Environment
from llenvs_fast.core.errors import InvalidSettingError, LLEnvsError
from llenvs_fast.core.state import State
from llenvs_fast.environments import conformance_hostile as hostile
from llenvs_fast.environments import conformance_resets as resets
from llenvs_fast.environments import conformance_rewards as rewards
from llenvs_fast.environments import conformance_steps as steps
from llenvs_fast.environments.conformance_kit import (
    Broken,
    Doubtful,
    Finding,
    Kit,
    Report,
    Unreached,
    Verdict,
    told,
)

Rule = Callable[[Kit], None]
MADE = "it_can_be_made"


@dataclass(frozen=True, slots=True)
class Check:
    """A rule, and the rules without which it says nothing."""

    rule: Rule
    needs: tuple[Rule, ...] = ()

    @property
    def name(self) -> str:
        return self.rule.__name__

    def finding(self, verdict: Verdict, **fields: Any) -> Finding:
        return Finding(self.name, " ".join((self.rule.__doc__ or "").split()), verdict, **fields)


_RESET = (resets.reset_gives_a_first_state,)
_STEP = (steps.step_gives_a_result,)
_AGAIN = (resets.resets_are_repeatable, steps.step_gives_a_result)
_PURE = (*_AGAIN, steps.a_step_leaves_its_state_alone, steps.a_step_can_be_taken_again)
_ANY_TIME = (*_PURE, steps.an_earlier_state_can_be_stepped)
_SCORED = (*_STEP, rewards.rewards_are_well_formed)

CHECKS: tuple[Check, ...] = (
    Check(resets.the_spec_is_sound),
    Check(resets.its_length_is_sound, (resets.the_spec_is_sound,)),
    Check(resets.reset_gives_a_first_state, (resets.its_length_is_sound,)),
    Check(resets.the_observation_is_text, _RESET),
    Check(resets.the_episode_id_is_kept, _RESET),
    Check(resets.the_task_index_is_heeded, _RESET),
    Check(resets.an_index_outside_is_refused, _RESET),
    Check(resets.resets_are_repeatable, (*_RESET, resets.the_episode_id_is_kept)),
    Check(resets.resets_do_not_depend_on_order, (resets.resets_are_repeatable,)),
    Check(resets.instances_agree, (resets.resets_do_not_depend_on_order,)),
    Check(resets.ground_truth_is_not_shown, (resets.the_observation_is_text,)),
    Check(steps.states_can_be_pickled, _RESET),
    Check(steps.step_gives_a_result, _RESET),
    Check(steps.flags_agree, _STEP),
    Check(steps.the_step_limit_is_kept, (steps.flags_agree,)),
    Check(steps.a_step_leaves_its_state_alone, _AGAIN),
    Check(steps.a_step_can_be_taken_again, (*_AGAIN, steps.a_step_leaves_its_state_alone)),
    Check(steps.an_earlier_state_can_be_stepped, _PURE),
    Check(steps.threads_agree, _ANY_TIME),
    Check(steps.reset_batches_agree, (resets.an_index_outside_is_refused, resets.resets_do_not_depend_on_order)),
    Check(steps.step_batches_agree, _ANY_TIME),
    Check(rewards.rewards_are_well_formed, _STEP),
    Check(rewards.reward_functions_agree, _SCORED),
    Check(rewards.gold_earns_full_marks, _SCORED),
    Check(rewards.noise_earns_less, _SCORED),
    Check(hostile.hostile_actions_are_survived, _SCORED),
    Check(hostile.it_works_after_hostile_actions, (*_ANY_TIME, hostile.hostile_actions_are_survived)),
    Check(resets.closing_twice_is_safe),
)


def check_environment(
    environment_or_factory: Environment | Callable[[], Environment],
    *,
    tasks: int = 3,
    timeout_s: float = 30.0,
    gold: Callable[[State], str | None] = rewards.gold_of,
    heard: Callable[[str, object], None] = lambda kind, what: None,
) -> Report:
    """Put an environment through all checks. Never raises for a broken one.

    With a factory, its instances are compared, and closed in the end; an instance stays open. `tasks` is how many of
    its tasks are looked at: the first ones and the last. A call that takes more than `timeout_s` seconds fails the
    check that made it. `gold` finds the right answer in a state; by default under usual names in `State.hidden`.
    `heard` is told of each ("check", name), ("call", what) and ("finding", Finding) as it comes.

    Raises InvalidSettingError where `tasks` or `timeout_s` is not above 0.
    """
    for setting, value in (("tasks", tasks), ("timeout_s", timeout_s)):
        if not value > 0:
            raise InvalidSettingError(f"{setting}={value!r}: give a number above 0")
    made: list[Environment] = []
    is_instance = hasattr(environment_or_factory, "reset") and not isinstance(environment_or_factory, type)

    def make() -> Environment:
        made.append(environment_or_factory())  # type: ignore[operator]
        return made[-1]

    def told_of(what: str) -> None:
        heard("call", what)

    kit = Kit(environment_or_factory, None if is_instance else make, tasks, timeout_s, gold, told_of)  # type: ignore[arg-type]
    heard("check", MADE)
    if kit.make is not None and (failed := _make(kit)) is not None:
        heard("finding", failed)
        return Report(type(environment_or_factory).__name__, (failed,), made=False)
    findings = _findings(kit, heard)
    for environment in made:
        if hasattr(environment, "close"):
            _quietly(kit, environment.close)
    return Report(_name(kit), tuple(findings))


def _make(kit: Kit) -> Finding | None:
    """Make the environment; why it can't be made, if so."""
    started_s = time.monotonic()
    try:
        environment = kit.attempt("making it", kit.make)  # type: ignore[arg-type]
    except Broken as hung:
        environment, got = None, f"it {hung.got.removeprefix('it ')} after {kit.timeout_s:g} s"
    else:
        got = str(environment) if isinstance(environment, LLEnvsError) else ""
        if isinstance(environment, BaseException):
            got = got or told(environment)
        elif not callable(getattr(environment, "reset", None)) or not callable(getattr(environment, "step", None)):
            got = f"the factory gave a {type(environment).__name__}, which has no reset and step"
    if not got:
        kit.environment = environment
        return None
    seconds = time.monotonic() - started_s
    return Finding(MADE, "The environment can be made.", Verdict.FAILED, "an environment", got, "see it", "", seconds)


def _findings(kit: Kit, heard: Callable[[str, object], None]) -> list[Finding]:
    findings: list[Finding] = []
    lost: set[Rule] = set()  # failed, or not made since they build on one that failed
    for check in CHECKS:
        heard("check", check.name)
        blockers = [rule.__name__ for rule in check.needs if rule in lost]
        if blockers:
            finding = check.finding(Verdict.SKIPPED, note=f"it builds on {blockers[0]}")
            lost.add(check.rule)
        else:
            finding = _made(check, kit)
            if finding.verdict is Verdict.FAILED:
                lost.add(check.rule)
        heard("finding", finding)
        findings.append(finding)
    return findings


def _made(check: Check, kit: Kit) -> Finding:
    started_s = time.monotonic()

    def ended(verdict: Verdict, **fields: Any) -> Finding:
        return check.finding(verdict, **fields, seconds=time.monotonic() - started_s)

    try:
        check.rule(kit)
    except Unreached as reason:
        return ended(Verdict.SKIPPED, note=str(reason))
    except Broken as seen:
        verdict = Verdict.WARNING if isinstance(seen, Doubtful) else Verdict.FAILED
        return ended(verdict, expected=seen.expected, got=seen.got, remedy=seen.remedy)
    except BaseException as error:  # of an attribute that raises, or of a value that is not even comparable
        if isinstance(error, KeyboardInterrupt):
            raise
        return ended(Verdict.FAILED, expected="the rule to be checkable", got=told(error), remedy="fix what raises")
    return ended(Verdict.PASSED)


def _name(kit: Kit) -> str:
    try:
        return str(kit.environment.spec.name)
    except Exception:
        return type(kit.environment).__name__


def _quietly(kit: Kit, close: Callable[[], None]) -> None:
    with suppress(Broken):  # closing has a check of its own
        kit.attempt("close()", close)
