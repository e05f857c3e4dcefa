"""Training text: read, split by document, and cleared of what is held out."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_forge.config import nearest, option
from agent_forge.errors import ConfigError, DataError
from agent_forge.files import file_digest

BUNDLED = Path(__file__).with_name("data")
LOADED = ("mbpp", "svamp")  # data sets with a loader of their own in `curation`
QUESTIONS = ("question", "goal", "prompt")  # the keys under which a row may hold its question


@dataclass(frozen=True)
class Source:
    """Where text comes from: `stories` or `problems` (bundled), a JSONL or text file, or a folder of them.

    `${VARIABLES}` in the path are filled in from the environment. `weight` is the source's share of the training rows.
    `held_out` lets a small data set that no earlier phase has read spare more for judging than a large one.
    """

    path: str
    weight: float = option(1.0, above=0)
    most_mb: float | None = option(None, help="Upper limit on the text to use, in MB", above=0)
    held_out: float | None = option(
        None, help="Share of its documents held out, instead of the phase's", above=0, at_most=0.5
    )


@dataclass(frozen=True)
class Stage:
    """A stage of the training: its share of the steps, and the weights of its sources."""

    share: float = option(above=0, at_most=1)
    weights: dict[str, float] = option()


def check_stages(stages: Sequence[Stage], sources: Mapping[str, Source]) -> None:
    """Raises ConfigError for stages with unknown sources, or with shares that do not add up to 1."""
    for number, stage in enumerate(stages):
        where = f"stages[{number}].weights"
        for name in stage.weights.keys() - sources.keys():
            near = nearest(name, sources)
            raise ConfigError(f"unknown source {name!r}", where=where, fix=f"Did you mean {near!r}?" if near else None)
        if not stage.weights or min(stage.weights.values()) <= 0:
            raise ConfigError("a stage needs sources with weights above 0", where=where)
    if stages and abs(sum(stage.share for stage in stages) - 1) > 1e-6:
        raise ConfigError(f"the shares add up to {sum(stage.share for stage in stages):g}, not 1", where="stages")


@dataclass(frozen=True)
class SplitCorpus:
    """Texts by source, for training and held out for judging; `removed` counts what the leakage check took out."""

    train: Mapping[str, Sequence[str]]
    held_out: Mapping[str, Sequence[str]]
    removed: int

    def digests(self) -> dict[str, str]:
        """A digest of the texts of each source, for the card."""
        digests = {}
        for name in self.train:
            digest = hashlib.sha256()
            for text in (*self.train[name], "\0", *self.held_out[name]):
                digest.update(hashlib.sha256(text.encode()).digest())
            digests[name] = digest.hexdigest()
        return digests


def read_corpus(sources: Mapping[str, Source], held_out: float, most_held_out_mb: float = 0.5) -> SplitCorpus:
    """Reads every source, holds out a share of its documents, and removes near copies of those from the rest.

    The split depends on a document's text alone: every run holds out the same documents, and half the share holds out
    half of them. Raises DataError for a source that is missing, not text, or too small to split.
    """
    train: dict[str, list[str]] = {}
    judged: dict[str, list[str]] = {}
    for name, source in sources.items():
        texts = _limited(dict.fromkeys(read_texts(source.path)), source.most_mb)
        share = held_out if source.held_out is None else source.held_out
        for documents in (texts, _in_pieces(texts)):  # a book in one file becomes documents of some pages
            judged[name] = [text for text in documents if place(text) < share]
            train[name] = [text for text in documents if place(text) >= share]
            if judged[name] and train[name]:
                break
        else:
            raise DataError(f"{len(texts)} documents are too few to hold some out", where=source.path)
    from agent_forge.forge.leakage import Leaks

    leaks = Leaks(text for texts in judged.values() for text in texts)  # also those beyond `most_held_out_mb`
    clean = {name: [text for text in texts if not leaks.found_in(text)] for name, texts in train.items()}
    for name, texts in clean.items():
        if not texts:
            raise DataError("every document has a near copy among the held-out ones", where=sources[name].path)
    removed = sum(len(train[name]) - len(clean[name]) for name in train)
    return SplitCorpus(clean, {name: _limited(texts, most_held_out_mb) for name, texts in judged.items()}, removed)


PIECE = 4000  # characters of a document, where long texts are cut
SHORTEST_PIECE = 400
FEWEST_PIECES = 40  # a short text is cut into shorter pieces, down to SHORTEST_PIECE, to make so many


def _in_pieces(texts: Sequence[str]) -> list[str]:
    size = min(PIECE, max(SHORTEST_PIECE, sum(map(len, texts)) // FEWEST_PIECES // 2))
    return list(dict.fromkeys(piece for text in texts for piece in pieces(text, size)))


def pieces(text: str, size: int = PIECE) -> Iterator[str]:
    """A long text in parts of `size` to twice that, which end with a paragraph, a line or, at the worst, a word."""
    while len(text) > 2 * size:
        at = next((found for mark in ("\n\n", "\n", " ") if (found := text.rfind(mark, size, 2 * size)) > 0), size)
        yield text[:at]
        text = text[at:].lstrip()
    if text:
        yield text


def set_aside(corpus: SplitCorpus, share: float = 0.02, most_mb: float = 0.25) -> tuple[SplitCorpus, list[str]]:
    """The corpus without some of its training documents, and those documents, to evaluate on during training: what is
    held out stays unseen until the end. Raises DataError if there are too few."""
    train, watched = dict(corpus.train), list[str]()
    for name, texts in corpus.train.items():
        chosen = set(_limited(sorted(texts, key=place)[: round(share * len(texts)) or len(texts) > 1], most_mb))
        train[name] = [text for text in texts if text not in chosen]
        watched += [text for text in texts if text in chosen]
    if not watched:
        raise DataError("there are too few documents to watch the training with", fix="Leave evaluate_every at 0")
    return replace(corpus, train=train), watched


def source_digests(sources: Mapping[str, Source]) -> dict[str, str]:
    """A digest of the files of each source, for a phase's key; the text itself is not parsed."""
    digests = {}
    for name, source in sources.items():
        digest = hashlib.sha256()
        for file in _files(source.path):
            digest.update(file.name.encode())
            digest.update(file_digest(file).encode())
        digests[name] = digest.hexdigest()
    return digests


