"""Public question sets, read from a folder that holds them in their publishers' form (JSONL, a JSON
list or CSV, gzipped or not).

The order is fixed by a hash of each row, so the first N of a set are a fair sample, the same on
every machine.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from agent_forge.curation.lines import open_lines
from agent_forge.errors import DataError
from agent_forge.forge.evaluation.choices import MultipleChoice

Row = dict[str, Any]
T = TypeVar("T")
ENDINGS = (".jsonl", ".json", ".csv")


@dataclass(frozen=True)
class Problem:
    """A question whose answer is a number."""

    question: str
    answer: float


@dataclass(frozen=True)
class Program:
    """A task, the tests that its program must pass, and what must run before them."""

    task: str
    tests: tuple[str, ...]
    setup: str = ""
    solution: str = ""


@dataclass(frozen=True)
class FunctionRequest:
    """A request, the functions that may be called (JSON Schema), and the accepted calls.

    An accepted call maps a function's name to its arguments, and each argument to its accepted
    values; "" among them means that the argument may be omitted (the convention of the Berkeley
    function-calling leaderboard).
    """

    text: str
    functions: tuple[Row, ...]
    accepted: tuple[dict[str, dict[str, list[Any]]], ...]


@dataclass(frozen=True)
class GoldPlan:
    """A request, its steps in words, and which step waits for which (indices)."""

    request: str
    steps: tuple[str, ...]
    edges: frozenset[tuple[int, int]] = field(default_factory=frozenset)


def read_choices(task: str, data: Path, most: int | None = None) -> list[MultipleChoice]:
    """Multiple choice: arc_easy, arc_challenge, piqa (or any folder of such rows). Raises DataError.

    A row has `question` or `goal`, a list of `choices` and the index of the right one as `answer`;
    or it has ARC's form (`answerKey` is the label of a choice) or PIQA's (`sol1`, `sol2`, `label`).
    """
    return _sample(
        _place(data, task),
        most,
        lambda row: row.keys() >= {"choices", "answer"} or bool(row.keys() & {"answerKey", "sol1"}),
        _choice,
    )


def _choice(row: Row) -> MultipleChoice:
    question: Any = row.get("question") or row.get("goal")
    choices: Any = row.get("choices")
    right: Any = row.get("answer")
    if isinstance(question, dict):  # ARC's own files
        question, choices = question["stem"], question["choices"]
    if isinstance(choices, dict):  # ARC in columns
        choices = [
            {"text": text, "label": label} for text, label in zip(choices["text"], choices["label"], strict=True)
        ]
    if "answerKey" in row:
        right = [choice["label"] for choice in choices].index(row["answerKey"])
        choices = [choice["text"] for choice in choices]
    elif "sol1" in row:
        right, choices = row["label"], [row["sol1"], row["sol2"]]
    if not question or not isinstance(choices, list) or not 0 <= int(right) < len(choices):
        raise ValueError("it has no question, or its answer is not one of the choices")
    return MultipleChoice(f"Question: {question}\nAnswer:", tuple(f" {choice}" for choice in choices), int(right))


def read_problems(task: str, data: Path, most: int | None = None) -> list[Problem]:
    """Word problems: gsm8k (the number after ####) or svamp (as published, or with numbers for
    number0, ...)."""
    return _sample(_place(data, task), most, lambda row: "answer" in row or "Answer" in row, _problem)


def _problem(row: Row) -> Problem:
    if "answer" in row:
        return Problem(row["question"], float(str(row["answer"]).rpartition("####")[2].replace(",", "")))
    if "Numbers" in row:
        numbers = row["Numbers"].split()
        question = re.sub(r"number(\d+)", lambda match: numbers[int(match[1])].removesuffix(".0"), row["Question"])
        return Problem(question, float(row["Answer"]))
    return Problem(f"{row['Body'].strip().rstrip('.')}. {row['Question']}", float(row["Answer"]))


def read_programs(task: str, data: Path, most: int | None = None) -> list[Program]:
    """Programs with tests: mbpp, whole or sanitized."""
    return _sample(_place(data, task), most, lambda row: "test_list" in row, _program)


def _program(row: Row) -> Program:
    if not row["test_list"]:
        raise ValueError("it has no tests")
    setup = "\n".join([row.get("test_setup_code") or "", *(row.get("test_imports") or ())])
    return Program(row.get("text") or row["prompt"], tuple(row["test_list"]), setup.strip(), row.get("code") or "")


def read_requests(task: str, data: Path, most: int | None = None, part: str = "simple_python") -> list[FunctionRequest]:
    """Function calls: a part of bfcl (simple_python, multiple, parallel, parallel_multiple)."""
    folder, part = (data.parent, data.name.partition(".")[0]) if data.is_file() else (_place(data, task), part)
    truths = _rows(_file(folder, f"{part}_answers"))
    answers = dict(_parse_rows(truths, folder, lambda row: (row["id"], tuple(row["ground_truth"]))))
    questions = [row for row in _rows(_file(folder, part)) if row.get("id") in answers]
    return _parse_rows(
        sorted(questions, key=_hash)[:most],
        folder,
        lambda row: FunctionRequest(row["question"][0][-1]["content"], tuple(row["function"]), answers[row["id"]]),
    )


def read_gold_plans(task: str, data: Path, most: int | None = None) -> list[GoldPlan]:
    """Plan graphs with steps in words: asynchow (the request has the steps; the edges are the answer)."""
    return _sample(_place(data, task), most, lambda row: "steps" in row and "edges" in row, _gold_plan)


def _gold_plan(row: Row) -> GoldPlan:
    edges = frozenset((int(first) - 1, int(second) - 1) for first, second in row["edges"])
    if not all(0 <= place < len(row["steps"]) for edge in edges for place in edge):
        raise ValueError("an edge leads to a step that does not exist")
    return GoldPlan(row["title"], tuple(row["steps"]), edges)


def _place(data: Path, task: str) -> Path:
    """Where the questions of a task are: in a file, in the task's folder in a folder of sets, or in a folder."""
    inside = (data / task, data / "plan_graph" / task)
    return next((folder for folder in inside if folder.is_dir()), data)


