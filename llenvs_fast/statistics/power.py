"""How many tasks and samples does a comparison need, and which difference could one have seen?

The standard error of a mean over P tasks of K samples is √((between + within / K) / P), with the variances of
`variance_components`. A difference of two runs has the variances of both: of separate tasks they add up, of shared
tasks those of the differences count, of which the tasks' difficulty is no part (Miller 2024, sections 4 and 5).
"""

from __future__ import annotations

import math

from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.statistics.critical_values import normal_quantile


def minimum_detectable_effect(
    between: float, within: float, tasks: int, samples: int = 1, *, confidence: float = 0.95, power: float = 0.8
) -> float:
    """The difference that a two-sided test at this confidence finds with this chance.

    (z + z_power) · √((between + within / K) / P) (Miller 2024, section 5; Cohen 1988). `between` and `within` are
    variances of the difference: for shared tasks those of the per-task differences, for separate tasks the sums of
    both runs'.
    Misleads with fewer than about 30 tasks (normal, not Student's t). Raises InvalidSettingError for negative
    variances, counts below 1, a confidence outside (0, 1), and a power not between 1 − confidence, which the test has
    where there is no difference, and 1.
    """
    _check(between, within, tasks, samples)
    return _widths(confidence, power) * math.sqrt((between + within / samples) / tasks)


def tasks_needed(
    effect: float, between: float, within: float, samples: int = 1, *, confidence: float = 0.95, power: float = 0.8
) -> int:
    """The fewest tasks with which `minimum_detectable_effect` is at most `effect`."""
    _check(between, within, 1, samples)
    _check_effect(effect)
    needed = (_widths(confidence, power) / effect) ** 2 * (between + within / samples)
    return max(1, math.ceil(needed * (1 - 1e-12)))


def samples_needed(
    effect: float, between: float, within: float, tasks: int, *, confidence: float = 0.95, power: float = 0.8
) -> int | None:
    """The fewest samples of each of `tasks` tasks; None where no number is enough, and only more tasks help."""
    _check(between, within, tasks, 1)
    _check_effect(effect)
    room = tasks * (effect / _widths(confidence, power)) ** 2 - between
    if room <= 0:
        return None if within > 0 or room < 0 else 1
    return max(1, math.ceil(within / room * (1 - 1e-12)))


def _widths(confidence: float, power: float) -> float:
    z = normal_quantile(confidence)
    if not 1.0 - confidence < power < 1.0:
        raise InvalidSettingError(f"power is {power!r}: give a number between {1.0 - confidence:g} and 1, e.g. 0.8")
    above = normal_quantile(abs(2 * power - 1)) if power != 0.5 else 0.0
    return z + math.copysign(above, power - 0.5)


def _check(between: float, within: float, tasks: int, samples: int) -> None:
    if not (between >= 0 and within >= 0):
        raise InvalidSettingError(f"variances are {between!r} between and {within!r} within: give none below 0")
    if not (tasks >= 1 and samples >= 1):
        raise InvalidSettingError(f"{tasks!r} tasks of {samples!r} samples: give at least 1 of each")


def _check_effect(effect: float) -> None:
    if not effect > 0:
        raise InvalidSettingError(f"effect is {effect!r}: give a difference above 0")
