"""The conformance checks of environments: sound ones pass, each way of breaking the contract fails its own check."""

from __future__ import annotations

import json
import os
import random
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, ClassVar

import pytest

from llenvs_fast.core.environment import Environment, EnvironmentSpec, StepResult
from llenvs_fast.core.errors import InvalidSettingError, UnknownEnvironmentError
from llenvs_fast.core.registry import environment_registry
from llenvs_fast.core.reward import RewardType, Signal, SignalBundle
from llenvs_fast.core.state import Action, Observation, State
from llenvs_fast.environments.conformance import CHECKS, check_environment
from llenvs_fast.environments.conformance_difference import difference
from llenvs_fast.environments.conformance_hostile import hostile_actions
from llenvs_fast.environments.conformance_kit import Kit, Report, Verdict
from llenvs_fast.environments.conformance_process import check_in_process
from llenvs_fast.environments.conformance_rewards import gold_of
from llenvs_fast.environments.tools import ToolEnvironment, make_tools
from tests.worlds import EchoWorld, LadderWorld, World, first_state, next_state

LIMIT_S = 0.4  # for worlds that hang


class Bounded:
    """Gives a world of tests/worlds.py what the contract asks for and they leave out: an end of its task indices."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[State, dict[str, Any]]:
        check_index(options, self.size)  # type: ignore[attr-defined]
        return super().reset(seed=seed, options=options)  # type: ignore[misc]


class BoundedEcho(Bounded, EchoWorld):
    pass


class BoundedLadder(Bounded, LadderWorld):
    pass


def check_index(options: dict[str, Any] | None, size: int) -> int:
    index = (options or {})["task_index"]
    if not 0 <= index < size:
        raise ValueError(f"task_index={index}: there are {size}")
    return index


class Matches:
    """The reward function of a Quiz: 1.0 where the answer stands in the text."""

    name = "correctness"
    reward_type = RewardType.OUTCOME

    def compute(self, state: State, action: Action, next_state: State) -> Signal:
        right = state.hidden["expected_answer"] in (action.text or "")
        return Signal(self.name, self.reward_type, float(right))


@dataclass
class Quiz(World):
    """A sound environment of one turn that has all that the checks look at."""

    size: int = 10
    facts: ClassVar[dict[str, Any]] = {"max_steps": 1, "pure_step": True}
    reward_functions = (Matches(),)

    @property
    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec("quiz", **self.facts)

    def __len__(self) -> int:
        return self.size

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[State, dict[str, Any]]:
        i = check_index(options, self.size)
        return first_state(f"double {i}", self.hidden(i), options or {}), {}

    def hidden(self, i: int) -> dict[str, Any]:
        return {"expected_answer": f"twice {i} is {2 * i}", "tries": []}

    def step(self, state: State, action: Action) -> StepResult:
        after = next_state(state, terminal=True)
        return StepResult(after, SignalBundle((self.signal(state, action),)), terminated=True)

    def signal(self, state: State, action: Action) -> Signal:
        return Matches().compute(state, action, state)

    def compute_rewards(self, state: State, action: Action, next_state: State) -> SignalBundle:
        return SignalBundle((self.signal(state, action),))

    def reset_batch(self, options: Sequence[dict[str, Any]]) -> list[Any]:
        return [caught(self.reset, options=one) for one in options]

    def step_batch(self, states: Sequence[State], actions: Sequence[Action]) -> list[Any]:
        return [caught(self.step, *pair) for pair in zip(states, actions, strict=True)]

    def close(self) -> None:
        pass


def caught(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return error


# the ways to break it -------------------------------------------------------------------------------------------------


class NoTurns(Quiz):
    facts: ClassVar = Quiz.facts | {"max_steps": 0}


class ToolsInAList(Quiz):
    available_tools: ClassVar = []


class NoTasks(Quiz):
    def __len__(self) -> int:
        return 0


class GrowingLength(Quiz):
    def __len__(self) -> int:
        self.size += 1
        return self.size


class Resets(Quiz):
    """A Quiz whose first states are spoiled."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        state, info = super().reset(seed=seed, options=options)
        return self.spoil(state, info, (options or {})["task_index"])

    def spoil(self, state: State, info: dict[str, Any], task: int) -> Any:
        raise NotImplementedError


