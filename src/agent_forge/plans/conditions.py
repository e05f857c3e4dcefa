"""Conditions over results, for `when` and `until`: `{check.score} >= 0.8 and len({rows}) > 2`.

    condition  := comparisons joined by and, or, not; a value alone is true unless it is empty, 0, false or null
    comparison := value (== | != | < | <= | > | >= | in | not in) value, chained as in Python
    value      := {reference} | number | "text" | true | false | null | [value, …] | len(value)

The text is parsed with `ast` and evaluated by hand; nothing else of Python is reachable from it.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from agent_forge.errors import PlanError
from agent_forge.plans.references import Reference, look_up, split_text

LONGEST = 2000  # characters of one condition
_STAND_IN = "reference_{}_"
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, container: value in container,
    ast.NotIn: lambda value, container: value not in container,
}


class ConditionError(PlanError):
    """A condition that cannot be read, or cannot be evaluated on the results it was given."""


class Condition:
    """A condition, read once. Raises ConditionError for a text that is not one.

    >>> Condition("{s1.score} >= 0.8 and 'draft' not in {s1.tags}").holds({"s1": {"score": 0.9, "tags": []}})
    True
    >>> Condition("{s1}.__class__")
    Traceback (most recent call last):
    ...
    agent_forge.plans.conditions.ConditionError: '{s1}.__class__' is not a condition: Attribute is not allowed in it
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.references: list[Reference] = []
        self._tree = self._read(text)

    def holds(self, results: Mapping[str, Any]) -> bool:
        """Whether it is true of these results. Raises ReferenceUnresolved and ConditionError."""
        try:
            return bool(self._value(self._tree, results))
        except (TypeError, RecursionError) as error:
            raise ConditionError(f"the condition {self.text!r} cannot be evaluated: {error}") from error

    def _read(self, text: str) -> ast.expr:
        if len(text) > LONGEST:
            raise ConditionError(f"a condition has {len(text)} characters, the limit is {LONGEST}")
        parts = []
        for piece in split_text(text):
            if isinstance(piece, Reference):
                parts.append(_STAND_IN.format(len(self.references)))
                self.references.append(piece)
            else:
                parts.append(piece)
        try:
            tree = ast.parse("".join(parts).replace("\n", " ").replace("\r", " ").strip(), mode="eval").body
            self._check(tree)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            what = error.msg if isinstance(error, SyntaxError) else str(error)
            raise ConditionError(f"{text!r:.80} is not a condition: {what}") from None
        return tree

    def _check(self, node: ast.AST) -> None:
        """Raises ValueError for whatever a condition may not hold."""
        match node:
            case ast.BoolOp(values=parts) | ast.List(elts=parts) | ast.Tuple(elts=parts):
                pass
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
                parts = [operand]
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARISONS for op in ops):
                parts = [left, *others]
            case ast.Call(func=ast.Name(id="len"), args=[_], keywords=[]):
                parts = node.args
            case ast.Name(id=name) if name in _WORDS or self._number(name) is not None:
                return
            case ast.Name(id=name):
                raise ValueError(f"{name} is neither a value nor a reference (put text in quotes)")
            case ast.Constant(value=str(value)):
                if any(_STAND_IN.format(number) in value for number in range(len(self.references))):
                    raise ValueError("a reference stands inside quotes (double its braces for the text)")
                return
            case ast.Constant(value=bool() | int() | float() | None):
                return
            case _:
                raise ValueError(f"{type(node).__name__} is not allowed in it")
        for part in parts:
            self._check(part)

    def _number(self, name: str) -> int | None:
        """Which reference a name of the parsed text stands for."""
        return next((n for n in range(len(self.references)) if _STAND_IN.format(n) == name), None)

    def _value(self, node: ast.AST, results: Mapping[str, Any]) -> Any:
        match node:
            case ast.BoolOp(op=op, values=values):
                value = None
                for each in values:
                    value = self._value(each, results)
                    if bool(value) is isinstance(op, ast.Or):
                        break
                return value
            case ast.UnaryOp(op=op, operand=operand):
                value = self._value(operand, results)
                return not value if isinstance(op, ast.Not) else -value
            case ast.Compare(left=left, ops=ops, comparators=others):
                value = self._value(left, results)
                for operation, each in zip(ops, others, strict=True):
                    other = self._value(each, results)
                    if not _COMPARISONS[type(operation)](value, other):
                        return False
                    value = other
                return True
            case ast.Call(args=[inner]):
                return len(self._value(inner, results))
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return [self._value(each, results) for each in elements]
            case ast.Name(id=name):
                number = self._number(name)
                return _WORDS[name] if number is None else look_up(self.references[number], results)
            case ast.Constant(value=constant):
                return constant
        raise AssertionError(node)  # `_check` has let it through


@lru_cache(maxsize=1024)
def condition(text: str) -> Condition:
    """The condition of a text. Raises ConditionError.

    >>> condition("1 < len({rows}) <= 3 or {force}").holds({"rows": [1, 2], "force": False})
    True
    """
    return Condition(text)
