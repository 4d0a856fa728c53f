"""What is known of each dataset of reasoning-gym 0.1.25: its category, and what to beware of, in plain words.

The catalog is data: it names the datasets without loading the package (a test compares the two), and it changes no
score. Where a scorer is known to be wrong, the warning says so and the score stays the package's own.
"""

from __future__ import annotations

from dataclasses import dataclass

_BY_CATEGORY = {
    "algebra": "complex_arithmetic intermediate_integration polynomial_equations polynomial_multiplication "
    "simple_equations simple_integration",
    "algorithmic": "ab base_conversion binary_alternation binary_matrix caesar_cipher count_primes cryptarithm "
    "game_of_life game_of_life_halting graph_color group_anagrams isomorphic_strings jugs letter_counting "
    "letter_jumble manipulate_matrix number_filtering number_sorting palindrome_generation palindrome_partitioning "
    "pool_matrix ransom_note rotate_matrix rotten_oranges sentence_reordering spell_backward spiral_matrix "
    "string_insertion string_manipulation string_splitting string_synthesis word_ladder word_sequence_reversal "
    "word_sorting",
    "arc": "arc_1d arc_agi rearc",
    "arithmetic": "basic_arithmetic bitwise_arithmetic calendar_arithmetic chain_sum count_bits decimal_arithmetic "
    "decimal_chain_sum dice fraction_simplification gcd gsm_symbolic lcm leg_counting number_format power_function "
    "prime_factorization products time_intervals",
    "code": "bf codeio",
    "cognition": "color_cube_rotation figlet_font modulo_grid needle_haystack number_sequence rectangle_count "
    "rubiks_cube",
    "games": "boxnet countdown emoji_mystery futoshiki kakurasu knight_swap mahjong_puzzle maze mini_sudoku n_queens "
    "puzzle24 rush_hour sokoban sudoku survo tower_of_hanoi tsumego",
    "geometry": "advanced_geometry simple_geometry",
    "graphs": "course_schedule family_relationships largest_island path_star quantum_lock shortest_path",
    "induction": "acre list_functions",
    "logic": "aiw circuit_logic knights_knaves propositional_logic self_reference syllogism zebra_puzzles",
    "other": "composite",
    "probability": "coin_flip",
}

CATEGORIES: dict[str, str] = {name: category for category, names in _BY_CATEGORY.items() for name in names.split()}

# Their scorers evaluate the answer as Python: see `screen` and `worker`.
EVALUATING = frozenset({
    "binary_matrix", "spiral_matrix", "string_insertion", "n_queens", "simple_integration",
    "intermediate_integration", "polynomial_multiplication", "countdown", "puzzle24",
})  # fmt: skip

# Items that take long to make, or can't be made twice: the item that was shown goes along with the answer.
SCORED_AS_SHOWN = frozenset({
    "codeio", "knight_swap", "intermediate_integration", "futoshiki", "zebra_puzzles", "puzzle24",
    "polynomial_equations", "sokoban", "sudoku", "countdown", "rubiks_cube", "advanced_geometry", "game_of_life",
    "game_of_life_halting", "polynomial_multiplication", "simple_integration", "jugs",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Warned:
    """One thing to beware of: a word for it, what it means, and the datasets that it holds for."""

    kind: str
    text: str
    names: frozenset[str]


def _warned(kind: str, text: str, names: str) -> Warned:
    return Warned(kind, text, frozenset(names.split()))


WARNINGS = (
    Warned(
        "unsafe",
        "the package's scorer evaluates the answer as code: here answers are screened first, code and huge numbers are "
        "refused (kind score_refused), and each answer is scored in a process of its own (a few hundred a second)",
        EVALUATING,
    ),
    _warned(
        "irreproducible",
        "items depend on Python's hash seed: here it is 0, so a process with another one makes other items",
        "polynomial_multiplication isomorphic_strings ransom_note word_ladder knight_swap",
    ),
    _warned(
        "irreproducible",
        "items come from running sampled programs and can differ between two runs with the same seed",
        "codeio",
    ),
    _warned("exploitable", "any answer that is not empty scores 1.0", "game_of_life_halting"),
    _warned("exploitable", 'the answer "0" scores 1.0 on nearly all items', "coin_flip"),
    _warned("exploitable", 'the answer "nan" scores 1.0', "complex_arithmetic"),
    _warned("exploitable", 'the numbers are not compared with the task\'s: "6*4*1*1" always scores 1.0', "puzzle24"),
    _warned("exploitable", 'the answer "0" scores 0.5 on average', "polynomial_equations"),
    _warned("slow", "an item takes 0.1 to 0.3 s to make, single ones over a second", "knight_swap futoshiki"),
    _warned("slow", "an item takes about 0.1 s to make", "intermediate_integration zebra_puzzles puzzle24"),
    _warned("slow", "single items take up to 0.25 s to make", "polynomial_equations sokoban sudoku"),
    _warned(
        "no ground truth",
        "the package gives no answer: the expected answer is the example solution in its metadata, one of many",
        "graph_color rubiks_cube propositional_logic",
    ),
    _warned("no ground truth", "the package gives neither an answer nor a solution", "boxnet rush_hour"),
    _warned(
        "raises",
        "the scorer raises on some texts (scored 0.0, with the error in the signal's metadata)",
        "prime_factorization boxnet game_of_life coin_flip calendar_arithmetic time_intervals",
    ),
    _warned("slow to score", "an answer like 1e999999999 is computed exactly: it ends as score_timeout", "coin_flip"),
    _warned("size-dependent", "item i changes with the size of the dataset", "acre"),
    _warned(
        "floor",
        "a wrong answer scores above 0: count 1.0 as success, not more than 0",
        "fraction_simplification power_function color_cube_rotation rubiks_cube countdown emoji_mystery puzzle24 "
        "rush_hour tsumego advanced_geometry prime_factorization sentence_reordering arc_agi rearc propositional_logic",
    ),
    _warned(
        "mixture", "needs datasets=[{'name': …, 'weight': …, 'config': {…}}, …]; heeds their own warnings", "composite"
    ),
)


def warnings_of(name: str) -> list[str]:
    """What to beware of in a dataset, as `kind: text`; empty where nothing is known."""
    return [f"{warned.kind}: {warned.text}" for warned in WARNINGS if name in warned.names]


def expected_answer(name: str, entry: dict[str, object]) -> object:
    """Where an entry's solution stands if the package gives no answer; None where it has none."""
    metadata = entry["metadata"]
    if entry["answer"] is not None or not isinstance(metadata, dict):
        return entry["answer"]
    match metadata.get("source_dataset", name):
        case "graph_color":
            return metadata["possible_answer"]
        case "rubiks_cube":
            return metadata["example_correct_answer"]
        case "propositional_logic":
            return metadata["example_answer"]
    return None
