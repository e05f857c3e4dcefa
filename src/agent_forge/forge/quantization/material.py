"""What a model is trained and judged on when it is quantised: the user's text, or, where there is
none, the text that comes with the package and text that the model writes itself (LLM-QAT,
2305.17888).

What a model writes by sampling is text from the distribution it has learned, whatever that was; the
teacher's predictions on it are what the student has to keep.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import nn

from agent_forge.errors import DataError
from agent_forge.forge.corpus import Leaks, read_texts
from agent_forge.forge.progress import Tell, reporter, silent
from agent_forge.forge.training import HeldOut, PackedRows, encode, pack

BUNDLED = ("stories", "problems")
PIECE = 4000  # characters: a book in one file becomes documents of about two pages
FEWEST_PIECES = 40  # of a short text: its pieces are shorter, down to SHORTEST_PIECE
SHORTEST_PIECE = 400


@dataclass(frozen=True)
class Material:
    """Rows to learn from, documents to watch while learning, and documents to be judged on; no
    document is in two."""

    rows: PackedRows
    watched: HeldOut
    judged: HeldOut
    about: str


@dataclass(frozen=True)
class MaterialSize:
    """How much text: `rows` of `length` tokens to learn from, and so many tokens to be judged on."""

    rows: int
    length: int
    judged_tokens: int
    watched_rows: int = 16
    written: float = 0.5  # share that the model writes itself, where the user has no text
    seed: int = 0

    def share(self, part: float) -> MaterialSize:
        return replace(
            self,
            rows=max(1, round(self.rows * part)),
            judged_tokens=max(1, round(self.judged_tokens * part)),
            watched_rows=max(1, round(self.watched_rows * part)),
        )


def gather(model: Any, tokenizer: Any | None, data: Sequence[str], size: MaterialSize, tell: Tell = silent) -> Material:
    """The material for a model. Raises DataError if there is too little text to split."""
    if data:
        return _from_texts(tokenizer, _texts(data), size, ", ".join(data))
    if tokenizer is None or size.written >= 1:
        return _from_model(model, tokenizer, size, tell)
    written = _from_model(model, tokenizer, size.share(size.written), tell)
    bundled = _from_texts(tokenizer, _texts(BUNDLED), size.share(1 - size.written), "bundled text")
    return _joined(bundled, written)


def _texts(paths: Sequence[str]) -> list[str]:
    """The documents of all paths in turns, each once: first one of each, then the next."""
    sources = [list(read_texts(path)) for path in paths]
    room = sum(len(text) for texts in sources for text in texts) // FEWEST_PIECES
    size = min(PIECE, max(SHORTEST_PIECE, room // 2))
    columns = [[piece for text in texts for piece in _pieces(text, size)] for texts in sources]
    return list(dict.fromkeys(text for turn in zip_longest(*columns) for text in turn if text is not None))


def _pieces(text: str, size: int = PIECE) -> Iterable[str]:
    """A long text in parts that end with a paragraph, a line or, at the worst, a word."""
    while len(text) > 2 * size:
        at = next((place for mark in ("\n\n", "\n", " ") if (place := text.rfind(mark, size, 2 * size)) > 0), size)
        yield text[:at]
        text = text[at:].lstrip()
    if text:
        yield text


def _from_texts(tokenizer: Any, texts: list[str], size: MaterialSize, about: str) -> Material:
    if tokenizer is None:
        raise DataError("the model has no tokenizer to read the text with", where=about)
    order = sorted(texts, key=lambda text: hashlib.sha256(f"{size.seed}{text}".encode()).digest())
    judged, rest = _up_to(tokenizer, order, size.judged_tokens, most=max(1, len(order) // 3))
    few = max(1, min(size.watched_rows, len(rest) // 4))
    watched, rest = _up_to(tokenizer, rest, size.watched_rows * size.length, most=few)
    leaks = Leaks([*judged, *watched])
    learned, _ = _up_to(tokenizer, (t for t in rest if not leaks.found_in(t)), size.rows * (size.length + 1))
    if not judged or not watched or not learned:
        raise DataError(f"{len(texts)} documents are too few to learn from some and judge on others", where=about)
    begin = beginning(tokenizer)

    def held_out(texts: list[str]) -> HeldOut:
        rows = pack(encode(tokenizer, texts, eos=False), size.length, begin, alone=True)
        return HeldOut(rows, tuple(len(text.encode()) for text in texts))

    return Material(pack(encode(tokenizer, learned), size.length, begin), held_out(watched), held_out(judged), about)


def _up_to(tokenizer: Any, texts: Iterable[str], tokens: int, most: int | None = None) -> tuple[list[str], list[str]]:
    """Texts until there are so many tokens (or `most` texts), and the texts that are left."""
    remaining, taken, count = iter(texts), [], 0
    for text in remaining:
        taken.append(text)
        count += len(tokenizer(text, add_special_tokens=False)["input_ids"])
        if count >= tokens or (most is not None and len(taken) >= most):
            break
    return taken, list(remaining)


def beginning(tokenizer: Any) -> int:
    """The token that a text begins with: BOS, or EOS where there is none. Raises DataError if there
    is neither."""
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    raise DataError("the tokenizer has neither BOS nor EOS to begin a text with")


@torch.no_grad()
def write_rows(
    model: nn.Module, tokenizer: Any | None, count: int, length: int, seed: int, batch: int = 64, tell: Tell = silent
) -> PackedRows:
    """`count` rows that the model writes by sampling at temperature 1, each from the beginning of a text."""
    device = next(model.parameters()).device
    config: Any = model.config
    first = config.bos_token_id if tokenizer is None else beginning(tokenizer)
    starts = range(0, count, batch)
    report = reporter("writing text", len(starts) * length, tell)
    written = 0

    def on_token(tokens: torch.Tensor, _: Any, **__: Any) -> torch.Tensor:
        """generate() asks it after every token whether to stop."""
        nonlocal written
        written += 1
        report(written)
        return torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)

    generator = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model.eval()
    parts = []
    for start in starts:
        begin = torch.full((min(batch, count - start), 1), 0 if first is None else first, device=device)
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
            stopping_criteria=[on_token],
        )
        parts.append(tokens.cpu().numpy().astype(np.int32))
    torch.random.set_rng_state(generator)
    return _row_per_document(np.concatenate(parts))


def _row_per_document(tokens: np.ndarray) -> PackedRows:
    numbers = np.repeat(np.arange(len(tokens), dtype=np.int32)[:, None], tokens.shape[1], axis=1)
    return PackedRows(tokens, numbers)


def _from_model(model: Any, tokenizer: Any | None, size: MaterialSize, tell: Tell) -> Material:
    """Material that the model writes itself. Without a tokenizer the bytes of its text are unknown (0)."""
    first, second = size.rows, size.rows + size.watched_rows
    count = second + -(-size.judged_tokens // size.length)
    rows = write_rows(model, tokenizer, count, size.length, size.seed, tell=tell)

    def held_out(tokens: np.ndarray) -> HeldOut:
        sizes = [0] * len(tokens) if tokenizer is None else [len(tokenizer.decode(row[1:]).encode()) for row in tokens]
        return HeldOut(_row_per_document(tokens), tuple(sizes))

    return Material(
        PackedRows(rows.tokens[:first], rows.documents[:first]),
        held_out(rows.tokens[first:second]),
        held_out(rows.tokens[second:]),
        "text written by the model itself",
    )


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
