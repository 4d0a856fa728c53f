"""How much of a conversation is shown again, and what is said of turns: golden transcripts."""

from __future__ import annotations

import pytest

from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.core.state import Action
from llenvs_fast.core.trajectory import Trajectory, Transition
from llenvs_fast.evaluation import (
    HistoryEntry,
    TurnInfoConfig,
    full_history,
    last_n_history,
    no_history,
    sliding_window_history,
)
from llenvs_fast.inference.history import turn_info_config
from llenvs_fast.inference.messages import MessageBuilder
from tests.worlds import LadderWorld

ENTRIES = [HistoryEntry("a b", "c", step=0), HistoryEntry("d e f", "g h", step=1), HistoryEntry("i", "", step=2)]


def played(turns: int, world: LadderWorld | None = None) -> Trajectory:
    world = world or LadderWorld(turns=9)
    trajectory = Trajectory.create(world.reset(options={"task_index": 4})[0])
    for turn in range(turns):
        action = Action.from_text(f"reply {turn}")
        result = world.step(trajectory.current_state, action)
        trajectory.add_transition(
            Transition(trajectory.current_state, action, result.next_state, result.rewards)
        )
    return trajectory


def shown(builder: MessageBuilder, trajectory: Trajectory) -> list[tuple[str, str | None]]:
    return [(m.role[0], m.content) for m in builder(trajectory.current_state, trajectory)]


@pytest.mark.parametrize(
    ("function", "texts"),
    [
        (full_history, ["a b", "c", "d e f", "g h", "i"]),
        (no_history, []),
        (last_n_history(2), ["d e f", "g h", "i"]),
        (last_n_history(0), []),
        (last_n_history(-1), []),
        (last_n_history(9), ["a b", "c", "d e f", "g h", "i"]),
        (sliding_window_history(1, lambda t: len(t.split())), ["i"]),
        (sliding_window_history(6, lambda t: len(t.split())), ["d e f", "g h", "i"]),
        (sliding_window_history(5, lambda t: len(t.split())), ["i"]),
        (sliding_window_history(0, lambda t: len(t.split())), []),
    ],
)
def test_each_function_keeps_what_it_says(function, texts) -> None:
    messages = function(ENTRIES)
    assert [m.content for m in messages] == texts
    assert all(m.role == ("assistant" if m.content in ("a b", "d e f", "i") else "user") for m in messages)


def test_the_whole_history_and_its_windows() -> None:
    trajectory = played(3)
    task, now = ("u", "climb ladder 4\n\nrung 0"), ("u", "rung 3")
    past = [("a", "reply 0"), ("u", "rung 1"), ("a", "reply 1"), ("u", "rung 2"), ("a", "reply 2")]
    assert shown(MessageBuilder(), trajectory) == [task, *past, now]
    assert shown(MessageBuilder(history_fn=last_n_history(1)), trajectory) == [task, past[-1], now]
    assert shown(MessageBuilder(history_fn=no_history), trajectory) == [("u", "climb ladder 4\n\nrung 3")]


def test_turn_info_is_on_the_task_and_the_current_observation_alone() -> None:
    builder = MessageBuilder(turn_info=TurnInfoConfig(), max_steps=5)
    suffix = "\n\nYou have a maximum of 5 turns to complete this task."
    assert shown(builder, played(0)) == [("u", f"climb ladder 4{suffix}\n\n[Turn 1/5]\nrung 0")]
    assert shown(builder, played(2)) == [
        ("u", f"climb ladder 4{suffix}\n\nrung 0"),
        ("a", "reply 0"),
        ("u", "rung 1"),
        ("a", "reply 1"),
        ("u", "[Turn 3/5]\nrung 2"),
    ]


def test_turn_info_without_a_limit_and_with_a_format_of_ones_own() -> None:
    assert shown(MessageBuilder(turn_info=TurnInfoConfig()), played(1))[-1] == ("u", "[Turn 2]\nrung 1")
    own = TurnInfoConfig(task_suffix=" ({max_steps})", state_prefix="{turns_remaining} left: ")
    first, _, last = shown(MessageBuilder(turn_info=own, max_steps=5), played(1))
    assert first == ("u", "climb ladder 4 (5)\n\nrung 0")
    assert last == ("u", "3 left: rung 1")


def test_turn_info_leaves_legacy_mode_alone() -> None:
    world = LadderWorld(turns=9, structured=False)
    trajectory = played(2, world)
    plain = shown(MessageBuilder(), trajectory)
    assert shown(MessageBuilder(turn_info=TurnInfoConfig(), max_steps=5, history_fn=no_history), trajectory) == plain


@pytest.mark.parametrize(
    "fields", [{"state_prefix": "{turns}"}, {"state_prefix_no_max": "{max_steps}"}, {"task_suffix": "{"}]
)
def test_a_template_that_can_not_be_filled_is_refused_where_it_is_written(fields: dict[str, str]) -> None:
    with pytest.raises(InvalidSettingError, match=f"turn_info {next(iter(fields))}="):
        TurnInfoConfig(**fields)


def test_true_false_none_and_anything_else() -> None:
    own = TurnInfoConfig(state_prefix="")
    assert turn_info_config(True) == TurnInfoConfig()
    assert turn_info_config(own) is own
    assert turn_info_config(False) is turn_info_config(None) is None
    with pytest.raises(InvalidSettingError, match="turn_info='yes'"):
        turn_info_config("yes")  # type: ignore[arg-type]


@pytest.mark.parametrize("structured", [True, False])
@pytest.mark.parametrize("turns", [1, 2, 5])
def test_a_continuation_is_what_the_whole_conversation_ends_with(structured: bool, turns: int) -> None:
    trajectory = played(turns, LadderWorld(turns=9, structured=structured))
    builder = MessageBuilder(system_prompt="be brief")
    whole = builder(trajectory.current_state, trajectory)
    new = builder.continuation(trajectory, f"reply {turns - 1}")
    assert new
    assert whole[-len(new) :] == new
    assert whole[-len(new) - 1].role == "assistant"


@pytest.mark.parametrize(
    "options",
    [{"turn_info": TurnInfoConfig()}, {"history_fn": no_history}, {"prompt_pipeline": lambda m: m}],
)
def test_an_option_that_rewrites_promises_no_continuation(options: dict) -> None:
    assert MessageBuilder(**options).continuation(played(1), "reply 0") is None
    assert MessageBuilder(**options).rewriting_option is not None


def test_a_reply_shown_otherwise_promises_no_continuation() -> None:
    assert MessageBuilder().continuation(played(1), "<think>x</think>reply 0") is None