class StateAlone(Resets):
    def spoil(self, state: State, info: dict[str, Any], task: int) -> Any:
        return state


class BeginsAtOne(Resets):
    def spoil(self, state: State, info: dict[str, Any], task: int) -> Any:
        return state.with_metadata(step=1), info


class HungReset(Resets):
    def spoil(self, state: State, info: dict[str, Any], task: int) -> Any:
        time.sleep(60)


class RaisingReset(Resets):
    def spoil(self, state: State, info: dict[str, Any], task: int) -> Any:
        sys.exit("no more")


class Shows(Resets):
    prompt: ClassVar[Any] = ""

    def spoil(self, state: State, info: dict[str, Any], task: int) -> Any:
        return replace(state, observation=Observation(self.prompt)), info


class ShowsNumbers(Shows):
    prompt: ClassVar[Any] = 5


class ShowsSurrogates(Shows):
    prompt: ClassVar[Any] = "double \ud800"


class OwnEpisodeIds(Resets):
    def spoil(self, state: State, info: dict[str, Any], task: int) -> Any:
        return state.with_metadata(episode_id=uuid.uuid4().hex), info


class AlwaysTheFirst(Quiz):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[State, dict[str, Any]]:
        check_index(options, self.size)
        return super().reset(options=dict(options or {}, task_index=0))


class WrapsAround(Quiz):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[State, dict[str, Any]]:
        index = (options or {})["task_index"]
        return super().reset(options=dict(options or {}, task_index=index % self.size))


class DrawsAnew(Quiz):
    def hidden(self, i: int) -> dict[str, Any]:
        return super().hidden(i) | {"draw": random.random()}


@dataclass
class RemembersTheOther(Quiz):
    """Shows in its hidden state which other task was reset before."""

    pair: tuple[int, int] = (-1, -1)

    def hidden(self, i: int) -> dict[str, Any]:
        if i != self.pair[1]:
            self.pair = (self.pair[1], i)
        return super().hidden(i) | {"before": self.pair[0]}


@dataclass
class OwnDraw(Quiz):
    draw: float = field(default_factory=random.random)

    def hidden(self, i: int) -> dict[str, Any]:
        return super().hidden(i) | {"draw": self.draw}


class RemembersAcrossInstances(Quiz):
    """Draws once and for all instances, until one of them is closed."""

    draws: ClassVar[list[float]] = []

    def hidden(self, i: int) -> dict[str, Any]:
        if not self.draws:
            self.draws.append(random.random())
        return super().hidden(i) | {"draw": self.draws[0]}

    def close(self) -> None:
        self.draws.clear()


class Steps(Quiz):
    """A Quiz whose results are spoiled."""

    def step(self, state: State, action: Action) -> Any:
        return self.spoil(super().step(state, action), action)

    def spoil(self, result: StepResult, action: Action) -> Any:
        raise NotImplementedError


class StepsToADict(Steps):
    def spoil(self, result: StepResult, action: Action) -> Any:
        return {"next_state": result.next_state}


class StaysAtStepZero(Steps):
    def spoil(self, result: StepResult, action: Action) -> Any:
        return replace(result, next_state=result.next_state.with_metadata(step=0))


class RaisingStep(Steps):
    def spoil(self, result: StepResult, action: Action) -> Any:
        raise LookupError("nothing here")


class HungStep(Steps):
    def spoil(self, result: StepResult, action: Action) -> Any:
        time.sleep(60)


class EndsWithoutATerminalState(Steps):
    def spoil(self, result: StepResult, action: Action) -> Any:
        return replace(result, next_state=result.next_state.with_metadata(is_terminal=False))


class NeverEnds(Steps):
    def spoil(self, result: StepResult, action: Action) -> Any:
        return replace(result, next_state=result.next_state.with_metadata(is_terminal=False), terminated=False)


class WritesIntoItsState(Quiz):
    def step(self, state: State, action: Action) -> StepResult:
        state.hidden["tries"].append(action.text)
        return super().step(state, action)


@dataclass
class Counts(Steps):
    count: int = 0

    def spoil(self, result: StepResult, action: Action) -> Any:
        self.count += 1
        return replace(result, next_state=result.next_state.with_metadata(info={"count": self.count}))


