"""The data of an evolution: rows read strictly, split without overlap, tokenised without loss."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_forge.errors import DataError
from agent_forge.forge.corpus import place, read_texts
from agent_forge.forge.evolution.jury import EvaluationLog
from agent_forge.forge.evolution.settings import TaskSource
from agent_forge.forge.evolution.tasks import digest_of, read_tasks, rows_of


def write(path: Path, rows: list[object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_rows_are_split_without_overlap_whatever_their_order(tmp_path: Path) -> None:
    rows = [{"text": f"text number {n}"} for n in range(20)]
    twice = write(tmp_path / "a.jsonl", [*rows, *rows])
    back = write(tmp_path / "b.jsonl", rows[::-1])
    (one,), (other,) = read_tasks({"t": TaskSource(twice)}), read_tasks({"t": TaskSource(back)})
    assert one == other
    assert one.kind == "text"
    assert len(one.select) == len(one.judge) == 10
    assert not {item.text for item in one.select} & {item.text for item in one.judge}
    assert digest_of([one]) == digest_of([other])
    (fewer,) = read_tasks({"t": TaskSource(twice, most=3)})
    assert fewer.select == one.select[:3]
    assert digest_of([fewer]) != digest_of([one])


def test_rows_for_the_gate_may_come_from_elsewhere(tmp_path: Path) -> None:
    select = write(tmp_path / "a.jsonl", [{"text": f"text {n}"} for n in range(6)])
    gate = write(tmp_path / "b.jsonl", [{"text": f"text {n}"} for n in range(4, 10)])
    (task,) = read_tasks({"t": TaskSource(select, held_out=gate)})
    assert len(task.select) == 6
    assert len(task.judge) == 4  # two were selected on
    mixed = write(tmp_path / "c.jsonl", [{"question": "q", "answer": "a"}, {"question": "r", "answer": "a"}])
    with pytest.raises(DataError, match="the rows for the gate are answers, but those for selection are text"):
        read_tasks({"t": TaskSource(select, held_out=mixed)})


def test_questions_and_choices(tmp_path: Path) -> None:
    questions = write(tmp_path / "q.jsonl", [{"question": f"{n}?", "answer": str(n)} for n in range(4)])
    quiz = [{"goal": f"{n}?", "choices": ["no", "yes"], "answer": n % 2} for n in range(3)]
    quiz.append({"question": "last?", "choices": ["no", "yes"], "answer": "yes"})
    (asked, chosen) = read_tasks({"q": TaskSource(questions), "c": TaskSource(write(tmp_path / "c.jsonl", quiz))})
    assert (asked.kind, chosen.kind) == ("answers", "choices")
    assert {item.prompt for item in asked.select} <= {f"Question: {n}?\nAnswer:" for n in range(4)}
    by_prompt = {item.prompt: item for item in (*chosen.select, *chosen.judge)}
    assert by_prompt["Question: last?\nAnswer:"].right == 1


@pytest.mark.parametrize(
    "row",
    [
        {"txt": "x"},
        {"question": "q"},
        {"text": 3},
        {"question": "q", "choices": ["a"], "answer": 1},
        {"question": "q", "choices": ["a"], "answer": "b"},
        ["text"],
        7,
    ],
    ids=str,
)
def test_rows_that_are_something_else_are_refused_with_their_line(tmp_path: Path, row: object) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "fine"}, row])
    with pytest.raises(DataError, match=r'a\.jsonl:2: a row needs a "text"'):
        read_tasks({"t": TaskSource(path)})


def test_too_few_or_mixed_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="too few"):
        read_tasks({"t": TaskSource(write(tmp_path / "a.jsonl", [{"text": "a"}, {"text": "b"}, {"text": "c"}]))})
    mixed = write(tmp_path / "b.jsonl", [{"text": "a"}, {"question": "q", "answer": "a"}])
    with pytest.raises(DataError, match="several kinds"):
        read_tasks({"t": TaskSource(mixed)})
    with pytest.raises(DataError, match="there is no text"):
        read_tasks({"t": TaskSource(str(tmp_path / "nothing"))})


def test_only_what_training_held_out_is_used() -> None:
    """The same rows as the training phases hold out, by the same rule, also where a row is a question."""
    for source in ("stories", "problems"):
        held_out = {text for text in read_texts(source) if place(text) < 0.05}
        (task,) = read_tasks({"t": TaskSource(source)}, 0.05)
        assert {item.text for item in (*task.select, *task.judge)} == held_out
        (own,) = read_tasks({"t": TaskSource(source, share=0.05)}, 0.3)
        assert own == task, "a task's own share counts before the common one"


def test_choices_are_held_out_as_training_reads_them(tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "choices": ["no", f"yes {n}"], "answer": 1} for n in range(60)]
    path = write(tmp_path / "quiz.jsonl", rows)
    (task,) = read_tasks({"t": TaskSource(path)}, 0.2)
    assert {item.text for item in (*task.select, *task.judge)} == {t for t in read_texts(path) if place(t) < 0.2}


class Letters:
    """A tokenizer of letters."""

    bos_token_id = 0

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}


def test_rows_hold_every_token_once(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"text": "abcdefghij" * n} for n in range(1, 5)])
    (task,) = read_tasks({"t": TaskSource(path)})
    rows = rows_of(task.select, Letters(), length=8)
    for number, item in enumerate(task.select):
        pieces = [row for row in rows if row.item == number]
        assert all(row.tokens[0] == 0 and row.start == 1 and len(row.tokens) <= 9 for row in pieces)
        assert "".join(chr(token) for row in pieces for token in row.tokens[1:]) == item.answers[0]
    limited = rows_of(task.select, Letters(), length=8, most=12)
    assert max(sum(len(row.tokens) - 1 for row in limited if row.item == n) for n in range(2)) <= 12


def test_of_a_long_question_the_beginning_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"question": "x" * 50 + str(n), "answer": "yes"} for n in range(4)])
    (task,) = read_tasks({"t": TaskSource(path)})
    for row in rows_of(task.select, Letters(), length=16):
        assert len(row.tokens) == 17
        assert "".join(map(chr, row.tokens[row.start :])) == " yes"
        assert "".join(map(chr, row.tokens[1 : row.start])).endswith("Answer:")


def test_the_log_has_what_was_finished_and_ignores_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "out" / "evaluations.jsonl"
    log = EvaluationLog(path)
    log.put("a", {"scores": {"t": [[0.1 + 0.2, 1.0, 0.0, None]]}})
    log.put("b", {"scores": {}})
    with open(path, "ab") as file:
        file.write(b'{"key": "c", "scor')
    again = EvaluationLog(path)
    assert again.records == log.records
    again.put("c", {"scores": {}})
    assert EvaluationLog(path).records.keys() == {"a", "b", "c"}
