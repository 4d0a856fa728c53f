"""gem's games: the package's own episodes however they are stepped, good errors, and no text that does harm."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llenvs_fast.core.environment import BatchEnvironment, Environment, StepResult
from llenvs_fast.core.errors import InvalidSettingError, MissingPackageError, UnknownEnvironmentError
from llenvs_fast.core.registry import environment_registry
from llenvs_fast.core.reward import RewardType, Signal, StepPenalty
from llenvs_fast.core.seeds import derive_seed
from llenvs_fast.core.state import Action, State
from llenvs_fast.engine.loop import run_rollouts
from llenvs_fast.engine.rollout import Outcome, RolloutSpec
from llenvs_fast.environments.gem.adapter import GemAdapter
from llenvs_fast.environments.gem.catalog import GAMES
from llenvs_fast.environments.gem.environment import MAX_ACTION_CHARS, GemEnvironment, GemHidden, boxed
from llenvs_fast.environments.sandbox import Call, SandboxPool
from llenvs_fast.evaluation import TrajectoryRunner
from llenvs_fast.inference.backends import ScriptedBackend
from llenvs_fast.inference.messages import MessageBuilder
from llenvs_fast.inference.protocol import GenerationRequest, SamplingParams
from llenvs_fast.results.record import Ending

pytestmark = [
    pytest.mark.skipif(find_spec("gem") is None, reason="gem-llm is not installed"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox is for Linux"),
]

SLOW = {"game:Sokoban-v0-hard", "game:Sokoban-v0-random", "game:Sudoku-v0-hard", "game:Sudoku-v0-random"}
QUICK = sorted(set(GAMES) - SLOW)
ONE_OF_A_KIND = [name for name in QUICK if name.endswith("easy")]
MOVES = {
    "FifteenPuzzle": ["up", "down", "left", "right"],
    "Game2048": ["up", "down", "left", "right"],
    "GuessTheNumber": [str(n) for n in range(12)],
    "Mastermind": ["1 2", "2 1", "3 4", "5 6", "1 2 3 4", "1 1"],
    "Minesweeper": [f"{how} {r} {c}" for how in ("reveal", "reveal", "flag") for r in range(6) for c in range(5)],
    "Sokoban": ["up", "down", "left", "right"],
    "Sudoku": [f"{r} {c} {n}" for r in range(1, 5) for c in range(1, 5) for n in range(1, 5)],
    "TowerofHanoi": ["A B", "A C", "B C", "C B", "B A", "C A"],
}


def moves(name: str, count: int, seed: int = 0) -> list[str]:
    """Texts of a player who knows how to answer, and not how to win."""
    rng = random.Random(f"{name}{seed}")
    family = name.removeprefix("game:").partition("-")[0]
    return [f"Perhaps \\boxed{{{rng.choice(MOVES[family])}}}, I think." for _ in range(count)]


@pytest.fixture(scope="module")
def adapter() -> Iterator[GemAdapter]:
    adapter = GemAdapter()
    yield adapter
    adapter.close()


def first(environment: GemEnvironment, index: int = 0) -> State:
    return environment.reset(options={"task_index": index})[0]


def told(state: State) -> list[str]:
    """All that the player has been shown."""
    seen = state.observation.messages
    return [state.observation.prompt, *(m["content"] for m in seen if m["role"] == "user")]


def said(result: StepResult) -> list[Any]:
    """What gem said of a step, as far as its flags can be told from ours."""
    text = result.next_state.observation.messages[-1]["content"]
    return [text, result.info["gem_reward"], result.done, result.truncated]


def play(environment: GemEnvironment, state: State, texts: list[str]) -> list[list[Any]]:
    heard = []
    for text in texts:
        result = environment.step(state, Action.from_text(text))
        heard.append(said(result))
        state = result.next_state
        if result.done:
            break
    return heard


# what the package itself says, in a process of its own: a fresh game for each episode, one episode after the other
ORACLE = """
import json, sys
from types import ModuleType, SimpleNamespace
stub = ModuleType("reasoning_gym"); stub.factory = SimpleNamespace(DATASETS={}); sys.modules["reasoning_gym"] = stub
import gem, numpy
def shown(observation, info):
    return observation.rstrip() + "\\n" + info["suffix"] if info.get("suffix") else observation