@dataclass
class CountsSwitches(Quiz):
    """Shows in its results how often another episode was stepped than the time before."""

    episode: str = ""
    switches: int = 0

    def step(self, state: State, action: Action) -> StepResult:
        self.switches += state.metadata.episode_id != self.episode
        self.episode = state.metadata.episode_id
        return replace(super().step(state, action), extracted_action=str(self.switches))


@dataclass
class OneAtATime(Quiz):
    current: Any = None

    def step(self, state: State, action: Action) -> StepResult:
        self.current = state
        time.sleep(0.002)
        return super().step(self.current, action)


class BatchBackwards(Quiz):
    def reset_batch(self, options: Sequence[dict[str, Any]]) -> list[Any]:
        made = super().reset_batch(options)
        return [*made[:2], *made[:1:-1]][: len(made)] if len(made) < 5 else [made[-2], *made[1:]]


class BatchThatRaises(Quiz):
    def reset_batch(self, options: Sequence[dict[str, Any]]) -> list[Any]:
        return [self.reset(options=one) for one in options]


class StepsBackwards(Quiz):
    def step_batch(self, states: Sequence[State], actions: Sequence[Action]) -> list[Any]:
        return super().step_batch(states, actions)[::-1]


class LosesASlot(Quiz):
    def step_batch(self, states: Sequence[State], actions: Sequence[Action]) -> list[Any]:
        return super().step_batch(states, actions)[1:]


class Rewards(Quiz):
    """A Quiz that gives the reward `given` for all but the right answer."""

    given: ClassVar[Any] = float("nan")

    def signal(self, state: State, action: Action) -> Signal:
        signal = super().signal(state, action)
        return signal if signal.reward else replace(signal, reward=self.given)


class RewardsText(Rewards):
    given: ClassVar[Any] = "1"


class GivesANumber(Steps):
    def spoil(self, result: StepResult, action: Action) -> Any:
        return replace(result, rewards=1.0)


class SaysOtherwise(Quiz):
    def compute_rewards(self, state: State, action: Action, next_state: State) -> SignalBundle:
        return SignalBundle.single(0.5, "correctness")


class SaysMore(Quiz):
    def compute_rewards(self, state: State, action: Action, next_state: State) -> SignalBundle:
        return SignalBundle.single(0.0, "length")


class MissesTheGold(Quiz):
    reward_functions = ()

    def signal(self, state: State, action: Action) -> Signal:
        return Signal("correctness", RewardType.OUTCOME, 0.0)


class TakesAnything(Quiz):
    reward_functions = ()

    def signal(self, state: State, action: Action) -> Signal:
        return Signal("correctness", RewardType.OUTCOME, float(bool((action.text or "").strip())))


class ExitsAtNul(Steps):
    def spoil(self, result: StepResult, action: Action) -> Any:
        if "\0" in (action.text or ""):
            sys.exit(3)
        return result


class HangsInNests(Steps):
    def spoil(self, result: StepResult, action: Action) -> Any:
        if "<answer><answer>" in (action.text or ""):
            time.sleep(60)
        return result


class InfiniteForInfinity(Steps):
    def spoil(self, result: StepResult, action: Action) -> Any:
        if "-inf" not in (action.text or ""):
            return result
        return replace(result, rewards=SignalBundle.single(float("-inf"), "correctness"))


@dataclass
class PoisonedByNul(Steps):
    poisoned: bool = False

    def spoil(self, result: StepResult, action: Action) -> Any:
        self.poisoned |= "\0" in (action.text or "")
        return replace(result, extracted_action="poison") if self.poisoned else result


class ClosesOnce(Quiz):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


