"""reasoning-gym as a source of environments: names, facts and construction, without importing the package."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from llenvs_fast.core.environment import Environment
from llenvs_fast.core.errors import InvalidSettingError, MissingPackageError, UnknownEnvironmentError, nearest
from llenvs_fast.core.extraction import AnswerExtractor, BoxedExtractor, TagBasedExtractor, answer_extractor_registry
from llenvs_fast.core.reward import RewardFunction
from llenvs_fast.environments.reasoning_gym.catalog import CATEGORIES, warnings_of
from llenvs_fast.environments.reasoning_gym.environment import DatasetOptions, ReasoningGymEnvironment
from llenvs_fast.environments.sandbox import SandboxPool
from llenvs_fast.environments.tools import ToolEnvironment, check_tool_types, make_tools

NOTE = (
    "Item i of seed s is drawn with seed s + i: neighbouring seeds share items, so space seeds by more than the size. "
    "Scores are the package's own; success is a score of 1.0."
)


_LARGEST = (1 << 63) - 1


class ReasoningGymAdapter:
    """The source `reasoning_gym`. All its environments share one pool of sandbox workers."""

    name = "reasoning_gym"

    def __init__(self) -> None:
        self._pool = SandboxPool("llenvs_fast.environments.reasoning_gym.worker")

    def list_environments(self) -> list[str]:
        return sorted(CATEGORIES)

    def get_environment(
        self,
        name: str,
        size: int = 500,
        seed: int = 42,
        answer_extractor: AnswerExtractor | str | None = None,
        extra_rewards: Sequence[RewardFunction] = (),
        score_timeout_s: float = 10.0,
        tool_types: Sequence[str] = (),
        **dataset_kwargs: Any,
    ) -> Environment:
        """Items 0 to size - 1 of a dataset; `dataset_kwargs` are the package's own options for it.

        Answers are read from `<answer>` tags unless another extractor, or the name of one, is given. Neighbouring seeds
        share items: space them by more than `size`.

        Raises UnknownEnvironmentError, InvalidSettingError and MissingPackageError.
        """
        self._check_name(name)
        extractor = _extractor(answer_extractor)
        tool_types = check_tool_types(tool_types)
        for setting, value, least in (("size", size, 1), ("seed", seed, 0)):
            if not isinstance(value, int) or isinstance(value, bool):
                raise InvalidSettingError(f"{setting}={value!r}: a whole number is needed")
            if value > _LARGEST:
                raise InvalidSettingError(f"{setting}={value}: give at most {_LARGEST}")
            if value < least:
                need = "an environment needs at least one task" if setting == "size" else "seeds start at 0"
                raise InvalidSettingError(f"{setting}={value}: {need}")
        if not isinstance(score_timeout_s, int | float) or not 0 < score_timeout_s < math.inf:
            raise InvalidSettingError(f"score_timeout_s={score_timeout_s!r}: give seconds above 0")
        try:
            config = json.dumps(dataset_kwargs, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidSettingError(f"{name}: options must be JSON values, got {dataset_kwargs!r}: {error}") from None
        if importlib.util.find_spec("reasoning_gym") is None:
            raise MissingPackageError(
                "environments of reasoning_gym need the package reasoning-gym: pip install 'llenvs-fast[reasoning-gym]'"
            )
        for reward in extra_rewards:
            if not callable(getattr(reward, "compute", None)):
                raise InvalidSettingError(f"extra_rewards has {reward!r}: give reward functions")
        options = DatasetOptions(name, seed, size, config)
        environment = ReasoningGymEnvironment(options, self._pool, extractor, extra_rewards, score_timeout_s)
        if not tool_types:
            return environment
        return ToolEnvironment(environment, make_tools(tool_types), answer_format=_answer_format(extractor))

    def get_environment_info(self, name: str) -> dict[str, Any]:
        """`name`, `category`, `warnings` (list of texts, empty where all is well) and `note`."""
        self._check_name(name)
        return {"name": name, "category": CATEGORIES[name], "warnings": warnings_of(name), "note": NOTE}

    def close(self) -> None:
        """Stop all workers; they start again when needed."""
        self._pool.close()

    def _check_name(self, name: str) -> None:
        if name not in CATEGORIES:
            raise UnknownEnvironmentError(f"reasoning_gym has no environment {name!r}; {nearest(name, CATEGORIES)}")


def _extractor(wanted: AnswerExtractor | str | None) -> AnswerExtractor:
    if wanted is None:
        return TagBasedExtractor()
    if isinstance(wanted, AnswerExtractor):
        return wanted
    if not isinstance(wanted, str):
        raise InvalidSettingError(f"answer_extractor={wanted!r}: give the name of one, or an object with extract(text)")
    if wanted not in answer_extractor_registry:
        known = answer_extractor_registry.keys()
        raise InvalidSettingError(f"no answer extractor {wanted!r}; {nearest(wanted, known)}")
    return answer_extractor_registry.create(wanted)


def _answer_format(extractor: AnswerExtractor) -> Callable[[str], str]:
    """How to write an answer for this extractor; as it stands where it is none of those that need a form."""
    if isinstance(extractor, TagBasedExtractor):
        return f"<{extractor.tag}>{{}}</{extractor.tag}>".format
    return "\\boxed{{{}}}".format if isinstance(extractor, BoxedExtractor) else "{}".format
