"""What the conformance checks of environments stand on: verdicts, the report, and calls that can't hang the checks.

A rule is a function of a `Kit` whose docstring is the rule. It returns where the rule is kept, and raises `Broken`,
`Doubtful` or `Unreached` where it isn't, where it looks bad, or where there is nothing to see.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence, Sized
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from reprlib import Repr
from typing import Any

from llenvs_fast.core.environment import Environment, StepResult
from llenvs_fast.core.errors import describe
from llenvs_fast.core.state import Action, State
from llenvs_fast.core.tools import ToolCall, ToolDefinition

PLAIN = Action.from_text("I don't know.")
FORMS = {"as it is": ("", ""), "in <answer>": ("<answer>", "</answer>"), "in \\boxed": ("\\boxed{", "}")}

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 120


def short(value: object) -> str:
    """A value in at most about 120 characters. Never raises, whatever the value's own `__repr__` does."""
    try:
        return _SHORT.repr(value).encode("ascii", "backslashreplace").decode()
    except Exception:
        return f"a {type(value).__name__}"


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """How one check went. `note` says why a check was skipped; the others say what is wrong and what to do."""

    check: str
    rule: str
    verdict: Verdict
    expected: str = ""
    got: str = ""
    remedy: str = ""
    note: str = ""
    seconds: float = 0.0

    @property
    def why(self) -> str:
        """One line of text; empty where all is well."""
        if self.note or not self.expected:
            return self.note
        return f"expected {self.expected}; got {self.got}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Report:
    """The findings in the order of the checks. `made` is False where there was no environment to check."""

    environment: str
    findings: tuple[Finding, ...]
    made: bool = True

    @property
    def ok(self) -> bool:
        """Nothing failed; warnings and skipped checks are no failures."""
        return self.made and not self.by_verdict(Verdict.FAILED)

    def by_verdict(self, verdict: Verdict) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.verdict is verdict)

    def failures(self) -> list[str]:
        """`check: why` of each that failed."""
        return [f"{finding.check}: {finding.why}" for finding in self.by_verdict(Verdict.FAILED)]

    def __getitem__(self, check: str) -> Finding:
        """The finding of a check. Raises KeyError for a name that is none."""
        for finding in self.findings:
            if finding.check == check:
                return finding
        raise KeyError(f"no check {check!r}: there are {', '.join(f.check for f in self.findings)}")

    def to_json(self) -> dict[str, Any]:
        """JSON values: `environment`, `made`, `ok`, `counts` by verdict, and `findings`."""
        counts = {verdict.value: len(self.by_verdict(verdict)) for verdict in Verdict}
        findings = [asdict(finding) | {"verdict": finding.verdict.value} for finding in self.findings]
        head = {"environment": self.environment, "made": self.made, "ok": self.ok}
        return {**head, "counts": counts, "findings": findings}


class Broken(Exception):  # noqa: N818 - the answer of a rule, not a fault
    """The rule is broken: what was expected, what was seen, and what to do about it."""

    def __init__(self, expected: str, got: str, remedy: str) -> None:
        super().__init__(expected, got, remedy)
        self.expected, self.got, self.remedy = expected, got, remedy


class Doubtful(Broken):
    """Like `Broken`, where it may be meant so: a warning."""


class Unreached(Exception):  # noqa: N818 - the answer of a rule, not a fault
    """The environment shows nothing of what the rule is about; the message says why."""


