"""Public question sets, read from a folder that holds them as their publishers' rows (JSONL or CSV, gzipped or not).

The order is fixed by a hash of each row, so the first N of a set are a fair sample and the same on every machine.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_forge.errors import DataError
from agent_forge.forge.training.evaluation import Choice

Row = dict[str, Any]


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
class Request:
    """A request, the functions that may be called (JSON Schema), and the accepted calls.

    An accepted call maps a function's name to its arguments, and each argument to the values that are right; "" among
    them means that it may be left out (the convention of the Berkeley function-calling leaderboard).
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


def read_choices(task: str, data: Path, most: int | None = None) -> list[Choice]:
    """Multiple choice: arc_easy, arc_challenge, piqa (or any folder of such rows). Raises DataError."""
    return [
        Choice(
            f"Question: {row.get('question') or row['goal']}\nAnswer:",
            tuple(f" {choice}" for choice in row["choices"]),
            int(row["answer"]),
        )
        for row in _sample(data / task, most, lambda row: "choices" in row and "answer" in row)
    ]


def read_problems(task: str, data: Path, most: int | None = None) -> list[Problem]:
    """Word problems: gsm8k (the number after ####) or svamp (numbers put in for number0, number1, ...)."""
    found = []
    for row in _sample(data / task, most, lambda row: "answer" in row or "Answer" in row):
        if "Answer" in row:
            found.append(Problem(_filled(row["Question"], row["Numbers"].split()), float(row["Answer"])))
        else:
            found.append(Problem(row["question"], float(row["answer"].rpartition("####")[2].replace(",", ""))))
    return found


def _filled(question: str, numbers: list[str]) -> str:
    return re.sub(r"number(\d+)", lambda match: numbers[int(match[1])].removesuffix(".0"), question)


def read_programs(task: str, data: Path, most: int | None = None) -> list[Program]:
    """Programs with tests: mbpp."""
    rows = _sample(data / task, most, lambda row: "test_list" in row)
    return [
        Program(row["text"], tuple(row["test_list"]), row.get("test_setup_code") or "", row.get("code") or "")
        for row in rows
    ]


def read_requests(task: str, data: Path, most: int | None = None, part: str = "simple_python") -> list[Request]:
    """Function calls: a part of bfcl (simple_python, multiple, parallel, parallel_multiple)."""
    folder = data / task
    answers = {row["id"]: row["ground_truth"] for row in _rows(_file(folder, f"{part}_answers"))}
    questions = [row for row in _rows(_file(folder, part)) if row["id"] in answers]
    return [
        Request(row["question"][0][-1]["content"], tuple(row["function"]), tuple(answers[row["id"]]))
        for row in sorted(questions, key=_place)[:most]
    ]


def read_gold_plans(task: str, data: Path, most: int | None = None) -> list[GoldPlan]:
    """Plan graphs with steps in words: asynchow (the steps are given; the edges are asked for)."""
    rows = _sample(data / "plan_graph" / task, most, lambda row: "steps" in row and "edges" in row)
    return [
        GoldPlan(
            row["title"],
            tuple(row["steps"]),
            frozenset((int(first) - 1, int(second) - 1) for first, second in row["edges"]),
        )
        for row in rows
    ]


def _sample(folder: Path, most: int | None, wanted: Callable[[Row], bool]) -> list[Row]:
    files = [file for file in sorted(folder.glob("*")) if file.name.removesuffix(".gz").endswith((".jsonl", ".csv"))]
    rows = [row for file in files for row in _rows(file)]
    kept = sorted((row for row in rows if wanted(row)), key=_place)
    if not kept:
        raise DataError("there is no such question set", where=str(folder), fix="name the folder that holds the sets")
    return kept[:most]


def _place(row: Row) -> str:
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()


def _file(folder: Path, name: str) -> Path:
    for ending in (".jsonl", ".jsonl.gz"):
        if (folder / f"{name}{ending}").is_file():
            return folder / f"{name}{ending}"
    raise DataError(f"there is no {name}.jsonl", where=str(folder))


def _rows(file: Path) -> Iterator[Row]:
    try:
        data = file.read_bytes()
        text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode("utf-8")
        if file.name.removesuffix(".gz").endswith(".csv"):
            yield from csv.DictReader(io.StringIO(text))
        else:
            yield from (json.loads(line) for line in text.split("\n") if line.strip())
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"cannot be read: {error}", where=str(file)) from error
