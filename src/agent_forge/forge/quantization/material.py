"""What a model is trained and judged on when it is quantised: the user's text, or, where there is
none, the text that comes with the package and text that the model writes itself (LLM-QAT,
2305.17888).

What a model writes by sampling is text from the distribution it has learned, whatever that was; the
teacher's predictions on it are what the student has to keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from agent_forge.errors import DataError
from agent_forge.forge.corpus import Source, SplitCorpus, mixed, read_corpus
from agent_forge.forge.lineage import HELD_OUT
from agent_forge.forge.progress import Tell, reporter, silent
from agent_forge.forge.training import HeldOut, PackedRows, encode, pack

BUNDLED = ("stories", "problems")
MOST_WRITTEN = 20_000  # rows that a model writes: beyond them it would take longer than the training


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
    held_out: float = HELD_OUT  # of the bundled text
    seed: int = 0

    def share(self, part: float) -> MaterialSize:
        return replace(
            self,
            rows=max(1, round(self.rows * part)),
            judged_tokens=max(1, round(self.judged_tokens * part)),
            watched_rows=max(1, round(self.watched_rows * part)),
        )


def gather(
    model: Any,
    tokenizer: Any | None,
    corpus: SplitCorpus | None,
    size: MaterialSize,
    weights: Mapping[str, float] | None = None,
    tell: Tell = silent,
) -> Material:
    """The material for a model: the corpus by the weights of its sources or, without one, half of it bundled text and
    half written by the model. Raises DataError if there is too little text to split."""
    if corpus is not None:
        return material_of(tokenised(tokenizer, corpus, size), weights or {}, size, ", ".join(corpus.train))
    if tokenizer is None or size.written >= 1:
        return _from_model(model, tokenizer, size, tell)
    written = _from_model(model, tokenizer, size.share(size.written), tell)
    bundled, rest = read_corpus({name: Source(name) for name in BUNDLED}, size.held_out), size.share(1 - size.written)
    return _joined(material_of(tokenised(tokenizer, bundled, rest), {}, rest, "bundled text"), written)


@dataclass(frozen=True)
class TokenisedText:
    """The text as tokens: rows of each source to learn from, and documents to watch and to judge on."""

    rows: dict[str, PackedRows]
    watched: HeldOut
    judged: HeldOut


def tokenised(tokenizer: Any, corpus: SplitCorpus, size: MaterialSize) -> TokenisedText:
    """The last documents of each source are only watched during training. Raises DataError without a tokenizer."""
    if tokenizer is None:
        raise DataError("the model has no tokenizer to read the text with", where=", ".join(corpus.train))
    begin, rows, watched = beginning(tokenizer), {}, list[str]()
    for name, texts in corpus.train.items():
        apart = max(1, min(4, len(texts) // 20))
        watched += [text[: 8 * size.length] for text in texts[-apart:]]  # about two rows of each
        rows[name] = pack(encode(tokenizer, texts[:-apart] or texts), size.length, begin)
    judged = _up_to(tokenizer, [text for texts in corpus.held_out.values() for text in texts], size)

    def held_out(texts: list[str]) -> HeldOut:
        packed = pack(encode(tokenizer, texts, eos=False), size.length, begin, alone=True)
        return HeldOut(packed, tuple(len(text.encode()) for text in texts))

    return TokenisedText(rows, held_out(watched), held_out(judged))


def material_of(text: TokenisedText, weights: Mapping[str, float], size: MaterialSize, about: str) -> Material:
    """Rows by the sources' weights, as many as the training needs."""
    total = min(size.rows, 4 * sum(len(of) for of in text.rows.values()))
    rows = mixed(text.rows, {name: weights.get(name, 1.0) for name in text.rows}, total, size.seed)
    return Material(rows, text.watched, text.judged, about)


def _up_to(tokenizer: Any, texts: list[str], size: MaterialSize) -> list[str]:
    """The beginnings of every k-th text: about as many tokens as are to be judged on, from as many documents as fit."""
    room = 4 * max(size.length, size.judged_tokens // len(texts))  # characters: about four per token
    parts = [text[:room] for text in texts]
    count = sum(len(ids) for ids in encode(tokenizer, parts, eos=False))
    return parts[:: max(1, -(-count // size.judged_tokens))]


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
    first = min(size.rows, MOST_WRITTEN)
    second = first + size.watched_rows
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