BROKEN: list[tuple[type[Environment], str, str]] = [
    (NoTurns, "the_spec_is_sound", "spec.max_steps to be None or at least 1; got 0"),
    (ToolsInAList, "the_spec_is_sound", "available_tools to be a tuple"),
    (NoTasks, "its_length_is_sound", "a length of 0"),
    (GrowingLength, "its_length_is_sound", "11, then 12"),
    (StateAlone, "reset_gives_a_first_state", "return (state, info)"),
    (BeginsAtOne, "reset_gives_a_first_state", "got step 1"),
    (HungReset, "reset_gives_a_first_state", "reset of task 0 to end within 0.4 s; got it hangs"),
    (RaisingReset, "reset_gives_a_first_state", "SystemExit: 'no more'"),
    (Shows, "the_observation_is_text", "empty texts"),
    (ShowsNumbers, "the_observation_is_text", "got 5"),
    (ShowsSurrogates, "the_observation_is_text", "UnicodeEncodeError"),
    (OwnEpisodeIds, "the_episode_id_is_kept", "expected episode_id='conformance-0'"),
    (AlwaysTheFirst, "the_task_index_is_heeded", "the same task for the indices 0 to 7"),
    (WrapsAround, "an_index_outside_is_refused", "an Exception for task_index=10 with len 10; got a task"),
    (DrawsAnew, "resets_are_repeatable", "hidden['draw']: 0."),
    (RemembersTheOther, "resets_do_not_depend_on_order", "hidden['before']: "),
    (OwnDraw, "instances_agree", "hidden['draw']: 0."),
    (RemembersAcrossInstances, "instances_agree", "hidden['draw']: 0."),
    (StepsToADict, "step_gives_a_result", "a StepResult; got {'next_state'"),
    (StaysAtStepZero, "step_gives_a_result", "(1, 'conformance-0'); got (0, 'conformance-0')"),
    (RaisingStep, "step_gives_a_result", "LookupError: 'nothing here'"),
    (HungStep, "step_gives_a_result", "to end within 0.4 s; got it hangs"),
    (EndsWithoutATerminalState, "flags_agree", "'is_terminal': False"),
    (NeverEnds, "the_step_limit_is_kept", "it goes on"),
    (WritesIntoItsState, "a_step_leaves_its_state_alone", "hidden['tries']"),
    (Counts, "a_step_can_be_taken_again", "info['count']: "),
    (CountsSwitches, "an_earlier_state_can_be_stepped", "extracted_action"),
    (OneAtATime, "threads_agree", "a step beside another thread's to give the same"),
    (BatchBackwards, "reset_batches_agree", "of a batch as it is alone"),
    (BatchThatRaises, "reset_batches_agree", "reset_batch to return; got ValueError: 'task_index=-1"),
    (StepsBackwards, "step_batches_agree", "in a batch and alone to give the same"),
    (LosesASlot, "step_batches_agree", "a list of 6 from step_batch of 6; got 5 slots"),
    (Rewards, "rewards_are_well_formed", "reward nan of the signal 'correctness'"),
    (RewardsText, "rewards_are_well_formed", "reward '1' of the signal 'correctness'"),
    (GivesANumber, "rewards_are_well_formed", "1.0, which is no SignalBundle"),
    (SaysOtherwise, "reward_functions_agree", "0.0 and 0.5"),
    (SaysMore, "reward_functions_agree", "got signals correctness"),
    (MissesTheGold, "gold_earns_full_marks", "'twice 0 is 0' earns 0.0 as it is, 0.0 in <answer>, 0.0 in \\boxed"),
    (TakesAnything, "noise_earns_less", "1.0 for the text"),
    (ExitsAtNul, "hostile_actions_are_survived", "SystemExit: '3' for NUL bytes as it is"),
    (HangsInNests, "hostile_actions_are_survived", "step with nested answer tags to end within 0.4 s; got it hangs"),
    (InfiniteForInfinity, "hostile_actions_are_survived", "reward -inf of the signal 'correctness' for numbers that"),
    (PoisonedByNul, "it_works_after_hostile_actions", "None and 'poison'"),
    (ClosesOnce, "closing_twice_is_safe", "the second close() to return; got RuntimeError"),
]


@pytest.mark.parametrize(("kind", "check", "says"), BROKEN, ids=lambda value: getattr(value, "__name__", None))
def test_an_environment_that_breaks_a_rule_fails_that_check_alone(
    kind: type[Environment], check: str, says: str
) -> None:
    report = check_environment(kind, timeout_s=LIMIT_S if kind.__name__.startswith("H") else 30.0)
    assert [finding.check for finding in report.by_verdict(Verdict.FAILED)] == [check], report.failures()
    assert says in report[check].why
    assert report[check].expected
    assert report[check].remedy
    assert not report.ok


