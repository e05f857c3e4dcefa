"""A small language to pick values out of JSON: paths, filters and a few functions.

    query     = path { "|" function }
    path      = [ name ] { "." name | "[" selector "]" }          a leading dot may be left out; "." is the whole
    selector  = number | number? ":" number? | "*" | text | "?" condition
    condition = both { "or" both }        both = test { "and" test }
    test      = [ "not" ] ( "(" condition ")" | compared )
    compared  = side [ operator side ]    side = "." path | number | text | true | false | null
    operator  = == | != | < | <= | > | >= | contains | startswith | in
    function  = count | sum | min | max | mean | first | last | unique | sort | reverse | keys | values | limit(number)
              | sort(path) | group(path) | pick(name, name, ...)

After `[*]`, a slice or a filter, the rest of the path goes into every item; an item that has no such field gives null
there. Elsewhere a missing field is an error that names the nearest. No regular expressions and no recursion into the
data: the time a query takes is bounded by its length times the size of the data.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agent_forge.agents.tools.query_steps import (
    COMPARISONS,
    FUNCTIONS,
    Step,
    Test,
    every,
    field,
    filtered,
    get_field,
    grouped_by,
    inside,
    item_at,
    listed,
    sliced,
    sorted_by,
)
from agent_forge.agents.tools.tool import did_you_mean
from agent_forge.errors import ToolError

MOST_CHARACTERS = 1000
MOST_DEPTH = 20

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
      | (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<name>[^\W\d][\w-]*)
      | (?P<mark>==|!=|<=|>=|[<>.\[\]?*:|(),=])
    )""",
    re.VERBOSE,
)
_OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "contains", "startswith", "in")
_WORDS = {"true": True, "false": False, "null": None}
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Token:
    kind: str  # number, text, name, mark, end
    value: Any
    at: int


def tokens(query: str) -> list[Token]:
    """The words of a query. Raises ToolError where it has none that is known."""
    if len(query) > MOST_CHARACTERS:
        raise ToolError(f"the query has {len(query)} characters, {MOST_CHARACTERS} are allowed")
    found, at = [], 0
    text = query.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _fault(query, at, f"{text[at:].lstrip()[:10]!r} is not understood")
        kind = match.lastgroup or ""
        found.append(Token(kind, _literal(kind, match[kind]), match.start(kind)))
        at = match.end()
    return [*found, Token("end", "the end", len(query))]


def _literal(kind: str, text: str) -> Any:
    if kind == "number":
        return float(text) if re.search(r"[.eE]", text) else int(text)
    return _ESCAPED.sub(r"\1", text[1:-1]) if kind == "text" else text


def _fault(query: str, at: int, what: str) -> ToolError:
    return ToolError(f"{what} (at character {at + 1})", where=f"query {query!r}")