def _sample(folder: Path, most: int | None, select: Callable[[Row], bool], parse: Callable[[Row], T]) -> list[T]:
    """The first `most` of the selected rows of a folder, in the order of their hashes, each parsed."""
    inside = [folder] if folder.is_file() else sorted(folder.glob("*"))
    files = [file for file in inside if file.name.removesuffix(".gz").endswith(ENDINGS)]
    rows = sorted((row for file in files for row in _rows(file) if select(row)), key=_hash)
    if not rows:
        raise DataError("there is no such question set", where=str(folder), fix="Name the folder that holds the sets")
    return _parse_rows(rows[:most], folder, parse)


def _parse_rows(rows: Iterable[Row], folder: Path, parse: Callable[[Row], T]) -> list[T]:
    items = []
    for row in rows:
        try:
            items.append(parse(row))
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            shown = json.dumps(row, ensure_ascii=False)[:120]
            raise DataError(f"a row is not as expected ({error!r}): {shown}", where=str(folder)) from error
    return items


def _hash(row: Row) -> str:
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()


def _file(folder: Path, name: str) -> Path:
    for ending in (".jsonl", ".jsonl.gz"):
        if (folder / f"{name}{ending}").is_file():
            return folder / f"{name}{ending}"
    raise DataError(f"there is no {name}.jsonl", where=str(folder))


def _rows(file: Path) -> Iterator[Row]:
    """The objects of one file, in the form that its ending names."""
    try:
        with open_lines(file) as lines:
            text = b"".join(lines).decode("utf-8-sig")
        rows: Any = (json.loads(line) for line in text.split("\n") if line.strip())
        if file.name.removesuffix(".gz").endswith(".csv"):
            rows = csv.DictReader(io.StringIO(text))
        elif file.name.removesuffix(".gz").endswith(".json"):
            document = json.loads(text)
            rows = document if isinstance(document, list) else [document]
        for row in rows:
            if not isinstance(row, dict):
                raise ValueError(f"{row!r:.60} is not an object")
            yield row
    except (OSError, EOFError, ValueError, csv.Error) as error:
        raise DataError(f"cannot be read: {error}", where=str(file)) from error
