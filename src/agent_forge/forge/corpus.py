"""The text that a phase learns from: read, split by document, and cleared of what the evaluation holds."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import unicodedata
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_forge.config import nearest, option
from agent_forge.errors import ConfigError, DataError
from agent_forge.forge.checkpoint import file_digest

BUNDLED = Path(__file__).with_name("data")
LOADED = ("mbpp", "svamp")  # data sets whose files are not rows as they are read here: `curation` reads those
GRAM = 13  # words: the length that contamination checks commonly use (GPT-3, appendix C)
QUESTIONS = ("question", "goal", "prompt")  # what a row may call its question
SHORTEST = 5  # words: a shorter text is no quotation
ALONE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
WORD = re.compile(rf"[{ALONE}]|[^\W{ALONE}]+")  # in scripts that have no spaces, every letter
MARKS = re.compile(
    "[\u00ad\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u200b-\u200f\u202a-\u202e\u2060-\u2064\u3099\u309a\ufeff]"
)


@dataclass(frozen=True)
class Source:
    """A place that text comes from: `stories` or `problems` (bundled), a JSONL or text file, or a folder of them;
    `${VARIABLES}` in it are filled in from the environment.

    `weight` is its share of the rows that are trained on. A small data set that no earlier phase has read can spare
    more for judging than a large one: `held_out`.
    """

    path: str
    weight: float = option(1.0, above=0)
    most_mb: float | None = option(None, help="use at most so much text", above=0)
    held_out: float | None = option(
        None, help="share of its documents kept for judging, if not the phase's", above=0, at_most=0.5
    )


@dataclass(frozen=True)
class Stage:
    """A part of a curriculum: its share of the steps, and the weights of the sources that are read in it."""

    share: float = option(above=0, at_most=1)
    weights: dict[str, float] = option()


def check_stages(stages: Sequence[Stage], sources: Mapping[str, Source]) -> None:
    """Refuses a curriculum that names unknown sources, or whose shares do not make up the whole. Raises ConfigError."""
    for number, stage in enumerate(stages):
        where = f"stages[{number}].weights"
        for name in stage.weights.keys() - sources.keys():
            near = nearest(name, sources)
            raise ConfigError(f"unknown source {name!r}", where=where, fix=f"did you mean {near!r}?" if near else None)
        if not stage.weights or min(stage.weights.values()) <= 0:
            raise ConfigError("name the sources of the stage, with weights above 0", where=where)
    if stages and abs(sum(stage.share for stage in stages) - 1) > 1e-6:
        raise ConfigError(f"the shares add up to {sum(stage.share for stage in stages):g}, not 1", where="stages")


@dataclass(frozen=True)
class Corpus:
    """Texts by source, for learning and for judging; `removed` counts what the leakage check took out."""

    train: Mapping[str, Sequence[str]]
    held_out: Mapping[str, Sequence[str]]
    removed: int

    def digests(self) -> dict[str, str]:
        """A digest of the texts of each source, for the card."""
        found = {}
        for name in self.train:
            digest = hashlib.sha256()
            for text in (*self.train[name], "\0", *self.held_out[name]):
                digest.update(hashlib.sha256(text.encode()).digest())
            found[name] = digest.hexdigest()
        return found


def read_corpus(sources: Mapping[str, Source], held_out: float, most_held_out_mb: float = 0.5) -> Corpus:
    """Reads every source, keeps a share of its documents for judging, and removes copies of those from the rest.

    The split depends on a document's text alone, so the same document is held out whichever run reads it, and with
    half the share, half of the same documents. Raises DataError for a source that is missing, not text, or too small
    to split.
    """
    train: dict[str, list[str]] = {}
    chosen: dict[str, list[str]] = {}
    for name, source in sources.items():
        texts = _limited(dict.fromkeys(read_texts(source.path)), source.most_mb)
        share = held_out if source.held_out is None else source.held_out
        chosen[name] = [text for text in texts if place(text) < share]
        train[name] = [text for text in texts if place(text) >= share]
        if not chosen[name] or not train[name]:
            raise DataError(f"{len(texts)} documents are too few to hold some out", where=source.path)
    leaks = Leaks(text for texts in chosen.values() for text in texts)  # also those that this phase has no room for
    clean = {name: [text for text in texts if not leaks.found_in(text)] for name, texts in train.items()}
    for name, texts in clean.items():
        if not texts:
            raise DataError("every document has a near copy among those held out", where=sources[name].path)
    removed = sum(len(train[name]) - len(clean[name]) for name in train)
    return Corpus(clean, {name: _limited(texts, most_held_out_mb) for name, texts in chosen.items()}, removed)


def set_aside(corpus: Corpus, share: float = 0.02, most_mb: float = 0.25) -> tuple[Corpus, list[str]]:
    """The corpus without some of its training documents, and those: for watching the training, while what is judged on
    stays unseen. Raises DataError if there are too few."""
    train, watched = dict(corpus.train), list[str]()
    for name, texts in corpus.train.items():
        chosen = set(_limited(sorted(texts, key=place)[: round(share * len(texts)) or len(texts) > 1], most_mb))
        train[name] = [text for text in texts if text not in chosen]
        watched += [text for text in texts if text in chosen]
    if not watched:
        raise DataError("there are too few documents to watch the training with", fix="leave evaluate_every at 0")
    return replace(corpus, train=train), watched


def source_digests(sources: Mapping[str, Source]) -> dict[str, str]:
    """A digest of the files of each source: what a phase's key needs, without reading the text itself."""
    found = {}
    for name, source in sources.items():
        digest = hashlib.sha256()
        for file in _files(source.path):
            digest.update(file.name.encode())
            digest.update(file_digest(file).encode())
        found[name] = digest.hexdigest()
    return found


