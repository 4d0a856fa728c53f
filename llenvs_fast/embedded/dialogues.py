"""What the embedded model learns: dialogues that solve tasks, as the product shows them.

Every prompt is made by the environments themselves, with seeds from `FIRST_SEED` on; evaluations use smaller ones.
Inner results are written with their digits reversed, ones first, in the order in which they are worked out.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from llenvs_fast.core.environment import BatchEnvironment, Environment
from llenvs_fast.core.registry import environment_registry
from llenvs_fast.core.state import Action, State
from llenvs_fast.core.tools import ToolCall, ToolDefinition
from llenvs_fast.inference.protocol import ChatMessage

FIRST_SEED = 5_000_000
BATCH = 500
UNEVEN = 0.35  # how far from the middle of the interval a guess may fall, as a share of its width

LEGS = {
    0: "snake, sea slug, jellyfish, flatworm, leech",
    2: "chicken, bird, human, duck",
    4: "dog, cat, cow, horse, lion, elephant, giraffe, tiger, deer, sheep",
    5: "starfish",
    6: "insect, ant, butterfly, beetle, bee, wasp, grasshopper, cricket, cockroach, praying mantis, firefly",
    8: "spider, scorpion",
    10: "crab, lobster, shrimp",
    14: "woodlouse",
}
LEGS_OF = {animal: legs for legs, animals in LEGS.items() for animal in animals.split(", ")}

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "Answer the question.",
    "Think step by step.",
    "Think step by step, then give your final answer in <answer></answer> tags.",
    "Put your final answer between <answer> and </answer>.",
    "Solve the problem. Put the final answer inside <answer> tags.",
    "Use the tool if there is one.",
    "You are an expert at arithmetic. Be brief.",
)
SUM_QUESTIONS = (
    "What is {}?",
    "Calculate {}.",
    "Compute {}",
    "{} =",
    "{}",
    "Please work out {}.",
    "How much is {}?",
    "Evaluate the expression {}.",
)


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A conversation that ends with an assistant message."""

    messages: tuple[ChatMessage, ...]
    tools: tuple[ToolDefinition, ...] = ()


def backwards(number: int) -> str:
    """The digits in reverse order, after the sign: -120 → -021."""
    return "-" * (number < 0) + str(abs(number))[::-1]


# how tasks are solved -----------------------------------------------------------------------------------------------


def count_legs(animals: dict[str, int]) -> str:
    """One step for each animal: how many, which, its legs, all their legs, the total so far."""
    steps, total = [], 0
    for animal, count in animals.items():
        legs = LEGS_OF[animal]
        total += count * legs
        steps.append(f"{count} {animal} {legs} {backwards(count * legs)} {backwards(total)}; ")
    return f"{''.join(steps)}<answer>{total}</answer>"


def add_up(expression: str) -> str:
    """One step for each further term: its sign, the term, the total so far."""
    terms = [int(f"{sign}{digits}") for sign, digits in re.findall(r"([+-]?) ?(\d+)", expression)]
    total = terms[0]
    steps = [f"{backwards(total)}; "]
    for term in terms[1:]:
        total += term
        steps.append(f"{'-' if term < 0 else '+'} {backwards(abs(term))} {backwards(total)}; ")
    return f"{''.join(steps)}<answer>{total}</answer>"


@dataclass(slots=True)
class Guesser:
    """Plays GuessTheNumber by halving the interval, not quite in the middle, so that it is good and not perfect."""

    rng: random.Random
    low: int = 0
    high: int = 0

    def say(self, seen: str) -> str:
        """The reply to what the game said last."""
        if rules := re.search(r"between (\d+) and (\d+)", seen):
            self.low, self.high = int(rules[1]), int(rules[2])
        elif hint := re.search(r"guessed (\d+), and the target number is (lower|higher)", seen):
            guess = int(hint[1])
            self.low, self.high = (self.low, guess - 1) if hint[2] == "lower" else (guess + 1, self.high)
        width = self.high - self.low + 1
        guess = round((self.low + self.high) / 2 + self.rng.uniform(-UNEVEN, UNEVEN) * width)
        return f"{self.low} to {self.high}: \\boxed{{{min(max(guess, self.low), self.high)}}}"


# dialogues: `n` of a skill, from its `first`-th task on ---------------------------------------------------------------


def leg_counting(n: int, rng: random.Random, first: int = 0) -> Iterator[Dialogue]:
    environment = _source("leg_counting", first, n)
    for state in _first_states(environment, n):
        reply = count_legs(state.hidden.entry["metadata"]["animals"])
        yield _asked(state.observation.prompt, reply, environment, rng)


def chain_sum(n: int, rng: random.Random, first: int = 0) -> Iterator[Dialogue]:
    environment = _source("chain_sum", first, n)
    for state in _first_states(environment, n):
        expression = state.hidden.entry["metadata"]["expression"]
        question = state.observation.prompt if rng.random() < 0.8 else rng.choice(SUM_QUESTIONS).format(expression)
        yield _asked(question, add_up(expression), environment, rng)