@dataclass
class Kit:
    """An environment under examination, and the ways in which the rules talk to it.

    Every call into the environment has a thread and a limit of its own. One that overruns breaks the rule that made
    it, and its thread is left behind, since Python can't stop it.
    """

    environment: Environment
    make: Callable[[], Environment] | None
    num_tasks: int
    timeout_s: float
    gold: Callable[[State], str | None]
    heard: Callable[[str], None] = lambda what: None  # told of every call before it is made
    before_hostility: list[Any] = field(default_factory=list)

    @property
    def spec(self) -> Any:
        return self.environment.spec

    @property
    def length(self) -> int | None:
        """None where the environment doesn't know."""
        return len(self.environment) if isinstance(self.environment, Sized) else None

    @property
    def tasks(self) -> list[int]:
        """The first tasks and the last one, `num_tasks` of them or as many as there are."""
        length = self.length
        if length is None or length <= self.num_tasks:
            return list(range(self.num_tasks if length is None else length))
        return [*range(self.num_tasks - 1), length - 1] if self.num_tasks > 1 else [0]

    # calls ----------------------------------------------------------------------------------------------------------

    def attempt(self, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the call returns, or the exception that it raised. Raises Broken where it overruns."""
        self.heard(what)
        ended: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def work() -> None:
            try:
                ended.put(function(*args, **kwargs))
            except BaseException as error:
                ended.put(error)

        threading.Thread(target=work, name="llenvs-conformance", daemon=True).start()
        try:
            return ended.get(timeout=self.timeout_s)
        except queue.Empty:
            raise Broken(
                f"{what} to end within {self.timeout_s:g} s", "it hangs", "bound its work, or raise the limit"
            ) from None

    def call(self, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the call returns. Raises Broken where it overruns or raises."""
        value = self.attempt(what, function, *args, **kwargs)
        if isinstance(value, BaseException):
            raise Broken(f"{what} to return", told(value), "make it return, whatever came before")
        return value

    def reset_pair(self, task: int, environment: Environment | None = None) -> Any:
        """What a reset of the task returns, whatever it is."""
        reset = (environment or self.environment).reset
        return self.call(f"reset of task {task}", reset, options=reset_options(task))

    def reset(self, task: int, environment: Environment | None = None) -> State:
        state: State = self.reset_pair(task, environment)[0]
        return state

    def step(self, state: State, action: Action = PLAIN) -> StepResult:
        result: StepResult = self.call(f"step with {label(action)}", self.environment.step, state, action)
        return result

    # actions --------------------------------------------------------------------------------------------------------

    @cached_property
    def opening(self) -> Action | None:
        """A first action after which the first task goes on; None where none of those tried leaves it open."""
        for action in self._moves():
            result = self.attempt(
                f"step with {label(action)}", self.environment.step, self.reset(self.tasks[0]), action
            )
            if isinstance(result, StepResult) and not result.done and not result.next_state.metadata.is_terminal:
                return action
        return None

    def _moves(self) -> Sequence[Action]:
        """Harmless actions such as environments of several turns read: words, moves of games, a call of a tool."""
        words = ("1", "up", "1 1", "1 1 1", "A B", "reveal 0 0")
        calls = [sound_call(tool) for tool in self.environment.available_tools if not tool.is_terminal]
        moves = [action for word in words for action in in_forms(word).values()]
        return [PLAIN, *(Action.from_tool_call(call) for call in calls), *moves]

    def plain_actions(self) -> list[Action]:
        """A text, and where the environment has several turns also an action after which it goes on."""
        opening = self.opening if self.spec.is_multi_turn else None
        return [PLAIN] if opening in (None, PLAIN) else [PLAIN, opening]

    def walk(self, task: int, action: Action, most: int) -> list[StepResult]:
        """Up to `most` steps with the same action, fewer where the episode ends."""
        state, results = self.reset(task), list[StepResult]()
        while len(results) < most:
            results.append(self.step(state, action))
            state = results[-1].next_state
            if results[-1].done or state.metadata.is_terminal:
                break
        return results

    def must_be_pure(self) -> None:
        """Raises Unreached where the environment does not promise that steps may be taken again."""
        if not self.spec.pure_step:
            raise Unreached("spec.pure_step is False: no promise that an earlier state may be stepped")


def reset_options(task: int) -> dict[str, Any]:
    return {"task_index": task, "episode_id": f"conformance-{task}"}


def in_forms(answer: str) -> dict[str, Action]:
    """An answer in each of the forms in which environments read answers, by what to call the form."""
    return {form: Action.from_text(before + answer + after) for form, (before, after) in FORMS.items()}


def sound_call(tool: ToolDefinition) -> ToolCall:
    """A call whose arguments have the types that the tool asks for."""
    samples = {"string": "1", "number": 1.0, "integer": 1, "boolean": True, "array": [], "object": {}}
    schema = tool.json_schema()
    properties = schema.get("properties", {})
    wanted = {name: properties.get(name, {}) for name in schema.get("required", ())}
    return ToolCall(
        "call_0",
        tool.name,
        {name: (one.get("enum") or [samples.get(one.get("type", "string"), "1")])[0] for name, one in wanted.items()},
    )


def told(error: BaseException) -> str:
    return f"{type(error).__name__}: {short(describe(error))}"


def label(action: Action) -> str:
    """An action in a few words."""
    if action.tool_calls or action.tool_call_errors:
        names = ", ".join(short(call.name) for call in action.tool_calls[:3]) or "a call that can't be read"
        return f"calls of {names}"
    text = action.text
    if text is None or len(text) <= 40:
        return f"the text {short(text)}"
    return f"a text of {len(text):,} characters that begins {short(text[:20])}"


def comparable(result: StepResult) -> dict[str, Any]:
    """What two equal steps have in common: all but `info`, which may hold times."""
    blank = replace(result, info={})
    names = ("next_state", "rewards", "terminated", "truncated", "extracted_action", "resolved_action")
    return {name: getattr(blank, name) for name in names}
