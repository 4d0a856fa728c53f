"""reasoning-gym environments: the package's own items and scores, good errors, and no answer that does harm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from llenvs_fast.core.environment import BatchEnvironment, Environment
from llenvs_fast.core.errors import InvalidSettingError, MissingPackageError, ScoringError, UnknownEnvironmentError
from llenvs_fast.core.extraction import RawExtractor
from llenvs_fast.core.registry import environment_registry
from llenvs_fast.core.reward import RewardType, Signal, StepPenalty
from llenvs_fast.core.state import Action, State
from llenvs_fast.environments.reasoning_gym.adapter import ReasoningGymAdapter
from llenvs_fast.environments.reasoning_gym.catalog import CATEGORIES, EVALUATING, WARNINGS
from llenvs_fast.environments.reasoning_gym.environment import ReasoningGymEnvironment, ReasoningGymHidden
from llenvs_fast.environments.sandbox import Call

pytestmark = [
    pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox is for Linux"),
]

WITHOUT_SOLUTION = {"boxnet", "rush_hour"}
OPTIONS: dict[str, dict[str, Any]] = {
    "composite": {"datasets": [{"name": "chain_sum", "weight": 1}, {"name": "countdown", "weight": 3}]}
}


@pytest.fixture(scope="module")
def adapter() -> Iterator[ReasoningGymAdapter]:
    adapter = ReasoningGymAdapter()
    yield adapter
    adapter.close()


def first_states(environment: ReasoningGymEnvironment, indices: list[int]) -> list[State]:
    states = []
    for result in environment.reset_batch([{"task_index": index} for index in indices]):
        assert not isinstance(result, Exception), result
        states.append(result[0])
    return states


def score(environment: ReasoningGymEnvironment, state: State, answers: list[str]) -> list[Signal | Exception]:
    results = environment.step_batch([state] * len(answers), [Action.from_text(answer) for answer in answers])
    return [result if isinstance(result, Exception) else result.rewards.signals[0] for result in results]


# what the package itself says, in a process of its own
ORACLE = """
import json, sys
import reasoning_gym
replies = []
for name, seed, index, answers in json.load(sys.stdin):
    dataset = reasoning_gym.create_dataset(name, size=50, seed=seed)
    item = dataset[index]
    replies.append([item, [float(dataset.score_answer(answer, item)) for answer in answers]])
