"""What environments hand back, checked: states, rewards, and what a transition keeps of its generation."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from llenvs_fast.core.errors import BadRewardError
from llenvs_fast.core.reward import RewardType, Signal, SignalBundle
from llenvs_fast.core.state import Observation, State
from llenvs_fast.inference.protocol import GenerationResult


def checked_reset(value: object) -> tuple[State, dict[str, Any]]:
    """What a reset returned. Raises TypeError where it isn't (State, dict)."""
    match value:
        case (State() as state, dict() as info) if isinstance(state.observation, Observation):
            return state, info
    raise TypeError(f"reset returned {value!r:.200}: it must return (State, dict), the state with an Observation")


def generation_info(result: GenerationResult) -> dict[str, Any]:
    """What a transition keeps of its generation."""
    info: dict[str, Any] = {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.completion_tokens,
        "finish_reason": result.finish_reason.name,
    }
    if result.tool_calls:
        info |= {"has_tool_calls": True, "num_tool_calls": len(result.tool_calls)}
    return info


def checked_rewards(rewards: SignalBundle) -> SignalBundle:
    """The bundle with every reward a finite float or None. Raises BadRewardError naming the signal otherwise."""
    if not isinstance(rewards, SignalBundle):
        raise BadRewardError(f"rewards is {rewards!r:.200}: a step returns a SignalBundle")
    signals = rewards.signals
    if not isinstance(signals, tuple) or not all(
        isinstance(s, Signal) and isinstance(s.name, str) and isinstance(s.reward_type, RewardType) for s in signals
    ):
        raise BadRewardError(
            f"the signals are {signals!r:.200}: a SignalBundle holds a tuple of Signal with name and RewardType"
        )
    if not all(s.reward is None or (type(s.reward) is float and math.isfinite(s.reward)) for s in signals):
        rewards = SignalBundle(tuple(replace(s, reward=_checked(s)) for s in signals))
    if not math.isfinite(rewards.total):
        raise BadRewardError(f"the rewards add up to {rewards.total}: give numbers and weights whose sum is finite")
    return rewards


def _checked(signal: Signal) -> float | None:
    if signal.reward is None:
        return None
    shape = getattr(signal.reward, "shape", ())
    try:
        reward = math.nan if shape or isinstance(signal.reward, str | bytes) else float(signal.reward)
    except (TypeError, ValueError, OverflowError):
        reward = math.nan
    if math.isfinite(reward):
        return reward
    what = f"an array of shape {shape}" if shape else f"{signal.reward!r:.200}"
    raise BadRewardError(
        f"signal {signal.name!r} has {what} as its reward: give one finite number, or None where there is no score"
    )
