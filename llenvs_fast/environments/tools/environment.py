"""Any single-turn environment with tools: calls are turns, and the reply without a call is the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llenvs_fast.core.environment import Environment, EnvironmentSpec, StepResult
from llenvs_fast.core.errors import InvalidSettingError, describe, nearest
from llenvs_fast.core.reward import RewardFunction, SignalBundle
from llenvs_fast.core.state import Action, Observation, State
from llenvs_fast.core.tools import ToolCall, ToolDefinition, ToolResult, ToolResultStatus
from llenvs_fast.environments.tools.tool import Tool, by_name, result_text, shown

MAX_CALLS_A_STEP = 16


@dataclass(frozen=True, slots=True)
class ToolState(State):
    """What the model sees now, and the state of the environment inside, which only an answer moves.

    `hidden` is the inner one, so reward functions of the inner environment read both alike.
    """

    inner: State


@dataclass(slots=True)
class _Turn:
    """One action on its way: the results of its calls so far, and what the inner environment is to judge, if any."""

    state: ToolState
    action: Action
    is_last: bool
    results: list[ToolResult] = field(default_factory=list)
    answer: Action | None = None
    ran_out: bool = False


class ToolEnvironment:
    """`inner`, whose episodes are one step, with tools.

    A step whose action calls tools makes the calls in order; the observation grows by what the model said and one tool
    message for each call, and there is no reward. A call that fails, or can't even be read, has an error as its result.
    Any other step is the answer, which the inner environment judges as if it had been the only one; so is the output
    of a terminal tool, in the form that `answer_format` gives it. On the last of `max_steps` steps other calls are not
    made: what text there is counts as the answer, and the episode ends truncated.
    """

    def __init__(
        self,
        inner: Environment,
        tools: Sequence[Tool],
        max_steps: int = 8,
        answer_format: Callable[[str], str] = "<answer>{}</answer>".format,
    ) -> None:
        if inner.spec.max_steps != 1 or inner.available_tools:
            what = "has tools of its own" if inner.available_tools else f"has max_steps={inner.spec.max_steps}"
            raise InvalidSettingError(f"{inner.spec.name} {what}: tools can be given to single-turn environments only")
        if not isinstance(max_steps, int) or isinstance(max_steps, bool) or max_steps < 1:
            raise InvalidSettingError(f"max_steps={max_steps!r}: give 1 or more")
        self.inner = inner
        self._tools = by_name(tools)
        self._answer_format = answer_format
        metadata = inner.spec.metadata | {"tools": list(self._tools)}
        self._spec = replace(inner.spec, is_multi_turn=True, max_steps=max_steps, metadata=metadata)
        if hasattr(inner, "reset_batch"):  # without them, calls go one by one to many threads
            self.reset_batch = self._reset_batch
        if hasattr(inner, "step_batch"):
            self.step_batch = self._step_batch

    @property
    def spec(self) -> EnvironmentSpec:
        return self._spec

    @property
    def reward_functions(self) -> tuple[RewardFunction, ...]:
        return self.inner.reward_functions

    @property
    def available_tools(self) -> tuple[ToolDefinition, ...]:
        return tuple(tool.definition for tool in self._tools.values())

    @property
    def prompts(self) -> dict[str, str]:
        return self.inner.prompts

    def __len__(self) -> int:
        return len(self.inner)  # type: ignore[arg-type]

    def close(self) -> None:
        """Close the tools and the inner environment."""
        for tool in self._tools.values():
            if tool.close is not None:
                tool.close()
        if hasattr(self.inner, "close"):
            self.inner.close()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[State, dict[str, Any]]:
        state, info = self.inner.reset(seed=seed, options=options)
        return self._first_state(state), info

    def _reset_batch(self, options: Sequence[dict[str, Any]]) -> list[tuple[State, dict[str, Any]] | Exception]:
        made = self.inner.reset_batch(options)  # type: ignore[attr-defined]
        return [one if isinstance(one, Exception) else (self._first_state(one[0]), one[1]) for one in made]

    def _first_state(self, state: State) -> ToolState:
        observation = replace(_told(state.observation), available_tools=self.available_tools)
        return ToolState(observation, state.hidden, state.metadata, inner=state)

    def step(self, state: State, action: Action) -> StepResult:
        """Run the action's calls, or have it judged. Raises what the inner environment raises, never for a call."""
        result = self._step_batch([state], [action])[0]
        if isinstance(result, Exception):
            raise result
        return result

    def compute_rewards(self, state: State, action: Action, next_state: State) -> SignalBundle:
        """The signals of a step; judges the answer, and runs the calls, as `step` does."""
        return self.step(state, action).rewards

    def _step_batch(self, states: Sequence[State], actions: Sequence[Action]) -> list[StepResult | Exception]:
        turns = [self._turn(state, action) for state, action in zip(states, actions, strict=True)]
        self._call_tools(turns)
        for turn in turns:
            if turn.is_last and turn.answer is None:
                turn.answer, turn.ran_out = Action.from_text(turn.action.text or ""), True
        judged = iter(self._judge([turn for turn in turns if turn.answer is not None]))
        return [_gone_on(turn) if turn.answer is None else _ended(turn, next(judged)) for turn in turns]

    def _turn(self, state: State, action: Action) -> _Turn:
        if not isinstance(state, ToolState):
            raise TypeError(f"a {type(state).__name__} is no state of an environment with tools: begin with its reset")
        if not action.tool_calls and not action.tool_call_errors:
            return _Turn(state, action, is_last=False, answer=action)
        assert self._spec.max_steps is not None
        return _Turn(state, action, is_last=state.metadata.step + 1 >= self._spec.max_steps)

    def _judge(self, turns: Sequence[_Turn]) -> Sequence[StepResult | Exception]:
        states, actions = [turn.state.inner for turn in turns], [turn.answer for turn in turns]
        if len(turns) > 1 and hasattr(self.inner, "step_batch"):
            many: Sequence[StepResult | Exception] = self.inner.step_batch(states, actions)
            return many
        return [self._judge_one(state, action) for state, action in zip(states, actions, strict=True)]

    def _judge_one(self, state: State, action: Action | None) -> StepResult | Exception:
        assert action is not None
        try:
            return self.inner.step(state, action)
        except Exception as error:
            return error

    # calls ----------------------------------------------------------------------------------------------------------

    def _call_tools(self, turns: Sequence[_Turn]) -> None:
        """The first calls of all turns together, then the second ones: those of one turn are made in order."""
        for n in range(max((len(turn.action.tool_calls) for turn in turns), default=0)):
            due = [turn for turn in turns if turn.answer is None and n < len(turn.action.tool_calls)]
            calls = [turn.action.tool_calls[n] for turn in due]
            refused = [self._refusal(turn, call, n) for turn, call in zip(due, calls, strict=True)]
            ran = iter(self._run([call for call, no in zip(calls, refused, strict=True) if no is None]))
            for turn, no in zip(due, refused, strict=True):
                turn.results.append(next(ran) if no is None else no)
                self._submit(turn)
        for turn in turns:
            errors = enumerate(turn.action.tool_call_errors[:MAX_CALLS_A_STEP])
            turn.results += [ToolResult.from_error(f"unread_{n}", "", shown(error)) for n, error in errors]

    def _refusal(self, turn: _Turn, call: ToolCall, n: int) -> ToolResult | None:
        """Why a call is not made."""
        name = shown(call.name, 100)
        if call.name not in self._tools:
            message = f"there is no tool {name!r}; {nearest(name, self._tools)}"
            return ToolResult.from_error(call.id, name, message, ToolResultStatus.INVALID_TOOL)
        if n >= MAX_CALLS_A_STEP:
            return ToolResult.from_error(call.id, name, f"not called: {MAX_CALLS_A_STEP} calls are made at once")
        if turn.is_last and not self._tools[call.name].definition.is_terminal:
            message = f"not called: this was the last of {self._spec.max_steps} steps"
            return ToolResult.from_error(call.id, name, message)
        return None

    def _run(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """The results of calls to known tools, in their order; the calls to one tool go to it together."""
        results: dict[int, ToolResult] = {}
        for name in dict.fromkeys(call.name for call in calls):
            places = [i for i, call in enumerate(calls) if call.name == name]
            results |= zip(places, self._tools[name].call_batch([calls[i] for i in places]), strict=True)
        return [results[i] for i in range(len(calls))]

    def _submit(self, turn: _Turn) -> None:
        """Where the last call was to a terminal tool, its output is the answer."""
        result = turn.results[-1]
        if result.is_error or not self._tools[result.tool_name].definition.is_terminal:
            return
        try:
            turn.answer = Action.from_text(self._answer_format(str(result.output)))
        except Exception as error:  # the user's own code
            turn.results[-1] = ToolResult.from_error(result.call_id, result.tool_name, f"not taken: {describe(error)}")


def _told(observation: Observation) -> Observation:
    """The observation in the form that a transcript with tools has: what it asks stands in `prompt`."""
    if observation.prompt or observation.task is None:
        return observation
    parts = [part for part in (observation.task, observation.state) if part is not None]
    prompt = "\n\n".join(part.text for part in parts if part.text)
    return replace(observation, prompt=prompt, images=tuple(image for part in parts for image in part.images))


def _gone_on(turn: _Turn) -> StepResult:
    next_state = _after(turn, turn.state.inner, turn.state.metadata.is_terminal)
    return StepResult(next_state, SignalBundle.empty(), info={"tool_results": list(turn.results)})


def _ended(turn: _Turn, judged: StepResult | Exception) -> StepResult | Exception:
    """The inner result as the end of the whole episode, which is truncated where the steps ran out."""
    if isinstance(judged, Exception):
        return judged
    is_over = not turn.ran_out and (judged.terminated or judged.next_state.metadata.is_terminal)
    return replace(
        judged,
        next_state=_after(turn, judged.next_state, is_terminal=is_over),
        terminated=is_over,
        truncated=judged.truncated or not is_over,
        info=judged.info | ({"tool_results": list(turn.results)} if turn.results else {}),
    )


def _after(turn: _Turn, inner: State, is_terminal: bool) -> ToolState:
    """The next state: one step on, with all that was said."""
    before, action = turn.state, turn.action
    said: dict[str, Any] = {"role": "assistant", "content": action.text}
    if action.tool_calls:
        said["tool_calls"] = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in action.tool_calls]
    heard = [_tool_message(result) for result in turn.results]
    observation = replace(
        before.observation,
        messages=(*before.observation.messages, said, *heard),
        tool_results=tuple(turn.results),
    )
    metadata = replace(inner.metadata, step=before.metadata.step + 1, is_terminal=is_terminal)
    return ToolState(observation, inner.hidden, metadata, inner=inner)


def _tool_message(result: ToolResult) -> dict[str, Any]:
    message = {"role": "tool", "tool_call_id": result.call_id, "content": result_text(result)}
    return message | ({"name": result.tool_name} if result.tool_name else {})