class TellsTheAnswer(Resets):
    def spoil(self, state: State, info: dict[str, Any], task: int) -> Any:
        return replace(state, observation=Observation(f"Say: {state.hidden['expected_answer']}.")), info


class HidesAFunction(Quiz):
    def hidden(self, i: int) -> dict[str, Any]:
        return super().hidden(i) | {"judge": lambda text: bool(text)}


class PaysInIntegers(Rewards):
    given: ClassVar[Any] = 0


class GoesOnAtItsLimit(BoundedLadder):
    @property
    def spec(self) -> EnvironmentSpec:
        return replace(super().spec, max_steps=2)


@pytest.mark.parametrize(
    ("kind", "check", "says"),
    [
        (TellsTheAnswer, "ground_truth_is_not_shown", "got 'twice 0 is 0' in it"),
        (HidesAFunction, "states_can_be_pickled", "keep plain data in State.hidden"),
        (PaysInIntegers, "rewards_are_well_formed", "correctness is a int"),
        (GoesOnAtItsLimit, "the_step_limit_is_kept", "the runner enforces it"),
    ],
)
def test_what_may_be_meant_so_is_a_warning_alone(kind: type[Environment], check: str, says: str) -> None:
    report = check_environment(kind)
    assert [finding.check for finding in report.by_verdict(Verdict.WARNING)] == [check]
    assert says in report[check].why
    assert report.ok, report.failures()


def test_every_check_has_something_that_it_notices() -> None:
    noticed = {check for _, check, _ in BROKEN} | {"ground_truth_is_not_shown", "states_can_be_pickled"}
    assert noticed == {check.name for check in CHECKS}
    assert all(check.rule.__doc__ for check in CHECKS)


# sound ones -----------------------------------------------------------------------------------------------------------


def skipped(report: Report) -> set[str]:
    return {finding.check for finding in report.by_verdict(Verdict.SKIPPED)}


def test_a_sound_environment_passes_all_checks() -> None:
    report = check_environment(Quiz)
    assert [finding.verdict for finding in report.findings] == [Verdict.PASSED] * len(CHECKS), report.failures()


BARE = {"ground_truth_is_not_shown", "step_batches_agree", "reset_batches_agree", "reward_functions_agree"}
BARE |= {"closing_twice_is_safe", "gold_earns_full_marks"}


@pytest.mark.parametrize(
    "make", [BoundedEcho, BoundedLadder, partial(BoundedLadder, structured=False), partial(BoundedEcho, size=1)]
)
def test_the_worlds_of_the_tests_pass(make: Callable[[], Environment]) -> None:
    report = check_environment(make)
    assert report.ok, report.failures()
    assert report.by_verdict(Verdict.WARNING) == ()
    assert skipped(report) - {"the_task_index_is_heeded"} == BARE


def test_the_gold_answer_may_be_found_by_the_caller() -> None:
    report = check_environment(BoundedEcho, gold=lambda state: str(state.hidden))
    assert report["gold_earns_full_marks"].verdict is Verdict.PASSED
    assert check_environment(BoundedEcho, gold=lambda state: "no").failures()[0].startswith("gold_earns_full_marks")


def test_an_instance_is_not_compared_with_another_and_stays_open() -> None:
    instance = ClosesOnce()
    report = check_environment(instance)
    assert report.ok, report.failures()
    assert not instance.closed
    assert skipped(report) == {"instances_agree", "closing_twice_is_safe"}


def test_what_is_made_from_a_factory_is_closed() -> None:
    made: list[ClosesOnce] = []

    def make() -> ClosesOnce:
        made.append(ClosesOnce())
        return made[-1]

    check_environment(make)
    assert len(made) >= 2
    assert all(one.closed for one in made)


class Impure(Quiz):
    facts: ClassVar = Quiz.facts | {"pure_step": False}


class EndsAtOnce(Quiz):
    facts: ClassVar = {"is_multi_turn": True, "pure_step": True}


def test_later_steps_that_were_not_seen_are_not_passed() -> None:
    report = check_environment(EndsAtOnce)
    assert report.ok, report.failures()
    assert skipped(report) == {"the_step_limit_is_kept", "an_earlier_state_can_be_stepped"}
    assert "each ended the episode" in report["an_earlier_state_can_be_stepped"].note


