"""From logits to tokens, row by row. B rows, V tokens of the vocabulary.

A row's draw depends on its own logits, settings and generator alone, never on the rows beside it. The order of effects
is vLLM's: penalties, temperature, top-k, top-p. Log-probabilities are raw: taken before all of them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from llenvs_fast.core.errors import InvalidSettingError, nearest
from llenvs_fast.inference.protocol import SamplingParams

_GREEDY_BELOW = 1e-5  # a temperature under which dividing by it would overflow
_FIELDS = {f.name for f in fields(SamplingParams)} - {"extra", "n"}


class SampledLogprobs(NamedTuple):
    """The raw log-probability of a sampled token, and those of the likeliest ones by id."""

    sampled: float
    top: dict[int, float]


@dataclass(slots=True)
class Sampler:
    """How one row is sampled, and what it has sampled so far."""

    params: SamplingParams
    generator: random.Random
    ids: list[int] = field(default_factory=list)
    logprobs: list[SampledLogprobs] = field(default_factory=list)

    @property
    def is_greedy(self) -> bool:
        return self.params.temperature < _GREEDY_BELOW

    @property
    def is_filtered(self) -> bool:
        return self.params.top_k > 0 or self.params.top_p < 1


def checked_params(params: SamplingParams) -> tuple[SamplingParams, bool]:
    """The parameters with `extra` applied, and whether the end of text is ignored (`extra={"ignore_eos": True}`)."""
    extra = dict(params.extra)
    ignore_eos = bool(extra.pop("ignore_eos", False))
    for name in extra.keys() - _FIELDS:
        raise InvalidSettingError(f"{name!r} in extra means nothing here; {nearest(name, {*_FIELDS, 'ignore_eos'})}")
    params = replace(params, **extra, extra={})
    if params.temperature < 0:
        raise InvalidSettingError(f"temperature is {params.temperature}: 0 is greedy, more is random")
    if not 0 < params.top_p <= 1:
        raise InvalidSettingError(f"top_p is {params.top_p}: it must be over 0 and at most 1")
    if params.logprobs and params.num_logprobs < 0:
        raise InvalidSettingError(f"num_logprobs is {params.num_logprobs}: 0 asks for the sampled token's alone")
    return params, ignore_eos


def sample(logits: Tensor, samplers: Sequence[Sampler]) -> None:
    """Add one token to each of B samplers. `logits`: (B, V) float32."""
    changed = _penalized(logits, samplers)
    tokens = changed.argmax(-1)
    plain = [i for i, s in enumerate(samplers) if not s.is_greedy and not s.is_filtered]
    filtered = [i for i, s in enumerate(samplers) if not s.is_greedy and s.is_filtered]
    if plain:
        tokens[plain] = _draw(_scaled(changed, samplers, plain).softmax(-1), [samplers[i] for i in plain])
    if filtered:
        tokens[filtered] = _draw_filtered(_scaled(changed, samplers, filtered), [samplers[i] for i in filtered])
    _note_logprobs(logits, tokens, samplers)
    for sampler, token in zip(samplers, tokens.tolist(), strict=True):
        sampler.ids.append(token)


def _penalized(logits: Tensor, samplers: Sequence[Sampler]) -> Tensor:
    rows = [i for i, s in enumerate(samplers) if s.ids and (s.params.presence_penalty or s.params.frequency_penalty)]
    if not rows:
        return logits
    logits = logits.clone()
    for i in rows:
        params, counts = samplers[i].params, Counter(samplers[i].ids)
        ids = torch.tensor(list(counts), device=logits.device)
        times = torch.tensor(list(counts.values()), device=logits.device, dtype=logits.dtype)
        logits[i, ids] -= params.presence_penalty + params.frequency_penalty * times
    return logits


def _scaled(logits: Tensor, samplers: Sequence[Sampler], rows: list[int]) -> Tensor:
    temperatures = torch.tensor([samplers[i].params.temperature for i in rows], device=logits.device)
    return (logits[rows] / temperatures[:, None]).double()


def _draw(probabilities: Tensor, samplers: Sequence[Sampler]) -> Tensor:
    """One index for each row, by inverting the cumulated probabilities. (B, V) float64 to (B,) int64."""
    cumulated = probabilities.cumsum(-1)
    points = torch.tensor([[s.generator.random()] for s in samplers], dtype=torch.float64, device=cumulated.device)
    drawn = torch.searchsorted(cumulated, points * cumulated[:, -1:], right=True)
    return drawn.squeeze(-1).clamp(max=cumulated.shape[-1] - 1)


def _draw_filtered(logits: Tensor, samplers: Sequence[Sampler]) -> Tensor:
    ordered, token_ids = logits.sort(dim=-1, descending=True, stable=True)
    vocabulary = logits.shape[-1]
    top_k = torch.tensor([s.params.top_k if s.params.top_k > 0 else vocabulary for s in samplers], device=logits.device)
    top_p = torch.tensor([s.params.top_p for s in samplers], dtype=logits.dtype, device=logits.device)
    ordered[torch.arange(vocabulary, device=logits.device) >= top_k[:, None]] = -torch.inf
    probabilities = ordered.softmax(-1)
    likelier = probabilities.cumsum(-1) - probabilities
    probabilities[likelier >= top_p[:, None]] = 0.0  # never the first one: nothing is likelier
    return token_ids.gather(-1, _draw(probabilities, samplers)[:, None]).squeeze(-1)


def _note_logprobs(logits: Tensor, tokens: Tensor, samplers: Sequence[Sampler]) -> None:
    rows = [i for i, s in enumerate(samplers) if s.params.logprobs]
    if not rows:
        return
    logprobs = logits[rows].log_softmax(-1)
    sampled = logprobs.gather(-1, tokens[rows][:, None]).squeeze(-1).tolist()
    most = min(max(samplers[i].params.num_logprobs for i in rows), logits.shape[-1])
    values, ids = (t.tolist() for t in logprobs.topk(most, dim=-1))
    for n, i in enumerate(rows):
        wanted = samplers[i].params.num_logprobs
        top = dict(zip(ids[n][:wanted], values[n][:wanted], strict=True))
        samplers[i].logprobs.append(SampledLogprobs(sampled[n], top))
