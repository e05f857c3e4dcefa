"""How well a model predicts text: perplexity and bits per byte, and how far it is from another model.

Every figure has its standard error over documents (the delta method for ratios of sums), because tokens of one document
are not independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_forge.errors import CheckpointError, UsageError
from agent_forge.forge.training.evaluation import Evaluation, HeldOut, document_scores, ratio
from agent_forge.forge.training.objective import losses_and_hits
from agent_forge.forge.training.packing import IGNORE, Batch


@dataclass(frozen=True)
class TextScore:
    """Sums by document: the nats a model needs, its hits, its tokens, and the document's bytes (0: not known)."""

    nats: np.ndarray
    hits: np.ndarray
    tokens: np.ndarray
    bytes_of: np.ndarray

    @property
    def bits(self) -> np.ndarray:
        """The bits of each document."""
        return self.nats / math.log(2)

    @property
    def loss(self) -> float:
        """Nats per token."""
        return float(self.nats.sum() / self.tokens.sum())

    @property
    def perplexity(self) -> float:
        """exp(nats per token): comparable between models with one tokenizer."""
        return math.exp(min(self.loss, 700.0))

    @property
    def perplexity_stderr(self) -> float | None:
        return _or_none(self.perplexity * ratio(self.nats, self.tokens)[1])

    @property
    def bits_per_byte(self) -> float | None:
        """Comparable between any two models. None for text that is known as tokens only."""
        return float(self.nats.sum() / math.log(2) / self.bytes_of.sum()) if self.bytes_of.all() else None

    @property
    def bits_per_byte_stderr(self) -> float | None:
        return _or_none(ratio(self.nats / math.log(2), self.bytes_of)[1]) if self.bytes_of.all() else None

    @property
    def accuracy(self) -> float:
        """Of the next token."""
        return float(self.hits.sum() / self.tokens.sum())

    def as_evaluation(self) -> Evaluation:
        """What `train` looks at as it goes. Without bytes, a token counts as one."""
        return Evaluation.of(self.nats, self.hits, self.tokens, self.bytes_of if self.bytes_of.all() else self.tokens)

    def as_dict(self) -> dict[str, Any]:
        return {
            "perplexity": self.perplexity,
            "perplexity_stderr": self.perplexity_stderr,
            "bits_per_byte": self.bits_per_byte,
            "bits_per_byte_stderr": self.bits_per_byte_stderr,
            "next_token_accuracy": self.accuracy,
            "tokens": int(self.tokens.sum()),
            "documents": len(self.tokens),
        }


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def refuse_unsound(model: nn.Module, where: str) -> None:
    """Raises CheckpointError for a model with a weight that is NaN or infinite: nothing can be judged against it."""
    for name, weight in model.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            raise CheckpointError(f"{name} holds numbers that are NaN or infinite", where=where)


def measure_text(model: nn.Module, held_out: HeldOut, batch_rows: int = 16) -> TextScore:
    """Reads every held-out document once; one longer than a row is read in pieces, each from its first token."""
    nats, hits, tokens = document_scores(model, held_out, batch_rows, token_scores)
    return TextScore(nats, hits, tokens, np.array(held_out.bytes_of, dtype=float))


MOST_LOGITS = 1 << 26  # held at once: 256 MB in float32; on a GPU eight times as many


@torch.no_grad()
def token_scores(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """[rows, length]: the loss of every target in nats, and whether the likeliest token was right; of any causal LM.

    A head that is not a plain matrix in memory (packed, or rounded as it goes) is asked for its logits, a few rows at a
    time.
    """
    find: Any = getattr(model, "get_output_embeddings", lambda: None)
    weight = getattr(find(), "weight", None)
    if isinstance(weight, nn.Parameter) and weight.is_floating_point() and not hasattr(find(), "effective"):
        return losses_and_hits(model, batch)
    width = max(1, getattr(model.config, "vocab_size", 1) * batch.inputs.shape[1])
    most = MOST_LOGITS << 3 if batch.inputs.is_cuda else MOST_LOGITS
    parts = [_scores_of_logits(model, part) for part in batch.split(max(1, most // width))]
    return torch.cat([losses for losses, _ in parts]), torch.cat([hits for _, hits in parts])


def _scores_of_logits(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    logits = model(input_ids=batch.inputs, use_cache=False).logits.float()
    losses = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE, reduction="none")
    return losses.view_as(batch.targets), logits.argmax(-1) == batch.targets


@dataclass(frozen=True)
class Divergence:
    """How far a model's predictions are from the original's, on the same text."""

    kl: float  # KL(original || model), nats per token
    kl_stderr: float | None
    agreement: float  # how often both find the same token likeliest
    agreement_stderr: float | None

    def as_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


@torch.no_grad()
def divergence(model: nn.Module, original: nn.Module, held_out: HeldOut, batch_rows: int = 4) -> Divergence:
    """Both models on every held-out document, token by token. Raises UsageError for different vocabularies."""
    count = len(held_out.bytes_of)
    kl, same, tokens = np.zeros(count), np.zeros(count), np.zeros(count)
    were_training = model.training, original.training
    model.eval(), original.eval()
    for start in range(0, len(held_out.rows), batch_rows):
        batch = held_out.rows.take(slice(start, start + batch_rows))
        real = batch.targets != IGNORE
        mine, theirs = _logits(model, batch, real), _logits(original, batch, real)
        if mine.shape != theirs.shape:
            raise UsageError(f"the vocabularies differ: {mine.shape[-1]} and {theirs.shape[-1]} words")
        where = batch.documents[real].numpy()
        kl += np.bincount(where, _kl(theirs, mine).double().cpu().numpy(), count)
        same += np.bincount(where, (mine.argmax(-1) == theirs.argmax(-1)).double().cpu().numpy(), count)
        tokens += np.bincount(where, minlength=count)
    model.train(were_training[0]), original.train(were_training[1])
    found, error = ratio(kl, tokens)
    agreement, agreement_error = ratio(same, tokens)
    return Divergence(max(0.0, found), _or_none(error), agreement, _or_none(agreement_error))


def _logits(model: Any, batch: Batch, real: Tensor) -> Tensor:
    device = device_of(model)
    logits: Tensor = model(input_ids=batch.inputs.to(device), use_cache=False).logits
    return logits[real.to(device)].float()


def _kl(goal: Tensor, logits: Tensor) -> Tensor:
    told = F.log_softmax(goal, dim=-1)
    return (told.exp() * (told - F.log_softmax(logits.to(told.device), dim=-1))).sum(-1)


def device_of(model: nn.Module) -> torch.device:
    """Where inputs go. A packed model may have buffers only."""
    first = next(model.parameters(), None)
    return (next(model.buffers()) if first is None else first).device


def positions_of(config: Any) -> int | None:
    """How many tokens a model can read; None where its configuration names no end."""
    found = (getattr(config, name, None) for name in ("max_position_embeddings", "max_seq_len"))  # MPT's word
    return next((most for most in found if isinstance(most, int) and most > 1), None)
