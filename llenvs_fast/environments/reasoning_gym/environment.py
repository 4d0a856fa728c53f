"""One reasoning-gym dataset as an environment: an item is a task, one answer ends it, the package scores it.

Items are made on demand in sandbox workers: task i with seed s is the package's own item i of seed s. The package draws
item i from `Random(seed + i)`, so neighbouring seeds share all items but one: space seeds by more than `size`, or
"other" data will be the same data. Every state is complete in itself; a step may be taken again, from any thread.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeVar

from llenvs_fast.core.environment import EnvironmentSpec, StepResult
from llenvs_fast.core.errors import InvalidSettingError, ScoringError
from llenvs_fast.core.extraction import AnswerExtractor, Extraction
from llenvs_fast.core.reward import FormatReward, RewardFunction, RewardType, Signal, SignalBundle
from llenvs_fast.core.state import Action, Observation, State, StateMetadata
from llenvs_fast.core.tools import ToolDefinition
from llenvs_fast.environments.reasoning_gym.catalog import SCORED_AS_SHOWN, expected_answer, warnings_of
from llenvs_fast.environments.sandbox import Call, Outcome, SandboxError, SandboxPool, Status

Result = TypeVar("Result")

MAX_ANSWER_CHARS = 10_000
GENERATE_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class ReasoningGymHidden:
    """The package's entry (question, answer, metadata; JSON values) and the answer that it expects, if it has one."""

    entry: dict[str, Any]
    expected_answer: str | None
    task_index: int
    dataset_name: str


@dataclass(frozen=True, slots=True)
class DatasetOptions:
    """Which items: of which dataset, seed and size, with which of the package's options (as JSON)."""

    name: str
    seed: int
    size: int
    config: str

    @property
    def key(self) -> tuple[str, int, int, str]:
        return self.name, self.seed, self.size, self.config


class CorrectnessReward:
    """The dataset's score of the extracted answer, 0.0 where there is none."""

    name = "correctness"
    reward_type = RewardType.OUTCOME

    def __init__(self, environment: ReasoningGymEnvironment) -> None:
        self._environment = environment

    def compute(self, state: State, action: Action, next_state: State) -> Signal:
        return self._environment.compute_rewards(state, action, next_state).signals[0]