replies = []
for name, kwargs, seed, texts in json.load(sys.stdin):
    game = gem.make(name, **kwargs)
    first = shown(*game.reset(seed=seed))
    heard = []
    numpy_state = str(numpy.random.get_state())
    for text in texts:
        observation, reward, terminated, truncated, info = game.step(text)
        heard.append([shown(observation, info), reward, terminated or truncated, truncated])
        if terminated or truncated:
            break
    assert str(numpy.random.get_state()) == numpy_state, "a game draws from NumPy's generator: the worker must keep it"
    replies.append([first, heard])
json.dump(replies, sys.stdout)
"""


def package_says(episodes: list[tuple[str, dict[str, Any], int, list[str]]]) -> list[tuple[str, list[list[Any]]]]:
    done = subprocess.run(
        [sys.executable, "-c", ORACLE], input=json.dumps(episodes), capture_output=True, text=True, check=True
    )
    return [(start, heard) for start, heard in json.loads(done.stdout)]


def seed_of(index: int, seed: int = 42) -> int:
    return derive_seed(seed, index, 0, 0) % 2**32


# the package's own episodes -------------------------------------------------------------------------------------------


def test_the_catalog_names_games_of_the_installed_package(adapter: GemAdapter) -> None:
    registered = adapter._pool.call(Call("games")).value
    absent = set(registered) - set(GAMES)
    assert set(GAMES) <= set(registered)
    assert len(GAMES) == len(set(GAMES)) == 24
    assert {re.split("[:-]", name)[1] for name in absent} == {
        "Wordle", "Hangman", "WordSearch", "Crosswords", "FifteenPuzzle"
    }  # fmt: skip


def test_episodes_are_the_packages_own_in_any_interleaving(adapter: GemAdapter) -> None:
    """All quick games, two episodes each, stepped in lockstep as one crowd: each as gem plays it alone."""
    episodes = [(name, {}, seed_of(i), moves(name, 30, i)) for name in QUICK for i in (0, 7)]
    environments = {name: adapter.get_environment(name) for name in QUICK}
    live = [(environments[name], first(environments[name], i)) for name in QUICK for i in (0, 7)]
    texts = [texts for _, _, _, texts in episodes]
    starts = [state.observation.prompt for _, state in live]
    heard: list[list[list[Any]]] = [[] for _ in live]
    for turn in range(30):
        for k, (environment, state) in enumerate(live):
            if heard[k] and heard[k][-1][2]:
                continue
            result = environment.step(state, Action.from_text(texts[k][turn]))
            heard[k].append(said(result))
            live[k] = environment, result.next_state
    assert list(zip(starts, heard, strict=True)) == package_says(episodes)
    assert sum(len(h) for h in heard) > 300


@pytest.mark.parametrize("name", sorted(SLOW - {"game:Sokoban-v0-random", "game:Sokoban-v0-hard"}))
def test_slow_games_are_the_packages_own_too(adapter: GemAdapter, name: str) -> None:
    environment = adapter.get_environment(name)
    state = first(environment, 1)
    ours = (state.observation.prompt, play(environment, state, moves(name, 5)))
    assert [ours] == package_says([(name, {}, seed_of(1), moves(name, 5))])


@pytest.mark.parametrize("name", GAMES)
def test_every_game_that_is_listed_can_be_played(adapter: GemAdapter, name: str) -> None:
    environment = adapter.get_environment(name)
    index = 6 if name == "game:Sokoban-v0-hard" else 2  # a task that is made in less than a second
    state, info = environment.reset(options={"task_index": index})
    question = state.observation.prompt
    assert info == {"task_index": index, "env_id": name, "game_seed": seed_of(index), "question": question}
    for turn, text in enumerate(moves(name, 3), 1):
        result = environment.step(state, Action.from_text(text))
        state = result.next_state
        assert result.info["turn"] == state.metadata.step == turn
        assert len(state.observation.messages) == 2 * turn
        if result.done:
            break
    limit = environment.spec.max_steps
    assert limit is None if name.endswith("random") else isinstance(limit, int)


def test_two_games_that_draw_on_every_move_do_not_disturb_each_other(adapter: GemAdapter) -> None:
    names = ["game:Game2048-v0-hard", "game:Minesweeper-v0-hard"]
    environments = [adapter.get_environment(name) for name in names]
    alone = [play(e, first(e, 3), moves(n, 12)) for e, n in zip(environments, names, strict=True)]
    together: list[list[list[Any]]] = [[], []]
    states = [first(e, 3) for e in environments]
    for turn in range(12):
        for k in (0, 1):
            if turn < len(alone[k]):
                result = environments[k].step(states[k], Action.from_text(moves(names[k], 12)[turn]))
                together[k].append(said(result))
                states[k] = result.next_state
    assert together == alone


def test_options_reach_the_game(adapter: GemAdapter) -> None:
    options = {"min_number": 1, "max_number": 100, "max_turns": 9}
    environment = adapter.get_environment("game:GuessTheNumber-v0-easy", seed=5, **options)
    assert environment.spec.max_steps == 9
    assert environment.spec.metadata["game_kwargs"] == options
    state = first(environment, 4)
    texts = [f"\\boxed{{{n}}}" for n in (50, 25, 75, 200, 1)]
    ours = (state.observation.prompt, play(environment, state, texts))
    assert [ours] == package_says([("game:GuessTheNumber-v0-easy", options, seed_of(4, 5), texts)])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(
            st.sampled_from(["\\boxed{", "}", "5", "up", "UP", "A", "B", " ", "1 2", "\n", "\\BOXED{", "{", "reveal"])
            | st.text(max_size=5),
            max_size=8,
        ).map("".join),
        min_size=1,
        max_size=4,
    )
)
def test_boxed_parts_are_all_that_a_game_reads(in_one_process: Any, texts: list[str]) -> None:
    for name in ONE_OF_A_KIND:
        assert in_one_process(name, texts) == in_one_process(name, [boxed(text) for text in texts]), name


@pytest.fixture(scope="module")
def in_one_process() -> Iterator[Any]:
    """Plays one game of a kind with given texts by the package alone, in a process that stays."""
    server = ORACLE.replace("json.load(sys.stdin)", "map(json.loads, sys.stdin)")
    server = server.replace("    replies.append([first, heard])", "    print(json.dumps([first, heard]), flush=True)")
    process = subprocess.Popen(
        [sys.executable, "-c", server], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def episode(name: str, texts: list[str]) -> Any:
        process.stdin.write(json.dumps([name, {}, 7, texts]) + "\n")
        return json.loads(process.stdout.readline())

    with process:
        yield episode
        process.stdin.close()


# states are complete --------------------------------------------------------------------------------------------------


def test_a_state_can_be_forked(adapter: GemAdapter) -> None:
    name = "game:Game2048-v0-hard"
    environment = adapter.get_environment(name)
    state = first(environment)
    for text in moves(name, 4):
        state = environment.step(state, Action.from_text(text)).next_state
    texts = [f"\\boxed{{{way}}}" for way in ("up", "down", "left", "right")] * 5
    results = environment.step_batch([state] * 20, [Action.from_text(text) for text in texts])
    heard = [said(result) for result in results if isinstance(result, StepResult)]
    assert heard[:4] * 5 == heard
    assert len({text for text, *_ in heard}) >= 3
    played = [(name, {}, seed_of(0), [*moves(name, 4), text]) for text in texts[:4]]
    assert [h[-1] for _, h in package_says(played)] == heard[:4]


def test_a_state_outlives_the_workers_memory_of_it() -> None:
    """More episodes than a worker keeps, then on from the first: played again, to the same result."""
    name, episodes = "game:Minesweeper-v0-easy", 1 + kept_positions()
    alone = GemAdapter()
    alone._pool = SandboxPool(alone._pool.module, workers=1)
    environment = alone.get_environment(name, size=episodes)
    state = first(environment)
    for text in ("\\boxed{reveal 0 0}", "\\boxed{flag 4 4}"):
        state = environment.step(state, Action.from_text(text)).next_state
    before = play(environment, state, moves(name, 5))
    crowd = [result[0] for result in environment.reset_batch([{"task_index": i} for i in range(1, episodes)])]
    environment.step_batch(crowd, [Action.from_text("\\boxed{flag 0 0}")] * len(crowd))
    assert play(environment, state, moves(name, 5)) == before
    alone.close()


def kept_positions() -> int:
    """How many positions a worker keeps, read off its source: importing it here would seed this process."""
    source = Path(str(find_spec("llenvs_fast.environments.gem.worker").origin)).read_text()  # type: ignore[union-attr]
    return max(int(number) for number in re.findall(r"^MAX_(?:POSITIONS|STARTS) = (\d+)$", source, re.MULTILINE))


def test_a_state_outlives_its_worker(adapter: GemAdapter) -> None:
    name = "game:Game2048-v0-easy"
    environment = adapter.get_environment(name)
    straight = play(environment, first(environment), moves(name, 20))
    state, heard = first(environment), []
    for turn, text in enumerate(moves(name, 20)[: len(straight)]):
        if turn % 5 == 3:
            kill_workers(adapter)
        result = environment.step(state, Action.from_text(text))
        heard.append(said(result))
        state = result.next_state
    assert heard == straight


def kill_workers(adapter: GemAdapter) -> None:
    for pid in adapter._pool.worker_pids():
        os.kill(pid, signal.SIGKILL)
    while adapter._pool.worker_pids():
        time.sleep(0.01)


def test_a_game_that_is_over_is_refused_alone(adapter: GemAdapter) -> None:
    environment = adapter.get_environment("game:TowerofHanoi-v0-easy")
    start = first(environment, 6)
    over = environment.step(start, Action.from_text("I give up")).next_state
    refused, played = environment.step_batch([over, start], [Action.from_text("\\boxed{A C}")] * 2)
    assert isinstance(refused, ValueError)
    assert "task 6 was over after 1 turns: step an earlier state" in str(refused)
    assert isinstance(played, StepResult)


# what a step says -----------------------------------------------------------------------------------------------------


def test_the_model_reads_the_event_and_the_board_and_its_own_words(adapter: GemAdapter) -> None:
    environment = environment_registry.get(name="game:FifteenPuzzle-v0-easy", adapter="gem", size=10, seed=1)
    assert isinstance(environment, Environment)
    assert isinstance(environment, BatchEnvironment)
    assert environment.spec.pure_step
    assert environment.spec.is_multi_turn
    assert environment.spec.metadata["version"] == "gem-llm 0.1.0"
    assert "resource limits" in environment.spec.metadata["sandbox"]
    assert environment.prompts == {}
    state, _ = environment.reset(options={"task_index": 0, "episode_id": "mine"})
    assert state.metadata.episode_id == "mine"
    assert "solve the puzzle.\nHere is the current board layout: \n" in state.observation.prompt
    text = "  Let me think…\n\\boxed{up}\n\n"
    after = environment.step(state, Action.from_text(text)).next_state
    reply, seen = after.observation.messages
    assert reply == {"role": "assistant", "content": text}
    assert seen["role"] == "user"
    assert re.match(r"At turn 1, you .*\nHere is the current board layout: \n", seen["content"])
    assert json.loads(json.dumps(asdict(after.hidden)))["actions"] == ["\\boxed{up}"]
    environment.close()


def test_the_signals_of_a_step(adapter: GemAdapter) -> None:
    environment = adapter.get_environment("game:Mastermind-v0-easy", extra_rewards=(StepPenalty(0.01),))
    state = first(environment)
    read = environment.step(state, Action.from_text("\\boxed{1 2}"))
    assert [(s.name, s.reward_type, s.weight) for s in read.rewards.signals] == [
        ("game", RewardType.OUTCOME, 1.0),
        ("won", RewardType.OUTCOME, 0.0),
        ("format", RewardType.FORMAT, 0.0),
        ("step_penalty", RewardType.STEP, 1.0),
    ]
    assert read.rewards.total == pytest.approx(read.info["gem_reward"] - 0.01)
    assert read.extracted_action == "\\boxed{1 2}"
    unread = environment.step(state, Action.from_text("one and two"))
    assert [s.reward for s in unread.rewards.signals] == [-0.1, 0.0, 0.0, -0.01]
    assert (unread.terminated, unread.truncated, unread.extracted_action) == (True, False, None)
    assert unread.next_state.metadata.is_terminal
    computed = [f.compute(state, Action.from_text("one"), unread.next_state) for f in environment.reward_functions]
    assert [(s.name, s.reward) for s in computed] == [
        ("game", -0.1), ("won", 0.0), ("format", 0.0), ("step_penalty", -0.01)
    ]  # fmt: skip


@pytest.mark.parametrize("max_steps", [None, 2, 50])
def test_the_limit_of_turns_truncates(adapter: GemAdapter, max_steps: int | None) -> None:
    environment = adapter.get_environment("game:TowerofHanoi-v0-easy", max_steps=max_steps)
    limit = 2 if max_steps == 2 else 10
    assert environment.spec.max_steps == limit
    state = first(environment)
    for turn in range(1, limit + 1):
        result = environment.step(state, Action.from_text("\\boxed{A B}" if turn % 2 else "\\boxed{B A}"))
        state = result.next_state
        assert (result.terminated, result.truncated) == (False, turn == limit)
    assert not state.metadata.is_terminal
    assert state.hidden.is_over == (limit == 10)  # a game that only `max_steps` cut may be played on


def test_a_broken_reward_costs_its_slot_only(adapter: GemAdapter) -> None:
    class Broken:
        name = "broken"
        reward_type = RewardType.STEP

        def compute(self, state: State, action: Action, next_state: State) -> Signal:
            return Signal("broken", RewardType.STEP, 1.0 / float(action.text != "odd"))

    environment = adapter.get_environment("game:GuessTheNumber-v0-easy", extra_rewards=(Broken(),))
    state = first(environment)
    odd, even = environment.step_batch([state] * 2, [Action.from_text("odd"), Action.from_text("\\boxed{3}")])
    assert isinstance(odd, ZeroDivisionError)
    assert isinstance(even, StepResult)


# hostile texts, bad settings ------------------------------------------------------------------------------------------

HOSTILE = [
    None, "", " ", "\0", "\ud800 \\boxed{\udfff}", "\\boxed{}", "\\boxed{" * 100_000, "}" * 100_000, "x" * 2**20,
    "\\boxed{" + "9" * 5000 + "}", "\\boxed{" + "9 " * 5000 + "9}", "\\boxed{" + "1" * 2**20, "\\boxed{\\boxed{5}}",
    "\\boxed{-1}", "\\boxed{0}", "\\boxed{1e999}", "\\boxed{" + " " * 9000 + "}", "\\boxed{٣}", "\\boxed{99 99 99}",
    "\\boxed{reveal 99999 99999}", "\\boxed{reveal 00 " + "0" * 4400 + "}", "\\boxed{flag -1 0}", "\\boxed{A A}",
    "\\boxed{__import__('os').system('true')}", "\\boxed{open 0 0}", "\\boxed{UP}", "\\boxed{ı}",
]  # fmt: skip


@pytest.mark.parametrize("name", QUICK)
def test_no_text_does_harm(adapter: GemAdapter, name: str) -> None:
    environment = adapter.get_environment(name)
    state = first(environment)
    before = play(environment, state, moves(name, 3))
    for text, result in zip(
        HOSTILE, environment.step_batch([state] * len(HOSTILE), [Action(text) for text in HOSTILE]), strict=True
    ):
        assert isinstance(result, StepResult), (text or "")[:40]
        assert result.next_state.observation.messages[0] == {"role": "assistant", "content": text or ""}
        assert sum(map(len, result.next_state.hidden.actions)) <= MAX_ACTION_CHARS
        json.dumps(asdict(result.next_state.hidden))
        assert -0.1 <= result.info["gem_reward"] <= 1.0
    assert play(environment, state, moves(name, 3)) == before


def test_a_long_thought_does_not_hide_the_move(adapter: GemAdapter) -> None:
    environment = adapter.get_environment("game:GuessTheNumber-v0-easy")
    thought = "Perhaps \\boxed{1}? " + "Hmm. " * 10_000
    result = environment.step(first(environment), Action.from_text(thought + "\\boxed{4}" + " So be it." * 2000))
    assert "you guessed 4" in told(result.next_state)[-1] or result.info["gem_reward"] == 1.0
    assert result.extracted_action == "\\boxed{1}\\boxed{4}"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"size": 0}, "size=0: give a number from 1"),
        ({"size": "9"}, "size='9': a whole number"),
        ({"seed": -1}, "seed=-1: give a number from 0"),
        ({"max_steps": 0}, "max_steps=0: give a number from 1"),
        ({"score_timeout_s": 0}, "score_timeout_s=0: give seconds above 0"),
        ({"extra_rewards": (1,)}, "extra_rewards has 1"),
        ({"max_turn": 3}, "has no option 'max_turn'; nearest: max_turns.*; all: min_number, max_number, max_turns"),
        ({"max_turns": 0}, "does not take max_turns=0: it would have max_turns=0; its options: "),
        ({"max_turns": None}, "it would have max_turns=None"),
        ({"min_number": 9, "max_number": 2}, "does not take max_number=2, min_number=9: empty range"),
        ({"min_number": "a"}, "does not take min_number='a'"),
        ({"max_number": object()}, "options must be JSON values"),
    ],
)
def test_bad_settings_are_named(adapter: GemAdapter, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSettingError, match=message):
        adapter.get_environment("game:GuessTheNumber-v0-easy", **kwargs)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("game:GuessTheNumber-v0-eazy", "nearest: game:GuessTheNumber-v0-easy"),
        ("GuessTheNumber-v0-easy", "nearest: game:GuessTheNumber-v0-easy"),
        ("rg:chain_sum", "the source reasoning_gym has these datasets"),
        ("math:GSM8K", "its tasks are a data set on the Hugging Face Hub"),
        ("game:Wordle-v0-easy", r"it needs NLTK's list of words\); nearest: game:"),
        ("game:FifteenPuzzle-v0-random", "it raises in gem 0.1.0.*nearest: game:FifteenPuzzle-v0-hard"),
    ],
)
def test_what_is_not_here_is_told_with_the_nearest(adapter: GemAdapter, name: str, message: str) -> None:
    with pytest.raises(UnknownEnvironmentError, match=message):
        adapter.get_environment(name)
    with pytest.raises(UnknownEnvironmentError):
        adapter.get_environment_info(name)


def test_bad_indices_name_the_size_and_cost_only_their_slot(adapter: GemAdapter) -> None:
    environment = adapter.get_environment("game:Game2048-v0-easy", size=3)
    for options in ({"task_index": 3}, {"task_index": -1}, {}, {"task_index": True}):
        with pytest.raises(ValueError, match="Game2048-v0-easy with size=3 has tasks 0 to 2"):
            environment.reset(options=options)
    good, bad, again = environment.reset_batch([{"task_index": 2}, {"task_index": 9}, {"task_index": 2}])
    assert isinstance(bad, ValueError)
    assert isinstance(good, tuple)
    assert isinstance(again, tuple)
    assert good[0].observation == again[0].observation
    assert good[0].metadata.episode_id != again[0].metadata.episode_id


def test_a_missing_package_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=re.escape("pip install --no-deps gem-llm==0.1.0")):
        GemAdapter().get_environment("game:GuessTheNumber-v0-easy")


def test_listing_imports_no_package(tmp_path: Path) -> None:
    """And needs none: a `gem` that can't be imported stands first on the path."""
    (tmp_path / "gem.py").write_text("raise ImportError('listing must not import gem')")
    code = (
        "import sys\nfrom llenvs_fast.core.registry import environment_registry as r\n"
        "names = r.list_environments('gem')\n"
        "infos = [r.get_adapter('gem').get_environment_info(name) for _, name in names]\n"
        "assert len(infos) == 24 and not {'gem', 'reasoning_gym', 'numpy'} & set(sys.modules)"
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": path})


def test_info_warns_in_plain_words(adapter: GemAdapter) -> None:
    info = adapter.get_environment_info("game:FifteenPuzzle-v0-easy")
    assert info["category"] == "games"
    assert [warning.partition(":")[0] for warning in info["warnings"]] == ["few tasks", "unsolvable"]
    assert adapter.get_environment_info("game:Game2048-v0-hard")["warnings"] == []


# whole games through the runner ---------------------------------------------------------------------------------------


def halving(request: GenerationRequest) -> str:
    """Guesses the middle of what the conversation leaves; a player who remembers nothing else."""
    text = "\n".join(m.content or "" for m in request.messages or () if m.role == "user")
    low, high = map(int, re.findall(r"between (\d+) and (\d+)", text)[0])
    for guess, way in re.findall(r"you guessed (\d+), and the target number is (lower|higher)", text):
        low, high = (int(guess) + 1, high) if way == "higher" else (low, int(guess) - 1)
    return f"Halving: \\boxed{{{(low + high) // 2}}}"


@pytest.mark.parametrize("tokens", [False, True])
def test_halving_guesses_every_number_and_guessing_one_does_not(adapter: GemAdapter, tokens: bool) -> None:
    environment = adapter.get_environment("game:GuessTheNumber-v0-easy", size=40)
    make = ScriptedBackend.with_byte_tokens if tokens else ScriptedBackend
    batch = TrajectoryRunner(environment, make(halving), SamplingParams(max_tokens=64)).run_batch(range(40))
    assert batch.success_rate == batch.mean_reward == 1.0
    assert {len(r.turns) for r in batch.trajectory_results} == {1, 2, 3, 4}
    assert not any(turn.lost_tokens for r in batch.trajectory_results for turn in r.turns)
    assert batch.trajectory_results[0].trajectory.is_terminal  # type: ignore[union-attr]


def test_a_game_lost_at_the_limit_of_turns_is_no_success_and_keeps_its_partial_reward(adapter: GemAdapter) -> None:
    environment = adapter.get_environment("game:GuessTheNumber-v0-easy", size=40)
    batch = TrajectoryRunner(environment, ScriptedBackend(lambda request: "\\boxed{10}")).run_batch(range(40))
    lost = [r for r in batch.trajectory_results if not r.success]
    assert 0 < len(lost) < 40
    for result in lost:
        assert len(result.turns) == 4
        assert 0 <= result.total_reward < 1
    assert all(r.total_reward == 1.0 for r in batch.trajectory_results if r.success)


def test_a_game_that_pays_in_parts_is_won_with_its_last_part(adapter: GemAdapter) -> None:
    """Mastermind by trying all codes: the winning move alone pays less than 1."""
    environment = adapter.get_environment("game:Mastermind-v0-easy", size=6, max_turns=30)
    codes = [f"\\boxed{{{a} {b}}}" for a in range(1, 7) for b in range(1, 7) if a != b]

    def next_code(request: GenerationRequest) -> str:
        return codes[sum(m.role == "assistant" for m in request.messages or ())]

    batch = TrajectoryRunner(environment, ScriptedBackend(next_code)).run_batch(range(6))
    assert batch.success_rate == 1.0
    assert all(r.total_reward == pytest.approx(1.0) for r in batch.trajectory_results)
    last = [r.trajectory.last_transition.rewards.by_name("game").reward for r in batch.trajectory_results]  # type: ignore[union-attr]
    assert min(last) == 0.5


def test_hanoi_is_solved_and_the_hidden_state_is_plain(adapter: GemAdapter) -> None:
    environment = adapter.get_environment("game:TowerofHanoi-v0-easy", size=1)
    solution = ["A C", "A B", "C B", "A C", "B A", "B C", "A C"]
    backend = ScriptedBackend(lambda r: f"\\boxed{{{solution[len(r.messages or ()) // 2]}}}")
    (result,) = TrajectoryRunner(environment, backend).run_batch([0]).trajectory_results
    assert result.success
    assert result.trajectory is not None
    assert result.trajectory.current_state.hidden == GemHidden(
        "game:TowerofHanoi-v0-easy", seed_of(0), 0, tuple(f"\\boxed{{{m}}}" for m in solution), 1.0, True
    )


def test_endings_are_told_apart(adapter: GemAdapter) -> None:
    def ending(script: Any) -> Ending:
        outcomes: list[Outcome] = []
        environment = adapter.get_environment("game:TowerofHanoi-v0-easy")
        run_rollouts([RolloutSpec(0, 0)], environment, ScriptedBackend(script), MessageBuilder(), outcomes.extend)
        return outcomes[0].ending

    assert ending(lambda request: "no box") is Ending.FINISHED
    assert ending(lambda request: "\\boxed{B A}") is Ending.TRUNCATED
