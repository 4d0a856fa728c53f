"""From a state and its trajectory to messages: golden transcripts."""

from __future__ import annotations

from llenvs_fast.core import Action, Observation, State, StateMetadata, Trajectory, Transition
from llenvs_fast.inference.messages import MessageBuilder, coalesced
from llenvs_fast.inference.prompting import build_standard_pipeline
from llenvs_fast.inference.prompts import PROFILE_REGISTRY, PromptTemplate
from llenvs_fast.inference.protocol import ChatMessage
from tests.worlds import LadderWorld


def climbed(world: LadderWorld, *said: str) -> Trajectory:
    state, _ = world.reset(options={"task_index": 0})
    trajectory = Trajectory.create(state)
    for text in said:
        action = Action.from_text(text)
        result = world.step(trajectory.current_state, action)
        trajectory.add_transition(Transition(trajectory.current_state, action, result.next_state, result.rewards))
    return trajectory


def shown(builder: MessageBuilder, trajectory: Trajectory) -> list[tuple[str, str | None]]:
    return [(m.role, m.content) for m in builder(trajectory.current_state, trajectory)]


def test_a_legacy_observation_is_its_prompt_and_its_own_transcript() -> None:
    trajectory = climbed(LadderWorld(structured=False), "up")
    assert shown(MessageBuilder("Climb."), trajectory) == [
        ("system", "Climb."),
        ("user", "climb ladder 0\nrung 0"),
        ("assistant", "up"),
        ("user", "rung 1"),
    ]


def test_a_structured_observation_is_the_task_and_the_history_of_the_trajectory() -> None:
    world = LadderWorld(structured=True)
    assert shown(MessageBuilder(), climbed(world)) == [("user", "climb ladder 0\n\nrung 0")]
    assert shown(MessageBuilder(), climbed(world, "up", "and up")) == [
        ("user", "climb ladder 0\n\nrung 0"),
        ("assistant", "up"),
        ("user", "rung 1"),
        ("assistant", "and up"),
        ("user", "rung 2"),
    ]


def test_reasoning_is_left_out_of_the_history_unless_asked_for() -> None:
    trajectory = climbed(LadderWorld(structured=True), "<think>high</think>up")
    assert shown(MessageBuilder(), trajectory)[1] == ("assistant", "up")
    whole = MessageBuilder(include_reasoning_in_history=True)
    assert shown(whole, trajectory)[1] == ("assistant", "<think>high</think>up")


def test_the_order_is_system_template_profile_pipeline() -> None:
    builder = MessageBuilder(
        system_prompt="You are an expert.",
        prompt_template=PromptTemplate("Q: {question}"),
        model_profile=PROFILE_REGISTRY["deepseek_r1"],
        prompt_pipeline=build_standard_pipeline(use_cot=True),
    )
    (_, system), (_, user) = shown(builder, climbed(LadderWorld(structured=False)))
    assert system is not None
    assert user is not None
    assert system.startswith("You are an expert.")
    assert system.index("<think>") < system.index("<answer>")
    assert user.startswith("Q: climb ladder 0")


def test_adjacent_messages_of_one_role_are_joined_and_tool_messages_are_not() -> None:
    tool = ChatMessage("tool", "4", tool_call_id="call_0")
    messages = [ChatMessage("user", "a"), ChatMessage("user", ""), ChatMessage("user", "b"), tool, tool]
    assert [(m.role, m.content) for m in coalesced(messages)] == [("user", "a\n\nb"), ("tool", "4"), ("tool", "4")]


def test_the_fields_of_a_transcript_arrive_whole() -> None:
    observation = Observation(
        "use the tool",
        messages=(
            {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "name": "add", "arguments": {"a": 1}}]},
            {"role": "tool", "content": "1", "tool_call_id": "c", "name": "add"},
        ),
    )
    state = State(observation, None, StateMetadata(0, "e"))
    _, assistant, tool = MessageBuilder()(state, Trajectory.create(state))
    assert assistant.tool_calls[0].arguments == {"a": 1}
    assert (tool.tool_call_id, tool.name) == ("c", "add")
