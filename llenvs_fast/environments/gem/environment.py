r"""One of gem's games as an environment: a task is an episode with its own seed, a turn is a move.

The games are played in sandbox workers. A state says which episode it is of and what was played, and a worker can stand
there again: so every state is complete in itself, and a step may be taken again, from any thread. Of a model's text a
game reads the `\boxed{…}` parts only, so those are what a state keeps.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, TypeVar

from llenvs_fast.core.environment import EnvironmentSpec, StepResult
from llenvs_fast.core.errors import InvalidSettingError, ScoringError
from llenvs_fast.core.reward import RewardFunction, RewardType, Signal, SignalBundle
from llenvs_fast.core.seeds import derive_seed
from llenvs_fast.core.state import Action, Observation, State, StateMetadata
from llenvs_fast.core.tools import ToolDefinition
from llenvs_fast.environments.gem.catalog import warnings_of
from llenvs_fast.environments.sandbox import Call, Outcome, SandboxError, SandboxPool, Status

Result = TypeVar("Result")

MAX_ACTION_CHARS = 10_000
RESET_TIMEOUT_S = 120.0
_WON = 1.0 - 1e-9  # a game's rewards are fractions that add up to 1
_BOX = re.compile(r"\\boxed\{[^{}]*\}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GemHidden:
    """Which episode, and what was played in it. JSON values.

    `actions` are what the game read of the model's texts (see `boxed`), `score` is the sum of its rewards so far.
    """

    env_id: str
    seed: int
    task_index: int
    actions: tuple[str, ...] = ()
    score: float = 0.0
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class GameOptions:
    """Which game with which of its own options (as JSON), how many episodes, and the seed that theirs derive from."""

    name: str
    seed: int
    size: int
    kwargs: str

    def seed_of(self, task_index: int) -> int:
        """Seed of an episode, in [0, 2**32), which is what NumPy's global generator takes."""
        return derive_seed(self.seed, task_index, 0, 0) % 2**32


@dataclass(frozen=True, slots=True)
class GameSignal:
    """One signal of a step as a reward function: it plays the step again."""

    environment: GemEnvironment
    name: str
    reward_type: RewardType

    def compute(self, state: State, action: Action, next_state: State) -> Signal:
        signal = self.environment.compute_rewards(state, action, next_state).by_name(self.name)
        assert signal is not None
        return signal


