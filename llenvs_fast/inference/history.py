"""How much of a conversation the model sees again: history functions, and what tells it which turn it is on.

A history function takes the past turns, oldest first, and returns the messages that stand between the task and the
current observation. All but `full_history` cost reuse of the KV cache, which a run's report counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llenvs_fast.core.errors import InvalidSettingError
from llenvs_fast.core.state import ImageContent, State
from llenvs_fast.inference.protocol import ChatMessage


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """A past turn: what the model said, and what it was shown after that; `step` counts from 0.

    The newest entry's observation is empty, for it is the current one.
    """

    action_text: str
    observation_text: str
    observation_images: tuple[ImageContent, ...] = ()
    step: int = 0

    def messages(self) -> list[ChatMessage]:
        said = [ChatMessage("assistant", self.action_text)]
        if not self.observation_text and not self.observation_images:
            return said
        return [*said, ChatMessage("user", self.observation_text, images=self.observation_images)]


HistoryFn = Callable[[list[HistoryEntry]], list[ChatMessage]]


def full_history(entries: Sequence[HistoryEntry]) -> list[ChatMessage]:
    """All past turns."""
    return [message for entry in entries for message in entry.messages()]


def no_history(entries: Sequence[HistoryEntry]) -> list[ChatMessage]:
    """None of them: each turn shows the task and the current observation alone."""
    del entries
    return []


def last_n_history(n: int) -> HistoryFn:
    """The last `n` turns; none where n is 0 or less."""
    return lambda entries: full_history(entries[-n:] if n > 0 else [])


def sliding_window_history(max_tokens: int, token_counter: Callable[[str], int]) -> HistoryFn:
    """The newest turns that fit into `max_tokens` together, up to the first that does not."""

    def window(entries: list[HistoryEntry]) -> list[ChatMessage]:
        left, first = max_tokens, len(entries)
        for entry in reversed(entries):
            left -= token_counter(entry.action_text) + token_counter(entry.observation_text)
            if left < 0:
                break
            first -= 1
        return full_history(entries[first:])

    return window


@dataclass(frozen=True, slots=True)
class TurnInfoConfig:
    """What is added to the task and to the current observation about turns: templates for `str.format`.

    Placeholders: `{max_steps}`, `{turn}` (from 1) and `{turns_remaining}`; the `no_max` variants, used where the
    environment sets no limit, know `{turn}` alone. Nothing is added to the history, nor in legacy mode.

    Raises InvalidSettingError for a template with any other placeholder.
    """

    task_suffix: str = "\n\nYou have a maximum of {max_steps} turns to complete this task."
    state_prefix: str = "[Turn {turn}/{max_steps}]\n"
    task_suffix_no_max: str = ""
    state_prefix_no_max: str = "[Turn {turn}]\n"

    def __post_init__(self) -> None:
        for name, known in (
            ("task_suffix", _ALL), ("state_prefix", _ALL), ("task_suffix_no_max", _TURN),
            ("state_prefix_no_max", _TURN),
        ):  # fmt: skip
            template = getattr(self, name)
            try:
                template.format(**known)
            except (KeyError, IndexError, ValueError, AttributeError) as error:
                shown = ", ".join(f"{{{field}}}" for field in known)
                raise InvalidSettingError(
                    f"turn_info {name}={template!r} can't be filled ({type(error).__name__}: {error}): fields "
                    f"are {shown}, and braces that are text must be doubled"
                ) from error

    def suffix_and_prefix(self, state: State, max_steps: int | None) -> tuple[str, str]:
        """What goes after the task, and before the current observation."""
        turn = state.metadata.step + 1
        if max_steps is None:
            return self.task_suffix_no_max.format(turn=turn), self.state_prefix_no_max.format(turn=turn)
        known = {"turn": turn, "max_steps": max_steps, "turns_remaining": max_steps - turn}
        return self.task_suffix.format(**known), self.state_prefix.format(**known)


_TURN = {"turn": 1}
_ALL = {"turn": 1, "max_steps": 2, "turns_remaining": 1}


def turn_info_config(value: TurnInfoConfig | bool | None) -> TurnInfoConfig | None:
    """True stands for the defaults, None and False for nothing. Raises InvalidSettingError for anything else."""
    if value is None or isinstance(value, TurnInfoConfig):
        return value
    if isinstance(value, bool):
        return TurnInfoConfig() if value else None
    raise InvalidSettingError(f"turn_info={value!r}: give True, False, None or a TurnInfoConfig")