def read_texts(path: str) -> Iterator[str]:
    """The documents of a source: the rows of JSONL files, or whole text files."""
    texts = (_text_of(row, where) for row, where in read_rows(path))
    yield from (text for text in texts if text.strip())


def read_rows(path: str) -> Iterator[tuple[Any, str]]:
    """The rows of a source, each with its location; a text file is one row with a "text"."""
    if loaded := _loaded(path):
        from agent_forge.curation.loaders import load

        for record in load(loaded.name, loaded):
            yield {"question": record.input, "answer": record.target.replace("\r\n", "\n")}, record.id
        return
    for file in _files(path):
        if file.name.endswith((".txt", ".txt.gz")):
            yield {"text": "".join(_lines(file))}, str(file)
            continue
        for number, line in enumerate(_lines(file), 1):
            if line.strip():
                where = f"{file}:{number}"
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise DataError(NO_ROW, where=where) from error
                yield row, where


def _loaded(path: str) -> Path | None:
    """The folder, if it holds one of the data sets in LOADED."""
    folder = Path(os.path.expandvars(path)).expanduser()
    return folder if folder.name in LOADED and folder.is_dir() else None


def _files(path: str) -> list[Path]:
    """The files of a source. Raises DataError if there is none."""
    bundled = BUNDLED / f"{path}.jsonl.gz"
    source = bundled if bundled.is_file() else Path(os.path.expandvars(path)).expanduser()
    files = sorted(f for f in source.iterdir() if f.is_file()) if source.is_dir() else [source]
    if source.is_dir() and not _loaded(path):
        files = [f for f in files if f.name.removesuffix(".gz").endswith((".jsonl", ".txt")) and f.name != "NOTICE.txt"]
    if not files or not files[0].is_file():
        names = ", ".join(sorted(f.name.removesuffix(".jsonl.gz") for f in BUNDLED.glob("*.jsonl.gz")))
        fix = f"Name a JSONL or text file, a folder, or one of: {names}; or set AGENT_FORGE_DATA"
        raise DataError("there is no text", where=path, fix=fix)
    return files


def _lines(file: Path) -> Iterator[str]:
    """The lines of a file, one at a time: a small compressed file can unpack to more than fits into memory."""
    from agent_forge.curation.lines import open_lines

    with open_lines(file) as lines:
        for line in lines:
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(f"cannot be read: {error}", where=str(file)) from error


NO_ROW = 'a row needs a "text", or a "question" and an "answer"; with "choices", the answer is the number of one'


def _text_of(row: Any, where: str) -> str:
    try:
        text = row["text"] if "text" in row else question_and_answer(row)
        text.encode()  # half a surrogate pair is valid JSON but not text
        return str(text)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise DataError(NO_ROW, where=where) from error


def question_and_answer(row: Mapping[str, Any]) -> str:
    """A question with its answer as one text; with choices, the right one.

    >>> question_and_answer({"question": "Is it cold?", "choices": ["no", "yes"], "answer": 1})
    'Question: Is it cold?\\nAnswer: yes'
    """
    question = next((row[name] for name in QUESTIONS if name in row), None)
    if question is None:
        raise KeyError("question")
    return f"Question: {question}\nAnswer: {row['choices'][right_choice(row)] if 'choices' in row else row['answer']}"


def right_choice(row: Mapping[str, Any]) -> int:
    """The number of the right choice, which a row gives as a number or by its text. Raises ValueError."""
    choices, right = list(row["choices"]), row["answer"]
    number = right if isinstance(right, int) else choices.index(right)
    if not 0 <= number < len(choices):
        raise ValueError(f"there is no choice {number}")
    return number


def _limited(texts: Iterable[str], most_mb: float | None) -> list[str]:
    """The first texts up to the limit, at least one."""
    first: list[str] = []
    size = 0
    for text in texts:
        size += len(text.encode())
        if most_mb is not None and first and size > most_mb * 1e6:
            break
        first.append(text)
    return first


def place(text: str) -> float:
    """A number in [0, 1) from the hash of the text. Texts below the held-out share are held out."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def mixed(rows_of: Mapping[str, Any], weights: Mapping[str, float], total: int, seed: int) -> Any:
    """`total` rows drawn from the sources by their weights, without repeats until a source is used up."""
    import numpy as np

    from agent_forge.forge.training.packing import PackedRows

    rng = np.random.default_rng(seed)
    whole = sum(weights[name] for name in rows_of)
    tokens, documents = [], []
    for name, rows in rows_of.items():
        count = max(1, round(total * weights[name] / whole))
        picked = np.concatenate([rng.permutation(len(rows)) for _ in range(-(-count // len(rows)))])[:count]
        tokens.append(rows.tokens[picked])
        documents.append(rows.documents[picked])
    return PackedRows(np.concatenate(tokens), np.concatenate(documents))
