"""The split is by document, nothing that is judged on is trained on, and odd files are named with their line."""

from __future__ import annotations

import gzip
import json
import random
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from agent_forge.errors import DataError
from agent_forge.forge.corpus import Source, mixed, read_corpus, read_texts, source_digests
from agent_forge.forge.leakage import GRAM, MARKS, SHORTEST, WORD, Leaks
from agent_forge.forge.training.packing import PackedRows

WORDS = [f"word{i}" for i in range(3000)]


def documents(count: int, seed: int = 0, length: int = 40) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=length)) for _ in range(count)]


def jsonl(path: Path, texts: list[str]) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def split(path: str, share: float = 0.2) -> tuple[set[str], set[str]]:
    corpus = read_corpus({"a": Source(path)}, share)
    return set(corpus.train["a"]), set(corpus.held_out["a"])


def test_the_split_is_by_document_and_independent_of_order(tmp_path: Path) -> None:
    texts = documents(400)
    train, held = split(jsonl(tmp_path / "a.jsonl", texts))
    assert train | held == set(texts)
    assert not train & held
    assert 400 * 0.2 * 0.6 < len(held) < 400 * 0.2 * 1.4
    shuffled = random.Random(1).sample(texts, len(texts))
    assert split(jsonl(tmp_path / "b.jsonl", [*shuffled, *shuffled[:50]])) == (train, held)
    assert split(jsonl(tmp_path / "c.jsonl", texts[:200]))[1] == held & set(texts[:200])
    assert split(jsonl(tmp_path / "d.jsonl", texts), 0.1)[1] < held, "half the share: part of the same documents"


def test_copies_near_copies_and_quotations_of_held_out_documents_are_removed(tmp_path: Path) -> None:
    texts = documents(200)
    _, held = split(jsonl(tmp_path / "a.jsonl", texts))
    victims = sorted(held)[:4]
    fresh = documents(1, seed=9)[0]
    planted = [
        victims[0].upper() + "!",  # another case, other punctuation
        victims[1].replace(victims[1].split()[20], "changed"),  # one word changed
        fresh + " " + victims[2],  # the whole of it at the end of another text
        " ".join(documents(40, seed=8)) + " " + victims[3],  # and inside a text forty times as long
    ]
    innocent = fresh + " " + " ".join(victims[0].split()[:12])  # twelve words in a row prove nothing
    path = jsonl(tmp_path / "b.jsonl", [*texts, *planted, innocent])
    corpus = read_corpus({"a": Source(path)}, 0.2)
    training = set(corpus.train["a"])
    caught = [text for text in planted if text not in training]
    assert [text for text in planted if text in training and text not in corpus.held_out["a"]] == []
    assert corpus.removed >= len([text for text in caught if text not in corpus.held_out["a"]])
    assert innocent in training | set(corpus.held_out["a"])


def test_a_copy_in_another_encoding_script_or_case_is_found() -> None:
    rng = random.Random(5)
    french = " ".join("".join(rng.choice("bcdlmr") + rng.choice("aeéèü") for _ in range(3)) for _ in range(30))
    chinese = "".join(chr(0x4E00 + rng.randrange(3000)) for _ in range(60))
    leaks = Leaks([french, chinese])
    bare = "".join(letter for letter in unicodedata.normalize("NFD", french) if not unicodedata.combining(letter))
    for copy in (unicodedata.normalize("NFD", french), bare, french.upper(), french.replace("e", "e\u200b")):
        assert leaks.found_in(copy)
    assert leaks.found_in(f"{chinese[:20]}改{chinese[21:]}")
    assert leaks.found_in(f"前言{' '.join(chinese)}后记")
    assert not leaks.found_in("".join(chr(0x4E00 + rng.randrange(3000)) for _ in range(60)))


def leaks_by_definition(held_out: list[str], text: str) -> bool:
    """The rule of `Leaks` with sets of tuples of words."""

    def words_of(text: str) -> tuple[str, ...]:
        return tuple(WORD.findall(MARKS.sub("", unicodedata.normalize("NFKD", text)).casefold()))

    def grams_of(words: tuple[str, ...]) -> list[tuple[str, ...]]:
        return [words[at : at + GRAM] for at in range(max(1, len(words) - GRAM + 1))]

    words, judged = words_of(text), [words_of(each) for each in held_out]
    grams, held = grams_of(words), {gram for each in judged for gram in grams_of(each)}
    short = [each for each in judged if SHORTEST <= len(each) < GRAM]
    return (
        sum(gram in held for gram in grams) > 0.1 * len(grams)
        or any(words[at : at + len(each)] == each for each in short for at in range(len(words)))
        or any(2 * len(set(grams_of(each)) & {*grams}) >= len(set(grams_of(each))) for each in judged)
    )


