"""Arithmetic: the value of an expression, or the answer to a word problem."""

from __future__ import annotations

import ast
import operator
import random
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from agent_forge.errors import DataError
from agent_forge.tasks.answers import number
from agent_forge.tasks.family import Draft, Verdict, task_family

_NAMES = ("Anna", "Ben", "Chloe", "David", "Elif", "Farid", "Grace", "Hugo")
_THINGS = ("apples", "stamps", "marbles", "books", "shells", "coins", "cards", "pencils")
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": ["number", "string"]}},
    "required": ["answer"],
    "additionalProperties": False,
}


def check(answer: Mapping[str, Any], expected: Mapping[str, Any]) -> Verdict:
    """The value of the expression, exactly, however it is written."""
    right = evaluate(expected["expression"])
    given = number(answer["answer"])
    return Verdict.of(given is not None and Fraction(given) == right, f"{answer['answer']!r} instead of {right}")


def evaluate(expression: str) -> Fraction:
    """The exact value of an expression of whole numbers, + - * / and brackets. Raises DataError.

    >>> evaluate("(3 + 4) * 2 / 4")
    Fraction(7, 2)
    """

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return Fraction(node.value)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return Fraction(_OPERATORS[type(node.op)](value(node.left), value(node.right)))
        raise DataError(f"{expression!r} is not arithmetic")

    try:
        return value(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ZeroDivisionError) as error:
        raise DataError(f"{expression!r} has no value: {error}") from None


def solve(expected: Mapping[str, Any]) -> dict[str, Any]:
    """The value."""
    right = evaluate(expected["expression"])
    return {"answer": right.numerator if right.denominator == 1 else float(right)}


@task_family("arithmetic", check=check, solve=solve, schema=SCHEMA, version=2)
def arithmetic(rng: random.Random, level: float) -> Draft:
    """One sum of small numbers at first; up to five operations, larger numbers and more sentences as levels rise."""
    text, expression = (_word_problem if rng.random() < 0.5 else _expression)(rng, level)
    # no number in the form: small models copy it
    return Draft(f'{text}\nAnswer with the number as JSON: {{"answer": ...}}', {"expression": expression})


def _expression(rng: random.Random, level: float) -> tuple[str, str]:
    most = 10 + round(190 * level)
    text = str(rng.randrange(1, most))
    for _ in range(1 + round(4 * level)):
        sign = rng.choice("+-" if level < 0.2 else "+-*" if level < 0.5 else "+-*/")
        value = evaluate(text)
        operand = rng.randrange(2, 10) if sign in "*/" else rng.randrange(1, most)
        if sign == "/":  # only where it comes out even
            operand = next((n for n in (9, 8, 7, 6, 5, 4, 3, 2) if value % n == 0), 1)
            sign = "/" if operand > 1 else "+"
        compound = " " in text
        if sign in "+-" and compound and rng.random() < 0.3:
            text = f"{operand} {sign} ({text})"
        else:
            text = f"({text}) {sign} {operand}" if sign in "*/" and compound else f"{text} {sign} {operand}"
    return f"What is {text}?", text


def _word_problem(rng: random.Random, level: float) -> tuple[str, str]:
    name, things = rng.choice(_NAMES), rng.choice(_THINGS)
    most = 10 + round(90 * level)
    total = rng.randrange(3, most)
    sentences, expression = [f"{name} has {total} {things}."], str(total)
    for _ in range(1 + round(3 * level)):
        kind = rng.choice(("get", "give") if level < 0.2 else ("get", "give", "boxes", "half", "double"))
        if kind == "half" and total % 2:
            kind = "double"
        amount, boxes = rng.randrange(1, most), rng.randrange(2, 6 + round(8 * level))
        if kind == "give":
            amount = rng.randrange(1, total) if total > 1 else 1
        sentence, part = {
            "get": (f"{name} gets {amount} more.", f"{expression} + {amount}"),
            "give": (f"{name} gives {amount} away.", f"{expression} - {amount}"),
            "boxes": (
                f"{name} buys {boxes} boxes with {amount} {things} each.",
                f"{expression} + {boxes} * {amount}",
            ),
            "half": (f"{name} loses half of them.", f"({expression}) / 2"),
            "double": (f"A friend then gives {name} as many again as {name} has.", f"({expression}) * 2"),
        }[kind]
        sentences.append(sentence)
        expression = part
        total = int(evaluate(expression))
    return f"{' '.join(sentences)} How many {things} does {name} have now?", expression
