"""Duplicates against brute force, and leakage between files."""

from __future__ import annotations

import builtins
import random
from pathlib import Path

import pytest

from agent_forge.curation import deduplicate_file, find_duplicates, find_leakage, read_rows, write_rows
from agent_forge.curation.duplicates import diversity_order, exact_groups, near_groups, shingles
from agent_forge.errors import MissingExtraError, UsageError

WORDS = [f"word{n}" for n in range(400)]


def _jaccard(left: str, right: str) -> float:
    a, b = set(shingles(left)), set(shingles(right))
    return len(a & b) / len(a | b)


def _corpus(seed: int) -> list[str]:
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(WORDS, k=40)) for _ in range(150)]
    for number in range(60):
        words = texts[number].split()
        for _ in range(rng.randrange(4)):
            words[rng.randrange(len(words))] = "other"
        texts.append(" ".join(words))
    rng.shuffle(texts)
    return texts


def test_exact_groups_ignore_case_punctuation_and_spacing() -> None:
    assert exact_groups(["Hello, World!", "x", "hello   world", "HELLO world.", "y"]) == [[0, 2, 3]]


@pytest.mark.parametrize("near", [False, True])
def test_what_differs_in_an_operator_or_a_number_is_not_the_same(near: bool) -> None:
    asked = [
        "5 + 3",
        "5 - 3",
        "5 * 3",
        "5 / 3",
        "x > 3",
        "x < 3",
        "x >= 3",
        "(2 + 3) * 4",
        "2 + 3 * 4",
        "C",
        "C++",
        "C#",
    ]
    rows = [{"question": f"What is {text}?"} for text in [*asked, "5", "-5", "3.5", "3, 5"]]
    rows += [{"a": a, "op": "+", "b": b} for a in range(3) for b in range(3)]
    rows += [{"n": n, "square": n * n} for n in range(5)]
    groups, report = find_duplicates(rows, near=near)  # type: ignore[arg-type]
    assert (groups, report.duplicates) == ([], 0)
    same = [{"row_id": n, "score": n / 7, "text": "well-known: the (best) one"} for n in range(3)]
    assert find_duplicates([*same, {"text": "Well known -- the best one!"}], near=near)[0] == [[0, 1, 2, 3]]


def test_scripts_without_spaces_are_compared_by_letters() -> None:
    lunch = "今天的天气非常好，我们决定去公园散步，然后在湖边的小餐馆吃午饭，最后坐公交车回家。"
    rows = [
        {"t": lunch},
        {"t": lunch.replace("午", "晚")},
        {"t": "机器学习是人工智能的一个分支，它研究如何让计算机从数据中学习。"},
    ]
    assert find_duplicates(rows)[0] == [[0, 1]]
    assert find_leakage(rows[:1], [{"t": f"开头不同{lunch[5:30]}结尾也不同"}, rows[2]]).overlapping == 1


def test_near_groups_find_what_brute_force_finds() -> None:
    texts = _corpus(4)
    pairs = {(i, j) for j in range(len(texts)) for i in range(j) if _jaccard(texts[i], texts[j]) >= 0.8}
    groups = near_groups(texts, threshold=0.7)
    together = {(i, j) for rows in groups for j in rows for i in rows if i < j}
    assert len(pairs) > 20
    assert len(pairs & together) >= 0.95 * len(pairs)
    assert all(_jaccard(texts[i], texts[j]) > 0.45 for i, j in together)  # 128 permutations: a deviation of 0.04


def test_near_groups_are_the_same_every_time_and_groups_are_ordered() -> None:
    texts = _corpus(5)
    groups = near_groups(texts)
    assert groups == near_groups(iter(texts))
    assert all(rows == sorted(rows) for rows in groups)
    assert near_groups([]) == []
    with pytest.raises(UsageError, match="similarity"):
        near_groups(texts, threshold=1.5)


def test_a_data_set_that_is_mostly_repetition_is_called_that() -> None:
    rows = [{"id": n, "task": f"task {n % 7} of the set"} for n in range(100)]
    _, report = find_duplicates(rows, near=False)
    assert (report.groups, report.duplicates, round(report.share, 2)) == (7, 93, 0.93)
    assert len(report.largest) == 5
    assert report.as_dict()["largest"][0]["sample"] == "task 0 of the set"


def test_the_file_without_duplicates_keeps_the_first_of_each(tmp_path: Path) -> None:
    rows = [{"id": n, "task": t} for n, t in enumerate(["a b c d", "e f g h", "A b c, d", "i j k l"])]
    write_rows(tmp_path / "in.jsonl", rows)
    report = deduplicate_file(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert [row["id"] for row in read_rows(tmp_path / "out.jsonl")] == [0, 1, 3]
    assert report.duplicates == 1
    with pytest.raises(UsageError, match="overwrite"):
        deduplicate_file(tmp_path / "in.jsonl", tmp_path / "in.jsonl")
    (tmp_path / "odd.jsonl").write_text('\n{"n": 1.10,  "t": "caf\\u00e9", "t": "x"}\n\n{"t": "y"}')
    deduplicate_file(tmp_path / "odd.jsonl", tmp_path / "out.jsonl")  # kept rows stay as they are written
    assert (tmp_path / "out.jsonl").read_text() == '{"n": 1.10,  "t": "caf\\u00e9", "t": "x"}\n{"t": "y"}\n'


def test_without_rensa_near_duplicates_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: object, **kwargs: object) -> object:
        if name == "rensa":
            raise ImportError(name)
        return real(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"\[data\]"):
        near_groups(["a", "b"])


def test_leakage_is_the_same_text_or_a_long_run_of_words() -> None:
    long = " ".join(WORDS[:20])
    train = [{"id": "1", "split": "train", "q": "How many apples?"}, {"q": f"Intro. {long} end"}]
    test = [
        {"id": "9", "split": "test", "q": "how many apples"},
        {"q": f"Other start {long} other end"},
        {"q": " ".join(WORDS[:12])},
    ]
    report = find_leakage(train, test)
    assert (report.exact, report.overlapping, report.test_rows) == (1, 1, 3)
    assert [(s["kind"], s["test_row"], s["train_row"]) for s in report.samples] == [
        ("exact", 0, 0),
        ("overlapping", 1, 1),
    ]
    assert find_leakage(train, []).share == 0


def test_the_order_of_diversity_puts_repetition_last() -> None:
    texts = ["red apple", "red apple", "blue whale sings", "red apple tart", "green moss"]
    order = diversity_order(texts)
    assert sorted(order) == [0, 1, 2, 3, 4]
    assert set(order[:2]) == {2, 4}
    assert order[-1] in (0, 1)