class ReasoningGymEnvironment:
    """Made by `ReasoningGymAdapter.get_environment`.

    The signals of a step: `correctness` (OUTCOME), the package's score of the extracted answer, 0.0 without sending it
    where nothing was extracted or the answer is longer than any right one (10,000 characters); `format` (FORMAT, weight
    0, so the total stays the package's score), 1.0 where something was extracted; then the extra rewards. An answer
    that makes the package's scorer raise scores 0.0 with `error` in the metadata. One that can't be scored at all
    raises ScoringError with kind score_timeout, score_crashed, score_memory, score_refused or bad_reward.
    """

    def __init__(
        self,
        options: DatasetOptions,
        pool: SandboxPool,
        answer_extractor: AnswerExtractor,
        extra_rewards: Sequence[RewardFunction] = (),
        score_timeout_s: float = 10.0,
    ) -> None:
        self._options, self._pool, self._extractor = options, pool, answer_extractor
        self._extra_rewards = tuple(extra_rewards)
        self._score_timeout_s = score_timeout_s
        self._check_options()
        self._spec = EnvironmentSpec(
            name=options.name,
            adapter="reasoning_gym",
            max_steps=1,
            observation_type=str,
            action_type=str,
            pure_step=True,
            metadata={
                "version": f"reasoning-gym {version('reasoning-gym')}",
                "size": options.size,
                "seed": options.seed,
                "dataset_kwargs": json.loads(options.config),
                "warnings": warnings_of(options.name),
                "sandbox": pool.protection(),
            },
        )

    def _check_options(self) -> None:
        outcome = self._pool.call(Call("check", self._options.key, GENERATE_TIMEOUT_S))
        if outcome.status is not Status.VALUE:
            raise InvalidSettingError(outcome.message)

    @property
    def spec(self) -> EnvironmentSpec:
        return self._spec

    @property
    def reward_functions(self) -> tuple[RewardFunction, ...]:
        return CorrectnessReward(self), FormatReward(self._extractor, _weight=0.0), *self._extra_rewards

    @property
    def available_tools(self) -> tuple[ToolDefinition, ...]:
        return ()

    @property
    def prompts(self) -> dict[str, str]:
        """`system`: what to tell a model that is told nothing else, so that the extractor finds its answer."""
        instruction = getattr(self._extractor, "instruction", None)
        return {"system": f"Solve the task. Think first if you need to, then {instruction}."} if instruction else {}

    def __len__(self) -> int:
        return self._options.size

    def close(self) -> None:
        """Stop idle workers. Environments of this source share them, so those at work for another go on."""
        self._pool.stop_idle()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[State, dict[str, Any]]:
        """The task `options["task_index"]`. `seed` does nothing: items depend on the environment's own seed.

        Raises ValueError for a missing index or one outside the dataset, SandboxError where the item can't be made.
        """
        return _or_raise(self.reset_batch([options or {}])[0])

    def reset_batch(
        self, options: Sequence[dict[str, Any]]
    ) -> list[tuple[State, dict[str, Any]] | Exception]:
        """Many resets at once; an item that is asked for several times is made once."""
        indices = [self._task_index(option) for option in options]
        wanted = sorted({index for index in indices if isinstance(index, int)})
        calls = [Call("generate", (*self._options.key, index), GENERATE_TIMEOUT_S) for index in wanted]
        items = dict(zip(wanted, self._pool.call_batch(calls), strict=True))
        return [
            index if isinstance(index, Exception) else self._first_state(index, items[index], option)
            for index, option in zip(indices, options, strict=True)
        ]

    def _task_index(self, options: dict[str, Any]) -> int | ValueError:
        index = options.get("task_index")
        if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(self):
            return index
        name = self._options.name
        return ValueError(f"task_index={index!r}: {name} with size={len(self)} has tasks 0 to {len(self) - 1}")

    def _first_state(
        self, index: int, outcome: Outcome, options: dict[str, Any]
    ) -> tuple[State, dict[str, Any]] | Exception:
        name = self._options.name
        if outcome.status is not Status.VALUE:
            return SandboxError(f"{name}: item {index} can't be made: {outcome.status}, {outcome.message}")
        entry = outcome.value
        expected = expected_answer(name, entry)
        if not isinstance(expected, str | None):
            expected = json.dumps(expected)
        state = State(
            observation=Observation(prompt=entry["question"]),
            hidden=ReasoningGymHidden(entry, expected, index, name),
            metadata=StateMetadata(step=0, episode_id=options.get("episode_id") or uuid.uuid4().hex),
        )
        return state, {"task_index": index, "dataset_name": name, "question": entry["question"]}

    def step(self, state: State, action: Action) -> StepResult:
        """Score the answer. Raises ScoringError where it can't be scored."""
        return _or_raise(self.step_batch([state], [action])[0])

    def step_batch(self, states: Sequence[State], actions: Sequence[Action]) -> list[StepResult | Exception]:
        """Many steps at once; a slot whose extraction, scoring or extra reward failed holds the error."""
        extractions = [self._extract(action) for action in actions]
        answers = [None if isinstance(found, Exception) else found[0] for found in extractions]
        scores = self._score_batch([state.hidden for state in states], answers)
        return [
            self._result(state, action, found, score)
            for state, action, found, score in zip(states, actions, extractions, scores, strict=True)
        ]

    def _extract(self, action: Action) -> Extraction | Exception:
        try:
            return self._extractor.extract(action.text or "")
        except Exception as error:  # the user's own code: it fails its trajectory only
            return error

    def _result(
        self, state: State, action: Action, extraction: Extraction | Exception, correctness: Signal | ScoringError
    ) -> StepResult | Exception:
        if isinstance(extraction, Exception):
            return extraction
        if isinstance(correctness, ScoringError):
            return correctness
        answer, how = extraction
        before = state.metadata
        after = StateMetadata(before.step + 1, before.episode_id, is_terminal=True, info=before.info)
        next_state = State(state.observation, state.hidden, after)
        found = float(answer is not None)
        format_ = Signal("format", RewardType.FORMAT, found, metadata={"extraction": how}, weight=0.0)
        try:
            extra = tuple(function.compute(state, action, next_state) for function in self._extra_rewards)
        except Exception as error:  # the user's own code: it fails its trajectory only
            return error
        return StepResult(
            next_state=next_state,
            rewards=SignalBundle((correctness, format_, *extra)),
            terminated=True,
            info={
                "extracted_answer": answer,
                "expected_answer": state.hidden.expected_answer,
                "extraction_metadata": how,
            },
            extracted_action=answer,
        )

    def compute_rewards(self, state: State, action: Action, next_state: State) -> SignalBundle:
        """The signals of a step; scores the answer as `step` does."""
        return self.step(state, action).rewards

    def _score_batch(
        self, tasks: Sequence[ReasoningGymHidden], answers: Sequence[str | None]
    ) -> list[Signal | ScoringError]:
        """The correctness signal of each answer, or why there is none."""
        signals: list[Signal | ScoringError] = [_unscored(answer) for answer in answers]
        sent = [i for i, answer in enumerate(answers) if answer is not None and len(answer) <= MAX_ANSWER_CHARS]
        calls = [self._score_call(tasks[i], answers[i]) for i in sent]
        for i, outcome in zip(sent, self._pool.call_batch(calls), strict=True):
            signals[i] = _correctness(outcome)
        return signals

    def _score_call(self, task: ReasoningGymHidden, answer: str | None) -> Call:
        shown = task.entry if task.entry["metadata"].get("source_dataset") in SCORED_AS_SHOWN else None
        return Call("score", (*self._options.key, task.task_index, answer, shown), self._score_timeout_s)


def _unscored(answer: str | None) -> Signal:
    reason = "no answer" if answer is None else f"answer of {len(answer):,} characters, over {MAX_ANSWER_CHARS:,}"
    return Signal("correctness", RewardType.OUTCOME, 0.0, metadata={"reason": reason})


def _correctness(outcome: Outcome) -> Signal | ScoringError:
    failure = outcome.failure()
    if failure is not None:
        return failure
    if outcome.status is Status.RAISED:
        error = f"{outcome.error_type}: {outcome.message}"
        return Signal("correctness", RewardType.OUTCOME, 0.0, metadata={"error": error})
    if outcome.value is not None and not isinstance(outcome.value, int | float):
        return ScoringError(f"the scorer returned {str(outcome.value)[:100]!r}, which is no number", "bad_reward")
    return Signal("correctness", RewardType.OUTCOME, None if outcome.value is None else float(outcome.value))


def _or_raise(result: Result | Exception) -> Result:
    if isinstance(result, Exception):
        raise result
    return result
