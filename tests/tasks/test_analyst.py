"""The analyst's answers against SQL, and answers that look right."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from typing import Any

import pytest
from tasks_checking import exercises, missed

from agent_forge.tasks import Exercise, family

PRODUCT = re.compile(r"(\d+)\*(\d+)=(?:(\d+)\+(\d+)=)?(\d+)")


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


def test_a_worked_answer_goes_through_all_rows_and_ends_at_the_answer() -> None:
    worked = asked = 0
    for exercise in exercises("analyst", 120):
        demonstration = family("analyst").demonstrate(exercise.expected)
        assert exercise.check(demonstration).correct, exercise.prompt
        database, source = database_of(exercise)
        numbers = [f"{row[0] - 100:02}" for row in exercise.expected["tables"]["orders"]["rows"]]
        asked += len(demonstration["answers"])
        triples = zip(demonstration["answers"], exercise.expected["questions"], by_sql(exercise), strict=True)
        for given, question, answer in triples:
            if not isinstance(given, dict):
                continue
            worked += 1
            lines, _, end = given["working"].partition("; ")
            steps = {line[:2]: line[2:] for line in lines.split(",")}
            assert list(steps) == numbers
            where, values = condition(question)
            counted = database.execute(f"select `order` from {source} where {where}", values).fetchall()
            assert {f"{order - 100:02}" for (order,) in counted} == {row for row, step in steps.items() if "=" in step}
            assert all(("=" in step) != step.endswith("-") for step in steps.values())
            for units, price, tens, ones, revenue in PRODUCT.findall(lines):
                assert int(units) * int(price) == int(revenue) == int(tens or revenue) + int(ones or 0)
            results = [step.rpartition("=")[2] for step in steps.values() if "=" in step]
            if question["by"]:
                totals = {name: int(total) for name, _, total in (pair.partition("=") for pair in end.split(","))}
                assert max(totals, key=lambda name: totals[name]) == answer
            elif question["measure"] == "mean":
                digits = re.sub(r"r\d+,?", "", end.rpartition("=")[2])
                assert end.startswith(f"{results[-1]}/{len(results)}=")
                assert 0 <= int(results[-1]) / len(results) - float(digits) < 0.001
            else:
                assert [answer] == ([int(results[-1])] if results else [0])
    assert worked > 0.7 * asked


def test_a_working_does_not_count() -> None:
    for working in ("", "5+6+7+9=27", "1=2"):
        answers = [{"working": working, "answer": 6.75}, {"answer": "south"}]
        assert family("analyst").check({"answers": answers}, example()).correct
        assert (
            family("analyst").check({"answers": [{"working": working, "answer": 6.7}, "south"]}, example()).score == 0.5
        )
    assert not family("analyst").check({"answers": [{"working": "6.75"}, "south"]}, example()).readable


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
