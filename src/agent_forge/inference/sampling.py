"""Sampling of the next token, for all rows of a batch at once.

The token of a row depends on its own logits, settings and seed, never on the other rows. Shapes: N rows, V vocabulary.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

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
    logits: Any, samplings: Sequence[Sampling], masks: Sequence[Any] | None = None, *, allowed: Any = None
) -> list[SampledToken]:
    """The next token of every row. `logits` is [N, V]; a mask [V] says which tokens are allowed, None all of them.
    Instead of masks, `allowed` may be logits with -inf for what is not.

    Log probabilities are the model's own: before temperature, top-p and mask.
    """
    if allowed is None:
        allowed = _allowed(logits, masks or ())
    tokens = allowed.argmax(-1).tolist()
    for row, sampling in enumerate(samplings):
        if not sampling.greedy:
            tokens[row] = _draw(allowed[row], sampling)
    return [
        SampledToken(token) if sampling.top_logprobs is None else _with_logprobs(token, row, sampling.top_logprobs)
        for token, row, sampling in zip(tokens, logits, samplings, strict=True)
    ]


def _allowed(logits: Any, masks: Sequence[Any]) -> Any:
    if all(mask is None for mask in masks):
        return logits
    logits = logits.copy()
    for row, mask in enumerate(masks):
        if mask is not None:
            size = min(len(mask), logits.shape[-1])
            logits[row, :size][~np.asarray(mask[:size])] = -np.inf
            logits[row, size:] = -np.inf
    return logits


def _draw(logits: Any, sampling: Sampling) -> int:
    """Inverse transform sampling, among the likeliest tokens that together hold `top_p`."""
    heated = logits / np.float32(sampling.temperature)
    weights = np.exp(heated - heated.max())
    point = sampling.rng.random()
    if sampling.top_p >= 1.0:
        return _at(weights, point)
    tokens = _nucleus(weights / weights.sum(), sampling.top_p)
    return int(tokens[_at(weights[tokens], point)])


def _nucleus(probabilities: Any, cut: float) -> Any:
    """The likeliest tokens that together hold `cut`, the likeliest first."""
    tokens = _likeliest(probabilities, LIKELY)
    if probabilities[tokens].sum() < cut:
        tokens = _likeliest(probabilities, len(probabilities))
    before = np.cumsum(probabilities[tokens]) - probabilities[tokens]
    return tokens[before < cut]


def _likeliest(scores: Any, count: int) -> Any:
    """The tokens with the highest scores, the highest first."""
    some = np.argpartition(scores, -count)[-count:] if 0 < count < len(scores) else np.arange(len(scores))
    return some[np.argsort(-scores[some], kind="stable")][:count]


def _at(weights: Any, point: float) -> int:
    """Where in the cumulative weights [K] a point between 0 and 1 falls."""
    total = np.cumsum(weights, dtype=np.float64)
    return min(int(np.searchsorted(total, point * total[-1], side="right")), len(weights) - 1)


def _with_logprobs(token: int, logits: Any, count: int) -> SampledToken:
    shifted = logits - logits.max()
    logprobs = shifted - np.log(np.exp(shifted).sum())
    best = _likeliest(logprobs, count).tolist() if count else ()
    return SampledToken(token, float(logprobs[token]), tuple((each, float(logprobs[each])) for each in best))
