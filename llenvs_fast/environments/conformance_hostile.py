"""The rules of hostile actions: whatever a model writes, the environment answers or raises, and works afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llenvs_fast.core.environment import StepResult
from llenvs_fast.core.state import Action
from llenvs_fast.core.tools import ToolCall
from llenvs_fast.environments.conformance_difference import difference
from llenvs_fast.environments.conformance_kit import Broken, Kit, comparable, in_forms, short, sound_call, told
from llenvs_fast.environments.conformance_rewards import problem_with

MAX_TOLD = 3

TEXTS = {
    "an empty text": "",
    "1 MB of text": "word 1 " * 150_000,
    "NUL bytes": "1\0" * 100,
    "lone surrogates": "\ud800 1 \udfff",
    "control characters": "\r\x08\x7f\u2028\ufeff\u202e1",
    "100,000 open brackets": "[" * 100_000,
    "100,000 open parentheses": "(" * 100_000,
    "a number of 5,000 digits": "9" * 5_000,
    "a tower of powers": "9**9**9",
    "a huge factorial": "factorial(10**9)",
    "a huge exponent": "1e999999999",
    "numbers that are none": "nan inf -inf",
    "digits of other scripts": "\u0661\u0662\u00b2",
    "format strings": "{0.__class__.__mro__} %s %n {} {x!r:>9999999}",
    "ANSI escapes": "\x1b[2J\x1b]0;title\x07\x1b[31m1",
    "code that exits": "__import__('os')._exit(3)",
    "code that loops": "[x for x in iter(int, 1)]",
    "a regular expression's worst case": "a" * 40 + "!",
    "JSON": '{"answer": [1, null, {"a": true}]}',
}
NESTS = {
    "nested answer tags": "<answer>" * 5_000 + "1" + "</answer>" * 5_000,
    "nested boxes": "\\boxed{" * 5_000 + "1" + "}" * 5_000,
    "open answer tags": "<answer>" * 10_000,
    "open boxes": "\\boxed{" * 10_000,
    "open thoughts": "<think>" * 10_000,
}


def hostile_actions(kit: Kit) -> Iterator[tuple[str, Action]]:
    """(what it is, the action): texts alone and as answers, and calls of tools that exist and that don't."""
    yield "no text", Action()
    for name, text in TEXTS.items():
        for form, action in in_forms(text).items():
            yield f"{name} {form}", action
    for name, text in NESTS.items():
        yield name, Action.from_text(text)
    yield "a call that can't be read", Action(None, (), ("arguments are no JSON",))
    yield from _hostile_calls(kit)


def _hostile_calls(kit: Kit) -> Iterator[tuple[str, Action]]:
    arguments: dict[str, Any] = {
        "no arguments": {},
        "unknown arguments": {"__class__": 1, "\0": None},
        "a list as the arguments": [1, 2],
        "nothing as the arguments": None,
    }
    names = ["no_such_tool", "", "\ud800", *(tool.name for tool in kit.environment.available_tools)]
    for name in names:
        for what, value in arguments.items():
            yield f"a call of {short(name)} with {what}", Action.from_tool_call(ToolCall("call_0", name, value))
    for tool in kit.environment.available_tools:
        sound = sound_call(tool)
        for what, value in (("wrong types", [[{}]]), ("texts of 1 MB", "9" * 1_000_000), ("NULs", "\0\ud800")):
            spoiled = ToolCall("call_0", tool.name, dict.fromkeys(sound.arguments, value))
            yield f"a call of {tool.name} with {what}", Action.from_tool_call(spoiled)
        yield f"200 calls of {tool.name} with one id", Action.from_tool_calls([sound] * 200)


def hostile_actions_are_survived(kit: Kit) -> None:
    """Whatever the action, `step` returns a StepResult with finite rewards or raises an Exception, in its limit."""
    kit.before_hostility = _sample(kit)
    task, pure = kit.tasks[0], kit.spec.pure_step
    first, problems = kit.reset(task), list[str]()
    for what, action in hostile_actions(kit):
        state = first if pure else kit.reset(task)
        result = kit.attempt(f"step with {what}", kit.environment.step, state, action)
        if isinstance(result, StepResult):
            if (problem := problem_with(result.rewards)) is not None:
                problems.append(f"{problem} for {what}")
        elif not isinstance(result, Exception):
            raised = isinstance(result, BaseException)
            problems.append(f"{told(result) if raised else short(result)} for {what}")
    if problems:
        more = f" and {len(problems) - MAX_TOLD} more" if len(problems) > MAX_TOLD else ""
        got = "; ".join(problems[:MAX_TOLD]) + more
        raise Broken("a StepResult with finite rewards, or an Exception", got, "treat the action as anybody's text")


def it_works_after_hostile_actions(kit: Kit) -> None:
    """After hostile actions the tasks and the results of steps are what they were before."""
    for before, after in zip(kit.before_hostility, _sample(kit), strict=True):
        if kit.spec.supports_task_index and (found := difference(before, after)) is not None:
            raise Broken("tasks and results as before the hostile actions", found, "keep nothing of an action")


def _sample(kit: Kit) -> list[Any]:
    """The first states, and what a harmless step leads to where steps can be taken again."""
    states = [kit.reset(task) for task in kit.tasks]
    results = [comparable(kit.step(kit.reset(task))) for task in kit.tasks]
    return [*states, *(results if kit.spec.pure_step else ())]
