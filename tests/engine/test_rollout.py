"""The step machine: what a trajectory does with what it is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from llenvs_fast.core.environment import StepResult
from llenvs_fast.core.errors import BadRewardError, Phase
from llenvs_fast.core.reward import RewardType, Signal, SignalBundle
from llenvs_fast.core.state import Action
from llenvs_fast.engine.checks import checked_reset, checked_rewards
from llenvs_fast.engine.rollout import Rollout, RolloutSpec, Stage
from llenvs_fast.inference.protocol import GenerationResult, StopReason
from llenvs_fast.results.record import Ending
from tests.worlds import EchoWorld, LadderWorld, next_state


def started(world=None, max_steps: int = 5) -> Rollout:
    rollout = Rollout(RolloutSpec(0, 3), max_steps)
    state, info = (world or EchoWorld()).reset(options=rollout.spec.reset_options())
    rollout.was_reset(state, info)
    return rollout


def generated(rollout: Rollout, text: str = "3", reason: StopReason = StopReason.END_OF_TEXT, ids=()) -> Action:
    rollout.was_prompted((), (1, 2))
    rollout.was_submitted(7)
    return rollout.was_generated(GenerationResult(text, reason, token_ids=ids), 0.5)


def test_a_rollout_passes_its_stages_in_order_and_ends_finished() -> None:
    rollout = started()
    assert rollout.stage is Stage.READY
    action = generated(rollout, ids=(8, 9))
    assert rollout.stage is Stage.STEPPING
    assert rollout.tokens.context.tolist() == [1, 2, 8, 9]
    rollout.was_stepped(action, EchoWorld().step(rollout.state, action), 0.25)
    outcome = rollout.outcome()
    assert outcome.ending is Ending.FINISHED
    assert outcome.trajectory is not None
    assert outcome.trajectory.total_reward == 1.0
    assert outcome.turns[0].seed == 7
    assert (outcome.generation_s, outcome.stepping_s) == (0.5, 0.25)


def test_a_state_that_is_terminal_after_reset_ends_without_a_generation() -> None:
    rollout = Rollout(RolloutSpec(0, 3), 5)
    state, info = EchoWorld().reset(options=rollout.spec.reset_options())
    rollout.was_reset(state.with_metadata(is_terminal=True), info)
    assert rollout.outcome().ending is Ending.FINISHED
    assert rollout.outcome().turns == ()


def test_the_step_limit_truncates() -> None:
    world = LadderWorld(turns=10)
    rollout = started(world, max_steps=2)
    for last in (False, True):
        assert rollout.on_last_turn is last
        action = generated(rollout)
        rollout.was_stepped(action, world.step(rollout.state, action), 0.0)
    assert rollout.ending is Ending.TRUNCATED


def test_an_answer_cut_at_max_tokens_is_truncated_and_still_scored() -> None:
    rollout = started()
    action = generated(rollout, reason=StopReason.MAX_TOKENS)
    rollout.was_stepped(action, EchoWorld().step(rollout.state, action), 0.0)
    assert rollout.ending is Ending.TRUNCATED
    assert rollout.outcome().trajectory.total_reward == 1.0  # type: ignore[union-attr]


def test_a_failure_keeps_kind_phase_step_and_traceback() -> None:
    rollout = started()
    try:
        raise ZeroDivisionError("no")
    except ZeroDivisionError as error:
        rollout.has_failed(error, Phase.STEP)
    failure = rollout.outcome().failure
    assert failure is not None
    assert (failure.kind, failure.phase, failure.step) == ("step_error", "step", 0)
    assert failure.error_type == "ZeroDivisionError"
    assert failure.traceback is not None
    assert "ZeroDivisionError: no" in failure.traceback


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        (float("nan"), "signal 'x' has nan as its reward: give one finite number"),
        (float("inf"), "signal 'x' has inf"),
        (np.array([1.0, 0.0]), r"an array of shape \(2,\)"),
        ("good", "signal 'x' has 'good' as its reward"),
        ([1.0], r"signal 'x' has \[1.0\]"),
        ("1.0", "signal 'x' has '1.0'"),
        (np.array([1.0]), r"an array of shape \(1,\)"),
        (10**400, "signal 'x' has 1000"),
        (1j, "signal 'x' has 1j"),
    ],
)
def test_a_reward_that_is_not_one_finite_number_is_refused(reward: object, says: str) -> None:
    bundle = SignalBundle((Signal("x", RewardType.OUTCOME, reward),))  # type: ignore[arg-type]
    with pytest.raises(BadRewardError, match=says):
        checked_rewards(bundle)


def test_a_step_that_returns_a_bare_number_as_rewards_is_refused() -> None:
    with pytest.raises(BadRewardError, match="a step returns a SignalBundle"):
        checked_rewards(1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "signals",
    [None, [], (1.0,), [Signal("x", RewardType.OUTCOME, 1.0)], (Signal(None, RewardType.OUTCOME, 1.0),),  # type: ignore[arg-type]
     (Signal("x", "outcome", 1.0),)],  # type: ignore[arg-type]
)
def test_signals_that_are_not_a_tuple_of_signals_are_refused(signals: object) -> None:
    with pytest.raises(BadRewardError, match="a SignalBundle holds a tuple of Signal with name and RewardType"):
        checked_rewards(SignalBundle(signals))  # type: ignore[arg-type]


def test_rewards_whose_sum_is_infinite_are_refused() -> None:
    huge = Signal("x", RewardType.OUTCOME, 1e308)
    with pytest.raises(BadRewardError, match="the rewards add up to inf"):
        checked_rewards(SignalBundle((huge, huge)))


@pytest.mark.parametrize("info", [None, [1], "x"])
def test_a_step_result_without_a_dict_or_a_state_is_refused(info: object) -> None:
    rollout = started()
    action = generated(rollout)
    good = EchoWorld().step(rollout.state, action)
    for bad in (replace(good, info=info), replace(good, next_state=None)):
        with pytest.raises(TypeError, match="they must be a State and a dict"):
            rollout.was_stepped(action, bad, 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, 7, (), (1, 2), (1, 2, 3), "ab"])
def test_a_reset_that_returns_something_else_says_what(value: object) -> None:
    with pytest.raises(TypeError, match=r"reset returned .*: it must return \(State, dict\)"):
        checked_reset(value)
    state, _ = EchoWorld().reset(options={"task_index": 0})
    for bad in ((state, None), (replace(state, observation=None), {})):
        with pytest.raises(TypeError, match="it must return"):
            checked_reset(bad)
    assert checked_reset((state, {"a": 1})) == (state, {"a": 1})


@pytest.mark.parametrize("reward", [np.float32(0.5), np.float64(0.5), np.array(0.5), True, 1])
def test_numpy_scalars_and_integers_become_floats(reward: object) -> None:
    bundle = checked_rewards(SignalBundle((Signal("x", RewardType.OUTCOME, reward),)))  # type: ignore[arg-type]
    assert type(bundle.signals[0].reward) is float


def test_a_missing_reward_stays_missing() -> None:
    bundle = checked_rewards(SignalBundle((Signal("note", RewardType.PROCESS, None, feedback="try again"),)))
    assert bundle.signals[0].reward is None
    assert bundle.total == 0.0
    assert bundle.feedback_texts() == ("try again",)


def test_a_step_that_returns_something_else_says_what() -> None:
    rollout = started()
    action = generated(rollout)
    with pytest.raises(TypeError, match="step returned a NoneType: it must return a StepResult"):
        rollout.was_stepped(action, None, 0.0)  # type: ignore[arg-type]


def test_an_environment_that_truncates_ends_truncated() -> None:
    rollout = started()
    action = generated(rollout)
    result = StepResult(next_state(rollout.state, terminal=False), SignalBundle.empty(), truncated=True)
    rollout.was_stepped(action, result, 0.0)
    assert rollout.ending is Ending.TRUNCATED
