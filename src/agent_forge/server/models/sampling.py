"""Which token comes next, for all rows of a batch at once.

A row's choice depends on its own logits, settings and seed, never on the rows beside it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

LIKELY = 256  # the tokens looked at first for top-p; only where they do not hold enough are all sorted


@dataclass(slots=True)
class Sampling:
    """How one request chooses. Temperature 0 takes the likeliest token."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    top_logprobs: int | None = None  # None: no log probabilities are wanted; k: those of the k likeliest as well
    rng: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_p == 0.0


@dataclass(frozen=True, slots=True)
class Chosen:
    """A token, with its log probability and those of the likeliest where they were asked for."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def choose(logits: Tensor, samplings: Sequence[Sampling], masks: Sequence[Tensor | None]) -> list[Chosen]:
    """The next token of every row. `logits` is [N, V]; a mask is a boolean vector of what may be written, or None.

    Log probabilities are the model's own: before temperature, top-p and mask.
    """
    allowed = _allowed(logits, masks)
    tokens = allowed.argmax(-1).tolist()
    drawn = [row for row, sampling in enumerate(samplings) if not sampling.greedy]
    if drawn:
        for row, token in zip(drawn, _draw(allowed[drawn], [samplings[row] for row in drawn]), strict=True):
            tokens[row] = token
    told = [row for row, sampling in enumerate(samplings) if sampling.top_logprobs is not None]
    chosen = [Chosen(token) for token in tokens]
    if told:
        logprobs = torch.log_softmax(logits[told].float(), dim=-1)
        for place, row in enumerate(told):
            chosen[row] = _told(tokens[row], logprobs[place], samplings[row].top_logprobs or 0)
    return chosen


def _allowed(logits: Tensor, masks: Sequence[Tensor | None]) -> Tensor:
    if all(mask is None for mask in masks):
        return logits
    logits = logits.clone()
    for row, mask in enumerate(masks):
        if mask is not None:
            size = min(mask.numel(), logits.shape[-1])
            logits[row, :size].masked_fill_(~mask[:size].to(logits.device), -torch.inf)
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
    kept, places = _nucleus(probabilities, cut)
    return places.gather(-1, _at(kept, points)[:, None])[:, 0].tolist()


def _nucleus(probabilities: Tensor, cut: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest tokens that together hold `cut` (2 names for it: top-p, nucleus), others 0; and their places."""
    size = probabilities.shape[-1]
    kept, places = probabilities.topk(min(LIKELY, size))
    if bool((kept.sum(-1) < cut).any()):
        kept, places = probabilities.sort(descending=True)
    before = kept.cumsum(-1) - kept
    return kept.masked_fill(before >= cut[:, None], 0.0), places


def _at(weights: Tensor, points: Tensor) -> Tensor:
    """Where in the cumulated weights each point between 0 and 1 falls."""
    total = weights.double().cumsum(-1)
    found = torch.searchsorted(total, (points * total[:, -1])[:, None], right=True)[:, 0]
    return found.clamp_max(weights.shape[-1] - 1)


def _told(token: int, logprobs: Tensor, most: int) -> Chosen:
    best = logprobs.topk(min(most, logprobs.numel())) if most else None
    top = () if best is None else tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return Chosen(token, float(logprobs[token]), top)