def test_leaks_are_those_of_the_definition() -> None:
    rng = random.Random(3)
    spelt = [
        "a",
        "b",
        "été",
        "ÉTÉ",
        "straße",
        "x_1",
        "七",
        "ไทย",
        "नमस्ते",
        "e\u0301",
        "...",
        "42",
        "can't",
        "İ",
        "\ud800",
    ]

    def text(most: int) -> str:
        words = (
            rng.choice(spelt) if rng.random() < 0.3 else f"w{rng.randrange(300)}" for _ in range(rng.randrange(most))
        )
        return rng.choice([" ", ", "]).join(words)

    held_out = [text(most) for most in (3, 9, 14, 20, 60) for _ in range(12)]
    leaks, found = Leaks(held_out), Counter[bool]()
    for _ in range(150):
        quoted = rng.choice(held_out).split(" ")
        start = rng.choice([0, rng.randrange(len(quoted))])
        part = " ".join(quoted[start : rng.choice([None, start + rng.randrange(1, len(quoted) + 1)])])
        candidate = f"{text(20)} {part} {text(80)}"
        found[leaks.found_in(candidate)] += 1
        assert leaks.found_in(candidate) == leaks_by_definition(held_out, candidate), candidate
    assert min(found[True], found[False]) > 30
    assert [leaks.found_in(each) for each in ("", "!", held_out[-1])] == [
        leaks_by_definition(held_out, each) for each in ("", "!", held_out[-1])
    ]
    assert not Leaks([]).found_in("one two three")


def test_a_short_text_is_found_inside_a_long_one_and_a_phrase_is_not() -> None:
    leaks = Leaks(["Question: Which is a mammal?\nAnswer: the otter", "The end."])
    story = " ".join(f"word{n}" for n in range(500))
    assert leaks.found_in(f"{story} question which is a MAMMAL - answer: the otter. {story}")
    assert not leaks.found_in(f"{story} question which is a mammal - answer: the cat. {story}")
    assert not leaks.found_in(f"{story} the end. {story}")
    assert leaks.found_in("the end")


def test_a_copy_in_another_source_is_removed_too(tmp_path: Path) -> None:
    texts = documents(200)
    _, held = split(jsonl(tmp_path / "a.jsonl", texts))
    copies = [text + "." for text in held]
    sources = {
        "a": Source(str(tmp_path / "a.jsonl")),
        "b": Source(jsonl(tmp_path / "b.jsonl", documents(60, seed=3) + copies)),
    }
    corpus = read_corpus(sources, 0.2)
    assert not set(corpus.train["b"]) & set(copies)
    assert corpus.removed == len([copy for copy in copies if copy not in corpus.held_out["b"]])
    assert corpus.digests().keys() == {"a", "b"}
    assert corpus.digests() == read_corpus(sources, 0.2).digests()
    assert corpus.digests() != read_corpus(sources, 0.3).digests()


def test_a_source_of_nothing_but_copies_is_refused(tmp_path: Path) -> None:
    _, held = split(jsonl(tmp_path / "a.jsonl", documents(100)))
    text = sorted(held)[0]
    path = jsonl(tmp_path / "b.jsonl", [text, *(text + "!" * n for n in range(1, 40))])
    with pytest.raises(DataError, match="every document has a near copy"):
        read_corpus({"b": Source(path)}, 0.2)


def test_limits_and_sources_that_are_too_small(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", documents(300))
    size = sum(
        len(text) for texts in read_corpus({"a": Source(path, most_mb=0.02)}, 0.2).train.values() for text in texts
    )
    assert size <= 0.02e6
    assert sum(map(len, read_corpus({"a": Source(path)}, 0.5, most_held_out_mb=0.01).held_out["a"])) <= 0.01e6
    with pytest.raises(DataError, match="2 documents are too few to hold some out"):
        read_corpus({"a": Source(jsonl(tmp_path / "b.jsonl", ["one", "two"]))}, 1e-9)


def test_weights_hold_in_the_mixture() -> None:
    def rows(count: int, mark: int) -> PackedRows:
        return PackedRows(np.full((count, 5), mark) + 10 * np.arange(count)[:, None], np.zeros((count, 5), dtype=int))

    data = mixed({"a": rows(50, 1), "b": rows(8, 2)}, {"a": 3, "b": 1, "unused": 7}, 40, seed=0)
    counts = Counter(int(row[0]) % 10 for row in data.tokens)
    assert counts == {1: 30, 2: 10}
    from_b = Counter(int(row[0]) for row in data.tokens if row[0] % 10 == 2)
    assert sorted(from_b.values()) == [1, 1, 1, 1, 1, 1, 2, 2], "all of a small source before any of it again"
    again = mixed({"a": rows(50, 1), "b": rows(8, 2)}, {"a": 3, "b": 1}, 40, seed=0)
    assert np.array_equal(again.tokens, data.tokens)


def test_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"text": "with a \u2028 in it"}, {"question": "2+2?", "answer": 4}, {"text": "  "}]
    text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "data" / "b.txt").write_text("a whole file\nof text")
    (tmp_path / "data" / "NOTICE.txt").write_text("not data")
    (tmp_path / "data" / "c.csv").write_text("not data either")
    monkeypatch.setenv("SOME_DATA", str(tmp_path))
    documents_read = list(read_texts("${SOME_DATA}/data"))
    assert documents_read == ["with a \u2028 in it", "Question: 2+2?\nAnswer: 4", "a whole file\nof text"]
    before = source_digests({"a": Source("${SOME_DATA}/data")})
    (tmp_path / "data" / "b.txt").write_text("changed")
    assert source_digests({"a": Source("${SOME_DATA}/data")}) != before
    assert len(list(read_texts("stories"))) > 50, "text comes with the package"