def read_texts(path: str) -> Iterator[str]:
    """The documents of a source: the rows of JSONL files, or whole text files."""
    texts = (_text_of(row, where) for row, where in read_rows(path))
    yield from (text for text in texts if text.strip())


def read_rows(path: str) -> Iterator[tuple[Any, str]]:
    """The rows of a source as they are, each with where it stands; a text file is one row with a "text"."""
    if loaded := _loaded(path):
        from agent_forge.curation.loaders import load

        for record in load(loaded.name, loaded):
            yield {"question": record.input, "answer": record.target.replace("\r\n", "\n")}, record.id
        return
    for file in _files(path):
        if file.name.endswith((".txt", ".txt.gz")):
            yield {"text": _open(file)}, str(file)
            continue
        for number, line in enumerate(_open(file).split("\n"), 1):  # JSON texts may hold other line separators
            if line.strip():
                yield _row(line, f"{file}:{number}"), f"{file}:{number}"


def _loaded(path: str) -> Path | None:
    """The folder, if it is one of a data set that has to be loaded."""
    folder = Path(os.path.expandvars(path)).expanduser()
    return folder if folder.name in LOADED and folder.is_dir() else None


def _files(path: str) -> list[Path]:
    bundled = BUNDLED / f"{path}.jsonl.gz"
    place = bundled if bundled.is_file() else Path(os.path.expandvars(path)).expanduser()
    if _loaded(path):
        found = sorted(f for f in place.iterdir() if f.is_file())
    elif place.is_dir():
        found = sorted(
            f
            for f in place.iterdir()
            if f.name.removesuffix(".gz").endswith((".jsonl", ".txt")) and f.name != "NOTICE.txt"
        )
    else:
        found = [place] if place.is_file() else []
    if not found:
        names = ", ".join(sorted(f.name.removesuffix(".jsonl.gz") for f in BUNDLED.glob("*.jsonl.gz")))
        raise DataError(
            "no text there",
            where=path,
            fix=f"name a JSONL or text file, a folder, or one of: {names}; or set AGENT_FORGE_DATA",
        )
    return found


