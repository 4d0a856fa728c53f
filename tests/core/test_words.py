"""The words: signals and their bundles, trajectories, registries, errors, seeds."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llenvs_fast.core import FormatReward, RewardType, Signal, SignalBundle, StepPenalty, ToolDefinition, Trajectory
from llenvs_fast.core.errors import Failure, Phase, ScoringError, UnknownAdapterError, nearest
from llenvs_fast.core.extraction import TagBasedExtractor
from llenvs_fast.core.registry import EnvironmentRegistry, Registry, environment_registry
from llenvs_fast.core.seeds import derive_seed
from llenvs_fast.core.state import Action
from llenvs_fast.core.trajectory import Transition
from tests.worlds import EchoWorld, LadderWorld

BUNDLE = SignalBundle(
    (
        Signal("correctness", RewardType.OUTCOME, 1.0, weight=2.0),
        Signal("format", RewardType.FORMAT, 0.5),
        Signal("note", RewardType.PROCESS, feedback="shorter"),
    )
)


def test_a_bundle_is_read_as_the_guide_reads_it() -> None:
    assert BUNDLE.total == 2.5
    assert [s.name for s in BUNDLE.by_type(RewardType.OUTCOME)] == ["correctness"]
    assert BUNDLE.by_name("format").reward == BUNDLE.by_name("format").value == 0.5  # type: ignore[union-attr]
    assert BUNDLE.by_name("none") is None
    assert [s.name for s in BUNDLE.numeric_signals()] == ["correctness", "format"]
    assert BUNDLE.feedback_texts() == ("shorter",)
    assert SignalBundle.empty().total == 0.0
    assert SignalBundle.single(0.25).by_name("reward").reward_type is RewardType.OUTCOME  # type: ignore[union-attr]


def test_a_step_penalty_is_a_negative_reward_of_its_weight() -> None:
    world = EchoWorld()
    state, _ = world.reset(options={"task_index": 0})
    after = world.step(state, Action.from_text("0")).next_state
    signal = StepPenalty(penalty=0.25).compute(state, Action.from_text("0"), after)
    assert (signal.name, signal.reward_type, signal.reward) == ("step_penalty", RewardType.STEP, -0.25)
    assert (signal.weight, signal.metadata) == (1.0, {"step": 1})
    assert StepPenalty().penalty == 0.1


def test_a_format_reward_says_whether_there_is_an_answer() -> None:
    world = EchoWorld()
    state, _ = world.reset(options={"task_index": 0})
    reward = FormatReward(TagBasedExtractor())
    assert reward.compute(state, Action.from_text("<answer>1</answer>"), state).reward == 1.0
    assert reward.compute(state, Action.from_text("1"), state).reward == 0.0


def test_a_trajectory_branches_at_its_checkpoints() -> None:
    world = LadderWorld(turns=3)
    state, _ = world.reset(options={"task_index": 0})
    trajectory = Trajectory.create(state)
    for _ in range(3):
        action = Action.from_text("rung 0")
        result = world.step(trajectory.current_state, action)
        trajectory.add_transition(Transition(trajectory.current_state, action, result.next_state, result.rewards))
        if len(trajectory) == 1:
            trajectory.checkpoint("early")
    branch = trajectory.branch("early")
    assert (len(trajectory), len(branch)) == (3, 1)
    assert branch.parent_id == trajectory.episode_id != branch.episode_id
    assert trajectory.state_at(0) is state
    assert trajectory.state_at(3) is trajectory.current_state
    assert trajectory.is_terminal
    with pytest.raises(ValueError, match="checkpoint 'early' exists already"):
        trajectory.checkpoint("early")
    with pytest.raises(KeyError, match="no checkpoint 'late'"):
        trajectory.branch("late")
    for index in (-1, 4):
        with pytest.raises(IndexError, match="use 0 to 3"):
            trajectory.state_at(index)


def test_a_registry_makes_keeps_and_names_the_nearest() -> None:
    registry: Registry[list] = Registry("lists")
    registry.register("plain", list)

    @registry.register("full")
    def full(of: int = 0) -> list:
        return [of]

    assert registry.get("plain") is registry.get("plain")
    assert registry.create("plain") is not registry.get("plain")
    assert registry.get("full", of=2) == [2]
    assert registry.get("full") == [0]
    assert list(registry) == ["full", "plain"]
    with pytest.raises(KeyError, match="nearest: plain"):
        registry.get("plian")
    with pytest.raises(ValueError, match="'plain' is registered already"):
        registry.register("plain", list)


def test_an_adapter_of_ones_own_is_found_by_its_name() -> None:
    class Echo:
        name = "mine"

        def list_environments(self) -> list[str]:
            return ["echo"]

        def get_environment(self, name: str, size: int = 3) -> EchoWorld:
            return EchoWorld(size)

        def get_environment_info(self, name: str) -> dict:
            return {}

    registry = EnvironmentRegistry()
    registry.register_adapter(Echo())  # type: ignore[arg-type]
    assert len(registry.get(name="echo", adapter="mine", size=7)) == 7  # type: ignore[arg-type]
    assert ("mine", "echo") in registry
    assert registry.list_environments() == [("mine", "echo")]
    with pytest.raises(ValueError, match="registered already"):
        registry.register_adapter(Echo())  # type: ignore[arg-type]
    registry.unregister_adapter("mine")
    with pytest.raises(UnknownAdapterError, match="no environment source 'mine'; none exist"):
        registry.get(name="echo", adapter="mine")
    with pytest.raises(KeyError, match="no environment source 'reasoning-gym'; nearest: reasoning_gym"):
        environment_registry.get(name="leg_counting", adapter="reasoning-gym")


def test_an_error_names_the_nearest_or_all() -> None:
    assert nearest("leg_countin", ["leg_counting", "chain_sum"]) == "nearest: leg_counting"
    assert nearest("zzz", ["b", "a"]) == "known: a, b"
    assert nearest("zzz", [f"n{i:02}" for i in range(30)]).endswith("(30 in all)")


def test_a_failure_has_a_traceback_for_strangers_only() -> None:
    ours = Failure.from_exception(ScoringError("too slow", "score_timeout"), Phase.STEP, 2)
    assert (ours.kind, ours.message, ours.traceback) == ("score_timeout", "too slow", None)
    theirs = Failure.from_exception(ValueError(), Phase.RESET, 0)
    assert (theirs.kind, theirs.message) == ("reset_error", "ValueError")
    assert theirs.traceback is not None


def test_an_error_that_can_not_say_what_it_is_is_still_a_failure() -> None:
    class MuteError(ValueError):
        def __str__(self) -> str:
            raise ZeroDivisionError

    assert Failure.from_exception(MuteError(), Phase.STEP, 0).message == "MuteError"


def test_errors_survive_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(ScoringError("too slow", "score_timeout")))
    assert (str(error), error.kind) == ("too slow", "score_timeout")


@given(st.integers(), st.one_of(st.integers(), st.text()), st.integers(0, 10**6), st.integers(0, 10**4))
def test_a_seed_is_one_that_torch_takes_and_depends_on_everything(
    run: int, task: int | str, sample: int, turn: int
) -> None:
    seed = derive_seed(run, task, sample, turn)
    assert 0 <= seed < 2**63
    assert seed == derive_seed(run, task, sample, turn)
    others = {derive_seed(run + 1, task, sample, turn), derive_seed(run, task, sample + 1, turn)}
    others |= {derive_seed(run, task, sample, turn + 1), derive_seed(run, (task, 0), sample, turn)}  # type: ignore[arg-type]
    assert seed not in others


def test_a_tool_is_read_off_a_function() -> None:
    def search(query: str, limit: int = 5) -> str:
        """Search the web.

        Args:
            query: What to look for.
            limit: How many hits.
        """
        return query * limit

    schema = ToolDefinition.from_callable(search).to_openai_schema()["function"]
    assert schema["name"] == "search"
    assert schema["description"] == "Search the web."
    assert schema["parameters"]["properties"]["limit"] == {"type": "integer", "description": "How many hits."}
    assert schema["parameters"]["required"] == ["query"]
