"""Whether an engine can start on a prompt at all: the same rule, and the same words, for every backend."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from llenvs_fast.core.errors import EmptyPromptError, PromptTooLongError, RecoverableInputError


def check_prompt(ids: Sequence[int], context: int, vocabulary: int) -> None:
    """Raise RecoverableInputError, or a kind of it, for a prompt that the engine could not start on."""
    if not ids:
        raise EmptyPromptError("the prompt has no tokens: send at least one")
    if len(ids) >= context:
        raise too_long(len(ids), context)
    known = np.asarray(ids) if isinstance(ids, array) else None  # no copy, and no look at each id by the interpreter
    lowest, highest = (min(ids), max(ids)) if known is None else (known.min(), known.max())
    if lowest < 0 or highest >= vocabulary:
        wrong = next(i for i in ids if not 0 <= i < vocabulary)
        raise RecoverableInputError(f"the prompt has token id {wrong}, outside the model's vocabulary of {vocabulary}")


def too_long(tokens: int, context: int) -> PromptTooLongError:
    """The error of a prompt that leaves no room for a new token."""
    return PromptTooLongError(
        f"the prompt has {tokens} tokens and the context {context}, which leaves no room for a new one: shorten the "
        "prompt or raise max_model_len"
    )