def test_no_promise_of_purity_no_check_of_it() -> None:
    report = check_environment(type("ImpureCounts", (Counts,), {"facts": Impure.facts}))
    assert report.ok, report.failures()
    assert "spec.pure_step is False" in report["a_step_can_be_taken_again"].note
    assert {"threads_agree", "an_earlier_state_can_be_stepped", "step_batches_agree"} <= skipped(report)


def test_tools_over_a_world_pass_and_are_called() -> None:
    called: list[str] = []
    tools = make_tools(["calculator", "submit_answer"])
    spied = replace(tools[0], run=lambda arguments: called.append(arguments["expression"]) or "1")
    report = check_environment(lambda: ToolEnvironment(BoundedEcho(), [spied, tools[1]]))
    assert report.ok, report.failures()
    assert "1" in called


reasoning_gym = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed")
gem = pytest.mark.skipif(find_spec("gem") is None, reason="gem-llm is not installed")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox is for Linux")
@pytest.mark.parametrize(
    ("source", "name", "arguments"),
    [
        pytest.param("reasoning_gym", "leg_counting", {}, marks=reasoning_gym),
        pytest.param("reasoning_gym", "leg_counting", {"tool_types": ["calculator"]}, marks=reasoning_gym),
        pytest.param("gem", "game:GuessTheNumber-v0-easy", {}, marks=gem),
    ],
)
def test_environments_of_the_sources_pass(source: str, name: str, arguments: dict[str, Any]) -> None:
    get = environment_registry.get_adapter(source).get_environment
    report = check_environment(partial(get, name, **arguments), tasks=2)
    assert report.ok, report.failures()
    assert report.by_verdict(Verdict.WARNING) == ()
    passed = {finding.check for finding in report.by_verdict(Verdict.PASSED)}
    assert {"threads_agree", "step_batches_agree", "reward_functions_agree", "it_works_after_hostile_actions"} <= passed
    assert ("gold_earns_full_marks" in passed) == (source == "reasoning_gym")


# the report and its edges ---------------------------------------------------------------------------------------------


def test_an_environment_that_cannot_be_made_is_a_report() -> None:
    def missing() -> Environment:
        raise UnknownEnvironmentError("no environment 'x'")

    for make, says in (
        (missing, "no environment 'x'"),
        (lambda: 1 / 0, "ZeroDivisionError: 'division by zero'"),
        (lambda: 7, "the factory gave a int, which has no reset and step"),
        (lambda: time.sleep(60), "it hangs after 0.4 s"),
    ):
        report = check_environment(make, timeout_s=LIMIT_S)  # type: ignore[arg-type]
        assert (report.made, report.ok, len(report.findings)) == (False, False, 1)
        assert report.findings[0].got == says


def test_an_environment_without_anything_fails_and_does_not_raise() -> None:
    class Nothing:
        def reset(self) -> None: ...
        def step(self) -> None: ...

    report = check_environment(Nothing)  # type: ignore[arg-type]
    assert "AttributeError" in report["the_spec_is_sound"].why
    assert report.by_verdict(Verdict.PASSED) == ()


def test_the_report_is_json_and_follows_the_order_of_the_checks() -> None:
    heard: list[tuple[str, object]] = []
    report = check_environment(DrawsAnew, heard=lambda kind, what: heard.append((kind, what)))
    values = json.loads(json.dumps(report.to_json()))
    assert (values["environment"], values["made"], values["ok"]) == ("quiz", True, False)
    assert [one["check"] for one in values["findings"]] == [check.name for check in CHECKS]
    assert values["counts"]["failed"] == 1
    assert sum(values["counts"].values()) == len(CHECKS)
    assert [what for kind, what in heard if kind == "finding"] == list(report.findings)
    assert report["resets_do_not_depend_on_order"].note == "it builds on resets_are_repeatable"
    with pytest.raises(KeyError, match="no check 'purity'"):
        report["purity"]


def test_a_limit_or_a_number_of_tasks_that_is_none_is_refused() -> None:
    for options, says in (({"tasks": 0}, "tasks=0"), ({"timeout_s": -1.0}, "timeout_s=-1.0")):
        with pytest.raises(InvalidSettingError, match=says):
            check_environment(Quiz, **options)  # type: ignore[arg-type]


