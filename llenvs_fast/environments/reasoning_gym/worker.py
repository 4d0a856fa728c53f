"""The only file that imports reasoning_gym. It runs inside a sandbox worker, never in the user's process.

Items and scores are the package's own. Two things are changed before any answer is seen: packages that only draw
pictures are not loaded, and the scorers that would evaluate the answer as code get the readers of `screen` instead.
Those scorers run in a child forked for one answer, so nothing that an answer does reaches the next one.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import json
import sys
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import nullcontext
from types import ModuleType
from typing import Any

from llenvs_fast.core.errors import nearest
from llenvs_fast.environments.reasoning_gym.catalog import EVALUATING
from llenvs_fast.environments.sandbox import guard
from llenvs_fast.environments.sandbox.inside import Encoded, isolated, setting_up

MAX_DATASETS = 16
MAX_ENTRIES = 2048
_DRAWING = frozenset({"matplotlib", "mpl_toolkits", "drawsvg"})

Key = tuple[str, int, int, str]  # dataset, seed, size, configuration as JSON


class _Absent(ModuleType):
    """A package that is imported and never used: every attribute is another one of these."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> _Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(name)

    def __call__(self, *args: Any, **kwargs: Any) -> _Absent:
        return self


class _DrawingFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in _DRAWING:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.insert(0, _DrawingFinder())

import reasoning_gym.factory as factory  # noqa: E402
import sympy  # noqa: E402
from reasoning_gym.composite import DatasetSpec  # noqa: E402

from llenvs_fast.environments.reasoning_gym.screen import read_formula, read_literal  # noqa: E402


def _screen_scorers() -> None:
    """Put the readers of `screen` where the scorers look for `eval` and `parse_expr`."""
    for name in EVALUATING:
        module = sys.modules[factory.DATASETS[name][0].__module__]
        module.eval = read_literal  # type: ignore[attr-defined]
        if hasattr(module, "parse_expr"):
            module.parse_expr = read_formula  # type: ignore[attr-defined]
    sympy.parse_expr = read_formula


_screen_scorers()

_datasets: OrderedDict[Key, Any] = OrderedDict()
_entries: OrderedDict[tuple[Key, int], Any] = OrderedDict()
_warm: set[str] = set()  # scored their own answer once here, which loads parts of sympy that all children then share


def names() -> list[str]:
    """All datasets of the installed package."""
    return sorted(factory.DATASETS)


def check(name: str, seed: int, size: int, config: str) -> None:
    """Raise ValueError with a message for the user where the package does not take this configuration."""
    with guard.strength(guard.Strength.SERVING):
        _configured(name, seed, size, config)


def generate(name: str, seed: int, size: int, config: str, index: int) -> Encoded:
    """The package's own item `index`, as JSON."""
    with guard.strength(guard.Strength.SERVING):
        entry = _entry((name, seed, size, config), index)
    guard.take_refusal()  # codeio's sampled programs try odd things; no answer has been seen
    return _as_json(entry)


def score(
    name: str, seed: int, size: int, config: str, index: int, answer: str, shown: dict[str, Any] | None
) -> float | None:
    """The package's score of an answer to item `index`, or to the item as it was `shown`."""
    key = (name, seed, size, config)
    at_hand = key in _datasets and (shown is not None or (key, index) in _entries)
    with nullcontext() if at_hand else setting_up():
        dataset = _dataset(key)
        entry = _entry(key, index) if shown is None else shown
    source = entry["metadata"].get("source_dataset", name)
    if source not in EVALUATING:
        score_here: float | None = _score(dataset, answer, entry)
        return score_here
    if source not in _warm:
        with setting_up():
            _score(dataset, entry["answer"], entry)
        _warm.add(source)
    return isolated(_score, dataset, answer, entry)


def _score(dataset: Any, answer: str, entry: dict[str, Any]) -> Any:
    value = dataset.score_answer(answer, entry)
    return value.item() if hasattr(value, "item") else value  # a NumPy number


def _configured(name: str, seed: int, size: int, config: str) -> Any:
    """The package's configuration object. Raises ValueError for the user."""
    _, config_class = factory.DATASETS[name]
    options = json.loads(config)
    known = [field.name for field in dataclasses.fields(config_class) if field.name not in ("seed", "size")]
    for option in options:
        if option not in known:
            raise ValueError(f"{name} has no option {option!r}; {nearest(option, known)}; all: {', '.join(known)}")
    given = ", ".join(f"{option}={value!r}" for option, value in options.items()) or "its defaults"
    try:
        if name == "composite":
            options["datasets"] = [DatasetSpec(**({"config": {}} | spec)) for spec in options.get("datasets", [])]
        configured = config_class(seed=seed, size=size, **options)
        if hasattr(configured, "validate"):
            configured.validate()
    except (AssertionError, TypeError, ValueError, AttributeError, KeyError) as error:
        why = str(error) or type(error).__name__
        raise ValueError(f"{name} does not take {given}: {why}; its options: {', '.join(known)}") from error
    return configured


def _dataset(key: Key) -> Any:
    if key not in _datasets:
        _datasets[key] = factory.DATASETS[key[0]][0](config=_configured(*key))
        if len(_datasets) > MAX_DATASETS:
            _datasets.popitem(last=False)
    _datasets.move_to_end(key)
    return _datasets[key]


def _entry(key: Key, index: int) -> Any:
    if (key, index) not in _entries:
        _entries[key, index] = _dataset(key)[index]
        if len(_entries) > MAX_ENTRIES:
            _entries.popitem(last=False)
    return _entries[key, index]


def _as_json(entry: dict[str, Any]) -> Encoded:
    """The entry with every value that JSON lacks as text."""
    try:
        return Encoded(json.dumps(entry, allow_nan=False))
    except (TypeError, ValueError):
        return Encoded(json.dumps(_plain(entry), allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and value - value == 0):
        return value
    return str(value)
