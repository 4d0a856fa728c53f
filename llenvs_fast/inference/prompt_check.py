"""Whether an engine can start on a prompt at all: the same rule, and the same words, for every backend."""

from __future__ import annotations

from collections.abc import Sequence

from llenvs_fast.core.errors import EmptyPromptError, PromptTooLongError, RecoverableInputError


def check_prompt(ids: Sequence[int], context: int, vocabulary: int) -> None:
    """Raise RecoverableInputError, or a kind of it, for a prompt that the engine could not start on."""
    if not ids:
        raise EmptyPromptError("the prompt has no tokens: send at least one")
    if len(ids) >= context:
        raise PromptTooLongError(
            f"the prompt has {len(ids)} tokens and the context {context}, which leaves no room for a new one: "
            f"shorten the prompt or raise max_model_len"
        )
    if min(ids) < 0 or max(ids) >= vocabulary:
        wrong = next(i for i in ids if not 0 <= i < vocabulary)
        raise RecoverableInputError(f"the prompt has token id {wrong}, outside the model's vocabulary of {vocabulary}")
