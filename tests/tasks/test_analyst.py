"""The analyst's answers against SQL, and answers that look right."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from tasks_checking import exercises, missed

from agent_forge.tasks import Exercise, family


def database_of(exercise: Exercise) -> tuple[sqlite3.Connection, str]:
    """The tables in SQLite, and what to select from."""
    database = sqlite3.connect(":memory:")
    for name, table in exercise.expected["tables"].items():
        database.execute(f"create table {name} ({', '.join(table['columns'])})".replace("order,", "'order',"))
        database.executemany(f"insert into {name} values ({', '.join('?' * len(table['columns']))})", table["rows"])
    return database, "orders natural join products" if "products" in exercise.expected["tables"] else "orders"


def condition(question: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """The condition of a question in SQL, and its values."""
    signs = {"is": "=", "above": ">", "below": "<"}
    where = " and ".join(f"{name} {signs[how]} ?" for name, how, _ in question["where"]) or "true"
    return where, [value for *_, value in question["where"]]


def by_sql(exercise: Exercise) -> list[Any]:
    """The answers as SQLite gives them."""
    database, source = database_of(exercise)
    answers = []
    for question in exercise.expected["questions"]:
        column = {"revenue": "units * price", "order": "*"}.get(question["column"], question["column"])
        where, values = condition(question)
        function = {"mean": "avg", "distinct": "count"}.get(question["measure"], question["measure"])
        inner = f"distinct {column}" if question["measure"] == "distinct" else column
        query = f"select {function}({inner}) from {source} where {where}"
        if question["by"]:
            by = question["by"]
            query = f"select {by} from {source} where {where} group by {by} order by sum({column}) desc limit 1"
        (answer,) = database.execute(query, values).fetchone()
        answers.append(answer)
    return answers


def test_the_answers_are_those_of_sql() -> None:
    for exercise in exercises("analyst", 120):
        assert exercise.check({"answers": by_sql(exercise)}).correct, exercise.prompt


def test_a_demonstration_works_with_the_rows_that_count_and_ends_at_the_answers() -> None:
    tasks = family("analyst")
    worked = asked = 0
    for exercise in exercises("analyst", 120):
        demonstration = tasks.demonstrate(exercise.expected)
        assert exercise.check(demonstration).correct, exercise.prompt
        database, source = database_of(exercise)
        questions, answers = exercise.expected["questions"], by_sql(exercise)
        asked += len(questions)
        for text in demonstration["working"].split(". "):
            worked += 1
            place, _, lines = text.partition(": ")
            question, answer = questions[int(place) - 1], answers[int(place) - 1]
            where, values = condition(question)
            counted = database.execute(f"select `order` from {source} where {where}", values).fetchall()
            assert {(int(order),) for order in re.findall(r"(?:^|[ ,])(1\d\d)[:=]", lines)} == set(counted), text
            end = ended(lines, question)
            assert end == answer if question["by"] else 0 <= Decimal(answer) - end < Decimal("0.001"), text
    assert worked > 0.85 * asked


def ended(lines: str, question: Mapping[str, Any]) -> str | Decimal:
    """What a working comes to: the group with the largest total, the digits of a division, or the last number."""
    parts = [part for part in lines.split("; ") if not re.match(r"[A-Z][a-z]+=", part)]  # a supplier's products
    if question["by"]:
        totals = {name: ended(steps, {"by": None, "measure": "sum"}) for name, steps in map(str.split, parts)}
        return max(totals, key=lambda name: totals[name])
    steps = parts[0]
    if question["measure"] == "mean":
        return Decimal(re.sub(r"r\d+,?", "", steps.rpartition("=")[2]))
    return Decimal(0) if steps == "none" else Decimal(re.split("[:=]", steps)[-1])


def example() -> dict[str, Any]:
    rows = [[101, "north", 5], [102, "south", 6], [103, "north", 7], [104, "south", 9]]
    question = {"column": "units", "where": [], "by": None}
    return {
        "tables": {"orders": {"columns": ["order", "region", "units"], "rows": rows}},
        "questions": [question | {"measure": "mean"}, question | {"measure": "sum", "by": "region"}],
    }


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ({"answers": [6.75, "south"]}, 1),
        ('Here you are:\n```json\n{"answers": ["6.75", "South"]}\n```', 1),
        ({"answers": ["6.750", " south "]}, 1),
        ({"answers": [6.74, "south"]}, 0.5),
        ({"answers": [6.8, "south"]}, 0.5),
        ({"answers": [6.75, "south-west"]}, 0.5),
        ({"answers": [6.75, "south or north"]}, 0.5),
        ({"answers": ["6.75 or 7", "south"]}, 0.5),
        ({"answers": ["south", 6.75]}, 0),
        ({"answers": [6.75]}, 0.5),
        ({"answers": []}, 0),
        ({"answers": [True, "south"]}, 0),
        ({"answers": ["1e999999", "south"]}, 0.5),
        ("The mean is 6.75 and the answer is south", 0),
        ('{"answers": [NaN, "south"]}', 0.5),
        ("[" * 100_000, 0),
    ],
)
def test_answers(answer: Any, score: float) -> None:
    verdict = family("analyst").check(answer, example())
    assert verdict.score == score
    assert verdict.correct or verdict.why


def test_extra_answers_are_wrong() -> None:
    verdict = family("analyst").check({"answers": [6.75, "south", 4]}, example())
    assert not verdict.correct
    assert "3 for 2 questions" in verdict.why


def test_changed_answers_are_refused() -> None:
    assert missed("analyst") == []


def test_tables_grow_with_the_level() -> None:
    sizes = [len(family("analyst").make(1, level).prompt) for level in (0, 0.3, 0.6, 1.0)]
    assert sizes == sorted(sizes)
    assert sizes[-1] > 3 * sizes[0]
