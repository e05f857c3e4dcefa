"""What a model is trained and judged on when it is quantised: the user's text, or, where there is none, the text that
comes with the package and text that the model writes itself (LLM-QAT, 2305.17888).

What a model writes by sampling is text from the distribution it has learned, whatever that was; a teacher's opinion on
it is what the student has to keep.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from agent_forge.errors import DataError
from agent_forge.forge.corpus import Leaks, read_texts
from agent_forge.forge.training import HeldOut, PackedRows, encode, pack

BUNDLED = ("stories", "problems")
PIECE = 4000  # characters: a book in one file becomes documents of about two pages
FEWEST_PIECES = 40  # of a short text the pieces are shorter, down to
SHORTEST_PIECE = 400


@dataclass(frozen=True)
class Material:
    """Rows to learn from, rows to look at while learning, and documents to be judged on; no document is in two."""

    rows: PackedRows
    watched: HeldOut
    judged: HeldOut
    about: str


@dataclass(frozen=True)
class Wanted:
    """How much text: `rows` of `length` tokens to learn from, and so many tokens to be judged on."""

    rows: int
    length: int
    judged_tokens: int
    watched_rows: int = 16
    written: float = 0.5  # share that the model writes itself, where no text is given
    seed: int = 0


def gather(model: Any, tokenizer: Any | None, data: Sequence[str], wanted: Wanted) -> Material:
    """The material for a model. Raises DataError if the text is too little to split."""
    if data:
        return _from_texts(tokenizer, _texts(data), wanted, ", ".join(data))
    if tokenizer is None:
        return _from_rows(write_rows(model, None, _whole(wanted), wanted.length, wanted.seed), None, wanted)
    share = wanted.written
    own = _share(wanted, share)
    written = _from_rows(write_rows(model, tokenizer, _whole(own), own.length, own.seed), tokenizer, own)
    if share >= 1:
        return written
    bundled = _from_texts(tokenizer, _texts(BUNDLED), _share(wanted, 1 - share), "bundled text")
    return _joined(bundled, written)


def _share(wanted: Wanted, share: float) -> Wanted:
    return Wanted(
        max(1, round(wanted.rows * share)),
        wanted.length,
        max(1, round(wanted.judged_tokens * share)),
        max(1, round(wanted.watched_rows * share)),
        wanted.written,
        wanted.seed,
    )


def _whole(wanted: Wanted) -> int:
    return wanted.rows + wanted.watched_rows + -(-wanted.judged_tokens // wanted.length)


def _texts(paths: Sequence[str]) -> list[str]:
    """The documents of every path in turn: first one of each, then the next."""
    whole = [list(read_texts(path)) for path in paths]
    room = sum(len(text) for texts in whole for text in texts) // FEWEST_PIECES
    size = min(PIECE, max(SHORTEST_PIECE, room // 2))
    columns = [[piece for text in texts for piece in _pieces(text, size)] for texts in whole]
    longest = max(len(column) for column in columns)
    found = [column[at] for at in range(longest) for column in columns if at < len(column)]
    return list(dict.fromkeys(found))


def _pieces(text: str, size: int = PIECE) -> Iterable[str]:
    """A long text in parts that end with a paragraph, a line or, at the worst, a word."""
    while len(text) > 2 * size:
        at = next((place for mark in ("\n\n", "\n", " ") if (place := text.rfind(mark, size, 2 * size)) > 0), size)
        yield text[:at]
        text = text[at:].lstrip()
    if text:
        yield text


def _from_texts(tokenizer: Any, texts: list[str], wanted: Wanted, about: str) -> Material:
    if tokenizer is None:
        raise DataError("text was given, and the model has no tokenizer to read it with", where=about)
    order = sorted(texts, key=lambda text: hashlib.sha256(f"{wanted.seed}{text}".encode()).digest())
    judged, rest = _up_to(tokenizer, order, wanted.judged_tokens, most=max(1, len(order) // 3))
    watched, rest = _up_to(
        tokenizer, rest, wanted.watched_rows * wanted.length, most=max(1, min(wanted.watched_rows, len(rest) // 4))
    )
    leaks = Leaks([*judged, *watched])
    learned, _ = _up_to(tokenizer, (t for t in rest if not leaks.found_in(t)), wanted.rows * (wanted.length + 1))
    if not judged or not watched or not learned:
        raise DataError(f"{len(texts)} documents are too few to learn from some and judge on others", where=about)
    begin = beginning(tokenizer)
    rows = pack(encode(tokenizer, learned), wanted.length, begin)
    return Material(rows, _held_out(tokenizer, watched, wanted), _held_out(tokenizer, judged, wanted), about)


def _held_out(tokenizer: Any, texts: list[str], wanted: Wanted) -> HeldOut:
    rows = pack(encode(tokenizer, texts, eos=False), wanted.length, beginning(tokenizer), alone=True)
    return HeldOut(rows, tuple(len(text.encode()) for text in texts))


def _up_to(tokenizer: Any, texts: Iterable[str], tokens: int, most: int | None = None) -> tuple[list[str], list[str]]:
    """Texts until there are so many tokens (or `most` texts), and the texts that are left."""
    source, taken, count = iter(texts), [], 0
    for text in source:
        taken.append(text)
        count += len(tokenizer(text, add_special_tokens=False)["input_ids"])
        if count >= tokens or (most is not None and len(taken) >= most):
            break
    return taken, list(source)


def beginning(tokenizer: Any) -> int:
    """The token that a text begins with: BOS, or EOS where there is none. Raises DataError if there is neither."""
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    raise DataError("the tokenizer has neither BOS nor EOS to begin a text with")


@torch.no_grad()
def write_rows(
    model: nn.Module, tokenizer: Any | None, count: int, length: int, seed: int, batch: int = 64
) -> PackedRows:
    """`count` rows that the model writes by sampling at temperature 1, each from the beginning of a text."""
    device = next(model.parameters()).device
    config: Any = model.config
    first = config.bos_token_id if tokenizer is None else beginning(tokenizer)
    generator = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model.eval()
    parts = []
    for start in range(0, count, batch):
        rows = min(batch, count - start)
        begin = torch.full((rows, 1), 0 if first is None else first, device=device)
        tokens: Any = model.generate(  # type: ignore[operator]
            begin,
            attention_mask=torch.ones_like(begin),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_new_tokens=length,
            max_new_tokens=length,
            pad_token_id=0,
        )
        parts.append(tokens.cpu().numpy().astype(np.int32))
    torch.random.set_rng_state(generator)
    tokens = np.concatenate(parts)
    numbers = np.repeat(np.arange(count, dtype=np.int32)[:, None], length + 1, axis=1)
    return PackedRows(tokens, numbers)


def _from_rows(rows: PackedRows, tokenizer: Any | None, wanted: Wanted) -> Material:
    first, second = wanted.rows, wanted.rows + wanted.watched_rows
    learned = PackedRows(rows.tokens[:first], rows.documents[:first])
    about = "text written by the model itself"
    watched, judged = (_known(rows.tokens[part], tokenizer) for part in (slice(first, second), slice(second, None)))
    return Material(learned, watched, judged, about)


def _known(tokens: np.ndarray, tokenizer: Any | None) -> HeldOut:
    numbers = np.repeat(np.arange(len(tokens), dtype=np.int32)[:, None], tokens.shape[1], axis=1)
    sizes = [0] * len(tokens) if tokenizer is None else [len(tokenizer.decode(row[1:]).encode()) for row in tokens]
    return HeldOut(PackedRows(tokens, numbers), tuple(sizes))


def _joined(one: Material, other: Material) -> Material:
    rows = PackedRows(
        np.concatenate([one.rows.tokens, other.rows.tokens]),
        np.concatenate([one.rows.documents, other.rows.documents]),
    )
    watched, judged = _both(one.watched, other.watched), _both(one.judged, other.judged)
    return Material(rows, watched, judged, f"{one.about} and {other.about}")


def _both(one: HeldOut, other: HeldOut) -> HeldOut:
    shift = len(one.bytes_of)
    later = np.where(other.rows.documents >= 0, other.rows.documents + shift, -1).astype(np.int32)
    rows = PackedRows(np.concatenate([one.rows.tokens, other.rows.tokens]), np.concatenate([one.rows.documents, later]))
    return HeldOut(rows, one.bytes_of + other.bytes_of)
