"""Analyst: questions about generated tables, answered with numbers and names computed from their rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from agent_forge.tasks.answers import number
from agent_forge.tasks.calls import loose
from agent_forge.tasks.family import Draft, Verdict, task_family

_REGIONS = ("north", "south", "east", "west", "centre")
_PRODUCTS = ("lamp", "chair", "desk", "shelf", "rug", "clock", "vase", "mirror")
_SUPPLIERS = ("Brook", "Hale", "Marsh")
_HALF_CENT = Decimal("0.005")
_LONGEST = 470  # characters of all workings; a digit is a token in many models, and an answer has 512 by default
_VALUE = {"type": ["number", "string"]}
_WORKED = {
    "type": "object",
    "properties": {"working": {"type": "string", "maxLength": _LONGEST}, "answer": _VALUE},
    "required": ["answer"],
    "additionalProperties": False,
}
SCHEMA = {
    "type": "object",
    "properties": {"answers": {"type": "array", "items": {"anyOf": [_VALUE, _WORKED]}, "maxItems": 8}},
    "required": ["answers"],
    "additionalProperties": False,
}

Row = Mapping[str, Any]


def check(answer: Mapping[str, Any], expected: Mapping[str, Any]) -> Verdict:
    """Every answer is computed again from the rows. Means count if they are right to two decimals; workings do not."""
    given = [each["answer"] if isinstance(each, Mapping) else each for each in answer["answers"]]
    questions = expected["questions"]
    rows = joined(expected["tables"])
    faults: dict[str, str | None] = {}
    for place, question in enumerate(questions):
        right = compute(rows, question)
        if place >= len(given):
            faults[f"question {place + 1}"] = "it is not answered"
        else:
            same = _same(given[place], right, question["measure"] == "mean")
            faults[f"question {place + 1}"] = None if same else f"{given[place]!r} instead of {right}"
    if len(given) > len(questions):
        faults["answers"] = f"{len(given)} for {len(questions)} questions"
    return Verdict.parts(faults)


def _same(given: Any, right: str | Decimal, rounded: bool) -> bool:
    if isinstance(right, str):
        return loose(given) == loose(right)
    value = number(given)
    return value is not None and abs(value - right) <= (_HALF_CENT if rounded else 0)


def solve(expected: Mapping[str, Any]) -> dict[str, Any]:
    """The answers in the order of the questions; means rounded to two decimals."""
    rows = joined(expected["tables"])
    answers = [compute(rows, question) for question in expected["questions"]]
    return {"answers": [a if isinstance(a, str) else int(a) if a == int(a) else float(round(a, 2)) for a in answers]}


def joined(tables: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of `orders`, each with the columns of its product where there is a table of products."""
    orders, products = (
        [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
        for table in (tables["orders"], tables.get("products", {"columns": [], "rows": []}))
    )
    of = {row["product"]: row for row in products}
    rows = [order | of.get(order.get("product"), {}) for order in orders]
    return [row | {"revenue": row["units"] * row["price"]} if "price" in row else row for row in rows]


def compute(rows: Sequence[Row], question: Mapping[str, Any]) -> str | Decimal:
    """The answer to a question. Raises ValueError where there is none, or more than one."""
    rows = [row for row in rows if all(_holds(row, *condition) for condition in question["where"])]
    column = question["column"]
    if question["by"] is None:
        return _measured(rows, question["measure"], column)
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[question["by"]], []).append(row)
    totals = {name: _measured(group, question["measure"], column) for name, group in groups.items()}
    best = [name for name, total in totals.items() if total == max(totals.values())]
    if len(totals) < 2 or len(best) != 1:
        raise ValueError("no group is larger than the others")
    return best[0]


def _holds(row: Row, column: str, comparison: str, value: Any) -> bool:
    if comparison == "is":
        return bool(row[column] == value)
    return bool(row[column] > value if comparison == "above" else row[column] < value)


