"""Evaluation: bits per byte and accuracy, each with its standard error."""

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
    """Held-out text. Bits per byte compare models with different tokenizers; the errors are over documents."""

    bits_per_byte: float
    bits_per_byte_stderr: float
    accuracy: float  # of the next token
    accuracy_stderr: float
    loss: float  # nats per token
    tokens: int
    bytes: int
    documents: int


@dataclass(frozen=True)
class HeldOut:
    """Documents to evaluate on: one piece a row, so that none sees another."""

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
    """The model as it is, on every document once."""
    loss, hits, tokens = document_scores(model, held_out, batch_rows)
    sizes = np.array(held_out.bytes_of, dtype=float)
    bits, bits_error = ratio(loss / math.log(2), sizes)
    accuracy, accuracy_error = ratio(hits, tokens)
    per_token = float(loss.sum() / tokens.sum())
    whole = (int(tokens.sum()), int(sizes.sum()), len(tokens))
    return Evaluation(bits, bits_error, accuracy, accuracy_error, per_token, *whole)


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


@dataclass(frozen=True)
class Choice:
    """A question with answers to choose from: the likeliest continuation of `prompt` counts as the model's choice."""

    prompt: str
    answers: tuple[str, ...]
    right: int


@torch.no_grad()
def choice_accuracy(
    model: nn.Module, tokenizer: Any, questions: Sequence[Choice], rows: int = 32
) -> tuple[float, float]:
    """(accuracy, standard error). An answer's score is its log-likelihood per byte: long ones are not punished."""
    device = next(model.parameters()).device
    pairs = [(question.prompt, answer) for question in questions for answer in question.answers]
    scores: list[float] = []
    for start in range(0, len(pairs), rows):
        batch, sizes = _answers(tokenizer, pairs[start : start + rows])
        losses, _ = losses_and_hits(model, batch.to(device))
        scores.extend((-losses.double().sum(1).cpu() / torch.tensor(sizes)).tolist())
    hits, at = [], 0
    for question in questions:
        mine = scores[at : at + len(question.answers)]
        hits.append(float(max(range(len(mine)), key=mine.__getitem__) == question.right))
        at += len(mine)
    mean = sum(hits) / len(hits)
    return mean, math.sqrt(mean * (1 - mean) / max(1, len(hits) - 1))


def _answers(tokenizer: Any, pairs: Sequence[tuple[str, str]]) -> tuple[Batch, list[float]]:
    """Right-padded rows in which only the answers' tokens are targets."""
    encoded = []
    for prompt, answer in pairs:
        before = [tokenizer.bos_token_id, *tokenizer(prompt, add_special_tokens=False)["input_ids"]]
        encoded.append((before, tokenizer(answer, add_special_tokens=False)["input_ids"]))
    width = max(len(before) + len(after) for before, after in encoded)
    tokens = torch.zeros(len(pairs), width, dtype=torch.long)
    targets = torch.full((len(pairs), width), IGNORE)
    for row, (before, after) in enumerate(encoded):
        tokens[row, : len(before) + len(after)] = torch.tensor([*before, *after])
        targets[row, len(before) - 1 : len(before) + len(after) - 1] = torch.tensor(after)
    return Batch(tokens, targets, torch.zeros_like(tokens)), [max(1, len(a.encode())) for _, a in pairs]
