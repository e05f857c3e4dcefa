"""Every regular expression of the package, and texts made to slow each of them down.

An attack is a beginning, a piece that is repeated, and an end. The pieces come from the pattern's own parse tree: what
each of its repeats may repeat, what stands before it and what follows, so that the matcher has many ways to fail.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import re._constants as sre
import re._parser as parser
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import agent_forge

CALLS = {"compile", "match", "search", "fullmatch", "findall", "finditer", "sub", "subn", "split"}
_CALL = re.compile(rf"\b([A-Za-z_]\w*)\.({'|'.join(sorted(CALLS))})\b")
ENDS = ("\x01", "\n\x01", "?")
# Needs a GPU's compiler to import.
SKIPPED = {"agent_forge.inference.packed.triton_kernels"}
_SAMPLE = "\n \tab1A_-.,;:'\"(){}[]<>/\\|#*=@+$&%~“”’é中0or"
_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}
_REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT) if hasattr(sre, "POSSESSIVE_REPEAT") else ()
_REPEATS = _REPEATS or (sre.MAX_REPEAT, sre.MIN_REPEAT)
_ONE = (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN)


@dataclass(frozen=True)
class Attack:
    start: str
    piece: str
    end: str

    def text(self, length: int) -> str:
        return self.start + self.piece * (length // len(self.piece) + 1) + self.end


@dataclass(frozen=True)
class Use:
    """A pattern of a module, and how it is applied: `match`, `fullmatch`, or anywhere in a text."""

    module: str
    pattern: re.Pattern[Any]
    methods: frozenset[str]


def uses() -> list[Use]:
    """Every pattern of the package: the globals of its modules, and those inside functions."""
    sources = {module: Path(module.__file__).read_text("utf-8") for module in _modules()}
    applied: dict[str, set[str]] = {}
    for text in sources.values():
        for name, call in _CALL.findall(text):
            applied.setdefault(name, set()).add(_method(call))
    with_patterns = {
        module: text for module, text in sources.items() if re.search(r"\bre\.", text) or any(_inside(vars(module)))
    }
    return [use for module, text in with_patterns.items() for use in _uses_in(module, ast.parse(text), applied)]


def attacks(pattern: re.Pattern[Any]) -> list[Attack]:
    """Texts that may take this pattern more than linear time."""
    tree = parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE)
    pairs: dict[tuple[str, str], None] = {}
    for before, pieces in _repeats(list(tree), ""):
        for piece in pieces:
            pairs[before, piece] = pairs["", piece] = None
    for choice in range(6):
        whole = _example(tree, choice)
        for piece in (whole, whole[:-1], whole[: len(whole) // 2]):
            pairs["", piece] = None
    return [Attack(start, piece, end) for start, piece in sorted(pairs) if piece for end in ENDS]


def _modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(agent_forge.__path__, "agent_forge."):
        if found.name not in SKIPPED and not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def _method(name: str) -> str:
    return name if name in ("match", "fullmatch") else "findall"


def _uses_in(module: Any, tree: ast.Module, applied: dict[str, set[str]]) -> Iterator[Use]:
    own = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for name in own & vars(module).keys():
        for pattern in _inside(vars(module)[name]):
            # A pattern in a table is applied by another name: in every way, then.
            methods = applied.get(name) or {"match", "findall"}
            yield Use(module.__name__, pattern, frozenset(methods))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {f"re.{name}" for name in CALLS - {"compile"}}:
            pattern = _inline(node, module)
            if pattern is not None:
                yield Use(module.__name__, pattern, frozenset({_method(node.func.attr)}))  # type: ignore[attr-defined]


def _inside(value: Any, depth: int = 3) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif depth and isinstance(value, (list, tuple, set, frozenset, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _inside(each, depth - 1)
    elif depth and is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _inside(getattr(value, field.name, None), depth - 1)


def _inline(node: ast.Call, module: Any) -> re.Pattern[Any] | None:
    """None for a pattern that is put together from local variables: its parts are globals, and tested as such."""
    try:
        return re.compile(eval(ast.unparse(node.args[0]), vars(module)), re.IGNORECASE)
    except NameError:
        return None


def _repeats(items: Any, before: str) -> Iterator[tuple[str, set[str]]]:
    """For every unbounded repeat: an example of what stands before it, and pieces to repeat in its place."""
    items = list(items)
    for at, (kind, value) in enumerate(items):
        if kind in _REPEATS:
            _, most, body = value
            if most is sre.MAXREPEAT or most >= 64:
                pieces = {_example(body, choice) for choice in range(8)}
                if len(body) == 1 and body[0][0] in _ONE:
                    pieces.update(_characters(*body[0]))
                after = _example(items[at + 1 :], 0)
                yield before, pieces | {after, after[:1], before[-1:], before}
            yield from _repeats(body, before)
        elif kind is sre.SUBPATTERN:
            yield from _repeats(value[3], before)
        elif kind is sre.BRANCH:
            for branch in value[1]:
                yield from _repeats(branch, before)
        elif kind in (sre.ASSERT, sre.ASSERT_NOT):
            yield from _repeats(value[1], before)
        before += _example([(kind, value)], 0)


def _example(items: Any, choice: int) -> str:
    """A short text that the items match, more or less; `choice` varies the characters and the branches."""
    text = ""
    for kind, value in items:
        if kind in _ONE:
            characters = _characters(kind, value)
            text += characters[choice % len(characters)] if characters else ""
        elif kind is sre.SUBPATTERN:
            text += _example(value[3], choice)
        elif kind is sre.BRANCH:
            text += _example(value[1][choice % len(value[1])], choice)
        elif kind in _REPEATS:
            text += _example(value[2], choice) * (value[0] or (choice + 1) % 2)
    return text


def _characters(kind: Any, value: Any) -> list[str]:
    if kind is sre.LITERAL:
        return [chr(value)]
    if kind is sre.NOT_LITERAL:
        return [char for char in _SAMPLE if ord(char) != value][:6]
    if kind is sre.ANY:
        return list("a .,")
    negated = bool(value) and value[0][0] is sre.NEGATE
    own = [chr(x if which is sre.LITERAL else x[0]) for which, x in value if which in (sre.LITERAL, sre.RANGE)]
    return [char for char in dict.fromkeys([*_SAMPLE, *own]) if _contains(value, char) != negated][:12]


def _contains(parts: Any, char: str) -> bool:
    return any(
        (which is sre.LITERAL and ord(char) == x)
        or (which is sre.RANGE and x[0] <= ord(char) <= x[1])
        or (which is sre.CATEGORY and re.match(_CATEGORIES[x], char) is not None)
        for which, x in parts
    )