class Parser:
    """Turns a query into the list of steps that carry it out."""

    def __init__(self, query: str) -> None:
        self.query = query
        self.tokens = tokens(query)
        self.at = 0
        self.depth = 0

    @property
    def next(self) -> Token:
        return self.tokens[self.at]

    def take(self, *values: str) -> bool:
        if self.next.kind in ("mark", "name") and self.next.value in values:
            self.at += 1
            return True
        return False

    def expect(self, value: str) -> None:
        if not self.take(value):
            raise self.fault(f"{value!r} is expected")

    def fault(self, what: str) -> ToolError:
        return _fault(self.query, self.next.at, f"{what}, not {self.next.value!r}")

    def name(self) -> str:
        if self.next.kind not in ("name", "text"):
            raise self.fault("a name is expected")
        self.at += 1
        return str(self.tokens[self.at - 1].value)

    def number(self) -> int:
        if self.next.kind != "number" or not isinstance(self.next.value, int):
            raise self.fault("a whole number is expected")
        self.at += 1
        return int(self.tokens[self.at - 1].value)

    def whole(self) -> list[Step]:
        steps = self.path()
        while self.take("|"):
            steps.append(self.function())
        if self.next.kind != "end":
            raise self.fault("'.', '[' or '|' is expected")
        return steps

    def path(self) -> list[Step]:
        steps: list[Step] = []
        if self.next.kind == "name":
            steps.append(field(self.name()))
        while True:
            if self.take("."):
                if self.next.kind in ("name", "text"):
                    steps.append(field(self.name()))
                elif steps:
                    raise self.fault("a name is expected")
            elif self.take("["):
                steps.append(self.selector())
                self.expect("]")
            else:
                return steps

    def selector(self) -> Step:
        if self.take("*"):
            return every
        if self.take("?"):
            return filtered(self.condition())
        if self.next.kind == "text":
            return field(self.name())
        start = self.number() if self.next.kind == "number" else None
        if not self.take(":"):
            if start is None:
                raise self.fault("a number, a text, '*', ':' or '?' is expected")
            return item_at(start)
        stop = self.number() if self.next.kind == "number" else None
        return sliced(start, stop)

    def condition(self) -> Test:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise self.fault(f"conditions may be nested {MOST_DEPTH} deep")
        tests = [self.both()]
        while self.take("or"):
            tests.append(self.both())
        self.depth -= 1
        return tests[0] if len(tests) == 1 else lambda item: any(test(item) for test in tests)

    def both(self) -> Test:
        tests = [self.test()]
        while self.take("and"):
            tests.append(self.test())
        return tests[0] if len(tests) == 1 else lambda item: all(test(item) for test in tests)

    def test(self) -> Test:
        if self.take("not"):
            self.depth += 1
            if self.depth > MOST_DEPTH:
                raise self.fault(f"conditions may be nested {MOST_DEPTH} deep")
            inner = self.test()
            self.depth -= 1
            return lambda item: not inner(item)
        if self.take("("):
            inner = self.condition()
            self.expect(")")
            return inner
        return self.compared()

    def compared(self) -> Test:
        left = self.side()
        for operator in _OPERATORS:
            if self.take(operator):
                right, compare = self.side(), COMPARISONS[operator]
                return lambda item: compare(left(item), right(item))
        if self.next.value == "=":
            raise self.fault("write == to compare")
        return lambda item: bool(left(item))

    def side(self) -> Callable[[Any], Any]:
        token = self.next
        if token.kind in ("number", "text"):
            self.at += 1
            return lambda item: token.value
        if token.kind == "name" and token.value in _WORDS:
            self.at += 1
            return lambda item: _WORDS[token.value]
        if token.value != ".":
            raise self.fault("a .field, a number, a quoted text, true, false or null is expected")
        return inside(self.path())

    def function(self) -> Step:
        at = self.next
        name = self.name()
        if self.take("("):
            made = self.with_argument(name, at)
            self.expect(")")
            return made
        if name not in FUNCTIONS:
            raise _fault(self.query, at.at, f"there is no function {name!r}{did_you_mean(name, FUNCTIONS)}")
        return listed(name, FUNCTIONS[name])

    def with_argument(self, name: str, at: Token) -> Step:
        if name == "limit":
            most = self.number()
            return listed(name, lambda items: items[: max(0, most)])
        if name == "pick":
            names = [self.name()]
            while self.take(","):
                names.append(self.name())
            return listed(name, lambda items: [{each: get_field(item, each) for each in names} for item in items])
        if name in ("sort", "group"):
            key = inside(self.path())
            return listed(
                name, (lambda items: sorted_by(items, key)) if name == "sort" else (lambda i: grouped_by(i, key))
            )
        raise _fault(self.query, at.at, f"{name!r} takes no argument")


def query(data: Any, text: str) -> Any:
    """What the query picks out of the data.

    >>> orders = {"orders": [{"id": 1, "total": 30}, {"id": 2, "total": 120}, {"id": 3, "total": 250}]}
    >>> query(orders, ".orders[? .total > 100].id")
    [2, 3]
    >>> query(orders, ".orders[*].total | mean")
    133.33333333333334

    Raises ToolError.
    """
    value, many = data, False
    for step in Parser(text).whole():
        value, many = step(value, many)
    return value
