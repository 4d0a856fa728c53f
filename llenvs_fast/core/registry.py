"""Registries: names to factories, and the environment sources ("adapters") by name.

The built-in sources are imported only when asked for, so that looking one up loads nothing else.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from llenvs_fast.core.environment import Environment
from llenvs_fast.core.errors import UnknownAdapterError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """Named factories. `get` makes one instance a name and keeps it; `create` makes a new one each time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._factories: dict[str, Callable[..., T]] = {}
        self._instances: dict[str, T] = {}

    def register(self, name: str, factory: Callable[..., T] | None = None) -> Any:
        """Register a factory, or decorate one. Raises ValueError where the name is taken."""
        if factory is None:
            return lambda decorated: self.register(name, decorated) or decorated
        self._claim(name)
        self._factories[name] = factory
        return None

    def register_instance(self, name: str, instance: T) -> None:
        self._claim(name)
        self._instances[name] = instance

    def _claim(self, name: str) -> None:
        if name in self:
            raise ValueError(f"{self.name}: {name!r} is registered already: use another name")

    def get(self, name: str, **kwargs: Any) -> T:
        """The instance of that name; made with `kwargs` on first use. With `kwargs` it is always made anew."""
        if name in self._instances and not kwargs:
            return self._instances[name]
        instance = self.create(name, **kwargs)
        if not kwargs:
            self._instances[name] = instance
        return instance

    def create(self, name: str, **kwargs: Any) -> T:
        if name not in self._factories:
            raise KeyError(f"{self.name}: no {name!r}; {nearest(name, self.keys())}")
        return self._factories[name](**kwargs)

    def keys(self) -> list[str]:
        return sorted(self._factories.keys() | self._instances.keys())

    def __getitem__(self, name: str) -> T:
        return self.get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._factories or name in self._instances

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())


@runtime_checkable
class EnvironmentAdapter(Protocol):
    """One source of environments."""

    @property
    def name(self) -> str: ...

    def list_environments(self) -> list[str]: ...

    def get_environment(self, name: str, **kwargs: Any) -> Environment:
        """Raises UnknownEnvironmentError for a name that the source lacks."""
        ...

    def get_environment_info(self, name: str) -> dict[str, Any]: ...


_BUILT_IN = {
    "gem": "llenvs_fast.environments.gem.adapter:GemAdapter",
    "reasoning_gym": "llenvs_fast.environments.reasoning_gym.adapter:ReasoningGymAdapter",
}


class EnvironmentRegistry:
    """Environment sources by name. `environment_registry` is the one that everybody uses."""

    def __init__(self, built_in: dict[str, str] | None = None) -> None:
        self._lazy = dict(built_in or {})
        self._adapters: dict[str, EnvironmentAdapter] = {}

    def get(self, name: str, adapter: str, **kwargs: Any) -> Environment:
        """Make an environment, e.g. `get(name="leg_counting", adapter="reasoning_gym", size=100, seed=42)`.

        Raises UnknownAdapterError (a KeyError) and UnknownEnvironmentError (a ValueError).
        """
        return self.get_adapter(adapter).get_environment(name, **kwargs)

    def register_adapter(self, adapter: EnvironmentAdapter) -> None:
        if adapter.name in self._lazy or adapter.name in self._adapters:
            raise ValueError(f"environment source {adapter.name!r} is registered already: unregister it first")
        self._adapters[adapter.name] = adapter

    def unregister_adapter(self, name: str) -> None:
        self.get_adapter(name)
        self._adapters.pop(name, None)
        self._lazy.pop(name, None)

    def get_adapter(self, name: str) -> EnvironmentAdapter:
        if name not in self._adapters:
            if name not in self._lazy:
                raise UnknownAdapterError(f"no environment source {name!r}; {nearest(name, self.list_adapters())}")
            module, _, attribute = self._lazy[name].partition(":")
            self._adapters[name] = getattr(importlib.import_module(module), attribute)()
        return self._adapters[name]

    def list_adapters(self) -> list[str]:
        return sorted(self._lazy.keys() | self._adapters.keys())

    def list_environments(self, adapter: str | None = None) -> list[tuple[str, str]]:
        """(adapter, environment) pairs, of one source or of all."""
        adapters = self.list_adapters() if adapter is None else [adapter]
        return [(a, e) for a in adapters for e in self.get_adapter(a).list_environments()]

    def __contains__(self, pair: object) -> bool:
        if not (isinstance(pair, tuple) and len(pair) == 2 and pair[0] in self.list_adapters()):
            return False
        return pair[1] in self.get_adapter(pair[0]).list_environments()


environment_registry = EnvironmentRegistry(_BUILT_IN)
