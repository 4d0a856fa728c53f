"""Which of gem-llm 0.1.0's environments are here, why the others are not, and what to beware of, in plain words.

The catalog is data: it names the games without loading the package (a test compares the two).
"""

from __future__ import annotations

_LEVELS = {
    "FifteenPuzzle": "easy hard",
    "Game2048": "easy hard extreme-hard random",
    "GuessTheNumber": "easy hard random",
    "Mastermind": "easy hard random",
    "Minesweeper": "easy hard random",
    "Sokoban": "easy hard random",
    "Sudoku": "easy hard random",
    "TowerofHanoi": "easy hard random",
}

GAMES: tuple[str, ...] = tuple(
    f"game:{family}-v0-{level}" for family, levels in _LEVELS.items() for level in levels.split()
)

_NEEDS_DATA = "its tasks are a data set on the Hugging Face Hub; of gem only the games that need no data are here"
_NEEDS_WORDS = "it needs NLTK's list of words"
_ABSENT = {  # by how a name begins; the first that fits says it
    "rg:": "the source reasoning_gym has these datasets, under their own names",
    "game:FifteenPuzzle-v0-random": "it raises in gem 0.1.0",
    "game:Crosswords": "it needs pandas, which gem does not install",
    "game:Hangman": _NEEDS_WORDS,
    "game:WordSearch": _NEEDS_WORDS,
    "game:Wordle": _NEEDS_WORDS,
    **dict.fromkeys(("math:", "code:", "logic:", "qa:", "eval:"), _NEEDS_DATA),
}

_WARNINGS: tuple[tuple[str, str], ...] = (  # by how a name begins
    ("game:TowerofHanoi-v0-random", "few tasks: 3 different ones, whatever the size and the seed"),
    ("game:TowerofHanoi-v0-easy", "few tasks: all tasks are the same one"),
    ("game:TowerofHanoi-v0-hard", "few tasks: all tasks are the same one"),
    ("game:GuessTheNumber-v0-easy", "few tasks: there are 10 numbers to guess"),
    ("game:Mastermind-v0-easy", "few tasks: there are 30 codes to guess"),
    ("game:FifteenPuzzle-v0-easy", "few tasks: there are 24 boards"),
    ("game:FifteenPuzzle", "unsolvable: half of the boards can't be solved"),
    ("game:Sokoban-v0-hard", "slow: a task takes up to 14 s to make, again in every worker that meets it"),
    ("game:Sokoban-v0-random", "slow: a task takes up to 80 s to make, again in every worker that meets it"),
    ("game:Sudoku-v0-hard", "slow: a task takes up to 0.9 s to make, again in every worker that meets it"),
    ("game:Sudoku-v0-random", "slow: a task takes up to 1.9 s to make, again in every worker that meets it"),
    ("game:Minesweeper", "long: with all cells revealed and a mine not flagged the game goes on to its last turn"),
)


def warnings_of(name: str) -> list[str]:
    """What to beware of in a game, as `kind: text`; empty where nothing is known."""
    return [text for begin, text in _WARNINGS if name.startswith(begin)]


def why_absent(name: str) -> str | None:
    """Why an environment of gem is not among GAMES; None where gem has none that begins so."""
    return next((why for begin, why in _ABSENT.items() if name.startswith(begin)), None)
