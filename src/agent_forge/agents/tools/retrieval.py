"""Search in a corpus of passages: BM25 over an inverted index in memory, with the standard library only."""

from __future__ import annotations

import heapq
import json
import math
import os
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from agent_forge.agents.tools.tool import Tool, tool
from agent_forge.errors import DataError

_WORD = re.compile(r"\w+")
MOST_RESULTS = 50


@dataclass(frozen=True, slots=True)
class Passage:
    """A text and its title; both are searched."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A search result: a passage and its BM25 score."""

    passage: Passage
    score: float


@dataclass(frozen=True, slots=True)
class Question:
    """A question of the bundled corpus; the passages in `supporting` contain its answer."""

    id: str
    question: str
    answer: str
    type: str  # comparison, bridge, bridge_comparison
    supporting: tuple[str, ...]


def words(text: str) -> list[str]:
    """The words of a text as indexed: lower case, without accents.

    >>> words("Sylvie et le Fantôme (1946)")
    ['sylvie', 'et', 'le', 'fantome', '1946']
    """
    if not text.isascii():
        text = "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    return _WORD.findall(text.casefold())


class Corpus:
    """A searchable set of passages.

    Scores are Okapi BM25 as in `rank_bm25.BM25Okapi`: idf = ln((N − n + ½) / (n + ½)), and if that is negative (a word
    in more than half of the passages) `floor` × the mean idf of all words. The words of a title count `title_weight`
    times: on the bundled corpus, a search for a title then ranks its passage first in 98 % of the cases, not 90 %.

    >>> corpus = Corpus([Passage("Owl", "It flies at night."), Passage("Cod", "It swims."), Passage("Elk", "It runs.")])
    >>> [(hit.passage.title, round(hit.score, 2)) for hit in corpus.search("what flies at night?")]
    [('Owl', 1.39)]
    """

    def __init__(
        self,
        passages: Iterable[Passage | Mapping[str, Any] | str],
        *,
        k1: float = 1.5,
        b: float = 0.75,
        floor: float = 0.25,
        title_weight: int = 3,
    ) -> None:
        self.passages = [_passage(item, f"passage {number}") for number, item in enumerate(passages, 1)]
        texts = [words(p.title) * title_weight + words(p.text) for p in self.passages]
        self._index = _weighted(_postings(texts), [*map(len, texts)], k1, b, floor)

    def __len__(self) -> int:
        return len(self.passages)

    def search(self, query: str, k: int = 5) -> list[Hit]:
        """The `k` passages with the highest scores, best first; passages without a common word never appear."""
        scores: dict[int, float] = {}
        for word, count in Counter(words(query)).items():
            if word not in self._index:
                continue
            for passage, weight in zip(*self._index[word], strict=True):
                scores[passage] = scores.get(passage, 0.0) + weight * count
        best = heapq.nsmallest(k, scores, key=lambda passage: (-scores[passage], passage))
        return [Hit(self.passages[passage], scores[passage]) for passage in best]

    @classmethod
    def from_jsonl(cls, path: str | os.PathLike[str]) -> Corpus:
        """A corpus from a JSONL file whose objects have `text` and optionally `title`. Raises DataError."""
        return cls(_rows(path))


_Postings = dict[str, tuple["array[int]", "array[float]"]]


def _postings(texts: list[list[str]]) -> _Postings:
    """For each word, the passages that contain it and how often."""
    index: _Postings = {}
    for number, text in enumerate(texts):
        for word, count in Counter(text).items():
            where, counts = index.setdefault(word, (array("L"), array("d")))
            where.append(number)
            counts.append(count)
    return index


def _weighted(index: _Postings, lengths: list[int], k1: float, b: float, floor: float) -> _Postings:
    """Replaces each count by its contribution to a score, so that a search only has to sum."""
    total = len(lengths)
    idf = {word: math.log(total - len(where) + 0.5) - math.log(len(where) + 0.5) for word, (where, _) in index.items()}
    least = floor * sum(idf.values()) / len(idf) if idf else 0.0
    mean_length = sum(lengths) / len(lengths) if lengths else 0.0
    for word, (where, counts) in index.items():
        weight = idf[word] if idf[word] >= 0 else least
        for position, (passage, f) in enumerate(zip(where, counts, strict=True)):
            norm = k1 * (1 - b + b * lengths[passage] / mean_length)
            counts[position] = weight * f * (k1 + 1) / (f + norm)
    return index


def _passage(item: Passage | Mapping[str, Any] | str, where: str) -> Passage:
    if isinstance(item, Passage):
        return item
    if isinstance(item, str):
        return Passage("", item)
    title, text = item.get("title", ""), item.get("text")
    if not isinstance(text, str) or not isinstance(title, str):
        raise DataError(
            "it has no text" if text is None else "title and text must be strings",
            where=where,
            fix='Write a passage as {"title": "...", "text": "..."}',
        )
    return Passage(title, text)


def _rows(path: str | os.PathLike[str]) -> Iterator[Passage]:
    try:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield _row(line, f"{os.fspath(path)}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"the corpus cannot be read: {error}", where=os.fspath(path)) from error


def _row(line: str, where: str) -> Passage:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"not JSON: {error}", where=where) from error
    if not isinstance(row, dict):
        raise DataError("not a JSON object", where=where)
    return _passage(row, where)


def retrieval(corpus: Corpus, *, name: str = "search") -> Tool:
    """A tool that searches the corpus: `search(query, k=3)` returns title, text and score of the best passages."""

    @tool(name=name)
    def search(query: str, k: int = 3) -> list[dict[str, Any]]:
        """Finds the passages of the corpus that match the query best, by their words.

        Args:
            query: the words to search for; names work best
            k: the number of passages to return
        """
        hits = corpus.search(query, max(1, min(k, MOST_RESULTS)))
        return [{"title": h.passage.title, "text": h.passage.text, "score": round(h.score, 4)} for h in hits]

    return search


def _bundled(name: str) -> list[dict[str, Any]]:
    text = (files("agent_forge.agents") / "data" / "corpus" / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@cache
def bundled_corpus() -> Corpus:
    """The 360 bundled Wikipedia passages (an excerpt of 2WikiMultihopQA, see its NOTICE)."""
    return Corpus(_bundled("passages.jsonl"))


@cache
def bundled_questions() -> tuple[Question, ...]:
    """The 39 bundled questions; the bundled corpus contains their answers."""
    rows = _bundled("questions.jsonl")
    return tuple(Question(**{**row, "supporting": tuple(row["supporting"])}) for row in rows)
