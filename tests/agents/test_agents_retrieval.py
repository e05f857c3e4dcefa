"""BM25 against a brute-force reading of the formula, and the bundled corpus."""

from __future__ import annotations

import asyncio
import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_forge.agents.tools.retrieval import (
    Corpus,
    Passage,
    bundled_corpus,
    bundled_questions,
    retrieval,
    words,
)
from agent_forge.errors import DataError

_texts = st.lists(st.lists(st.sampled_from("abcdefghij"), min_size=1, max_size=12), min_size=1, max_size=12)


def okapi(
    corpus: list[list[str]], query: list[str], k1: float = 1.5, b: float = 0.75, eps: float = 0.25
) -> list[float]:
    """BM25Okapi term by term, as in its paper and in rank_bm25: no index, no shortcuts."""
    n, mean = len(corpus), sum(map(len, corpus)) / len(corpus)
    vocabulary = {word for text in corpus for word in text}
    having = {word: sum(word in text for text in corpus) for word in vocabulary}
    idf = {word: math.log((n - having[word] + 0.5) / (having[word] + 0.5)) for word in vocabulary}
    average = sum(idf.values()) / len(idf)
    scores = []
    for text in corpus:
        score = 0.0
        for word in query:
            if word in idf:
                weight = idf[word] if idf[word] >= 0 else eps * average
                f = text.count(word)
                score += weight * f * (k1 + 1) / (f + k1 * (1 - b + b * len(text) / mean))
        scores.append(score)
    return scores


@settings(max_examples=25, deadline=None)
@given(_texts, st.lists(st.sampled_from("abcdefghijkl"), max_size=6))
def test_scores_are_those_of_the_formula(texts: list[list[str]], query: list[str]) -> None:
    corpus = Corpus(" ".join(text) for text in texts)
    expected = okapi(texts, query)
    touched = {n for n, text in enumerate(texts) if set(text) & set(query)}
    hits = corpus.search(" ".join(query), k=len(texts))
    assert len(hits) == len(touched)
    order = sorted(touched, key=lambda n: (-round(expected[n], 9), n))
    assert [h.score for h in hits] == pytest.approx([expected[n] for n in order], abs=1e-9)


def test_top_k_is_the_head_of_the_whole_ranking() -> None:
    rng = random.Random(4)
    texts = [" ".join(rng.choices("abcdefghijklmnop", k=rng.randint(1, 30))) for _ in range(200)]
    corpus = Corpus(texts)
    whole = corpus.search("a d g z", k=200)
    assert [h.score for h in whole] == sorted((h.score for h in whole), reverse=True)
    assert corpus.search("a d g z", k=7) == whole[:7]
    assert corpus.search("zzz") == []
    assert corpus.search("") == []


def test_an_empty_corpus_finds_nothing() -> None:
    assert Corpus([]).search("a") == []
    assert Corpus([""]).search("a") == []


def test_words_ignore_case_and_accents() -> None:
    assert words("Łódź, Ángel—STRASSE straße") == ["łodz", "angel", "strasse", "strasse"]


def test_reading_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('{"title": "A", "text": "one"}\n\n{"text": "two"}\n', encoding="utf-8")
    assert Corpus.from_jsonl(path).passages == [Passage("A", "one"), Passage("", "two")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "a"}\n{"title": "b"}\n', r"line 2: it has no text"),
        (b'{"text": 3}\n', r"must be strings"),
        (b"[1]\n", r"line 1: not a JSON object"),
        (b"{\n", r"line 1: not JSON"),
        (b"\xff\xfe", r"cannot be read"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        Corpus.from_jsonl(path)


def test_missing_file() -> None:
    with pytest.raises(DataError, match="cannot be read"):
        Corpus.from_jsonl("nowhere.jsonl")


def test_the_tool_returns_json() -> None:
    search = retrieval(bundled_corpus())
    found = asyncio.run(search.call({"query": "director of Semi-Tough", "k": 2}))
    assert json.loads(json.dumps(found)) == found
    assert found[0]["title"] == "Semi-Tough"
    assert len(found) == 2
    assert len(asyncio.run(search.call({"query": "film director", "k": 1000}))) == 50


def test_bundled_questions_are_supported_and_found() -> None:
    corpus, questions = bundled_corpus(), bundled_questions()
    titles = {p.title: p for p in corpus.passages}
    assert 200 <= len(corpus) <= 400
    assert 20 <= len(questions) <= 40
    assert len(titles) == len(corpus)
    assert {q.type for q in questions} == {"comparison", "bridge", "bridge_comparison"}
    for question in questions:
        assert set(question.supporting) <= set(titles), question
        for title in question.supporting:
            assert title in {hit.passage.title for hit in corpus.search(title, k=2)}
    for question in (q for q in questions if q.type == "bridge"):
        assert question.answer.casefold() in titles[question.supporting[-1]].text.casefold()


def test_bundled_corpus_is_a_real_excerpt() -> None:
    import gzip

    source = Path(__file__).parents[2].parent / "shared" / "data" / "plan_graph" / "mhqa"
    if not source.is_dir():
        pytest.skip("the shared 2Wiki files are absent")
    raw = json.loads(gzip.decompress((source / "2wiki_corpus.json.gz").read_bytes()))
    passages = {(row["title"], row["text"]) for row in raw}
    raw = json.loads(gzip.decompress((source / "2wiki_dev_12576.json.gz").read_bytes()))
    questions = {(row["question"].strip(), row["answer"]) for row in raw}
    assert all((p.title, p.text) in passages for p in bundled_corpus().passages)
    assert all((q.question, q.answer) in questions for q in bundled_questions())
