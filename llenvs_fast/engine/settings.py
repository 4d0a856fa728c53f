"""What a run is told, and what follows from it for this environment and this backend."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from llenvs_fast.core.environment import Environment
from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.engine.budgets import Budgets
from llenvs_fast.engine.prompting import History
from llenvs_fast.engine.scheduler import Schedule
from llenvs_fast.inference.backend import ModelBackend
from llenvs_fast.inference.protocol import SamplingParams

logger = logging.getLogger("llenvs_fast.engine")

DEFAULT_MAX_STEPS = 100


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How to run.

    Two limits on width: `max_live` bounds live trajectories (None leaves it to the KV cache and the engine),
    `max_environments` instances of a stateful environment (None: as many as trajectories are open).

    Budgets, each of which truncates a trajectory: `sampling_params.max_tokens` for a turn, `max_trajectory_tokens` for
    all that it samples, `max_context_tokens` for what it reads and samples (no more than the model's own context),
    `max_steps`. Deadlines in seconds: `turn_timeout_s` for a generation and `trajectory_timeout_s` from the first
    generation on truncate; `step_timeout_s` for one call of the environment fails the trajectory.
    """

    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    schedule: Schedule = Schedule.PACKED
    history: History = History.TEMPLATE
    max_live: int | None = None
    max_environments: int | None = None
    max_steps: int | None = None
    max_trajectory_tokens: int | None = None
    max_context_tokens: int | None = None
    turn_timeout_s: float | None = None
    trajectory_timeout_s: float | None = None
    step_timeout_s: float | None = None
    environment_threads: int = 4


def step_limit(settings: LoopSettings, environment: Environment) -> int:
    """Most turns of a trajectory: the settings', else the environment's own, else 100."""
    limit = settings.max_steps if settings.max_steps is not None else environment.spec.max_steps
    if limit is None:
        return DEFAULT_MAX_STEPS
    if not isinstance(limit, int) or limit < 1:
        raise InvalidSettingError(f"max_steps={limit!r}: give 1 or more, or None for {DEFAULT_MAX_STEPS}")
    return limit


def budgets(settings: LoopSettings, backend: ModelBackend) -> Budgets:
    """What a trajectory may use. The model's own context counts where the backend deals in tokens."""
    own = backend.capabilities.max_context_length if backend.renderer is not None else None
    limits = [n for n in (settings.max_context_tokens, own) if n is not None]
    return Budgets(settings.sampling_params.max_tokens, settings.max_trajectory_tokens, min(limits, default=None))


def check_history(settings: LoopSettings, environment: Environment, backend: ModelBackend) -> None:
    """Raises InvalidSettingError where rewritten histories are refused and the model's template makes them."""
    renderer = backend.renderer
    if settings.history is not History.REFUSE or renderer is None or not environment.spec.is_multi_turn:
        return
    if renderer.rewrites_history:
        what = "earlier replies with a thought in them" if renderer.append_only else "earlier turns"
        raise InvalidSettingError(
            f"history='refuse', and the chat template of {backend.model_name} shows {what} otherwise once the "
            "conversation has moved on: use history='keep' to keep all turns verbatim, or history='template'"
        )


def most_instances(
    settings: LoopSettings, environment: Environment, env_factory: Callable[[], Environment] | None
) -> int | None:
    """How many trajectories may have an instance of a stateful environment at once; None where all share a pure one."""
    limit = settings.max_environments
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise InvalidSettingError(f"max_environments={limit!r}: give 1 or more, or None for no limit")
    if environment.spec.pure_step:
        return None
    if env_factory is not None:
        return 1 << 60 if limit is None else limit
    logger.warning(
        "environment %r keeps state between steps (spec.pure_step is False) and there is one instance of it: "
        "trajectories run one at a time. Give env_factory=... for an instance each, or set pure_step=True where step "
        "depends on its arguments alone",
        environment.spec.name,
    )
    return 1