def _measured(rows: Sequence[Row], measure: str, column: str) -> Decimal:
    values = [row[column] for row in rows]
    if measure in ("count", "distinct"):
        return Decimal(len(values) if measure == "count" else len(set(values)))
    if not values:
        raise ValueError("there are no rows")
    if measure == "mean":
        return Decimal(sum(values)) / len(values)
    return Decimal(sum(values) if measure == "sum" else max(values) if measure == "max" else min(values))


def worked(expected: Mapping[str, Any]) -> dict[str, Any]:
    """The answers with how they come about, as many as there is room for."""
    rows, left, answers = joined(expected["tables"]), _LONGEST, list[Any]()
    for question, answer in zip(expected["questions"], solve(expected)["answers"], strict=True):
        working = work(rows, question)
        fits = len(working) <= left
        left -= len(working) if fits else 0
        answers.append({"working": working, "answer": answer} if fits else answer)
    return {"answers": answers}


def work(rows: Sequence[Row], question: Mapping[str, Any]) -> str:
    """Row after row: what its conditions look at up to one that fails, then its value and the result so far.

    Such as `01:lamp-,02:desk:5=5,03:desk:7=12` for the units of desks. Groups end with their totals, means with the
    division. Nothing has to be looked for: the next row is the next one in the table.
    """
    measure, column, by = question["measure"], question["column"], question["by"]
    total, steps = "sum" if measure == "mean" else measure, list[str]()
    groups: dict[str, list[Row]] = {}
    for row in rows:
        cells = [str(row["order"])[1:]]  # of 101 to 118
        for name, comparison, value in question["where"]:
            cells.append(_cell(row, name))
            if not _holds(row, name, comparison, value):
                steps.append(":".join(cells) + "-")
                break
        else:
            group = groups.setdefault(row[by] if by else "", [])
            group.append(row)
            cells += [_cell(row, by)] if by else []
            cells += [_cell(row, column)] if measure != "count" else []
            steps.append(":".join(cells) + f"={_measured(group, total, column)}")
    totals = [f"{name}={_measured(group, total, column)}" for name, group in groups.items()] if by else []
    if measure == "mean":
        (counted,) = groups.values()
        totals = [_quotient(int(_measured(counted, total, column)), len(counted), 3)]  # the third digit rounds
    return "; ".join(filter(None, [",".join(steps), ",".join(totals)]))


def _cell(row: Row, column: str) -> str:
    """A value as it is found: a supplier by its product, revenue by multiplying."""
    if column == "revenue":
        return _product(row["units"], row["price"])
    return f"{row['product']}>{row[column]}" if column == "supplier" else str(row[column])


def _product(value: int, times: int) -> str:
    """A product, that by a number of several digits in parts.

    >>> _product(17, 4), _product(47, 23), _product(33, 20)
    ('17*4=68', '47*23=940+141=1081', '33*20=660')
    """
    ones = times % 10
    parts = f"{value * (times - ones)}+{value * ones}=" if times > 10 and ones else ""
    return f"{value}*{times}={parts}{value * times}"


def _quotient(value: int, divisor: int, places: int) -> str:
    """A long division digit by digit, so many of them behind the point, each with what remains.

    >>> _quotient(249, 11, 3)  # 22.636
    '249/11=2r2,2r7.6r4,3r7,6r4'
    """
    digits, rest, whole, behind = str(value), 0, list[str](), list[str]()
    for place, digit in enumerate(digits + "0" * places):
        share, rest = divmod(rest * 10 + int(digit), divisor)
        if place >= len(digits):
            behind.append(f"{share}r{rest}")
        elif share or whole or place == len(digits) - 1:  # no zeros in front
            whole.append(f"{share}r{rest}")
    return f"{value}/{divisor}={','.join(whole)}.{','.join(behind)}"


