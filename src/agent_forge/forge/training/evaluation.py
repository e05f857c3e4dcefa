"""Bits per byte and next-token accuracy on held-out text, each with its standard error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn

from agent_forge.forge.progress import Tell, silent, track
from agent_forge.forge.training.objective import losses_and_hits
from agent_forge.forge.training.packing import IGNORE, Batch, PackedRows, encode, pack


@dataclass(frozen=True)
class Evaluation:
    """Figures on held-out text. Bits per byte compare models with different tokenizers; errors are over documents."""

    bits_per_byte: float
    bits_per_byte_stderr: float
    accuracy: float  # of the next token
    accuracy_stderr: float
    loss: float  # nats per token
    tokens: int
    bytes: int
    documents: int

    @staticmethod
    def of(nats: np.ndarray, hits: np.ndarray, tokens: np.ndarray, sizes: np.ndarray) -> Evaluation:
        """From the sums of each document: nats, right guesses, tokens and bytes, all [documents]."""
        bits, bits_error = ratio(nats / math.log(2), sizes)
        accuracy, accuracy_error = ratio(hits, tokens)
        counts = (int(tokens.sum()), int(sizes.sum()), len(tokens))
        return Evaluation(bits, bits_error, accuracy, accuracy_error, float(nats.sum() / tokens.sum()), *counts)


@dataclass(frozen=True)
class HeldOut:
    """Documents to evaluate on: one piece per row, so that none sees another."""

    rows: PackedRows
    bytes_of: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Any, texts: Sequence[str], length: int = 1024) -> HeldOut:
        documents = encode(tokenizer, texts, eos=False)
        rows = pack(documents, length, tokenizer.bos_token_id, alone=True)
        return cls(rows, tuple(len(text.encode()) for text in texts))


Scores = Callable[[nn.Module, Batch], tuple[torch.Tensor, ...]]  # figures of every target, each [rows, length]


def document_scores(
    model: nn.Module,
    held_out: HeldOut,
    batch_rows: int = 16,
    scores: Scores = losses_and_hits,
    stage: str = "evaluation",
    tell: Tell = silent,
) -> tuple[np.ndarray, ...]:
    """The sums of each of the scores (nats and right guesses) and the number of tokens, by document.

    Every document is read once; one longer than a row in pieces, each from BOS.
    """
    device = next(chain(model.parameters(), model.buffers())).device
    was_training = model.training
    model.eval()
    count = len(held_out.bytes_of)
    sums, tokens = np.zeros((1, count)), np.zeros(count)
    for start in track(range(0, len(held_out.rows), batch_rows), stage, tell):
        batch = held_out.rows.take(slice(start, start + batch_rows))
        real = batch.targets != IGNORE
        where = batch.documents[real].numpy()
        figures = [figure.cpu()[real].double().numpy() for figure in scores(model, batch.to(device))]
        sums = sums + [np.bincount(where, figure, count) for figure in figures]
        tokens += np.bincount(where, minlength=count)
    model.train(was_training)
    return *sums, tokens


def evaluate(model: nn.Module, held_out: HeldOut, batch_rows: int = 16) -> Evaluation:
    """The model in its current state, on every document once."""
    nats, hits, tokens = document_scores(model, held_out, batch_rows)
    return Evaluation.of(nats, hits, tokens, np.array(held_out.bytes_of, dtype=float))


def ratio(numerators: np.ndarray, denominators: np.ndarray) -> tuple[float, float]:
    """sum(n) / sum(d) and its standard error, the pairs being independent draws (the delta method).

    >>> ratio(np.array([1.0, 2.0]), np.array([1.0, 2.0]))
    (1.0, 0.0)
    """
    value = numerators.sum() / denominators.sum()
    n = len(numerators)
    if n < 2:
        return float(value), math.nan
    spread = ((numerators - value * denominators) ** 2).sum() / (n - 1)
    return float(value), float(math.sqrt(spread / n) / denominators.mean())
