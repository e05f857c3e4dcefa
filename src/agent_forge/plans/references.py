"""References to other tasks' results: `{s1}` and `{s1.path[0].field}`.

    reference := "{" head step* "}"          one pair of braces, blanks allowed just inside
    head      := word | "quoted word"        the id of a task, `item` inside `for_each`, `last` inside `until`
    step      := .name | [number] | ["key"]

A reference is looked up in real results, it is not text replacement: "$15", "{}", "{not a ref}" and '{"json": 1}' are
ordinary text. More than one pair of braces is text too, and loses one pair: "{{s1}}" stands for the text "{s1}".
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_forge.errors import PlanError

_STRING = r'"(?:[^"\\{}]|\\.)*"'
_STEPS = rf"(?:\.[^\W\d][\w-]*|\[-?\d{{1,9}}\]|\[{_STRING}\])*"
_EXPRESSION = re.compile(rf"(?<!\{{)(\{{+)[ \t]{{0,3}}(\w[\w-]*|{_STRING})({_STEPS})[ \t]{{0,3}}(\}}+)")
_STEP = re.compile(rf"\.([^\W\d][\w-]*)|\[(-?\d+)\]|\[({_STRING})\]")
_PLAIN_HEAD = re.compile(r"\w[\w-]*")
_PLAIN_NAME = re.compile(r"[^\W\d][\w-]*")
ITEM = "item"
LAST = "last"  # inside a task with `until`: the result of the round before


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a value comes from: the task `head`, and the steps into its result.

    >>> Reference("s1", ("rows", 0, "name"))
    Reference(head='s1', path=('rows', 0, 'name'))
    >>> str(Reference("s1", ("rows", 0, "full name")))
    '{s1.rows[0]["full name"]}'
    """

    head: str
    path: tuple[str | int, ...] = ()
    source: str = field(default="", compare=False, repr=False)  # as it was written

    def __str__(self) -> str:
        head = self.head if _PLAIN_HEAD.fullmatch(self.head) else _quoted(self.head)
        return "{" + head + "".join(map(_step_text, self.path)) + "}"


class ReferenceUnresolved(PlanError):
    """A reference that the results do not answer. `reason` is one of `no_result`, `missing_field`,
    `index_out_of_range`, `not_a_container`."""

    def __init__(self, reference: Reference, reason: str, what: str) -> None:
        super().__init__(f"{reference}: {what}")
        self.reference = reference
        self.reason = reason

    def __reduce__(self) -> tuple[type[ReferenceUnresolved], tuple[Reference, str, str]]:
        return type(self), (self.reference, self.reason, self.what.removeprefix(f"{self.reference}: "))


def split_text(text: str) -> list[str | Reference]:
    """Text cut into its literal parts and its references; escapes are undone.

    >>> split_text("population of {s1.name}, not {{s1}}")
    ['population of ', Reference(head='s1', path=('name',)), ', not {s1}']
    """
    if "{" not in text:
        return [text] if text else []
    pieces: list[str | Reference] = []
    literal = end = 0
    pending = ""
    for match in _EXPRESSION.finditer(text):
        opening, head, path, closing = match.groups()
        pairs = min(len(opening), len(closing))
        start, end = match.start() + len(opening) - pairs, match.end() - len(closing) + pairs
        pending += text[literal:start]
        literal = end
        if pairs > 1:
            pending += text[start + 1 : end - 1]
            continue
        if pending:
            pieces.append(pending)
            pending = ""
        pieces.append(_reference(head, path, text[start:end]))
    pending += text[literal:]
    if pending:
        pieces.append(pending)
    return pieces


def rename_heads(text: str, names: Mapping[str, str]) -> str:
    """The text with other ids in its references; escapes stay as they are.

    >>> rename_heads("{a.x} and {{a}}", {"a": "b[0].a"})
    '{"b[0].a".x} and {{a}}'
    """

    def other(match: re.Match[str]) -> str:
        opening, head, path, closing = match.groups()
        reference = _reference(head, path, "")
        if min(len(opening), len(closing)) > 1 or reference.head not in names:
            return match.group()
        return opening[1:] + str(Reference(names[reference.head], reference.path)) + closing[1:]

    return _EXPRESSION.sub(other, text) if "{" in text else text


def find_references(value: Any) -> list[Reference]:
    """Every expression in a JSON value with the shape of a reference, in order; a plan decides which heads it knows.

    >>> find_references({"query": "height of {s1}", "rows": ["{s2.rows[0]}", 3]})
    [Reference(head='s1', path=()), Reference(head='s2', path=('rows', 0))]
    >>> find_references('{"json": 1}, {not a ref}, {}, $15, {{s1}}')
    []
    """
    return [
        piece
        for _, text in strings_in(value)
        if "{" in text
        for piece in split_text(text)
        if isinstance(piece, Reference)
    ]


def whole_reference(text: str) -> Reference | None:
    """The reference that the text is, when it is exactly one; None otherwise.

    >>> whole_reference("{s1.rows}")
    Reference(head='s1', path=('rows',))
    """
    if not text.startswith("{"):
        return None
    pieces = split_text(text)
    return pieces[0] if len(pieces) == 1 and isinstance(pieces[0], Reference) else None