json.dump(replies, sys.stdout, default=str)
"""


def package_says(questions: list[tuple[str, int, int, list[str]]]) -> list[tuple[dict[str, Any], list[float]]]:
    environment = os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ORACLE],
        input=json.dumps(questions),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_the_catalog_names_the_datasets_of_the_installed_package(adapter: ReasoningGymAdapter) -> None:
    assert adapter._pool.call(Call("names")).value == adapter.list_environments()
    assert len(adapter.list_environments()) == 106
    assert all(warned.names <= CATEGORIES.keys() for warned in WARNINGS)


def test_items_are_the_packages_own(adapter: ReasoningGymAdapter) -> None:
    names = ["chain_sum", "leg_counting", "gsm_symbolic", "word_ladder", "ransom_note", "polynomial_multiplication"]
    names += ["arc_1d", "rearc", "acre", "figlet_font", "knights_knaves", "tower_of_hanoi", "game_of_life"]
    questions = [(name, seed, index, []) for name in names for seed, index in ((42, 0), (7, 31))]
    for (name, seed, index, _), (item, _) in zip(questions, package_says(questions), strict=True):
        environment = adapter.get_environment(name, size=50, seed=seed)
        state, info = environment.reset(options={"task_index": index})
        assert state.hidden.entry == item
        assert state.observation.prompt == info["question"] == item["question"]


HONEST = {
    "binary_matrix": ["0 1\n1 0", "[[1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0], [1, 0, 1, 0]]", "matrix([[1]])", "[1"],
    "spiral_matrix": ["3 1 3 9 8 0 1 2 4", "[3, 1, 3, 9, 8, 0, 1, 2, 4]", "3 1", "None"],
    "string_insertion": ["ACBBBAEA", "['A', 'C', 'B', 'B', 'B', 'A', 'E', 'A']", "ABC", "'ACBBBAEA'"],
    "n_queens": ["_ Q", "[['_', 'Q']]", "Q_Q"],
    "simple_integration": ["10*x**7 + 4*x**3/5 + C", "10*x**7 + 0.8*x**3", "4*x**3/5 + 10*x**7 + K", "2x", "sure!"],
    "intermediate_integration": ["2*exp(4*x**2 + 2*x + 10) + C", "2*E**(4*x**2 + 2*x + 10)", "exp(x)", "f(x)"],
    "polynomial_multiplication": ["1140*z**5 + 9880*z**4 - 7410*z**3 - 216*z**2 - 1872*z + 1404", "z**2", "(z + 1)**2"],
    "countdown": ["15 - 4 + 95 + 36 - 32 + 29", "(29 + 15) - 4 + 95 + 36 - 32", "36 + 29", "The answer is 5", "1/0"],
    "puzzle24": ["4 + 3 + 9 + 8", "8*3*1*1", "6*4*1*1", "4!", "24", "4 + 3 +"],
}


def test_screened_scorers_give_honest_answers_the_packages_own_scores(adapter: ReasoningGymAdapter) -> None:
    assert HONEST.keys() == EVALUATING
    questions = [(name, 42, 0, answers) for name, answers in HONEST.items()]
    for (name, _, _, answers), (_, scores) in zip(questions, package_says(questions), strict=True):
        environment = adapter.get_environment(name, size=50, answer_extractor=RawExtractor())
        signals = score(environment, first_states(environment, [0])[0], answers)
        assert [getattr(signal, "reward", signal) for signal in signals] == scores, name


def test_neighbouring_seeds_share_items(adapter: ReasoningGymAdapter) -> None:
    ours, next_ones = (adapter.get_environment("chain_sum", seed=seed) for seed in (42, 43))
    assert first_states(ours, [1])[0].observation == first_states(next_ones, [0])[0].observation


def test_a_million_tasks_are_made_on_demand(adapter: ReasoningGymAdapter) -> None:
    environment = adapter.get_environment("leg_counting", size=10**6)
    assert len(environment) == 10**6
    state, info = environment.reset(options={"task_index": 10**6 - 1, "episode_id": "mine"})
    assert info["task_index"] == 10**6 - 1
    assert state.metadata.episode_id == "mine"


def test_a_step_tells_all_of_its_answer() -> None:
    environment = environment_registry.get(
        name="leg_counting", adapter="reasoning_gym", size=100, seed=42, extra_rewards=(StepPenalty(0.1),)
    )
    assert isinstance(environment, Environment)
    assert isinstance(environment, BatchEnvironment)
    assert environment.spec.pure_step
    assert environment.spec.max_steps == 1
    assert "resource limits" in environment.spec.metadata["sandbox"]
    state, _ = environment.reset(options={"task_index": 0})
    assert isinstance(state.hidden, ReasoningGymHidden)
    right = environment.step(state, Action.from_text(f"So <answer>{state.hidden.expected_answer}</answer>"))
    assert right.terminated
    assert right.next_state.metadata.is_terminal
    assert right.info["extracted_answer"] == right.info["expected_answer"] == right.extracted_action
    types = [(s.name, s.reward_type, s.reward) for s in right.rewards.signals]
    assert types == [
        ("correctness", RewardType.OUTCOME, 1.0),
        ("format", RewardType.FORMAT, 1.0),
        ("step_penalty", RewardType.STEP, -0.1),
    ]
    assert right.rewards.total == pytest.approx(0.9)
    silent = environment.step(state, Action.from_text("I don't know"))
    assert [s.reward for s in silent.rewards.signals] == [0.0, 0.0, -0.1]
    assert silent.rewards.signals[0].metadata == {"reason": "no answer"}
    action = Action.from_text("<answer>0</answer>")
    computed = [function.compute(state, action, state) for function in environment.reward_functions]
    assert [(s.name, s.reward) for s in computed] == [("correctness", 0.0), ("format", 1.0), ("step_penalty", -0.1)]
    environment.close()


def test_bad_indices_name_the_size_and_cost_only_their_slot(adapter: ReasoningGymAdapter) -> None:
    environment = adapter.get_environment("chain_sum", size=3)
    for options in ({"task_index": 3}, {"task_index": -1}, {}, {"task_index": True}):
        with pytest.raises(ValueError, match="chain_sum with size=3 has tasks 0 to 2"):
            environment.reset(options=options)
    good, bad, again = environment.reset_batch([{"task_index": 2}, {"task_index": 9}, {"task_index": 2}])
    assert isinstance(bad, ValueError)
    assert good[0].observation == again[0].observation
    assert good[0].metadata.episode_id != again[0].metadata.episode_id


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("chain_sum", {"size": 0}, "size=0: an environment needs at least one task"),
        ("chain_sum", {"size": "9"}, "size='9': a whole number"),
        ("chain_sum", {"seed": -1}, "seed=-1"),
        ("chain_sum", {"min_term": 2}, "no option 'min_term'; nearest: min_terms.*max_digits"),
        ("chain_sum", {"min_terms": 9, "max_terms": 2}, "max_terms=2, min_terms=9.*options: "),
        ("chain_sum", {"min_terms": object()}, "must be JSON values"),
        ("composite", {}, "composite does not take its defaults: Must specify"),
        ("composite", {"datasets": [{"name": "chain_sum"}]}, "composite does not take datasets.*weight"),
    ],
)
def test_bad_settings_are_named(adapter: ReasoningGymAdapter, name: str, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSettingError, match=message):
        adapter.get_environment(name, **kwargs)


def test_an_unknown_dataset_comes_with_the_nearest_names(adapter: ReasoningGymAdapter) -> None:
    with pytest.raises(UnknownEnvironmentError, match="'chain_sums'; nearest: chain_sum, decimal_chain_sum"):
        adapter.get_environment("chain_sums")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(MissingPackageError, match=r"llenvs-fast\[reasoning-gym\]"):
        ReasoningGymAdapter().get_environment("chain_sum")


def test_a_broken_extractor_or_reward_costs_its_slot_only(adapter: ReasoningGymAdapter) -> None:
    class Broken:
        name = "broken"
        reward_type = RewardType.STEP

        def extract(self, text: str) -> tuple[str | None, dict[str, Any]]:
            return RawExtractor().extract(text) if text != "odd" else 1 / 0

        def compute(self, state: State, action: Action, next_state: State) -> Signal:
            return Signal("broken", RewardType.STEP, 1.0 / float(action.text != "even"))

    environment = adapter.get_environment("chain_sum", answer_extractor=Broken(), extra_rewards=(Broken(),))
    state = first_states(environment, [0])[0]
    results = environment.step_batch([state] * 3, [Action.from_text(text) for text in ("odd", "even", "7")])
    assert [type(result) for result in results[:2]] == [ZeroDivisionError] * 2
    assert results[2].rewards.by_name("correctness").reward is not None


def test_a_mixture_scores_each_item_by_its_own_dataset(adapter: ReasoningGymAdapter) -> None:
    environment = adapter.get_environment("composite", size=8, **OPTIONS["composite"])
    states = first_states(environment, list(range(8)))
    assert {state.hidden.entry["metadata"]["source_dataset"] for state in states} == {"chain_sum", "countdown"}
    actions = [Action.from_text(f"<answer>{state.hidden.expected_answer}</answer>") for state in states]
    assert [result.rewards.total for result in environment.step_batch(states, actions)] == [1.0] * 8
    code = environment.step_batch(states, [Action.from_text("<answer>exit()</answer>")] * 8)
    for state, result in zip(states, code, strict=True):
        source = state.hidden.entry["metadata"]["source_dataset"]
        assert isinstance(result, ScoringError) == (source == "countdown")


def test_info_warns_in_plain_words(adapter: ReasoningGymAdapter) -> None:
    info = adapter.get_environment_info("puzzle24")
    assert info["category"] == "games"
    assert [warning.partition(":")[0] for warning in info["warnings"]] == ["unsafe", "exploitable", "slow", "floor"]
    assert adapter.get_environment_info("chain_sum")["warnings"] == []


def test_listing_imports_no_package() -> None:
    code = (
        "import sys\nfrom llenvs_fast.core.registry import environment_registry as r\n"
        "names = r.list_environments('reasoning_gym')\n"
        "r.get_adapter('reasoning_gym').get_environment_info('countdown')\n"
        "assert len(names) == 106 and not {'reasoning_gym', 'sympy', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


def test_a_scorer_that_raises_scores_zero_with_its_error(adapter: ReasoningGymAdapter) -> None:
    environment = adapter.get_environment("prime_factorization")
    state, _ = environment.reset(options={"task_index": 0})
    signal = environment.step(state, Action.from_text("<answer>two times three</answer>")).rewards.signals[0]
    assert signal.reward == 0.0
    assert signal.metadata["error"].startswith("ValueError: ")


CODE = [
    "__import__('os').system('touch {canary}')",
    "open('{canary}', 'w')",
    "[open('{canary}', 'w').write(x) for x in 'ab']",
    "__import__('pathlib').Path('{canary}').write_text('x')",
    "__import__('subprocess').run(['touch', '{canary}'])",
    "exec(\"open('{canary}', 'w')\")",
    "(lambda: open('{canary}', 'w'))()",
    "lambda x: open('{canary}', 'w')",
    "sympify(\"open('{canary}', 'w')\")",
    "parse_expr('__import__(\"os\").system(\"touch {canary}\")')",
    "x.__class__.__mro__[1].__subclasses__()",
    "Symbol('x').__init__.__globals__['__builtins__']['open']('{canary}', 'w')",
    "Function('f').__module__ + str(open('{canary}', 'w'))",
    "preview(1, output='png', filename='{canary}')",
    "print(1, file=open('{canary}', 'w'))",
]
HUGE = ["9**9**9", "2**(10**10)", "[9**9**9]", "factorial(10**8)", "99999999!", "(x+1)**100000", "x**9**9**9"]
HUGE += ["1e999999999", "binomial(10**9, 5*10**8)", "[i for i in range(10**10)]", "9" * 400, "9" * 9999]
HUGE += ["[" + "1," * 4000 + "1]"]
ODD = ["(" * 5000 + ")" * 5000, "[" * 9000, "-" * 9000 + "1", "1\0", "\0", "\ud800", "{}", "[]", "[{}]", "None"]
ODD += ["nan", "-inf", "1e400", "x" * 2**20, "9" * 2**20, "(" * 2**20, " ", "\n", "İ", "1/0"]
ODD += ["0x" + "f" * 500, "1 " * 4999, '{"a": 1}']


@pytest.fixture(scope="module")
def quick_adapter() -> Iterator[ReasoningGymAdapter]:
    adapter = ReasoningGymAdapter()
    yield adapter
    adapter.close()


@pytest.mark.parametrize("category", sorted(set(CATEGORIES.values())))
def test_no_answer_does_harm(quick_adapter: ReasoningGymAdapter, tmp_path: Path, category: str) -> None:
    """Canaries stay away, every hostile answer gets a number or a reason, and later answers are scored as before."""
    canary = tmp_path / "canary"
    names = [str(canary), "canary_of_llenvs"]  # by full path, and wherever the scorer runs
    hostile = [code.replace("{canary}", names[i % 2]) for i, code in enumerate(CODE)] + HUGE + ODD
    for name in [name for name in CATEGORIES if CATEGORIES[name] == category]:
        options = {"size": 2, "answer_extractor": RawExtractor(), **OPTIONS.get(name, {})}
        environment = quick_adapter.get_environment(name, **options)
        impatient = quick_adapter.get_environment(name, score_timeout_s=2.0, **options)
        state = first_states(environment, [0])[0]
        honest = [state.hidden.expected_answer or "a", "wrong", "0"]
        before = score(environment, state, honest)
        for answer, outcome in zip(hostile, score(impatient, state, hostile), strict=True):
            if isinstance(outcome, ScoringError):
                assert str(outcome), (name, answer[:50])
            else:
                assert isinstance(outcome, Signal), (name, answer[:50], outcome)
                assert outcome.reward is not None, (name, answer[:50])
        assert score(environment, state, honest) == before, name
        assert (before[0].reward == 1.0) == (name not in WITHOUT_SOLUTION), (name, before)
        assert before[1].reward < 1.0 or name == "game_of_life_halting", (name, before)
    assert not canary.exists()
    assert not any((Path(folder) / names[1]).exists() for folder in ("/", ".", Path.home(), "/tmp"))


@pytest.mark.parametrize("name", sorted(EVALUATING))
def test_code_is_refused_and_huge_numbers_do_not_hang(quick_adapter: ReasoningGymAdapter, name: str) -> None:
    environment = quick_adapter.get_environment(name, size=2, answer_extractor=RawExtractor())
    state = first_states(environment, [0])[0]
    refused, after = score(environment, state, ["__import__('os').system('true')", "0"])
    assert isinstance(refused, ScoringError)
    assert refused.kind == "score_refused"
    assert "not run" in str(refused)
    assert isinstance(after, Signal)
    outcomes = score(environment, state, HUGE)
    assert {outcome.kind for outcome in outcomes if isinstance(outcome, ScoringError)} <= {"score_refused"}


def test_an_extractor_may_be_named_and_an_unknown_name_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match="no answer extractor 'numerik'; nearest: numeric"):
        environment_registry.get(name="leg_counting", adapter="reasoning_gym", answer_extractor="numerik")
    env = environment_registry.get(name="chain_sum", adapter="reasoning_gym", size=3, answer_extractor="numeric")
    state, _ = env.reset(options={"task_index": 0})
    result = env.step(state, Action.from_text(f"so it is {state.hidden.expected_answer}."))
    assert result.rewards.by_name("correctness").reward == 1.0


@pytest.mark.parametrize(
    ("extractor", "asks_for"), [("tag_based", "<answer>…</answer>"), ("boxed", r"\boxed{…}"), ("numeric", None)]
)
def test_the_default_system_prompt_asks_for_what_the_extractor_reads(extractor: str, asks_for: str | None) -> None:
    env = environment_registry.get(name="chain_sum", adapter="reasoning_gym", size=3, answer_extractor=extractor)
    assert (asks_for in env.prompts["system"]) if asks_for else env.prompts == {}
