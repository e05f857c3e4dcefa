"""The text that a model is calibrated and judged on, tokenised for it.

Rows are drawn from all the text: packing leaves them sorted by document, and the first few hundred
would be a handful of documents of one source. Only the first rows of a held-out document are read,
so that many documents of every source are judged on and the error over documents means something.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from agent_forge.context_length import context_length
from agent_forge.errors import CheckpointError
from agent_forge.forge.progress import Tell, silent, track
from agent_forge.forge.training.evaluation import HeldOut
from agent_forge.forge.training.packing import TEXTS_AT_ONCE, PackedRows, encode, pack
from agent_forge.inference.loading import load_config, load_tokenizer
from agent_forge.model_files import TOKENIZERS

ROWS_PER_DOCUMENT = 2  # at least: more where there are few documents


@dataclass(frozen=True)
class Text:
    """Calibration rows and held-out documents, tokenised for the model."""

    rows: PackedRows
    held_out: HeldOut
    samples: Sequence[str]  # texts to check a packed tokenizer with


def mixed(sources: Iterable[Sequence[str]]) -> list[str]:
    """The documents of several sources in turns.

    >>> mixed([["a", "b", "c"], ["x"]])
    ['a', 'x', 'b', 'c']
    """
    return [text for turn in zip_longest(*sources) for text in turn if text is not None]


def prepare_text(
    source: Path,
    train: Sequence[str],
    held_out: Sequence[str],
    length: int,
    judged: int,
    seed: int = 0,
    tell: Tell = silent,
) -> Text:
    """Tokenises calibration and held-out texts with the model's own tokenizer; about `judged` rows
    are judged on.

    Rows have `length` tokens, or as many as the model can read at once.
    """
    if not any((source / name).is_file() for name in TOKENIZERS):
        raise CheckpointError("there is no tokenizer to read the text with", where=str(source))
    length = min(length, context_length(load_config(source)) or length)
    tokenizer: Any = load_tokenizer(source)
    if tokenizer.bos_token_id is None:
        if tokenizer.eos_token_id is None:
            raise CheckpointError("the tokenizer has neither BOS nor EOS to begin a text with", where=str(source))
        tokenizer.bos_token = tokenizer.eos_token
    padding = tokenizer.bos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    documents = [
        tokens
        for start in track(range(0, len(train), TEXTS_AT_ONCE), "tokenise", tell)
        for tokens in encode(tokenizer, train[start : start + TEXTS_AT_ONCE])
    ]
    rows = pack(documents, length, tokenizer.bos_token_id, padding)
    drawn = np.random.default_rng(seed).permutation(len(rows))
    beginnings = _beginnings(tokenizer, held_out, length, judged)
    return Text(
        PackedRows(rows.tokens[drawn], rows.documents[drawn]),
        HeldOut.of(tokenizer, beginnings, length),
        [*held_out[:20], "Ünïcode ✓ 12,345\n\ttabs"],
    )


def _beginnings(tokenizer: Any, texts: Sequence[str], length: int, most: int) -> list[str]:
    """The beginnings of documents that together fill about `most` rows."""
    share = min(most, max(ROWS_PER_DOCUMENT, most // max(1, len(texts))))
    beginnings: list[str] = []
    rows = 0
    for text in texts:
        part, tokens = _cut(tokenizer, text, length * share)
        needed = -(-tokens // length)
        if needed and (not beginnings or rows + needed <= most):
            beginnings.append(part)
            rows += needed
    return beginnings


def _cut(tokenizer: Any, text: str, most: int) -> tuple[str, int]:
    """The beginning of a text that has at most `most` tokens, and how many it has."""
    part = text[: 8 * most]
    count = len(tokenizer(part, add_special_tokens=False)["input_ids"])
    while count > most:
        part = part[: int(len(part) * most / count * 0.98)]
        count = len(tokenizer(part, add_special_tokens=False)["input_ids"])
    return part, count
