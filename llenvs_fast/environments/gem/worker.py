"""The only file that imports gem. It runs inside a sandbox worker, never in the user's process.

The games draw from the generator of `random`, which all share, some of them in the middle of an episode. So a position
is a copy of the game together with the generator's state, put back before the next action: what else runs here changes
no episode. (gem seeds NumPy's generator too, but none of these games draws from it.) Positions are kept for a while;
one that is gone is played again from the start, to the same result.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import random
import sys
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType, SimpleNamespace
from typing import Any

from llenvs_fast.core.errors import nearest
from llenvs_fast.environments.gem.catalog import GAMES
from llenvs_fast.environments.sandbox import guard
from llenvs_fast.environments.sandbox.inside import setting_up

# On import gem lists reasoning_gym's datasets, which takes a second and 100 MB. No game uses them.
_no_datasets = ModuleType("reasoning_gym")
_no_datasets.factory = SimpleNamespace(DATASETS={})  # type: ignore[attr-defined]
sys.modules["reasoning_gym"] = _no_datasets

from gem.envs.registration import ENV_REGISTRY  # noqa: E402
from gem.utils.constants import LanguageGameReward  # noqa: E402

MAX_GAMES = 16
MAX_STARTS = 512
MAX_POSITIONS = 1024

# One move of each kind of game; the others take it for text that they can't read.
_MOVES = (r"\boxed{1}", r"\boxed{1 2}", r"\boxed{1 1 1}", r"\boxed{A B}", r"\boxed{up}", r"\boxed{reveal 0 0}")

Start = tuple[str, str, int]  # game, its options as JSON, seed


@dataclass(frozen=True, slots=True)
class Position:
    """A game after some actions. It is never played on itself, only copies of it."""

    game: Any
    random_state: tuple[Any, ...]


_positions: OrderedDict[tuple[Start, tuple[str, ...]], Position] = OrderedDict()


def games() -> list[str]:
    """All games that the installed package registers."""
    return sorted(name for name in ENV_REGISTRY if name.startswith("game:"))


def check(name: str, options: str) -> int | None:
    """The most turns of a game; None where they depend on the seed.

    Raises ValueError with a message for the user where the game does not take these options.
    """
    with guard.strength(guard.Strength.SERVING):
        known = [p.name for p in inspect.signature(_class(name)).parameters.values() if p.kind is not p.VAR_KEYWORD]
        given = json.loads(options)
        for option in given:
            if option not in known:
                raise ValueError(f"{name} has no option {option!r}; {nearest(option, known)}; all: {', '.join(known)}")
        try:
            game = _made(name, options)
            if given:
                _try_out(game)
        except Exception as error:  # whatever the package makes of options that it does not expect
            why = str(error) or type(error).__name__
            what = ", ".join(f"{option}={value!r}" for option, value in given.items()) or "its defaults"
            raise ValueError(f"{name} does not take {what}: {why}; its options: {', '.join(known)}") from error
        return None if getattr(game, "_is_random", False) else game.max_turns


def _try_out(game: Any) -> None:
    """Raise whatever options that fit no game lead to: some constructors take everything."""
    game = copy.deepcopy(game)
    game.reset(seed=0)
    if not isinstance(game.max_turns, int) or game.max_turns < 1:
        raise ValueError(f"it would have max_turns={game.max_turns}")
    for move in _MOVES:
        copy.deepcopy(game).step(move)


def reset(name: str, options: str, seed: int) -> str:
    """What the player is shown first."""
    return _start((name, options, seed))[1]


def step(name: str, options: str, seed: int, actions: list[str], action: str) -> dict[str, Any]:
    """Play `action` after `actions`: what is shown then, the game's own reward and ending, and whether it was read."""
    start, past = (name, options, seed), tuple(actions)
    position, (observation, reward, terminated, truncated, info) = _played(_position(start, past), action)
    if not (terminated or truncated):
        _positions[start, (*past, action)] = position
        if len(_positions) > MAX_POSITIONS:
            _positions.popitem(last=False)
    return {
        "text": _shown(observation, info),
        "reward": float(reward),
        "terminated": bool(terminated),
        "truncated": bool(truncated),
        "understood": reward != LanguageGameReward.format_error_reward,
    }


def _class(name: str) -> Any:
    module, _, attribute = str(ENV_REGISTRY[name].entry_point).partition(":")
    return getattr(importlib.import_module(module), attribute)


for _name in GAMES:
    _class(_name)  # while an action is played, nothing new is imported


@lru_cache(MAX_GAMES)
def _made(name: str, options: str) -> Any:
    """A game to be reset: what `gem.make` gives, but for the reset in its constructor, which takes seconds in some."""
    class_ = _class(name)
    without_reset = type(class_.__name__, (class_,), {"reset": lambda self: None})
    game = without_reset(**ENV_REGISTRY[name].kwargs | json.loads(options))
    game.__class__ = class_
    return game


@lru_cache(MAX_STARTS)
def _start(start: Start) -> tuple[Position, str]:
    """The first position of an episode, and what is shown there."""
    name, options, seed = start
    with setting_up():
        game = copy.deepcopy(_made(name, options))
        observation, info = game.reset(seed=seed)
        return Position(game, random.getstate()), _shown(observation, info)


def _position(start: Start, actions: tuple[str, ...]) -> Position:
    """The position after `actions`, played from the last one on the way that is still there."""
    kept = next((n for n in range(len(actions), 0, -1) if (start, actions[:n]) in _positions), 0)
    if kept:
        _positions.move_to_end((start, actions[:kept]))
    position = _positions[start, actions[:kept]] if kept else _start(start)[0]
    for action in actions[kept:]:
        position, _ = _played(position, action)
    return position


def _played(position: Position, action: str) -> tuple[Position, tuple[str, float, bool, bool, dict[str, Any]]]:
    """The position after one more action, and what gem says of it."""
    game = copy.deepcopy(position.game)
    random.setstate(position.random_state)
    said = game.step(action)
    return Position(game, random.getstate()), said


def _shown(observation: str, info: dict[str, Any]) -> str:
    """The event and, where the game has one, its suffix: the board, or what to do next."""
    suffix = info.get("suffix")
    return f"{observation.rstrip()}\n{suffix}" if suffix else observation