def _open(file: Path) -> str:
    try:
        data = file.read_bytes()
        return (gzip.decompress(data) if file.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"cannot be read: {error}", where=str(file)) from error


NO_ROW = 'a row needs a "text", or a "question" and an "answer"; with "choices", the answer is the number of one'


def _row(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(NO_ROW, where=where) from error


def _text_of(row: Any, where: str) -> str:
    try:
        text = row["text"] if "text" in row else question_and_answer(row)
        text.encode()  # half a surrogate pair is valid JSON and no text
        return str(text)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise DataError(NO_ROW, where=where) from error


def question_and_answer(row: Mapping[str, Any]) -> str:
    """A question with its answer as one text; of choices, the right one.

    >>> question_and_answer({"question": "Is it cold?", "choices": ["no", "yes"], "answer": 1})
    'Question: Is it cold?\\nAnswer: yes'
    """
    question = next((row[name] for name in QUESTIONS if name in row), None)
    if question is None:
        raise KeyError("question")
    return f"Question: {question}\nAnswer: {row['choices'][right_choice(row)] if 'choices' in row else row['answer']}"


def right_choice(row: Mapping[str, Any]) -> int:
    """The number of the right choice, which a row gives as such or by its text. Raises ValueError."""
    choices, right = list(row["choices"]), row["answer"]
    number = right if isinstance(right, int) else choices.index(right)
    if not 0 <= number < len(choices):
        raise ValueError(f"there is no choice {number}")
    return number


def _limited(texts: Iterable[str], most_mb: float | None) -> list[str]:
    kept: list[str] = []
    size = 0
    for text in texts:
        size += len(text.encode())
        if most_mb is not None and kept and size > most_mb * 1e6:
            break
        kept.append(text)
    return kept


def place(text: str) -> float:
    """A number in [0, 1) that belongs to the text: below the share that is held out, it is."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def _words(text: str) -> list[str]:
    """The words without case, accents, and what is not seen: the same text in another encoding has the same ones."""
    if not text.isascii():
        text = MARKS.sub("", unicodedata.normalize("NFKD", text))
    return WORD.findall(text.casefold())


def _grams(words: Sequence[str]) -> Iterator[int]:
    for start in range(max(1, len(words) - GRAM + 1)):
        yield hash(tuple(words[start : start + GRAM]))


class Leaks:
    """Finds copies, near copies and quotations of the held-out documents by their 13-grams.

    A document leaks if more than a tenth of its 13-grams are held out, or if it holds half of those of one held-out
    document. A held-out text of fewer than 13 words is found word for word; one of fewer than 5, only as a whole
    document.
    """

    def __init__(self, held_out: Iterable[str]) -> None:
        self._owners: dict[int, list[int]] = defaultdict(list)
        self._sizes: list[int] = []
        self._short: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))  # by first word and length
        for number, text in enumerate(held_out):
            words = _words(text)
            grams = set(_grams(words))
            self._sizes.append(len(grams))
            for gram in grams:
                self._owners[gram].append(number)
            if SHORTEST <= len(words) < GRAM:
                self._short[words[0]][len(words)].update(grams)

    def found_in(self, text: str, share: float = 0.1, part: float = 0.5) -> bool:
        words = _words(text)
        grams = list(_grams(words))
        held = [gram for gram in grams if gram in self._owners]
        if len(held) > share * len(grams) or self._quotes_a_short_one(words):
            return True
        quoted = Counter(owner for gram in set(held) for owner in self._owners[gram])
        return any(count >= part * self._sizes[owner] for owner, count in quoted.items())

    def _quotes_a_short_one(self, words: Sequence[str]) -> bool:
        return any(
            hash(tuple(words[at : at + length])) in texts
            for at, word in enumerate(words)
            if word in self._short
            for length, texts in self._short[word].items()
        )


def mixed(rows_of: Mapping[str, Any], weights: Mapping[str, float], total: int, seed: int) -> Any:
    """`total` rows drawn from each source by its weight, without repeats until a source is used up."""
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
