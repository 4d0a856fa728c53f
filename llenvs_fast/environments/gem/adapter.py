"""gem as a source of environments: names, facts and construction, without importing the package."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Sequence
from typing import Any

from llenvs_fast.core.errors import InvalidSettingError, MissingPackageError, UnknownEnvironmentError, nearest
from llenvs_fast.core.reward import RewardFunction
from llenvs_fast.environments.gem.catalog import GAMES, warnings_of, why_absent
from llenvs_fast.environments.gem.environment import GameOptions, GemEnvironment
from llenvs_fast.environments.sandbox import SandboxPool

NOTE = (
    "Task i is an episode whose seed is derived from the environment's seed and i. Scores are the package's own; "
    "success is a score of 1.0."
)

_LARGEST = (1 << 63) - 1


class GemAdapter:
    """The source `gem`. All its environments share one pool of sandbox workers."""

    name = "gem"

    def __init__(self) -> None:
        self._pool = SandboxPool("llenvs_fast.environments.gem.worker")

    def list_environments(self) -> list[str]:
        return sorted(GAMES)

    def get_environment(
        self,
        name: str,
        size: int = 500,
        seed: int = 42,
        max_steps: int | None = None,
        score_timeout_s: float = 10.0,
        extra_rewards: Sequence[RewardFunction] = (),
        **game_kwargs: Any,
    ) -> GemEnvironment:
        """Episodes 0 to size - 1 of a game; `game_kwargs` are the game's own options, such as max_turns.

        `max_steps` ends episodes earlier than the game does; `score_timeout_s` is how long one move may take.

        Raises UnknownEnvironmentError, InvalidSettingError and MissingPackageError.
        """
        self._check_name(name)
        _check_whole("size", size, 1)
        _check_whole("seed", seed, 0)
        if max_steps is not None:
            _check_whole("max_steps", max_steps, 1)
        if not isinstance(score_timeout_s, int | float) or not 0 < score_timeout_s < math.inf:
            raise InvalidSettingError(f"score_timeout_s={score_timeout_s!r}: give seconds above 0")
        for reward in extra_rewards:
            if not callable(getattr(reward, "compute", None)):
                raise InvalidSettingError(f"extra_rewards has {reward!r}: give reward functions")
        try:
            kwargs = json.dumps(game_kwargs, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidSettingError(f"{name}: options must be JSON values, got {game_kwargs!r}: {error}") from None
        if importlib.util.find_spec("gem") is None:
            raise MissingPackageError(
                "environments of gem need the package gem-llm: pip install --no-deps gem-llm==0.1.0 (it asks for "
                "another reasoning-gym than ours, and its games need none)"
            )
        options = GameOptions(name, seed, size, kwargs)
        return GemEnvironment(options, self._pool, max_steps, extra_rewards, score_timeout_s)

    def get_environment_info(self, name: str) -> dict[str, Any]:
        """`name`, `category`, `warnings` (list of texts, empty where all is well) and `note`."""
        self._check_name(name)
        return {"name": name, "category": "games", "warnings": warnings_of(name), "note": NOTE}

    def close(self) -> None:
        """Stop all workers; they start again when needed."""
        self._pool.close()

    def _check_name(self, name: str) -> None:
        if name not in GAMES:
            why = why_absent(name)
            because = f" ({why})" if why else ""
            raise UnknownEnvironmentError(f"gem has no environment {name!r} here{because}; {nearest(name, GAMES)}")


def _check_whole(setting: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidSettingError(f"{setting}={value!r}: a whole number is needed")
    if not least <= value <= _LARGEST:
        raise InvalidSettingError(f"{setting}={value}: give a number from {least} to {_LARGEST}")
