"""The calculator against Python's own arithmetic, and what it refuses."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_forge.agents.tools.calculator import calculate, calculator
from agent_forge.errors import ToolError

_leaf = st.integers(-1000, 1000).map(str) | st.floats(-1e3, 1e3, allow_nan=False).map(repr)
_expression = st.recursive(
    _leaf,
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner)
        | st.builds("-{}".format, inner)
        | st.builds("abs({})".format, inner)
    ),
    max_leaves=12,
)


@settings(max_examples=25, deadline=None)
@given(_expression)
def test_agrees_with_python(expression: str) -> None:
    try:
        expected = eval(expression, {"__builtins__": {}, "abs": abs})  # generated above: digits, operators, abs
    except ZeroDivisionError:
        with pytest.raises(ToolError, match="division by zero"):
            calculate(expression)
        return
    if math.isfinite(expected):
        assert calculate(expression) == expected
    else:
        with pytest.raises(ToolError, match="too large"):
            calculate(expression)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1 + 2 * 3", 7),
        ("2 ** 10", 1024),
        ("2 ** -1", 0.5),
        ("7 × 6 ÷ 2 − 1", 20.0),
        ("round(3.14159, 2)", 3.14),
        ("round(2.7)", 3),
        ("max(1, 2, 3) - min([4, 5])", -1),
        ("mean(1, 2, 6)", 3.0),
        ("median([5, 1, 9])", 5),
        ("sum([1, 2], ) + sum(3, 4)", 10),
        ("factorial(5)", 120),
        ("gcd(12, 18)", 6),
        ("sin(pi / 2)", 1.0),
        ("log(e)", 1.0),
        ("+5", 5),
        ("0x10", 16),
        ("1_000", 1000),
    ],
)
def test_values(expression: str, expected: float) -> None:
    assert calculate(expression) == pytest.approx(expected)
    assert asyncio.run(calculator.call({"expression": expression})) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("9**9**9**9", "too large"),
        ("10**400 * 10**400 * 10**400 * 10**400", "too large"),
        ("1e308 * 10", "too large"),
        ("exp(1000)", "too large"),
        ("2.0 ** 5000", "too large"),
        ("factorial(10000000)", "not supported"),
        ("factorial(2.5)", "not supported"),
        ("round(1.5, 10**6)", "not supported"),
        ("(-8) ** 0.5", "not real"),
        ("1 / 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("sqrt(-1)", "cannot be computed"),
        ("mean([])", "cannot be computed"),
        ("max()", "cannot be computed"),
        ("1 +", "not an arithmetic expression"),
        ("", "not an arithmetic expression"),
        ("1 2", "not an arithmetic expression"),
        ("1,200 * 3", "Write 1200"),
        ("2 ^ 3", "Write \\*\\*"),
        ("True + 1", "not a number"),
        ("None", "not a number"),
        ("'a' * 10", "not arithmetic"),
        ("sqr(2)", "did you mean 'sqrt'"),
        ("x + 1", "'x' is not a number"),
        ("__import__('os')", "no function"),
        ("(1).__class__", "not arithmetic"),
        ("[1, 2][0]", "not arithmetic"),
        ("(lambda: 1)()", "not arithmetic"),
        ("max(*[1, 2])", "not arithmetic"),
        ("round(number=1)", "not arithmetic"),
        ("1 if 1 else 2", "not arithmetic"),
        ("max([[1]])", "not arithmetic"),
        ("1j", "not arithmetic"),
        ("(" * 300 + "1" + ")" * 300, "not an arithmetic|nested"),
        ("-" * 200 + "1", "nested deeper|not an"),
        ("1" * 2000, "2000 characters"),
        ("9" * 990 + "*" + "9", ""),
    ],
)
def test_refusals(expression: str, words: str) -> None:
    if not words:
        assert calculate(expression) == int("9" * 990) * 9
        return
    with pytest.raises(ToolError, match=words):
        calculate(expression)


def test_shown_expressions_are_short() -> None:
    with pytest.raises(ToolError) as caught:
        calculate("1 / 0 + " + "1 + " * 200 + "1")
    assert len(str(caught.value)) < 200


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=60) | st.text("0123456789+-*/().,[] esqrtlogmax", max_size=60))
def test_any_text_is_a_number_or_a_typed_error(text: str) -> None:
    try:
        value = calculate(text)
    except ToolError:
        return
    assert isinstance(value, int | float)
    assert math.isfinite(value) if isinstance(value, float) else True