def resolve(value: Any, results: Mapping[str, Any], *, ids: Container[str] | None = None) -> Any:
    """The value with its references replaced by what they refer to.

    A string that is exactly one reference becomes the result itself, with its type. Inside other text a result that is
    a string goes in as it is, anything else as JSON. `ids` are the heads that count as references (a plan's ids); any
    other head is text. Without it, every head that reads like a name counts. A head that counts and has no result
    raises `ReferenceUnresolved`.

    >>> resolve("{s1.rows[1]}", {"s1": {"rows": [7, 8]}})
    8
    >>> resolve({"q": "{s1} costs $15"}, {"s1": ["a", 1]})
    {'q': '["a", 1] costs $15'}
    >>> resolve("GET /film/{film_id}/cast of {s1}", {"s1": "Alien"}, ids={"s1"})
    'GET /film/{film_id}/cast of Alien'
    """
    if isinstance(value, str):
        return _resolve_text(value, results, ids) if "{" in value else value
    if isinstance(value, Mapping):
        return {key: resolve(entry, results, ids=ids) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [resolve(entry, results, ids=ids) for entry in value]
    return value


def literal(value: Any) -> Any:
    """A JSON value written so that `resolve` gives it back unchanged, whatever it looks like: data, never a reference.

    >>> literal({"q": "the {s1} of {{s2}}"})
    {'q': 'the {{s1}} of {{{s2}}}'}
    >>> resolve(literal({"q": "the {s1} of {{s2}}"}), {"s1": 1, "s2": 2})
    {'q': 'the {s1} of {{s2}}'}
    """
    if isinstance(value, str):
        return _EXPRESSION.sub(lambda match: f"{{{match[0]}}}", value) if "{" in value else value
    if isinstance(value, Mapping):
        return {key: literal(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [literal(entry) for entry in value]
    return value


def look_up(reference: Reference, results: Mapping[str, Any]) -> Any:
    """The value a reference stands for. Only mappings and sequences are entered, never attributes of objects.

    >>> look_up(Reference("s1", ("rows", -1)), {"s1": {"rows": [7, 8]}})
    8
    """
    if reference.head not in results:
        raise ReferenceUnresolved(reference, "no_result", f"there is no result of {reference.head!r}")
    value = results[reference.head]
    for step in reference.path:
        value = _enter(value, step, reference)
    return value


def strings_in(value: Any) -> Iterator[tuple[str, str]]:
    """Each string inside a JSON value with the path to it (`rows[0].name`), in order, without recursion."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        path, entry = waiting.pop()
        if isinstance(entry, str):
            yield path, entry
        elif isinstance(entry, Mapping):
            waiting.extend((f"{path}.{key}" if path else str(key), entry[key]) for key in reversed(list(entry)))
        elif isinstance(entry, (list, tuple)):
            waiting.extend((f"{path}[{index}]", entry[index]) for index in reversed(range(len(entry))))


def _reference(head: str, path: str, source: str) -> Reference:
    steps: list[str | int] = []
    for name, index, key in _STEP.findall(path):
        steps.append(name or (int(index) if index else _unquote(key)))
    return Reference(_unquote(head) if head.startswith('"') else head, tuple(steps), source)


def _unquote(text: str) -> str:
    try:
        return str(json.loads(text, strict=False))
    except ValueError:  # an escape JSON does not know: the words as they stand
        return text[1:-1]


def _step_text(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _PLAIN_NAME.fullmatch(step) else f"[{_quoted(step)}]"


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False).replace("{", "\\u007b").replace("}", "\\u007d")


def _resolve_text(text: str, results: Mapping[str, Any], ids: Container[str] | None) -> Any:
    parts: list[str] = []
    pieces = split_text(text)
    for piece in pieces:
        if isinstance(piece, str):
            parts.append(piece)
        elif piece.head not in results and not (reads_as_name(piece) if ids is None else piece.head in ids):
            parts.append(piece.source)
        else:
            value = look_up(piece, results)
            if len(pieces) == 1:
                return value
            parts.append(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
    return "".join(parts)


def braced(text: str) -> str:
    """A reference written without its braces, with them; any other text as it is.

    >>> braced("s1.rows"), braced("{s1.rows}"), braced("two words")
    ('{s1.rows}', '{s1.rows}', 'two words')
    """
    inside = f"{{{text}}}"
    return inside if whole_reference(text) is None and whole_reference(inside) is not None else text


def reads_as_name(reference: Reference) -> bool:
    """Whether the head is an unquoted name: `{3}` is a quantifier in a regular expression, `{"x"}` a set in Python."""
    return _PLAIN_NAME.fullmatch(reference.head) is not None and '"' not in reference.source[:3]


def _enter(value: Any, step: str | int, reference: Reference) -> Any:
    if isinstance(step, str) and isinstance(value, Mapping):
        if step not in value:
            fields = ", ".join(map(repr, list(value)[:8])) or "none"
            raise ReferenceUnresolved(reference, "missing_field", f"there is no field {step!r} (fields: {fields})")
        return value[step]
    if isinstance(step, int) and isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        if not -len(value) <= step < len(value):
            raise ReferenceUnresolved(
                reference, "index_out_of_range", f"there is no [{step}] in a list of {len(value)}"
            )
        return value[step]
    container = "list" if isinstance(step, int) else "object"
    what = (
        f"{_step_text(step)} needs an {container}"
        if container == "object"
        else f"{_step_text(step)} needs a {container}"
    )
    raise ReferenceUnresolved(
        reference, "not_a_container", f"{what}, the value there is of type {type(value).__name__}"
    )
