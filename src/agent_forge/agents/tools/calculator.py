"""Arithmetic without eval: the expression is parsed, and only what the tables below list is evaluated."""

from __future__ import annotations

import ast
import math
import operator
import statistics
from collections.abc import Callable
from typing import Any

from agent_forge.agents.tools.tool import did_you_mean, tool
from agent_forge.errors import ToolError

Number = int | float

MOST_CHARACTERS = 1000
MOST_DEPTH = 60
MOST_BITS = 4096  # the largest whole number: about 1,200 decimal digits
_SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})

_CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e, "tau": math.tau}
_UNARY: dict[type, Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def _factorial(n: Number) -> int:
    if n != int(n) or not 0 <= n <= 400:
        raise ToolError(f"factorial({n:g}) is not supported: the argument must be an integer from 0 to 400")
    return math.factorial(int(n))


def _rounded(value: Number, digits: Number = 0) -> Number:
    if abs(digits) > 300:
        raise ToolError(f"round(…, {digits:g}) is not supported: at most 300 digits")
    return round(value, int(digits)) if digits else round(value)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "acos": math.acos,
    "asin": math.asin,
    "atan": math.atan,
    "atan2": math.atan2,
    "ceil": math.ceil,
    "cos": math.cos,
    "degrees": math.degrees,
    "exp": math.exp,
    "factorial": _factorial,
    "floor": math.floor,
    "gcd": math.gcd,
    "hypot": math.hypot,
    "log": math.log,
    "log10": math.log10,
    "log2": math.log2,
    "max": max,
    "mean": lambda *numbers: statistics.fmean(_flat(numbers)),
    "median": lambda *numbers: statistics.median(_flat(numbers)),
    "min": min,
    "radians": math.radians,
    "round": _rounded,
    "sin": math.sin,
    "sqrt": math.sqrt,
    "sum": lambda *numbers: sum(_flat(numbers)),
    "tan": math.tan,
}


def _flat(numbers: tuple[Any, ...]) -> list[Number]:
    return list(numbers[0]) if len(numbers) == 1 and isinstance(numbers[0], list) else list(numbers)


def calculate(expression: str) -> Number:
    """The value of an arithmetic expression.

    >>> calculate("2 * (3 + 4) ** 2"), calculate("sqrt(2) * sqrt(2)") > 2, calculate("sum([1, 2, 3]) / 3")
    (98, True, 2.0)

    Supported are numbers, + - * / // % **, parentheses, lists as arguments, the constants pi, e and tau, and the
    functions in `_FUNCTIONS`. Raises ToolError for anything else, and for numbers that are too large.
    """
    try:
        return _number(_parsed(expression), 0)
    except ToolError:
        raise
    except ZeroDivisionError as error:
        raise ToolError("division by zero", where=_shown(expression)) from error
    except OverflowError as error:
        raise ToolError("the result is too large", where=_shown(expression)) from error
    except (TypeError, ValueError, statistics.StatisticsError) as error:
        raise ToolError(f"it cannot be computed: {error}", where=_shown(expression)) from error


def _shown(expression: str) -> str:
    return expression if len(expression) <= 60 else f"{expression[:60]}…"


def _parsed(expression: str) -> ast.expr:
    if len(expression) > MOST_CHARACTERS:
        raise ToolError(f"the expression has {len(expression)} characters, the limit is {MOST_CHARACTERS}")
    try:
        return ast.parse(expression.strip().translate(_SPELLINGS), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "msg", None) or "it is nested too deeply"
        raise ToolError(f"not an arithmetic expression: {reason}", where=_shown(expression)) from error


def _value(node: ast.expr, depth: int) -> Any:
    if depth > MOST_DEPTH:
        raise ToolError(f"the expression is nested deeper than {MOST_DEPTH}")
    match node:
        case ast.Constant(value=bool() | None):
            raise ToolError(f"{node.value!r} is not a number")
        case ast.Constant(value=int() | float()):
            return _bounded(node.value)
        case ast.Name(id=name):
            return _constant(name)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_number(operand, depth + 1))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_number(left, depth + 1), _number(right, depth + 1))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _bounded(_BINARY[type(op)](_number(left, depth + 1), _number(right, depth + 1)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return _call(name, arguments, depth + 1)
    raise ToolError(f"`{_shown(ast.unparse(node))}` is not arithmetic", fix=_fix(node))


def _number(node: ast.expr, depth: int) -> Number:
    value: Number = _value(node, depth)
    return value


def _argument(node: ast.expr, depth: int) -> Any:
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item, depth + 1) for item in node.elts]
    return _value(node, depth)


def _call(name: str, arguments: list[ast.expr], depth: int) -> Number:
    if name not in _FUNCTIONS:
        raise ToolError(f"there is no function {name!r}{did_you_mean(name, _FUNCTIONS)}")
    return _bounded(_FUNCTIONS[name](*(_argument(argument, depth) for argument in arguments)))


def _constant(name: str) -> Number:
    if name not in _CONSTANTS:
        raise ToolError(f"{name!r} is not a number{did_you_mean(name, [*_CONSTANTS, *_FUNCTIONS])}")
    return _CONSTANTS[name]


def _power(base: Number, exponent: Number) -> Number:
    # Checked before computing: 9**9**9 would exhaust the memory.
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > MOST_BITS:
        raise ToolError("the result of the power is too large")
    result: Any = base**exponent
    if isinstance(result, complex):
        raise ToolError("the root of a negative number is not real")
    return _bounded(result)


def _bounded(value: Any) -> Number:
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= MOST_BITS:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ToolError("the number is too large" if isinstance(value, int | float) else f"{value!r} is not a number")


def _fix(node: ast.expr) -> str | None:
    if isinstance(node, ast.Tuple):
        return "Write 1200, not 1,200"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitXor):
        return "Write ** for a power"
    return None


@tool(threaded=False)  # the limits above make it quick enough for the event loop
def calculator(expression: str) -> int | float:
    """Evaluates an arithmetic expression: + - * / // % **, parentheses, sqrt, log, sin, min, max, mean, round.

    Args:
        expression: for example "(1937 - 1926) * 12"
    """
    return calculate(expression)
