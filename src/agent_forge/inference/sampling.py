"""Sampling of the next token, for all rows of a batch at once.

The token of a row depends on its own logits, settings and seed, never on the other rows. Shapes: N rows, V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LIKELY = 256  # tokens considered first for top-p; all are sorted only where these do not hold enough probability


@dataclass(slots=True)
class Sampling:
    """How one request samples. Temperature 0 takes the likeliest token."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    top_logprobs: int | None = None  # None: no log probabilities; k: also those of the k likeliest tokens
    rng: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_p == 0.0


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token, with log probabilities if the request wants them."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def choose(
    logits: Tensor, samplings: Sequence[Sampling], masks: Sequence[NDArray[np.bool_] | None]
) -> list[SampledToken]:
    """The next token of every row. `logits` is [N, V]; a mask [V] says which tokens are allowed.

    Log probabilities are the model's own: before temperature, top-p and mask.
    """
    allowed = _allowed(logits, masks)
    tokens = allowed.argmax(-1).tolist()
    drawn = [row for row, sampling in enumerate(samplings) if not sampling.greedy]
    if drawn:
        for row, token in zip(drawn, _draw(allowed[drawn], [samplings[row] for row in drawn]), strict=True):
            tokens[row] = token
    sampled = [SampledToken(token) for token in tokens]
    verbose = [row for row, sampling in enumerate(samplings) if sampling.top_logprobs is not None]
    if verbose:
        logprobs = torch.log_softmax(logits[verbose].float(), dim=-1)
        for place, row in enumerate(verbose):
            sampled[row] = _with_logprobs(tokens[row], logprobs[place], samplings[row].top_logprobs or 0)
    return sampled


def _allowed(logits: Tensor, masks: Sequence[NDArray[np.bool_] | None]) -> Tensor:
    if all(mask is None for mask in masks):
        return logits
    logits = logits.clone()
    for row, mask in enumerate(masks):
        if mask is not None:
            size = min(len(mask), logits.shape[-1])
            logits[row, :size].masked_fill_(torch.from_numpy(~mask[:size]).to(logits.device), -torch.inf)
            logits[row, size:] = -torch.inf
    return logits


def _draw(logits: Tensor, samplings: Sequence[Sampling]) -> list[int]:
    device = logits.device
    heat = torch.tensor([sampling.temperature for sampling in samplings], device=device)
    probabilities = torch.softmax(logits.float() / heat[:, None], dim=-1)
    points = torch.tensor([sampling.rng.random() for sampling in samplings], dtype=torch.float64, device=device)
    cut = torch.tensor([sampling.top_p for sampling in samplings], device=device)
    if bool((cut >= 1.0).all()):
        return _at(probabilities, points).tolist()
    nucleus, tokens = _nucleus(probabilities, cut)
    return tokens.gather(-1, _at(nucleus, points)[:, None])[:, 0].tolist()


def _nucleus(probabilities: Tensor, cut: Tensor) -> tuple[Tensor, Tensor]:
    """The probabilities of the likeliest tokens that together hold `cut` (top-p), others 0; and the tokens: [N, K]."""
    likeliest, tokens = probabilities.topk(min(LIKELY, probabilities.shape[-1]))
    if bool((likeliest.sum(-1) < cut).any()):
        likeliest, tokens = probabilities.sort(descending=True)
    before = likeliest.cumsum(-1) - likeliest
    return likeliest.masked_fill(before >= cut[:, None], 0.0), tokens


def _at(weights: Tensor, points: Tensor) -> Tensor:
    """Where in the cumulative weights [N, K] each point [N] between 0 and 1 falls: inverse transform sampling."""
    total = weights.double().cumsum(-1)
    index = torch.searchsorted(total, (points * total[:, -1])[:, None], right=True)[:, 0]
    return index.clamp_max(weights.shape[-1] - 1)


def _with_logprobs(token: int, logprobs: Tensor, count: int) -> SampledToken:
    best = logprobs.topk(min(count, logprobs.numel())) if count else None
    top = () if best is None else tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return SampledToken(token, float(logprobs[token]), top)
