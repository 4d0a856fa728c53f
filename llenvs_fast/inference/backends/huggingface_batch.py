"""Sequences that advance together through a transformers model, one token a step. B rows, S positions.

Prompts are padded on the left, so that all rows write the same position of the KV cache. A row that has ended is no
longer sampled; once half of the rows have ended they are taken out of the batch and of its cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from llenvs_fast.inference.backends.huggingface_sampling import Sampler, sample


class Batch:
    """`prompts` and `samplers` are aligned; `pad_id` fills the left of shorter prompts."""

    def __init__(
        self, model: Any, prompts: Sequence[Sequence[int]], samplers: Sequence[Sampler], pad_id: int
    ) -> None:
        self._model = model
        self._pad_id = pad_id
        self._samplers: list[Sampler | None] = list(samplers)
        self._cache: Any = None
        longest = max(map(len, prompts))
        self._inputs = self._tensor([[pad_id] * (longest - len(p)) + list(p) for p in prompts])
        self._mask = self._tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        self._positions = (self._mask.cumsum(-1) - 1).clamp(min=0)
        self._takes = inspect.signature(model.forward).parameters.keys()

    @property
    def live(self) -> int:
        return sum(s is not None for s in self._samplers)

    @torch.inference_mode()
    def step(self) -> None:
        """One forward pass, and one more token for each live row. The first pass reads the prompts."""
        if 2 * self.live <= len(self._samplers):
            self._compact()
        logits = self._forward()
        rows = [i for i, s in enumerate(self._samplers) if s is not None]
        samplers = [s for s in self._samplers if s is not None]
        sample(logits if len(rows) == len(logits) else logits[rows], samplers)
        newest = [self._pad_id if s is None else s.ids[-1] for s in self._samplers]
        self._inputs = self._tensor(newest)[:, None]
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(newest), 1)], dim=-1)
        self._positions = self._positions[:, -1:] + 1

    def end(self, samplers: Sequence[Sampler]) -> None:
        """Advance these rows no further."""
        ended = {id(s) for s in samplers}
        self._samplers = [None if s is None or id(s) in ended else s for s in self._samplers]

    def _forward(self) -> Tensor:
        """Logits of the last position: (B, V) float32."""
        optional = {"position_ids": self._positions, "logits_to_keep": 1}
        output = self._model(
            input_ids=self._inputs,
            attention_mask=self._mask,
            past_key_values=self._cache,
            use_cache=True,
            **{name: value for name, value in optional.items() if name in self._takes},
        )
        self._cache = output.past_key_values
        logits: Tensor = output.logits[:, -1].float()
        return logits

    def _compact(self) -> None:
        """Take the ended rows out, where the cache can do without them."""
        if self._cache is not None and not hasattr(self._cache, "batch_select_indices"):
            return
        rows = self._tensor([i for i, s in enumerate(self._samplers) if s is not None])
        if self._cache is not None:
            self._cache.batch_select_indices(rows)
        self._inputs, self._mask, self._positions = (t[rows] for t in (self._inputs, self._mask, self._positions))
        self._samplers = [s for s in self._samplers if s is not None]

    def _tensor(self, values: Any) -> Tensor:
        return torch.tensor(values, device=self._model.device)