class GemEnvironment:
    r"""Made by `GemAdapter.get_environment`.

    The signals of a step: `game` (OUTCOME), the game's own reward, whose sum over an episode is its score; `won`
    (OUTCOME, weight 0), 1.0 where that score has reached 1.0, which is what success is read from, since many games pay
    a part of it in every turn; `format` (FORMAT, weight 0), 0.0 where the game found no action in the text, which ends
    it with a reward of -0.1; then the extra rewards.

    A game that ends at its limit of turns is truncated, and a state in which it goes on after `max_steps` too; every
    other end terminates. A step that can't be played raises ScoringError, one from a game that is over ValueError.
    """

    def __init__(
        self,
        options: GameOptions,
        pool: SandboxPool,
        max_steps: int | None = None,
        extra_rewards: Sequence[RewardFunction] = (),
        score_timeout_s: float = 10.0,
    ) -> None:
        self._options, self._pool = options, pool
        self._extra_rewards = tuple(extra_rewards)
        self._score_timeout_s = score_timeout_s
        limits = [limit for limit in (max_steps, self._max_turns()) if limit is not None]
        self._spec = EnvironmentSpec(
            name=options.name,
            adapter="gem",
            max_steps=min(limits, default=None),
            observation_type=str,
            action_type=str,
            is_multi_turn=True,
            pure_step=True,
            metadata={
                "version": f"gem-llm {version('gem-llm')}",
                "size": options.size,
                "seed": options.seed,
                "game_kwargs": json.loads(options.kwargs),
                "warnings": warnings_of(options.name),
                "sandbox": pool.protection(),
            },
        )

    def _max_turns(self) -> int | None:
        outcome = self._pool.call(Call("check", (self._options.name, self._options.kwargs), RESET_TIMEOUT_S))
        if outcome.status is not Status.VALUE:
            raise InvalidSettingError(outcome.message)
        turns: int | None = outcome.value
        return turns

    @property
    def spec(self) -> EnvironmentSpec:
        """`max_steps` is None where the number of turns depends on the episode; the game ends itself there."""
        return self._spec

    @property
    def reward_functions(self) -> tuple[RewardFunction, ...]:
        own = (("game", RewardType.OUTCOME), ("won", RewardType.OUTCOME), ("format", RewardType.FORMAT))
        return *(GameSignal(self, name, type_) for name, type_ in own), *self._extra_rewards

    @property
    def available_tools(self) -> tuple[ToolDefinition, ...]:
        return ()

    @property
    def prompts(self) -> dict[str, str]:
        """Empty: the games say themselves how to answer."""
        return {}

    def __len__(self) -> int:
        return self._options.size

    def close(self) -> None:
        """Stop idle workers. Environments of this source share them, so those at work for another go on."""
        self._pool.stop_idle()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[State, dict[str, Any]]:
        """The episode `options["task_index"]`. `seed` does nothing: episodes depend on the environment's own seed.

        Raises ValueError for a missing index or one outside the size, SandboxError where the episode can't be made.
        """
        return _or_raise(self.reset_batch([options or {}])[0])

    def reset_batch(self, options: Sequence[dict[str, Any]]) -> list[tuple[State, dict[str, Any]] | Exception]:
        """Many resets at once; an episode that is asked for several times is made once."""
        indices = [self._task_index(option) for option in options]
        wanted = sorted({index for index in indices if isinstance(index, int)})
        calls = [self._call("reset", self._options.seed_of(index)) for index in wanted]
        starts = dict(zip(wanted, self._pool.call_batch(calls), strict=True))
        return [
            index if isinstance(index, Exception) else self._first_state(index, starts[index], option)
            for index, option in zip(indices, options, strict=True)
        ]

    def _call(self, function: str, seed: int, *args: Any) -> Call:
        timeouts = self._score_timeout_s, RESET_TIMEOUT_S
        return Call(function, (self._options.name, self._options.kwargs, seed, *args), *timeouts)

    def _task_index(self, options: dict[str, Any]) -> int | ValueError:
        index = options.get("task_index")
        if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(self):
            return index
        name = self._options.name
        return ValueError(f"task_index={index!r}: {name} with size={len(self)} has tasks 0 to {len(self) - 1}")

    def _first_state(
        self, index: int, outcome: Outcome, options: dict[str, Any]
    ) -> tuple[State, dict[str, Any]] | Exception:
        name, seed = self._options.name, self._options.seed_of(index)
        if outcome.status is not Status.VALUE:
            return SandboxError(f"{name}: task {index} can't be made: {outcome.status}, {outcome.message}")
        state = State(
            observation=Observation(prompt=outcome.value),
            hidden=GemHidden(name, seed, index),
            metadata=StateMetadata(step=0, episode_id=options.get("episode_id") or uuid.uuid4().hex),
        )
        return state, {"task_index": index, "env_id": name, "game_seed": seed, "question": outcome.value}

    def step(self, state: State, action: Action) -> StepResult:
        """Play one move. Raises ScoringError where it can't be played, ValueError where the game is over."""
        return _or_raise(self.step_batch([state], [action])[0])

    def step_batch(self, states: Sequence[State], actions: Sequence[Action]) -> list[StepResult | Exception]:
        """Many steps at once; a slot whose move or extra reward failed holds the error."""
        moves = [boxed(action.text or "") for action in actions]
        going_on = [i for i, state in enumerate(states) if not state.hidden.is_over]
        hidden = [states[i].hidden for i in going_on]
        calls = [self._call("step", h.seed, h.actions, moves[i]) for i, h in zip(going_on, hidden, strict=True)]
        outcomes = dict(zip(going_on, self._pool.call_batch(calls), strict=True))
        return [
            self._result(state, action, moves[i], outcomes[i]) if i in outcomes else self._over(state)
            for i, (state, action) in enumerate(zip(states, actions, strict=True))
        ]

    def _over(self, state: State) -> ValueError:
        task, turns = state.hidden.task_index, len(state.hidden.actions)
        return ValueError(f"{self._options.name}: task {task} was over after {turns} turns: step an earlier state")

    def _result(self, state: State, action: Action, move: str, outcome: Outcome) -> StepResult | Exception:
        if (failure := outcome.failure()) is not None:
            return failure
        if outcome.status is Status.RAISED:
            return ScoringError(f"{self._options.name} raised {outcome.error_type}: {outcome.message}")
        said = outcome.value
        terminated, turn = said["terminated"] and not said["truncated"], state.metadata.step + 1
        truncated = said["truncated"] or (not terminated and turn == self._spec.max_steps)
        next_state = self._next_state(state, action, move, said, terminated)
        won = float(next_state.hidden.score >= _WON)
        signals = (
            Signal("game", RewardType.OUTCOME, said["reward"]),
            Signal("won", RewardType.OUTCOME, won, weight=0.0),
            Signal("format", RewardType.FORMAT, float(said["understood"]), weight=0.0),
        )
        try:
            extra = tuple(function.compute(state, action, next_state) for function in self._extra_rewards)
        except Exception as error:  # the user's own code: it fails its trajectory only
            return error
        return StepResult(
            next_state=next_state,
            rewards=SignalBundle((*signals, *extra)),
            terminated=terminated,
            truncated=truncated,
            info={"gem_reward": said["reward"], "score": next_state.hidden.score, "turn": turn},
            extracted_action=move or None,
        )

    def _next_state(self, state: State, action: Action, move: str, said: dict[str, Any], terminated: bool) -> State:
        hidden, before = state.hidden, state.metadata
        # The model's reply is kept to the letter, so that the engine can append to its tokens.
        turn = {"role": "assistant", "content": action.text or ""}, {"role": "user", "content": said["text"]}
        return State(
            observation=replace(state.observation, messages=(*state.observation.messages, *turn)),
            hidden=replace(
                hidden,
                actions=(*hidden.actions, move),
                score=hidden.score + said["reward"],
                is_over=said["terminated"] or said["truncated"],
            ),
            metadata=StateMetadata(before.step + 1, before.episode_id, is_terminal=terminated, info=before.info),
        )

    def compute_rewards(self, state: State, action: Action, next_state: State) -> SignalBundle:
        """The signals of a step; plays the move as `step` does."""
        return self.step(state, action).rewards


def boxed(text: str) -> str:
    r"""The `\boxed{…}` parts of a text, which are all that any of the games reads of it; the last 10,000 characters.

    Games take the last part that they understand, so nothing is lost, however long a model thinks before it moves.
    """
    return "".join(_BOX.findall(text))[-MAX_ACTION_CHARS:]


def _or_raise(result: Result | Exception) -> Result:
    if isinstance(result, Exception):
        raise result
    return result
