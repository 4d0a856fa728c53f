"""Environments with tools: what a call leads to, what an answer leads to, and the loop that runs both to the token."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llenvs_fast.core.environment import BatchEnvironment, Environment, EnvironmentSpec, StepResult
from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.core.extraction import BoxedExtractor, TagBasedExtractor
from llenvs_fast.core.registry import environment_registry
from llenvs_fast.core.reward import SignalBundle
from llenvs_fast.core.state import Action, ObservationContent, State
from llenvs_fast.core.tools import ToolCall, ToolDefinition, ToolParameter, ToolParameterType, ToolResultStatus
from llenvs_fast.environments.reasoning_gym.adapter import _answer_format
from llenvs_fast.environments.tools import TOOLS, Tool, ToolEnvironment, ToolError, make_tools
from llenvs_fast.environments.tools.calculator import MAX_DIGITS, evaluate
from llenvs_fast.environments.tools.environment import MAX_CALLS_A_STEP
from llenvs_fast.environments.tools.tool import MAX_RESULT_CHARS, problem_with
from llenvs_fast.evaluation import TrajectoryResult, TrajectoryRunner
from llenvs_fast.evaluation.setup import open_environment
from llenvs_fast.inference.backends import ScriptedBackend
from llenvs_fast.inference.protocol import GenerationRequest, SamplingParams
from tests.worlds import EchoWorld, FaultyWorld, LadderWorld, first_state, next_state


def call(name: str, id_: str = "call_0", **arguments: Any) -> ToolCall:
    return ToolCall(id_, name, arguments)


def calculate(expression: str, id_: str = "call_0") -> ToolCall:
    return call("calculator", id_, expression=expression)


def shout(word: str, times: int = 1) -> str:
    """Say it loud.

    Args:
        word: What to say.
        times: How often.
    """
    if word == "fire":
        raise LookupError("no fire here")
    if word == "home":
        sys.exit("gone home")
    return word.upper() * times


def give(answer: str) -> str:
    """Give the answer."""
    return answer


CALCULATOR = make_tools(["calculator"])
SHOUT = Tool.from_callable(shout)
GIVE = Tool.from_callable(give, is_terminal=True)


def world(*tools: Tool, inner: Environment | None = None, **options: Any) -> ToolEnvironment:
    return ToolEnvironment(inner or EchoWorld(), tools or CALCULATOR, **options)


def begin(environment: ToolEnvironment, task: int = 3) -> State:
    return environment.reset(options={"task_index": task, "episode_id": "e"})[0]


def contents(state: State) -> list[str]:
    return [m["content"] for m in state.observation.messages if m["role"] == "tool"]


# what is given -------------------------------------------------------------------------------------------------------


def test_the_environment_says_what_the_inner_one_says_and_its_tools() -> None:
    environment = world(*make_tools(["calculator", "submit_answer"]), max_steps=5)
    assert isinstance(environment, Environment)
    assert (environment.spec.name, environment.spec.max_steps, environment.spec.pure_step) == ("echo", 5, True)
    assert environment.spec.is_multi_turn
    assert environment.spec.metadata["tools"] == ["calculator", "submit_answer"]
    assert len(environment) == 10
    state = begin(environment)
    assert state.observation.available_tools == environment.available_tools
    assert [t.name for t in environment.available_tools] == ["calculator", "submit_answer"]
    assert (state.observation.prompt, state.hidden) == ("echo 3", 3)
    assert (state.metadata.step, state.metadata.episode_id) == (0, "e")


def test_the_definitions_are_what_models_are_trained_on() -> None:
    calculator, python = TOOLS["calculator"]().definition, TOOLS["python"]().definition
    assert calculator == ToolDefinition(
        "calculator",
        "Evaluate an arithmetic expression and return its value.",
        (ToolParameter("expression", ToolParameterType.STRING, "The expression to evaluate."),),
    )
    assert python == ToolDefinition(
        "python",
        "Run Python code and return what it prints.",
        (ToolParameter("code", ToolParameterType.STRING, "The code to run."),),
    )


def test_batches_exist_where_the_inner_environment_has_them() -> None:
    assert not isinstance(world(), BatchEnvironment)
    assert isinstance(world(inner=BatchWorld()), BatchEnvironment)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: world(inner=LadderWorld()), "ladder has max_steps=8: tools can be given to single-turn"),
        (lambda: world(inner=ArmedWorld()), "armed has tools of its own"),
        (lambda: world(SHOUT, SHOUT), "two tools are called 'shout'"),
        (lambda: ToolEnvironment(EchoWorld(), []), "tools is empty"),
        (lambda: world(max_steps=0), "max_steps=0: give 1 or more"),
        (lambda: make_tools("calculator"), r"tool_types='calculator': give a list of names, like \[\"calculator\"\]"),
        (lambda: make_tools([1]), r"tool_types=\[1\]: give a list of names"),
        (lambda: make_tools({"calculator": 1}), "give a list of names"),
        (lambda: make_tools(["calculater"]), "no tool 'calculater'; nearest: calculator"),
        (lambda: make_tools(["calculator"] * 2), "'calculator' is there twice"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_made(make: Any, message: str) -> None:
    with pytest.raises(InvalidSettingError, match=message):
        make()


class ArmedWorld(EchoWorld):
    available_tools = (GIVE.definition,)

    @property
    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec("armed", max_steps=1)


class BatchWorld(EchoWorld):
    """An EchoWorld that takes batches; task 5 can't be made and can't be judged."""

    batches = 0
    closed = False

    def reset_batch(self, options: list[dict[str, Any]]) -> list[Any]:
        return [ValueError("5") if o["task_index"] == 5 else self.reset(options=o) for o in options]

    def step_batch(self, states: list[State], actions: list[Action]) -> list[Any]:
        self.batches += 1
        assert all(state.metadata.step == 0 and not state.observation.messages for state in states)
        return [
            ValueError("4") if state.hidden == 4 else self.step(state, action)
            for state, action in zip(states, actions, strict=True)
        ]

    def close(self) -> None:
        self.closed = True


# steps ---------------------------------------------------------------------------------------------------------------


def test_a_call_leads_to_its_result_and_the_answer_to_the_inner_reward() -> None:
    environment = world()
    first = begin(environment)
    called = environment.step(first, Action("let me see", (calculate("1 + 2"),)))
    assert not called.done
    assert (called.rewards, called.rewards.total) == (SignalBundle.empty(), 0.0)
    assert called.info["tool_results"] == list(called.next_state.observation.tool_results)
    said = {"id": "call_0", "name": "calculator", "arguments": {"expression": "1 + 2"}}
    transcript = (
        {"role": "assistant", "content": "let me see", "tool_calls": [said]},
        {"role": "tool", "tool_call_id": "call_0", "name": "calculator", "content": "3"},
    )
    assert called.next_state.observation.messages == transcript
    assert called.next_state.observation.available_tools == first.observation.available_tools
    assert (called.next_state.metadata.step, called.next_state.metadata.is_terminal) == (1, False)
    answered = environment.step(called.next_state, Action.from_text("3"))
    assert (answered.terminated, answered.truncated, answered.rewards.total) == (True, False, 1.0)
    assert (answered.next_state.metadata.step, answered.next_state.metadata.is_terminal) == (2, True)
    assert answered.next_state.observation.messages == (*transcript, {"role": "assistant", "content": "3"})
    assert environment.step(first, Action.from_text("4")).rewards.total == 0.0


def test_calls_of_one_action_run_in_order_and_a_bad_one_costs_only_itself() -> None:
    environment = world(*CALCULATOR, SHOUT)
    calls = (calculate("1/0", "a"), call("shout", "b", word="hey", times=2), calculate("2*3", "c"))
    state = environment.step(begin(environment), Action.from_tool_calls(calls)).next_state
    assert contents(state) == ["Error: division by zero", "HEYHEY", "6"]
    assert [m["tool_call_id"] for m in state.observation.messages[1:]] == ["a", "b", "c"]
    statuses = [r.status for r in state.observation.tool_results]
    assert statuses == [ToolResultStatus.ERROR, ToolResultStatus.SUCCESS, ToolResultStatus.SUCCESS]


@pytest.mark.parametrize(
    ("bad", "content", "status"),
    [
        (call("calculater", expression="1"), "no tool 'calculater'; nearest: calculator", "invalid_tool"),
        (call("\ud800" * 999), "there is no tool '????", "invalid_tool"),
        (call("calculator"), "missing argument expression: calculator takes expression", "invalid_arguments"),
        (call("calculator", expression="1", x=1), "unknown argument x: calculator takes expression", None),
        (call("calculator", expression=2), "argument expression is 2: it must be of type string", "invalid_arguments"),
        (call("calculator", expression=None), "argument expression is None", "invalid_arguments"),
        (call("shout", word="a", times=True), "argument times is True: it must be of type integer", None),
        (call("shout", word="a", times=1.5), "argument times is 1.5: it must be of type integer", None),
        (call("shout", word="fire"), "LookupError: no fire here", "error"),
        (call("shout", word="home"), "SystemExit: gone home", "error"),
        (call("nothing"), "the tool gave a NoneType instead of text", "error"),
    ],
)
def test_what_is_wrong_with_a_call_goes_back_to_the_model(bad: ToolCall, content: str, status: str | None) -> None:
    nothing = Tool(ToolDefinition("nothing", ""), lambda arguments: None)  # type: ignore[arg-type, return-value]
    environment = world(*CALCULATOR, SHOUT, nothing)
    result = environment.step(begin(environment), Action.from_tool_call(bad))
    assert not result.done
    assert contents(result.next_state)[0].startswith("Error: ")
    assert content in contents(result.next_state)[0]
    assert len(contents(result.next_state)[0]) < 300
    assert result.info["tool_results"][0].status == (status or "invalid_arguments")


def test_deep_and_strange_arguments_are_refused_like_others() -> None:
    deep: Any = 1
    for _ in range(900):
        deep = [deep]
    assert problem_with({"expression": deep}, CALCULATOR[0].definition) is not None
    lists = ToolDefinition.from_callable(lambda items: "", name="f")
    raw = ToolDefinition("f", "", raw_schema={"type": "object", "properties": {"n": {"enum": [1, 2]}}})
    assert problem_with({"items": deep}, lists) is not None
    assert problem_with({"n": 1, "more": deep}, raw) is None
    assert problem_with({"n": 3}, raw) == "argument n is 3: it must be one of 1, 2"


def test_long_and_broken_results_are_cut_and_mended() -> None:
    environment = world(SHOUT)
    calls = (call("shout", word="a", times=MAX_RESULT_CHARS + 7), call("shout", "b", word="a\ud800"))
    long, broken = contents(environment.step(begin(environment), Action.from_tool_calls(calls)).next_state)
    assert long == "A" * MAX_RESULT_CHARS + "\n[cut: 7 more characters]"
    assert broken == "A?"


def test_only_so_many_calls_are_made_at_once() -> None:
    made: list[str] = []
    tool = Tool(SHOUT.definition, lambda arguments: made.append(arguments["word"]) or "ok")
    environment = world(tool)
    calls = [call("shout", f"call_{i}", word=str(i)) for i in range(MAX_CALLS_A_STEP + 3)]
    results = environment.step(begin(environment), Action.from_tool_calls(calls)).info["tool_results"]
    assert made == [str(i) for i in range(MAX_CALLS_A_STEP)]
    assert [r.is_error for r in results] == [False] * MAX_CALLS_A_STEP + [True] * 3


def test_the_output_of_a_terminal_tool_is_the_answer() -> None:
    environment = world(GIVE, *CALCULATOR, answer_format=str.strip)
    calls = (calculate("1+2", "a"), call("give", "b", answer=" 3 "), calculate("4", "c"))
    result = environment.step(begin(environment), Action.from_tool_calls(calls))
    assert (result.terminated, result.rewards.total) == (True, 1.0)
    assert contents(result.next_state) == ["3", " 3 "]  # what comes after the answer is not called
    assert result.info["tool_results"][1].tool_name == "give"
    wrong = environment.step(begin(environment), Action.from_tool_call(call("give", answer=3)))
    assert not wrong.done


def test_an_answer_that_cannot_be_written_goes_back_to_the_model() -> None:
    environment = world(GIVE, answer_format=lambda answer: str(int(answer)))
    result = environment.step(begin(environment), Action.from_tool_call(call("give", answer="three")))
    assert not result.done
    assert "not taken: invalid literal" in contents(result.next_state)[0]


def test_on_the_last_step_the_text_is_judged_and_calls_are_not_made() -> None:
    environment = world(SHOUT, GIVE, max_steps=2, answer_format=str)
    second = environment.step(begin(environment), Action.from_tool_call(call("shout", word="a"))).next_state
    ended = environment.step(second, Action("3", (call("shout", word="fire"),)))
    assert (ended.terminated, ended.truncated, ended.rewards.total) == (False, True, 1.0)
    assert "this was the last of 2 steps" in contents(ended.next_state)[-1]
    assert environment.step(second, Action(None, (call("shout", word="a"),))).rewards.total == 0.0
    assert environment.step(second, Action.from_tool_call(call("give", answer="3"))).terminated
    assert environment.step(second, Action.from_text("3")).terminated


def test_an_inner_environment_that_does_not_end_by_itself_is_ended() -> None:
    def goes_on(state: State, action: Action) -> StepResult:
        return StepResult(next_state(state, terminal=False), SignalBundle.single(0.5))

    environment = world(inner=FaultyWorld(steps={3: goes_on}))
    result = environment.step(begin(environment), Action.from_text("3"))
    assert (result.terminated, result.truncated, result.rewards.total) == (False, True, 0.5)


def test_what_the_inner_environment_raises_is_raised() -> None:
    environment = world(inner=FaultyWorld(steps={3: ZeroDivisionError("inner")}, resets={2: KeyError("two")}))
    with pytest.raises(ZeroDivisionError, match="inner"):
        environment.step(begin(environment), Action.from_text("3"))
    with pytest.raises(KeyError, match="two"):
        begin(environment, 2)
    with pytest.raises(TypeError, match="a State is no state of an environment with tools"):
        environment.step(EchoWorld().reset(options={"task_index": 3})[0], Action.from_text("3"))


def test_batches_give_what_steps_give_and_a_failed_slot_holds_its_error() -> None:
    inner = BatchWorld()
    environment = world(*CALCULATOR, SHOUT, inner=inner)
    *made, failed = environment.reset_batch([{"task_index": i, "episode_id": "e"} for i in range(6)])
    assert isinstance(failed, ValueError)
    states = [state for state, _ in made]
    actions = [
        Action.from_text("0"),
        Action.from_tool_calls([calculate("1+1", "a"), call("shout", "b", word="x"), calculate("3", "c")]),
        Action.from_text("no"),
        Action.from_tool_calls([call("shout", "a", word="y"), calculate("2+2", "b")]),
        Action.from_text("4"),
    ]
    results = environment.step_batch(states, actions)
    assert isinstance(results[4], ValueError)
    assert results[:4] == [environment.step(s, a) for s, a in zip(states[:4], actions[:4], strict=True)]
    assert inner.batches == 1
    environment.close()
    assert inner.closed


def test_a_tool_with_batches_gets_the_calls_of_many_at_once_and_may_fail_at_them() -> None:
    sizes: list[int] = []

    def batch(arguments: Any) -> list[str | Exception]:
        sizes.append(len(arguments))
        if any(a["word"] == "boom" for a in arguments):
            raise OSError("down")
        return [ToolError("quiet") if a["word"] == "hush" else a["word"] for a in arguments]

    closed: list[int] = []
    tool = Tool(SHOUT.definition, shout, batch, lambda: closed.append(1))
    environment = world(tool, inner=BatchWorld())
    words = ["a", "hush", "c"]
    actions = [Action.from_tool_call(call("shout", word=word)) for word in words]
    results = environment.step_batch([begin(environment, i) for i in range(3)], actions)
    assert [contents(r.next_state) for r in results] == [["a"], ["Error: quiet"], ["c"]]
    actions[0] = Action.from_tool_call(call("shout", word="boom"))
    results = environment.step_batch([begin(environment, i) for i in range(3)], actions)
    assert [contents(r.next_state) for r in results] == [["Error: OSError: down"]] * 3
    assert sizes == [3, 3]
    environment.close()
    assert closed == [1]


def test_a_structured_observation_becomes_a_prompt() -> None:
    class Structured(EchoWorld):
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[State, dict[str, Any]]:
            parts = {"task": ObservationContent("the task"), "state": ObservationContent("the board")}
            return first_state("", 0, options, **parts), {}

    assert begin(world(inner=Structured())).observation.prompt == "the task\n\nthe board"


# the calculator ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 + 3", "5"),
        ("6/3", "2"),
        ("7/2", "3.5"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("2**10", "1024"),
        ("2**-1", "0.5"),
        ("2**3**2", "512"),
        ("-2**2", "-4"),
        ("(1 + 2) * (3 - 4.5)", "-4.5"),
        ("0.1 + 0.2", "0.30000000000000004"),
        ("2.5 * 2", "5"),
        ("-0.0", "0"),
        ("1e3", "1000"),
        ("1e300", "1e+300"),
        ("10**30 / 10**5", "1" + 25 * "0"),
        ("10**400 / 10**399", "10"),
        (" 1 +\n 2 ", "3"),
        ("1" + "+1" * 499, "500"),
        ("(" * 60 + "1" + "+1)" * 60, "61"),
        ("2**3000 % 7", "1"),
        ("1**(10**500)", "1"),
    ],
)
def test_the_calculator_gives_values(expression: str, value: str) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("1/0", "division by zero"),
        ("5 % 0.0", "division by zero"),
        ("0**-1", "division by zero"),
        ("9**9**9", "more than 1,000 digits"),
        ("9**9**9**9**9", "more than 1,000 digits"),
        ("*".join(["10**900"] * 9), "more than 1,000 digits"),
        ("1e308 * 10", "too large"),
        ("1e999", "too large"),
        ("10.0**999", "too large"),
        ("10**900 * 0.5", "too large"),
        ("(-8)**0.5", "a negative number can't be raised"),
        ("2 +", "can't read the expression"),
        ("", "can't read the expression"),
        ("1 2", "can't read the expression"),
        ("(" * 400 + "1" + ")" * 400, "can't read|nested"),
        ("1+(" * 90 + "1" + ")" * 90, "nested more than 50 deep"),
        ("-" * 999 + "1", "nested"),
        ("1" * 1001, "the expression has 1,001 characters"),
        ("9" * 1000, "more than 1,000 digits"),
        ("__import__('os')", "can't read 'i'"),
        ("x + 1", "can't read 'x'"),
        ("1j", "can't read 'j'"),
        ("2 ^ 3", "can't read '^'"),
        ("1 == 1", "can't read '='"),
        ("e", "is no arithmetic"),
        ("e(" * 180 + ")" * 180, "is no arithmetic"),
        ("...", "is no arithmetic"),
        ("(1)(2)", "is no arithmetic"),
        ("()", "is no arithmetic"),
        ("5" + "\0", "can't read"),
        ("\ud800", "can't read"),
        ("٣", "can't read"),
    ],
)
def test_the_calculator_says_what_it_cannot_do(expression: str, message: str) -> None:
    with pytest.raises(ToolError) as caught:
        evaluate(expression)
    assert any(part in str(caught.value) for part in message.split("|"))


def expressions() -> st.SearchStrategy[str]:
    leaves = st.integers(0, 10**6).map(str)
    operators = st.sampled_from(["+", "-", "*", "//", "%"])

    def joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        binary = st.tuples(inner, operators, inner).map(lambda t: f"{t[0]} {t[1]} {t[2]}")
        return binary | binary.map("({})".format) | inner.map("-({})".format)

    return st.recursive(leaves, joined, max_leaves=12)


@given(expressions())
def test_the_calculator_agrees_with_python_on_whole_numbers(expression: str) -> None:
    try:
        expected = str(eval(expression))
    except ZeroDivisionError:
        with pytest.raises(ToolError, match="division by zero"):
            evaluate(expression)
        return
    assert evaluate(expression) == expected


@given(st.integers(-(10**200), 10**200), st.integers(1, 10**200))
def test_a_quotient_that_comes_out_whole_is_exact(a: int, b: int) -> None:
    assert evaluate(f"{a * b} / {b}") == str(a)


@given(st.text("0123456789.+-*/%()eE_ \n", max_size=60))
def test_whatever_is_written_the_calculator_gives_a_short_text_or_says_no(expression: str) -> None:
    try:
        said = evaluate(expression)
    except ToolError as error:
        said = str(error)
    assert 0 < len(said) <= MAX_DIGITS + 1


# in the loop ---------------------------------------------------------------------------------------------------------


def run_script(environment: Environment, replies: list[Any], max_tokens: int = 400) -> TrajectoryResult:
    backend = ScriptedBackend.with_byte_tokens(replies)
    return TrajectoryRunner(environment, backend, SamplingParams(max_tokens=max_tokens)).run_trajectory(0)


def hermes(expression: str) -> str:
    arguments = {"name": "calculator", "arguments": {"expression": expression}}
    return f"<tool_call>\n{json.dumps(arguments)}\n</tool_call>"


def text_of(ids: Any) -> str:
    return bytes(i for i in ids if i < 256).decode()


def check_tokens(result: TrajectoryResult) -> None:
    """Every prompt after the first is the one before and what was sampled after it, bit for bit, and something new."""
    for before, after in zip(result.turns, result.turns[1:], strict=False):
        assert before.prompt_ids is not None
        assert before.token_ids is not None
        kept = before.prompt_ids + before.token_ids
        assert after.prompt_ids is not None
        assert after.prompt_ids[: len(kept)] == kept
        assert len(after.prompt_ids) > len(kept)
        assert after.lost_tokens == 0


@pytest.fixture(scope="module")
def chain_sum() -> Environment:
    if find_spec("reasoning_gym") is None or not sys.platform.startswith("linux"):
        pytest.skip("needs reasoning-gym and Linux")
    return environment_registry.get("chain_sum", "reasoning_gym", tool_types=("calculator",), seed=7)


def test_a_task_is_solved_with_a_tool_to_the_token(chain_sum: Environment) -> None:
    state = chain_sum.reset(options={"task_index": 0})[0]
    expression, answer = state.hidden.entry["metadata"]["expression"], state.hidden.expected_answer
    result = run_script(chain_sum, [hermes(expression), f"<answer>{answer}</answer>"])
    check_tokens(result)
    assert (result.success, result.total_reward, len(result.turns)) == (True, 1.0, 2)
    first, second = (text_of(turn.prompt_ids) for turn in result.turns)
    assert '"name": "calculator"' in first
    assert f"tool\n{answer}" in second[len(first) :]
    assert result.trajectory is not None
    assert result.trajectory.transitions[0].action.tool_calls == (calculate(expression),)
    assert result.trajectory.transitions[0].info["generation"]["num_tool_calls"] == 1


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("<tool_call>calculator(2 + 3)</tool_call>", "is no JSON"),
        ('<tool_call>{"name": "calculator"}</tool_call>', 'its "arguments" are null'),
        ("<tool_call>[1, 2]</tool_call>", "is a JSON list, not an object"),
        ('<tool_call>{"name": "calculator", "arguments": {"expression": "2', "no closing </tool_call>"),
    ],
)
@pytest.mark.parametrize("max_tokens", [60, 400])
def test_a_call_that_cannot_be_read_goes_back_to_the_model(reply: str, why: str, max_tokens: int) -> None:
    result = run_script(world(inner=EchoWorld(prompt="{i}")), [reply, "0"], max_tokens)
    check_tokens(result)
    assert (result.success, len(result.turns)) == (True, 2)
    first, second = (text_of(turn.prompt_ids) for turn in result.turns)
    assert "tool\nError: tool call 0 can't be read" in second[len(first) :]
    assert why in second[len(first) :]
    assert result.trajectory is not None
    assert len(result.trajectory.transitions[0].action.tool_call_errors) == 1
    assert result.trajectory.transitions[0].rewards == SignalBundle.empty()


def test_readable_and_unreadable_calls_of_one_reply_each_have_a_result() -> None:
    result = run_script(world(), ["<tool_call>{</tool_call>" + hermes("1+1"), hermes("\ud800"), "0"])
    check_tokens(result)
    assert result.success
    assert result.trajectory is not None
    results = result.trajectory.transitions[0].next_state.observation.tool_results
    assert [(r.call_id, r.is_success) for r in results] == [("call_1", True), ("unread_0", False)]


def test_a_model_that_never_answers_ends_truncated_and_scored() -> None:
    result = run_script(world(max_steps=3), [hermes("1+1")])
    check_tokens(result)
    assert (len(result.turns), result.success, result.total_reward) == (3, False, 0.0)
    assert result.trajectory is not None
    assert result.trajectory.transitions[-1].rewards.by_name("correctness") is not None


def test_many_trajectories_with_and_without_calls_at_once() -> None:
    def script(request: GenerationRequest) -> str:
        assert request.messages is not None
        assert [t.name for t in request.tools] == ["calculator"]
        if request.messages[-1].role == "tool":
            return request.messages[-1].content or ""
        number = int((request.messages[-1].content or "").removeprefix("echo "))
        return hermes(f"{number} + 0") if number % 2 else str(number)

    backend = ScriptedBackend.with_byte_tokens(script)
    batch = TrajectoryRunner(world(inner=EchoWorld(200)), backend, SamplingParams(max_tokens=400)).run_batch(range(200))
    assert batch.success_rate == 1.0
    assert [len(r.turns) for r in batch.trajectory_results] == [1, 2] * 100
    assert batch.report is not None
    assert batch.report.reuse_lost_tokens == 0


# by name -------------------------------------------------------------------------------------------------------------


def test_options_from_json_give_tools(chain_sum: Environment) -> None:
    environment = open_environment("chain_sum", json.loads('{"tool_types": ["calculator", "submit_answer"]}'))
    state = environment.reset(options={"task_index": 1})[0]
    answer = call("submit_answer", answer=state.hidden.expected_answer)
    result = environment.step(state, Action.from_tool_call(answer))
    assert (result.terminated, result.rewards.total) == (True, 1.0)
    assert result.extracted_action == state.hidden.expected_answer
    assert environment.prompts == chain_sum.prompts
    with pytest.raises(InvalidSettingError, match=r"tool_types='calculator': give a list of names, like \[.calc"):
        open_environment("chain_sum", json.loads('{"tool_types": "calculator"}'))
    with pytest.raises(InvalidSettingError, match="no tool 'pythn'; nearest: python"):
        open_environment("chain_sum", {"tool_types": ["pythn"]})
    assert not isinstance(open_environment("chain_sum", {"tool_types": []}), ToolEnvironment)


@pytest.mark.parametrize("extractor", [TagBasedExtractor(), TagBasedExtractor("final"), BoxedExtractor()])
@given(answer=st.text("ab 1{}\\-", min_size=1).filter(str.strip))
def test_a_submitted_answer_is_written_as_the_extractor_reads_it(extractor: Any, answer: str) -> None:
    if isinstance(extractor, BoxedExtractor):
        answer = answer.translate(dict.fromkeys(map(ord, "{}\\"))) or "1"
    assert extractor.extract(_answer_format(extractor)(answer))[0] == (answer.strip() or None)
