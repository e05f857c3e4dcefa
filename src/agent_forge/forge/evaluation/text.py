"""How well a model predicts text: perplexity and bits per byte, and how far it is from another model.

Every figure has its standard error over documents (the delta method for ratios of sums), because
the tokens of one document are not independent. Shapes: N real targets of a batch, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_forge.errors import CheckpointError, UsageError
from agent_forge.forge.progress import Tell, silent
from agent_forge.forge.training.evaluation import Evaluation, HeldOut, document_scores, ratio
from agent_forge.forge.training.objective import losses_and_hits
from agent_forge.forge.training.packing import IGNORE, Batch

MOST_LOGITS = 1 << 26  # held at once: 256 MB in float32; on a GPU eight times as many
Goal = tuple[Tensor, Tensor]  # the original's logits [N, V] of one batch, and its likeliest tokens [N]


@dataclass(frozen=True)
class TextScore:
    """Sums by document: the nats a model needs, its hits, its tokens, and the document's bytes (0
    if unknown)."""

    nats: np.ndarray
    hits: np.ndarray
    tokens: np.ndarray
    bytes_of: np.ndarray

    @property
    def loss(self) -> float:
        """Nats per token."""
        return float(self.nats.sum() / self.tokens.sum())

    @property
    def perplexity(self) -> float:
        """exp(nats per token): comparable between models with the same tokenizer."""
        return math.exp(min(self.loss, 700.0))

    @property
    def perplexity_stderr(self) -> float | None:
        return finite_or_none(self.perplexity * ratio(self.nats, self.tokens)[1])

    @property
    def bits(self) -> np.ndarray:
        """The bits of each document."""
        return self.nats / math.log(2)

    @property
    def bits_per_byte(self) -> float | None:
        """Comparable between any two models. None for text that is known as tokens only."""
        return float(self.nats.sum() / math.log(2) / self.bytes_of.sum()) if self.bytes_of.all() else None

    @property
    def bits_per_byte_stderr(self) -> float | None:
        return finite_or_none(ratio(self.bits, self.bytes_of)[1]) if self.bytes_of.all() else None

    @property
    def accuracy(self) -> float:
        """Of the next token."""
        return float(self.hits.sum() / self.tokens.sum())

    def as_evaluation(self) -> Evaluation:
        """What `train` looks at while it runs. Without bytes, a token counts as one."""
        return Evaluation.of(self.nats, self.hits, self.tokens, self.bytes_of if self.bytes_of.all() else self.tokens)


def finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def refuse_unsound(model: nn.Module, where: str) -> None:
    """Raises CheckpointError for a model with NaN or infinite weights: nothing can be judged against it."""
    for name, weight in model.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            raise CheckpointError(f"{name} holds numbers that are NaN or infinite", where=where)


def measure_text(
    model: nn.Module, held_out: HeldOut, batch_rows: int = 16, stage: str = "text", tell: Tell = silent
) -> TextScore:
    """Reads every held-out document once; one longer than a row is read in pieces, each from its
    first token."""
    nats, hits, tokens = document_scores(model, held_out, batch_rows, token_scores, stage, tell)
    return TextScore(nats, hits, tokens, np.array(held_out.bytes_of, dtype=float))


@torch.no_grad()
def token_scores(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """[rows, length]: the loss of every target in nats, and whether the likeliest token was right;
    of any causal LM.

    A head that is not a plain matrix in memory (packed, or rounded as it goes) is asked for its
    logits, a few rows at a time.
    """
    head: Any = getattr(model, "get_output_embeddings", lambda: None)()
    weight = getattr(head, "weight", None)
    if isinstance(weight, nn.Parameter) and weight.is_floating_point() and not hasattr(head, "effective"):
        return losses_and_hits(model, batch)
    width = max(1, getattr(model.config, "vocab_size", 1) * batch.inputs.shape[1])
    most = MOST_LOGITS << 3 if batch.inputs.is_cuda else MOST_LOGITS
    losses, hits = [], []
    for part in batch.split(max(1, most // width)):
        logits = model(input_ids=part.inputs, use_cache=False).logits.float()
        flat = F.cross_entropy(logits.flatten(0, 1), part.targets.flatten(), ignore_index=IGNORE, reduction="none")
        losses.append(flat.view_as(part.targets))
        hits.append(logits.argmax(-1) == part.targets)
    return torch.cat(losses), torch.cat(hits)


@dataclass(frozen=True)
class Divergence:
    """How far a model's predictions are from the original's, on the same text."""

    kl: float  # KL(original || model), nats per token
    kl_stderr: float | None
    agreement: float  # how often both find the same token likeliest
    agreement_stderr: float | None

    def as_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


@dataclass(frozen=True)
class Comparison:
    """A model on held-out text, and its divergence from the original there."""

    text: TextScore
    divergence: Divergence


@torch.no_grad()
def measure_goals(
    original: nn.Module, held_out: HeldOut, batch_rows: int = 4, stage: str = "original", tell: Tell = silent
) -> tuple[TextScore, list[Goal]]:
    """The original's score, and its predictions to `compare` several models with.

    The logits are kept in float16, since there are gigabytes of them.
    """
    goals: list[Goal] = []

    def scores(model: nn.Module, batch: Batch) -> tuple[Tensor, ...]:
        real, logits = batch.targets != IGNORE, _real_logits(model, batch)
        likeliest = logits.argmax(-1)
        goals.append((logits.half().cpu(), likeliest.cpu()))
        losses = F.cross_entropy(logits, batch.targets[real], reduction="none")
        return _placed(real, losses), _placed(real, likeliest == batch.targets[real])

    nats, hits, tokens = document_scores(original, held_out, batch_rows, scores, stage, tell)
    return TextScore(nats, hits, tokens, np.array(held_out.bytes_of, dtype=float)), goals


@torch.no_grad()
def compare(
    model: nn.Module,
    goals: Iterable[Goal],
    held_out: HeldOut,
    batch_rows: int = 4,
    stage: str = "compare",
    tell: Tell = silent,
) -> Comparison:
    """The model on every held-out document, against the original's predictions for the same batches.

    Raises UsageError for models with different vocabularies.
    """
    remaining = iter(goals)

    def scores(model: nn.Module, batch: Batch) -> tuple[Tensor, ...]:
        real, mine = batch.targets != IGNORE, _real_logits(model, batch)
        targets = batch.targets[real]
        theirs, likeliest = (part.to(mine.device) for part in next(remaining))
        if mine.shape != theirs.shape:
            raise UsageError(f"the vocabularies differ: {mine.shape[-1]} and {theirs.shape[-1]} tokens")
        goal = F.log_softmax(theirs.float(), dim=-1)
        kl = (goal.exp() * (goal - F.log_softmax(mine, dim=-1))).sum(-1)
        choice = mine.argmax(-1)
        figures = (F.cross_entropy(mine, targets, reduction="none"), choice == targets, kl, choice == likeliest)
        return tuple(_placed(real, figure) for figure in figures)

    nats, hits, kl, same, tokens = document_scores(model, held_out, batch_rows, scores, stage, tell)
    away, away_error = ratio(kl, tokens)
    agreement, agreement_error = ratio(same, tokens)
    divergence = Divergence(max(0.0, away), finite_or_none(away_error), agreement, finite_or_none(agreement_error))
    return Comparison(TextScore(nats, hits, tokens, np.array(held_out.bytes_of, dtype=float)), divergence)


@torch.no_grad()
def live_goals(original: nn.Module, held_out: HeldOut, batch_rows: int = 4) -> Iterator[Goal]:
    """The original's predictions, computed batch by batch when they are needed: nothing is stored."""
    original.eval()
    device = device_of(original)
    for start in range(0, len(held_out.rows), batch_rows):
        logits = _real_logits(original, held_out.rows.take(slice(start, start + batch_rows)).to(device))
        yield logits, logits.argmax(-1)


def divergence(model: nn.Module, original: nn.Module, held_out: HeldOut, batch_rows: int = 4) -> Divergence:
    """Both models on every held-out document, token by token. Raises UsageError for different vocabularies."""
    was_training = original.training
    comparison = compare(model, live_goals(original, held_out, batch_rows), held_out, batch_rows)
    original.train(was_training)
    return comparison.divergence


def _real_logits(model: Any, batch: Batch) -> Tensor:
    """[N, V], in float32."""
    logits: Tensor = model(input_ids=batch.inputs, use_cache=False).logits
    return logits[batch.targets != IGNORE].float()


def _placed(real: Tensor, values: Tensor) -> Tensor:
    """Figures of the real targets [N] where they belong in the batch [rows, length]."""
    placed = torch.zeros(real.shape, dtype=values.dtype, device=values.device)
    placed[real] = values
    return placed


def device_of(model: nn.Module) -> torch.device:
    """Where inputs go. A packed model may have buffers only."""
    first = next(model.parameters(), None)
    return (next(model.buffers()) if first is None else first).device