def guess_the_number(n: int, rng: random.Random, first: int = 0) -> Iterator[Dialogue]:
    """Two of five games easy, two hard, one with numbers and turns of its own."""
    for variant, share in (("easy", 2), ("hard", 2), ("random", 1)):
        games = n * share // 5
        environment = environment_registry.get(
            f"game:GuessTheNumber-v0-{variant}", "gem", size=games, seed=FIRST_SEED + first
        )
        for played in _played(environment, games, rng):
            opening, *rest = ({"role": "user", "content": played.observation.prompt}, *played.observation.messages)
            yield Dialogue(tuple(ChatMessage(m["role"], m["content"]) for m in (opening, *rest[:-1])))


def tool_use(n: int, rng: random.Random, first: int = 0) -> Iterator[Dialogue]:
    """Longer expressions, with the calculator or with Python: one call, and its result as the answer."""
    sums = _source("chain_sum", first, n, min_terms=2, max_terms=10, tool_types=["calculator"])
    nested = _source("basic_arithmetic", first, n, min_terms=2, max_terms=8, tool_types=["calculator"])
    python = _source("chain_sum", first, 1, tool_types=["python"]).available_tools
    states = {"sums": _first_states(sums, n), "nested": _first_states(nested, n)}
    for _ in range(n):
        state = next(states["sums" if rng.random() < 0.7 else "nested"])
        yield _called(state, sums, python, rng)


SKILLS: dict[str, Callable[[int, random.Random, int], Iterator[Dialogue]]] = {
    "leg_counting": leg_counting,
    "chain_sum": chain_sum,
    "guess_the_number": guess_the_number,
    "tool_use": tool_use,
}


def _source(name: str, first: int, size: int, **options: Any) -> Environment:
    """`size` tasks from the `first`-th one on: item i of seed s is drawn with s + i."""
    return environment_registry.get(name, "reasoning_gym", size=size, seed=FIRST_SEED + first, **options)


def _first_states(environment: Environment, n: int) -> Iterator[State]:
    assert isinstance(environment, BatchEnvironment)
    for start in range(0, n, BATCH):
        for made in environment.reset_batch([{"task_index": i} for i in range(start, min(start + BATCH, n))]):
            if not isinstance(made, Exception):  # the package divides by zero now and then
                yield made[0]


def _asked(question: str, reply: str, environment: Environment, rng: random.Random) -> Dialogue:
    return Dialogue((*_system(environment, rng), ChatMessage("user", question), ChatMessage("assistant", reply)))


def _called(state: State, environment: Environment, python: Sequence[ToolDefinition], rng: random.Random) -> Dialogue:
    entry = state.hidden.entry
    expression, answer = entry["metadata"]["expression"], entry["answer"]
    by_python = rng.random() < 0.25
    if by_python:
        tools, call = tuple(python), ToolCall("call_0", "python", {"code": f"print({expression.replace('/', '//')})"})
    else:
        tools, call = environment.available_tools, ToolCall("call_0", "calculator", {"expression": expression})
    return Dialogue(
        (
            *_system(environment, rng),
            ChatMessage("user", state.observation.prompt),
            ChatMessage("assistant", tool_calls=(call,)),
            ChatMessage("tool", answer, tool_call_id=call.id, name=call.name),
            ChatMessage("assistant", f"<answer>{answer}</answer>"),
        ),
        tools,
    )


def _system(environment: Environment, rng: random.Random) -> tuple[ChatMessage, ...]:
    """Mostly what the product says where the user says nothing; sometimes nothing, sometimes something else."""
    draw = rng.random()
    if draw < 0.2:
        return ()
    return (ChatMessage("system", environment.prompts["system"] if draw < 0.8 else rng.choice(SYSTEM_PROMPTS)),)


def _played(environment: Environment, games: int, rng: random.Random) -> Iterator[State]:
    """The last states of games played to their end, many at once."""
    assert isinstance(environment, BatchEnvironment)
    states = list(_first_states(environment, games))
    for start in range(0, games, BATCH):
        live = [(state, Guesser(rng)) for state in states[start : start + BATCH]]
        while live:
            actions = [Action.from_text(guesser.say(_seen(state))) for state, guesser in live]
            results = environment.step_batch([state for state, _ in live], actions)
            going_on = []
            for (_, guesser), result in zip(live, results, strict=True):
                if isinstance(result, Exception):
                    raise result
                if result.done:
                    yield result.next_state
                else:
                    going_on.append((result.next_state, guesser))
            live = going_on


def _seen(state: State) -> str:
    messages = state.observation.messages
    return messages[-1]["content"] if messages else state.observation.prompt