def test_the_tasks_are_the_first_and_the_last() -> None:
    def tasks(size: int, wanted: int) -> list[int]:
        return Kit(Quiz(size), None, wanted, 1.0, gold_of).tasks

    assert tasks(10, 3) == [0, 1, 9]
    assert tasks(10, 1) == [0]
    assert tasks(2, 3) == [0, 1]


def test_hostile_actions_are_those_of_the_list() -> None:
    kit = Kit(ToolEnvironment(EchoWorld(), make_tools(["calculator"])), None, 1, 1.0, gold_of)
    texts = [action.text for _, action in hostile_actions(kit)]
    calls = [call for _, action in hostile_actions(kit) for call in action.tool_calls]
    assert {None, "", "9**9**9", "9" * 5000, "[" * 100_000} <= set(texts)
    assert max(len(text or "") for text in texts) > 1_000_000
    for part in ("\0", "\ud800", "\x1b[", "{0.__class__", "<answer>" * 100, "\\boxed{" * 100):
        assert any(part in (text or "") for text in texts)
    assert {"no_such_tool", "calculator"} <= {call.name for call in calls}


def test_differences_are_found_in_anybodys_objects() -> None:
    class Plain:
        def __init__(self, value: Any) -> None:
            self.value = value

    assert difference(Plain([1, {"a": 2.0}]), Plain([1, {"a": 2.0}])) is None
    assert difference(Plain([1, {"a": 2.0}]), Plain([1, {"a": 3.0}])) == "value[1]['a']: 2.0 and 3.0"
    assert difference(float("nan"), float("nan")) is None
    assert difference(1, True) == "all: 1 and True"
    assert difference({"a": 1}, {"b": 1}) == "all: {'a': 1} and {'b': 1}"
    assert difference([1], [1, 2]) == "all: [1] and [1, 2]"
    knot: list[Any] = []
    knot.append(knot)
    other: list[Any] = []
    other.append(other)
    assert difference(knot, other) is None


# in a process of its own ----------------------------------------------------------------------------------------------


class EndsTheProcess(Steps):
    def spoil(self, result: StepResult, action: Action) -> Any:
        if action.text == "9**9**9":
            os._exit(7)
        return result


class HoldsTheInterpreter(Steps):
    """Reads answers with a regular expression that takes exponential time, as scorers do, and never lets go."""

    def spoil(self, result: StepResult, action: Action) -> Any:
        re.match(r"(a+)+$", action.text or "")
        return result


class Prints(Quiz):
    def step(self, state: State, action: Action) -> StepResult:
        print("stepping")
        return super().step(state, action)


def dies() -> Environment:
    os._exit(9)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (EndsTheProcess, "the process ended with exit status 7 in step with a tower of powers as it is"),
        (HoldsTheInterpreter, "in step with a regular expression's worst case as it is"),
    ],
)
def test_what_takes_the_process_down_is_a_failed_check(kind: type[Environment], says: str) -> None:
    report = check_in_process(kind, tasks=2, timeout_s=1.0)
    lost = report["hostile_actions_are_survived"]
    assert (report.made, report.ok, lost.verdict) == (True, False, Verdict.FAILED)
    assert says in lost.got
    assert [finding.check for finding in report.findings] == [check.name for check in CHECKS]
    assert report["closing_twice_is_safe"].note == "the process was lost"
    assert report["noise_earns_less"].verdict is Verdict.PASSED


def test_a_process_reports_what_the_checks_report_here(capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[str] = []
    report = check_in_process(Prints, tasks=2, on_finding=lambda finding: heard.append(finding.check))
    assert report.ok, report.failures()
    assert heard == [check.name for check in CHECKS]
    out, err = capfd.readouterr()
    assert out == ""
    assert "stepping" in err


def test_a_process_that_dies_while_it_makes_the_environment_made_none() -> None:
    report = check_in_process(dies)
    assert not report.made
    assert report.findings[0].got == "the process ended with exit status 9 in making it"


def test_no_thread_is_left_where_nothing_hangs() -> None:
    before = set(threading.enumerate())  # those of worlds that hang
    check_environment(Quiz)
    assert set(threading.enumerate()) <= before
