"""Multiple choice by likelihood: the model's choice is the answer it finds likeliest after the question.

Questions come from public sets (`read_choices`), or are made from any held-out text: which of four
pieces follows this one (`continuations`)?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from agent_forge.context_length import context_length
from agent_forge.errors import DataError, UsageError
from agent_forge.forge.evaluation.scores import TaskScore
from agent_forge.forge.evaluation.text import device_of, token_scores
from agent_forge.forge.progress import Tell, silent, track
from agent_forge.forge.training.evaluation import HeldOut
from agent_forge.forge.training.packing import IGNORE, Batch

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class MultipleChoice:
    """A question with answers to choose from: the likeliest continuation of `prompt` counts as the model's choice."""

    prompt: str
    answers: tuple[str, ...]
    right: int


@dataclass(frozen=True)
class ChoiceQuestion:
    """A question as tokens: the prompt (from the beginning of a text), the answers, and what each
    answer's log-likelihood is divided by: its characters, so that long answers are not punished, or
    1 for answers of equal length."""

    prompt: Tokens
    answers: tuple[Tokens, ...]
    sizes: tuple[float, ...]
    right: int


def questions_of(
    choices: Sequence[MultipleChoice], tokenizer: Any, begin: int | Literal["bos"] | None = "bos"
) -> list[ChoiceQuestion]:
    """Questions in words as questions in tokens, after the token `begin` if there is one.

    As in EleutherAI's harness: prompt and answer are tokenised together, the answer is what comes
    after the prompt's own tokens, and an answer counts by its characters without the blank before it.
    """
    first = tokenizer.bos_token_id if begin == "bos" else begin
    return [
        ChoiceQuestion(
            split(tokenizer, choice.prompt, choice.answers[0], first)[0],
            tuple(split(tokenizer, choice.prompt, answer, first)[1] for answer in choice.answers),
            tuple(float(max(1, len(answer.removeprefix(" ")))) for answer in choice.answers),
            choice.right,
        )
        for choice in choices
    ]


def split(tokenizer: Any, context: str, continuation: str, begin: int | None) -> tuple[Tokens, Tokens]:
    """Tokens of both. Blanks at the end of the context belong to the continuation."""

    def tokens(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    blanks = len(context) - len(context.rstrip())
    if blanks:
        continuation, context = context[-blanks:] + continuation, context[:-blanks]
    start = () if begin is None else (begin,)
    before = (*start, *tokens(context))
    both = (*start, *tokens(context + continuation))
    return before or (0,), both[len(before) :] or tuple(tokens(continuation))


def continuations(
    held_out: HeldOut, count: int, prompt: int = 24, answer: int = 8, ways: int = 4, seed: int = 0
) -> list[ChoiceQuestion]:
    """Questions from held-out rows: which of `ways` pieces follows? The wrong ones are pieces of
    other documents.

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
    owners = np.array([documents[row, 0] for row, _ in places])
    distinct = len(np.unique(owners))
    if distinct < ways:
        raise DataError(f"{distinct} documents are too few for questions with {ways} answers", where="evaluation")
    questions = []
    for (row, start), owner in zip(places[:count], owners, strict=False):
        others = np.flatnonzero(owners != owner)
        wrong = [places[others[i]] for i in rng.choice(len(others), ways - 1, replace=False)]
        right = int(rng.integers(ways))
        sources = [*wrong[:right], (row, start), *wrong[right:]]
        pieces = tuple(tuple(int(t) for t in tokens[r, s + prompt : s + width]) for r, s in sources)
        begin = (int(tokens[row, 0]),) if start else ()
        question = (*begin, *(int(t) for t in tokens[row, start : start + prompt]))
        questions.append(ChoiceQuestion(question, pieces, (1.0,) * ways, right))
    return questions


def answer_questions(
    model: nn.Module,
    questions: Sequence[ChoiceQuestion],
    task: str = "multiple choice",
    rows: int = 32,
    tell: Tell = silent,
) -> TaskScore:
    """1 for every question whose right answer is the likeliest, else 0; chance is the mean of 1 / answers."""
    pairs = [(question.prompt, answer) for question in questions for answer in question.answers]
    losses, _ = score_rows(model, pairs, rows, task, tell)
    ends = np.cumsum([len(question.answers) for question in questions])
    likelihoods = [-part for part in np.split(losses, ends[:-1])]  # by question: nats of each answer
    points, plain = [], []
    for question, logs in zip(questions, likelihoods, strict=True):
        points.append(float(int((logs / np.array(question.sizes)).argmax()) == question.right))
        plain.append(float(int(logs.argmax()) == question.right))
    chance = float(np.mean([1 / len(question.answers) for question in questions])) if questions else 0.0
    how = "likeliest answer, by log-likelihood per character (or of equal length)"
    return TaskScore(task, tuple(points), chance, how, tuple(plain))


def score_rows(
    model: nn.Module,
    pairs: Sequence[tuple[Tokens, Tokens]],
    rows: int = 32,
    stage: str = "answers",
    tell: Tell = silent,
) -> tuple[np.ndarray, np.ndarray]:
    """For every (prompt, answer): the answer's loss in nats, and whether each of its tokens was the likeliest.

    A row that is longer than the model can read loses the beginning of its prompt; an answer that
    is longer by itself is read in pieces, each after the piece before it. Raises UsageError for a
    prompt without a token.
    """
    most = context_length(model.config)
    pieces = [(i, piece) for i, pair in enumerate(pairs) for piece in _pieces(*pair, most)]
    order = sorted(range(len(pieces)), key=lambda i: sum(map(len, pieces[i][1])))  # rows of like length share a batch
    losses, greedy = np.zeros(len(pairs)), np.ones(len(pairs), dtype=bool)
    was_training, device = model.training, device_of(model)
    model.eval()
    for start in track(range(0, len(order), rows), stage, tell):
        chosen = [pieces[i] for i in order[start : start + rows]]
        batch = _batch([piece for _, piece in chosen])
        lost, hits = (x.cpu() for x in token_scores(model, batch.to(device)))
        owners = [owner for owner, _ in chosen]
        np.add.at(losses, owners, lost.double().sum(1).numpy())
        np.logical_and.at(greedy, owners, (hits | (batch.targets == IGNORE)).all(1).numpy())
    model.train(was_training)
    return losses, greedy


def _pieces(prompt: Tokens, answer: Tokens, most: int | None) -> list[tuple[Tokens, Tokens]]:
    """(before, after) in rows of at most `most` tokens, which together hold the answer once."""
    if not prompt:
        raise UsageError("a prompt has no token, so the first of its answer cannot be judged", where="evaluation")
    if most is None or len(prompt) + len(answer) <= most:
        return [(prompt, answer)]
    whole, pieces = prompt + answer, []
    for start in range(len(prompt), len(whole), most - 1):
        after = whole[start : start + most - 1]
        pieces.append((whole[max(0, start + len(after) - most) : start], after))
    return pieces or [(prompt[-most:], ())]


def _batch(pairs: Sequence[tuple[Tokens, Tokens]]) -> Batch:
    """Right-padded rows in which only the answers' tokens are targets."""
    width = max(len(before) + len(after) for before, after in pairs)
    tokens = torch.zeros(len(pairs), width, dtype=torch.long)
    targets = torch.full((len(pairs), width), IGNORE)
    for row, (before, after) in enumerate(pairs):
        tokens[row, : len(before) + len(after)] = torch.tensor([*before, *after])
        targets[row, len(before) - 1 : len(before) + len(after) - 1] = torch.tensor(after)
    return Batch(tokens, targets, torch.zeros_like(tokens))