def test_a_source_may_hold_out_a_share_of_its_own(tmp_path: Path) -> None:
    texts = documents(400)
    path = jsonl(tmp_path / "a.jsonl", texts)
    other = jsonl(tmp_path / "b.jsonl", documents(400, seed=5))
    corpus = read_corpus({"a": Source(path, held_out=0.2), "b": Source(other)}, 0.1)
    assert (set(corpus.train["a"]), set(corpus.held_out["a"])) == split(path)
    assert set(corpus.held_out["b"]) == split(other, 0.1)[1]


def test_copies_of_documents_that_are_held_out_but_not_judged_by_are_removed_too(tmp_path: Path) -> None:
    """A later phase judges by them."""
    texts = documents(200)
    _, held = split(jsonl(tmp_path / "a.jsonl", texts))
    path = jsonl(tmp_path / "b.jsonl", [*texts, *(text + "." for text in sorted(held))])
    corpus = read_corpus({"a": Source(path)}, 0.2, most_held_out_mb=0.001)
    assert len(corpus.held_out["a"]) < len(held) / 4
    assert not {text.rstrip(".") for text in corpus.train["a"]} & held


def test_choices_and_published_data_sets(tmp_path: Path) -> None:
    """A question with choices is read with its right answer; SVAMP's CSV and MBPP's rows by the loaders of curation."""
    rows = [{"question": "Hot?", "choices": ["ice", "fire"], "answer": n} for n in (1, "ice")]
    (tmp_path / "quiz.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(read_texts(str(tmp_path / "quiz.jsonl"))) == [
        "Question: Hot?\nAnswer: fire",
        "Question: Hot?\nAnswer: ice",
    ]
    (tmp_path / "svamp").mkdir()
    (tmp_path / "svamp" / "svamp_train.csv").write_text(
        "Question,Numbers,Equation,Answer\n"
        "She had number0 and ate number1 . How many are left ?,8.0 3.0,- number0 number1,5.0\n"
    )
    (tmp_path / "mbpp").mkdir()
    row = {"task_id": 601, "text": "Add one.", "code": "def f(x):\r\n  return x + 1", "test_list": []}
    (tmp_path / "mbpp" / "mbpp.jsonl.gz").write_bytes(gzip.compress(json.dumps(row).encode()))
    assert list(read_texts(str(tmp_path / "svamp"))) == [
        "Question: She had 8 and ate 3 . How many are left ?\nAnswer: 5"
    ]
    assert list(read_texts(str(tmp_path / "mbpp"))) == ["Question: Add one.\nAnswer: def f(x):\n  return x + 1"]
    before = source_digests({"a": Source(str(tmp_path / "svamp"))})
    (tmp_path / "svamp" / "svamp_train.csv").write_text("other\n")
    assert source_digests({"a": Source(str(tmp_path / "svamp"))}) != before


@pytest.mark.parametrize(
    "row",
    [
        "{",
        '{"question": "x", "choices": ["y"], "answer": 1}',
        "[1]",
        "5",
        '{"txet": "x"}',
        '{"text": 5}',
        '{"text": null}',
        '{"question": "x"}',
        '{"text": "\\ud800"}',
    ],
)
def test_an_odd_row_is_named_with_file_and_line(row: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "fine"}}\n\n{row}\n')
    with pytest.raises(DataError) as caught:
        list(read_texts(str(path)))
    assert str(caught.value).startswith(f"{path}:3: a row needs")


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.jsonl", b"\xff\xfe"), ("a.jsonl.gz", b"no gzip"), ("b.txt.gz", gzip.compress(b"x" * 99, mtime=0)[:-9])],
)
def test_a_file_that_is_not_text_is_named(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=r"cannot be read|is damaged or hostile") as caught:
        list(read_texts(str(tmp_path / name)))
    assert caught.value.where == str(tmp_path / name)


def test_a_missing_source_says_what_there_is(tmp_path: Path) -> None:
    for path in ("nothing", str(tmp_path)):
        with pytest.raises(DataError, match="one of: problems, stories; or set AGENT_FORGE_DATA"):
            read_corpus({"a": Source(path)}, 0.1)