@task_family("analyst", check=check, solve=solve, schema=SCHEMA, worked=worked)
def analyst(rng: random.Random, level: float) -> Draft:
    """More rows, columns, questions and conditions as the level rises; then groups, products, and a second table."""
    columns = ["order", "region", *(["product"] if level > 0.3 else []), "units", *(["price"] if level > 0.5 else [])]
    count = 3 + round(15 * level)
    draws: dict[str, Callable[[], Any]] = {
        "region": lambda: rng.choice(_REGIONS[: 2 + round(3 * level)]),
        "product": lambda: rng.choice(_PRODUCTS[: 3 + round(5 * level)]),
        "units": lambda: rng.randrange(1, 10 + round(60 * level)),
        "price": lambda: rng.randrange(2, 40),
    }
    rows = [[101 + place, *(draws[column]() for column in columns[1:])] for place in range(count)]
    tables: dict[str, Any] = {"orders": {"columns": columns, "rows": rows}}
    if level > 0.7:
        pairs = [[product, rng.choice(_SUPPLIERS)] for product in _PRODUCTS]
        tables["products"] = {"columns": ["product", "supplier"], "rows": pairs}
    questions: list[dict[str, Any]] = []
    while len(questions) < 1 + round(2 * level):
        question = _question(rng, level, joined(tables))
        try:
            compute(joined(tables), question)
        except ValueError:
            continue
        if question not in questions:
            questions.append(question)
    expected = {"tables": tables, "questions": questions}
    return Draft(_prompt(expected), expected)


def _question(rng: random.Random, level: float, rows: Sequence[Row]) -> dict[str, Any]:
    names = [name for name in ("region", "product", "supplier") if name in rows[0]]
    amounts = [name for name in ("units", "price", "revenue") if name in rows[0]]
    measures = ("count", "max", "min") if level < 0.15 else ("count", "sum", "max", "min", "mean", "distinct", "top")
    measure = rng.choice(measures if level >= 0.35 else measures[:4])
    where: list[list[Any]] = []
    for _ in range(rng.randrange(1 + round(2.4 * level))):
        column = rng.choice([*names, "units"])
        value = rng.choice(rows)[column]
        condition = [column, rng.choice(("above", "below")) if column == "units" else "is", value]
        if all(column != other[0] for other in where):
            where.append(condition)
    if measure == "count":
        return {"measure": measure, "column": "order", "where": where, "by": None}
    if measure == "distinct":
        return {"measure": measure, "column": rng.choice(names), "where": where, "by": None}
    if measure == "top":
        return {"measure": "sum", "column": rng.choice(amounts), "where": where, "by": rng.choice(names)}
    return {"measure": measure, "column": rng.choice(amounts), "where": where, "by": None}


def _prompt(expected: Mapping[str, Any]) -> str:
    tables = "\n\n".join(
        f"{name}.csv\n" + "\n".join(",".join(map(str, row)) for row in (table["columns"], *table["rows"]))
        for name, table in expected["tables"].items()
    )
    questions = "\n".join(f"{place + 1}. {_words(each)}" for place, each in enumerate(expected["questions"]))
    return (
        f"{tables}\n\n{questions}\n\nAnswer from the data alone, with one number or name for each question in order, "
        'as JSON: {"answers": [...]}'
    )


def _words(question: Mapping[str, Any]) -> str:
    texts = {"is": "{0} {1}", "above": "more than {1} {0}", "below": "fewer than {1} {0}"}
    conditions = " and ".join(texts[how].format(column, value) for column, how, value in question["where"])
    where = f" among orders with {conditions}" if conditions else ""
    column = "revenue (units times price)" if question["column"] == "revenue" else question["column"]
    if question["by"]:
        return f"Which {question['by']} has the largest sum of {column}{where}?"
    return {
        "count": f"How many orders are there{where and where.replace(' among orders', '')}?",
        "distinct": f"How many different values of {column} occur{where}?",
        "sum": f"What is the sum of {column}{where}?",
        "max": f"What is the largest value of {column}{where}?",
        "min": f"What is the smallest value of {column}{where}?",
        "mean": f"What is the mean of {column}{where}, to two decimals?",
    }[question["measure"]]
