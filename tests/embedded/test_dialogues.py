"""What the model is taught is right: every reply solves its task, by the environments' own judgement."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llenvs_fast.core.registry import environment_registry
from llenvs_fast.core.state import Action
from llenvs_fast.embedded.dialogues import (
    FIRST_SEED,
    LEGS_OF,
    SKILLS,
    Dialogue,
    Guesser,
    add_up,
    backwards,
    chain_sum,
    count_legs,
    guess_the_number,
    leg_counting,
    tool_use,
)

numbers = st.integers(0, 10**6)


def answer(reply: str) -> int:
    (found,) = re.findall(r"<answer>(-?\d+)</answer>", reply)
    return int(found)


def running_totals(reply: str) -> list[int]:
    """The last number of each step, read backwards."""
    shown = [step.split(" ")[-1] for step in reply.split("; ")[:-1]]
    return [int("-" * s.startswith("-") + s.removeprefix("-")[::-1]) for s in shown]


@given(st.integers(-(10**9), 10**9))
def test_backwards_twice_is_the_number(number: int) -> None:
    shown = backwards(number)
    assert shown.count("-") == (number < 0)
    assert "-" * (number < 0) + shown.removeprefix("-")[::-1] == str(number)


@given(numbers, st.lists(st.tuples(st.sampled_from("+-"), numbers), max_size=8))
def test_sums_are_right_at_every_step(first: int, rest: list[tuple[str, int]]) -> None:
    reply = add_up(f"{first}" + "".join(f" {sign} {term}" for sign, term in rest))
    totals = [first]
    for sign, term in rest:
        totals.append(totals[-1] + (term if sign == "+" else -term))
    assert running_totals(reply) == totals
    assert answer(reply) == totals[-1]


@given(st.dictionaries(st.sampled_from(sorted(LEGS_OF)), st.integers(1, 15), min_size=1, max_size=10))
def test_legs_are_right_at_every_step(animals: dict[str, int]) -> None:
    reply = count_legs(animals)
    each = [count * LEGS_OF[animal] for animal, count in animals.items()]
    assert running_totals(reply) == [sum(each[: i + 1]) for i in range(len(each))]
    assert answer(reply) == sum(each)


@given(st.integers(1, 50), st.integers(0, 60), st.data())
def test_a_guess_lies_where_the_number_can_still_be(low: int, width: int, data: st.DataObject) -> None:
    high = low + width
    wanted = data.draw(st.integers(low, high))
    guesser = Guesser(random.Random(data.draw(st.integers())))
    seen = f"You have to guess the number between {low} and {high} (inclusive) within 7 turns."
    for _ in range(width + 1):
        (a, b, guess) = map(int, re.findall(r"\d+", guesser.say(seen)))
        assert low <= a <= guess <= b <= high
        assert a <= wanted <= b
        if guess == wanted:
            return
        hint = "lower" if guess > wanted else "higher"
        seen = f"At turn 1, you guessed {guess}, and the target number is {hint} than {guess}.\nEnter your next guess."
    raise AssertionError("never found")


@pytest.mark.parametrize("name", ["leg_counting", "chain_sum"])
def test_the_environment_gives_full_marks(name: str) -> None:
    environment = environment_registry.get(name, "reasoning_gym", size=40, seed=FIRST_SEED)
    for i, dialogue in enumerate(SKILLS[name](40, random.Random(0), 0)):
        state, _ = environment.reset(options={"task_index": i})
        result = environment.step(state, Action.from_text(dialogue.messages[-1].content or ""))
        assert {s.name: s.reward for s in result.rewards.signals} == {"correctness": 1.0, "format": 1.0}


def test_most_prompts_are_the_product_s_own() -> None:
    environment = environment_registry.get("leg_counting", "reasoning_gym", size=100, seed=FIRST_SEED)
    dialogues = list(leg_counting(100, random.Random(0)))
    for i, dialogue in enumerate(dialogues):
        state, _ = environment.reset(options={"task_index": i})
        assert dialogue.messages[-2].content == state.observation.prompt
    systems = [d.messages[0].content for d in dialogues if d.messages[0].role == "system"]
    assert 40 < systems.count(environment.prompts["system"]) < 80
    assert 65 < len(systems) < 95


def test_other_wordings_ask_for_the_same_sums() -> None:
    asked = [d.messages[-2].content or "" for d in chain_sum(200, random.Random(0))]
    own = [a for a in asked if a.startswith("State the final answer")]
    assert 120 < len(own) < 195
    assert all(re.search(r"\d+ [+-] \d+", a) for a in asked)


def test_games_are_played_to_their_end_and_mostly_won() -> None:
    dialogues = list(guess_the_number(100, random.Random(0)))
    assert len(dialogues) == 100
    for dialogue in dialogues:
        roles = [m.role for m in dialogue.messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert all(re.fullmatch(r"\d+ to \d+: \\boxed\{\d+\}", m.content or "") for m in dialogue.messages[1::2])
    assert max(len(d.messages) for d in dialogues) > 6


def test_tools_say_what_the_dialogues_say_they_say() -> None:
    """The result and the answer of a dialogue are what the product's own tool and environment make of the call."""
    tools = {"calculator": 0, "python": 0}
    for dialogue in tool_use(30, random.Random(0)):
        name = dialogue.tools[0].name
        tools[name] += 1
        environment = environment_registry.get("chain_sum", "reasoning_gym", size=1, tool_types=[name])
        state, _ = environment.reset(options={"task_index": 0})
        said = dialogue.messages[-3]
        result = environment.step(state, Action(said.content, said.tool_calls))
        assert not result.done
        assert result.next_state.observation.messages[-1]["content"] == dialogue.messages[-2].content
        assert dialogue.messages[-1].content == f"<answer>{dialogue.messages[-2].content}</answer>"
        assert state.observation.available_tools == dialogue.tools
    assert min(tools.values()) > 2


@pytest.mark.parametrize("skill", SKILLS)
def test_the_same_seed_makes_the_same_dialogues(skill: str) -> None:
    def made(seed: int) -> list[Dialogue]:
        return list(SKILLS[skill](10, random.Random(seed), 0))

    assert made(3) == made(3)
    assert made(3) != made(4)
