"""Multiple choice by likelihood: the model's choice is the answer it finds likeliest after the question.

Questions of public sets (`read_choices`), or made from any held-out text: which of four pieces follows this one
(`continuations`)?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from agent_forge.errors import DataError, UsageError
from agent_forge.forge.evaluation.scores import Score
from agent_forge.forge.evaluation.text import device_of, positions_of, token_scores
from agent_forge.forge.training.evaluation import HeldOut
from agent_forge.forge.training.packing import IGNORE, Batch


@dataclass(frozen=True)
class MultipleChoice:
    """A question with answers to choose from: the likeliest continuation of `prompt` counts as the model's choice."""

    prompt: str
    answers: tuple[str, ...]
    right: int


@dataclass(frozen=True)
class Question:
    """Tokens of the question (from the beginning of a text on), of the answers, and by what each answer's likelihood
    is divided: its bytes, so that long answers are not punished, or 1 for answers of one length."""

    prompt: tuple[int, ...]
    answers: tuple[tuple[int, ...], ...]
    sizes: tuple[float, ...]
    right: int


def questions_of(choices: Sequence[MultipleChoice], tokenizer: Any, begin: int | None = None) -> list[Question]:
    """Questions in words as questions in tokens."""
    first = tokenizer.bos_token_id if begin is None else begin
    start = () if first is None else (first,)

    def tokens(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])

    return [
        Question(
            (*start, *tokens(choice.prompt)),
            tuple(tokens(answer) for answer in choice.answers),
            tuple(float(max(1, len(answer.encode()))) for answer in choice.answers),
            choice.right,
        )
        for choice in choices
    ]


def continuations(
    held_out: HeldOut, count: int, prompt: int = 24, answer: int = 8, ways: int = 4, seed: int = 0
) -> list[Question]:
    """Questions from held-out rows: which of `ways` pieces follows? The wrong ones are pieces of other documents.

    Raises DataError if there are too few documents to ask about.
    """
    tokens, documents = held_out.rows.tokens, held_out.rows.documents
    rng = np.random.default_rng(seed)
    width = prompt + answer
    places = [
        (row, start)
        for row in range(len(tokens))
        for start in range(0, int((documents[row] >= 0).sum()) - width + 1, width)
    ]
    rng.shuffle(places)
    by_document = {int(documents[row, 0]) for row, _ in places}
    if len(by_document) < ways:
        raise DataError(f"{len(by_document)} documents are too few for questions of {ways} answers", where="evaluation")
    found = []
    for row, start in places[:count]:
        others = [place for place in places if documents[place[0], 0] != documents[row, 0]]
        wrong = [others[i] for i in rng.choice(len(others), ways - 1, replace=False)]
        right = int(rng.integers(ways))
        sources = [*wrong[:right], (row, start), *wrong[right:]]
        pieces = tuple(tuple(int(t) for t in tokens[r, s + prompt : s + width]) for r, s in sources)
        begin = (int(tokens[row, 0]),) if start else ()
        asked = (*begin, *(int(t) for t in tokens[row, start : start + prompt]))
        found.append(Question(asked, pieces, (1.0,) * ways, right))
    return found


def answer_questions(
    model: nn.Module, questions: Sequence[Question], task: str = "multiple choice", rows: int = 32
) -> Score:
    """1 for every question whose right answer is the likeliest, else 0; chance is the mean of 1 / answers."""
    pairs = [
        (question.prompt, answer, size)
        for question in questions
        for answer, size in zip(question.answers, question.sizes, strict=True)
    ]
    losses, _ = score_rows(model, [(prompt, answer) for prompt, answer, _ in pairs], rows)
    likely = -losses / np.array([size for _, _, size in pairs])
    points, at = [], 0
    for question in questions:
        mine = likely[at : at + len(question.answers)]
        points.append(float(int(mine.argmax()) == question.right))
        at += len(question.answers)
    chance = float(np.mean([1 / len(question.answers) for question in questions])) if questions else 0.0
    return Score(task, tuple(points), chance, "likeliest answer, by log-likelihood per byte (or of equal length)")


def score_rows(
    model: nn.Module, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], rows: int = 32
) -> tuple[np.ndarray, np.ndarray]:
    """For every (prompt, answer): the answer's loss in nats, and whether each of its tokens was the likeliest.

    What is longer than the model can read loses the beginning of its prompt; an answer that is longer by itself is read
    in pieces, each after the piece before it. Raises UsageError for a prompt without a token.
    """
    most = positions_of(model.config)
    pieces = [(i, piece) for i, pair in enumerate(pairs) for piece in _pieces(*pair, most)]
    order = sorted(range(len(pieces)), key=lambda i: sum(map(len, pieces[i][1])))  # alike ones share a batch
    losses, greedy = np.zeros(len(pairs)), np.ones(len(pairs), dtype=bool)
    was_training, device = model.training, device_of(model)
    model.eval()
    for start in range(0, len(order), rows):
        chosen = [pieces[i] for i in order[start : start + rows]]
        batch = _rows([piece for _, piece in chosen])
        lost, hits = (x.cpu() for x in token_scores(model, batch.to(device)))
        owners = [owner for owner, _ in chosen]
        np.add.at(losses, owners, lost.double().sum(1).numpy())
        np.logical_and.at(greedy, owners, (hits | (batch.targets == IGNORE)).all(1).numpy())
    model.train(was_training)
    return losses, greedy


def _pieces(
    prompt: tuple[int, ...], answer: tuple[int, ...], most: int | None
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(before, after) in rows of at most so many tokens, which together hold the answer once."""
    if not prompt:
        raise UsageError("a prompt has no token, so the first of its answer cannot be judged", where="evaluation")
    if most is None or len(prompt) + len(answer) <= most:
        return [(prompt, answer)]
    whole, found = prompt + answer, []
    for start in range(len(prompt), len(whole), most - 1):
        after = whole[start : start + most - 1]
        found.append((whole[max(0, start + len(after) - most) : start], after))
    return found or [(prompt[-most:], ())]


def _rows(pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> Batch:
    """Right-padded rows in which only the answers' tokens are targets."""
    width = max(len(before) + len(after) for before, after in pairs)
    tokens = torch.zeros(len(pairs), width, dtype=torch.long)
    targets = torch.full((len(pairs), width), IGNORE)
    for row, (before, after) in enumerate(pairs):
        tokens[row, : len(before) + len(after)] = torch.tensor([*before, *after])
        targets[row, len(before) - 1 : len(before) + len(after) - 1] = torch.tensor(after)
    return Batch(tokens, targets, torch.zeros_like(tokens))
