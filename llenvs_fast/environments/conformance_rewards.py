"""The rules of rewards: well formed, the same from reward functions, full for gold and not for noise."""

from __future__ import annotations

import math
from typing import Any

from llenvs_fast.core.environment import StepResult
from llenvs_fast.core.reward import RewardType, Signal, SignalBundle
from llenvs_fast.core.state import Action, State
from llenvs_fast.environments.conformance_kit import Broken, Doubtful, Kit, Unreached, in_forms, label, short, told

GOLD_NAMES = (
    "expected_answer", "gold_answer", "gold", "ground_truth", "correct_answer", "answer", "target", "solution",
    "expected",
)  # fmt: skip
NOISE = ("", "conformance: no answer", "nan")


def gold_of(state: State) -> str | None:
    """The right answer where `hidden` has one under a usual name, as attribute or key; None where it hasn't."""
    hidden = state.hidden
    for name in GOLD_NAMES:
        value = hidden.get(name) if isinstance(hidden, dict) else getattr(hidden, name, None)
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return str(value)
    return None


def rewards_are_well_formed(kit: Kit) -> None:
    """A step's rewards are a SignalBundle of Signals with names; each reward is a finite float or None."""
    for action in kit.plain_actions():
        for task in kit.tasks:
            rewards = kit.step(kit.reset(task), action).rewards
            if (problem := problem_with(rewards)) is not None:
                raise Broken("signals with finite rewards", problem, "give a float, or None where there is no score")
            for signal in rewards.signals:
                if signal.reward is not None and type(signal.reward) is not float:
                    got = f"{signal.name} is a {type(signal.reward).__name__}"
                    raise Doubtful("rewards of type float", got, "convert it: float(reward)")


def problem_with(rewards: Any) -> str | None:
    """What is wrong with a bundle, None where nothing is."""
    if not isinstance(rewards, SignalBundle) or not isinstance(rewards.signals, tuple):
        return f"{short(rewards)}, which is no SignalBundle with a tuple"
    for signal in rewards.signals:
        named = isinstance(signal, Signal) and isinstance(signal.name, str)
        if not named or not isinstance(signal.reward_type, RewardType):
            return f"{short(signal)}, which is no Signal with a name and a RewardType"
        for what, number in (("reward", signal.reward), ("weight", signal.weight)):
            if not (number is None and what == "reward") and not _is_finite(number):
                return f"{what} {short(number)} of the signal {signal.name!r}"
    return None if math.isfinite(rewards.total) else f"a total of {rewards.total}"


def _is_finite(number: Any) -> bool:
    try:
        return not isinstance(number, str | bytes) and not getattr(number, "shape", ()) and math.isfinite(number)
    except (TypeError, ValueError, OverflowError):
        return False


def reward_functions_agree(kit: Kit) -> None:
    """Each reward function, and `compute_rewards` where it gives signals, says of a step what the step said."""
    compared = 0
    for action in kit.plain_actions():
        for task in kit.tasks:
            state = kit.reset(task)
            result = kit.step(state, action)
            if not result.rewards.signals and not result.done:
                continue  # a turn on the way that nothing judges, such as a call of a tool
            step = state, action, result.next_state
            said = [
                kit.call(f"compute of the reward function {function.name!r}", function.compute, *step)
                for function in kit.environment.reward_functions
            ]
            bundle = kit.call("compute_rewards", kit.environment.compute_rewards, *step)
            for signal in (*said, *getattr(bundle, "signals", ())):
                _must_be_said(result, signal)
                compared += 1
    if not compared:
        raise Unreached("nothing but the steps gives signals")


def _must_be_said(result: StepResult, signal: Any) -> None:
    name = getattr(signal, "name", None)
    said = result.rewards.by_name(name) if isinstance(name, str) else None
    if said is None:
        names = ", ".join(s.name for s in result.rewards.signals) or "none"
        raise Broken(f"a signal of step for {short(signal)}", f"signals {names}", "give it in step, or leave it out")
    if said.reward != signal.reward:
        got = f"{short(said.reward)} and {short(signal.reward)}"
        raise Broken(f"{name!r} as step says it", got, "compute both with the same code")


def gold_earns_full_marks(kit: Kit) -> None:
    """The gold answer, in one of the forms in which answers are given, earns full marks (an OUTCOME of 1.0)."""
    known = ended = 0
    for task in kit.tasks:
        if (gold := kit.gold(kit.reset(task))) is None:
            continue
        known += 1
        seen = []
        for form, action in in_forms(gold).items():
            result = kit.attempt(f"step with {label(action)}", kit.environment.step, kit.reset(task), action)
            failed = isinstance(result, BaseException)
            ended += failed or result.done
            seen.append(f"{told(result) if failed else marks(result)} {form}")
            if not failed and is_full(result):
                break
        else:
            if ended:
                got = f"{short(gold)} earns {', '.join(seen)}"
                raise Broken(f"full marks for the gold answer of task {task}", got, "check the scorer or the answer")
    if not known:
        raise Unreached("no gold answer is known: name it `expected_answer` in State.hidden, or give `gold`")
    if not ended:
        raise Unreached("an answer does not end the episode")


def noise_earns_less(kit: Kit) -> None:
    """An empty or senseless answer does not earn full marks."""
    noise = [Action(), *(action for text in NOISE for action in in_forms(text).values())]
    for task in kit.tasks:
        gold = (kit.gold(kit.reset(task)) or "").strip().lower()
        for action in noise:
            if gold in NOISE and gold in (action.text or ""):
                continue
            result = kit.attempt(f"step with {label(action)}", kit.environment.step, kit.reset(task), action)
            if isinstance(result, StepResult) and is_full(result):
                got = f"{marks(result)} for {label(action)}, task {task}"
                raise Broken("less than full marks for noise", got, "score only what could be an answer")


def marks(result: StepResult) -> float | None:
    """The last OUTCOME reward that is a number, as success is read; the total where no signal is an OUTCOME."""
    outcomes = result.rewards.by_type(RewardType.OUTCOME)
    numbers = [s.reward for s in outcomes if s.reward is not None]
    if not outcomes:
        return result.rewards.total
    return numbers[-1] if numbers else None


def is_full(result: StepResult) -> bool:
    earned = marks(result)
    return earned is not None and earned >= 1.0
