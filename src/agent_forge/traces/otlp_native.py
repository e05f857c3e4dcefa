"""OTLP requests straight to rows, in C (otlp_rows.c)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from agent_forge.traces.compiled import function, no_collection
from agent_forge.traces.conventions import AGENT_SPANS, ASKED, FIELD_RULES, KIND_OF, NAMES, session_around
from agent_forge.traces.packed import Packed
from agent_forge.traces.rows import Row
from agent_forge.traces.span import Span
from agent_forge.traces.values import from_json, to_json

Reader = Callable[[bytes], "list[Span] | None"]

# The fields that attributes tell, in the order in which the C file names them.
FIELDS = (
    "agent", "model", "provider", "session", "category", "policy", "template", "input_tokens", "output_tokens", "cost",
    "reward",
)  # fmt: skip


@cache
def protobuf_reader() -> Reader | None:
    """Reads the spans of a request in protobuf, and gives None for one that Python has to read; None without C."""
    return _reader("from_protobuf")


@cache
def json_reader() -> Reader | None:
    """The same for a request in JSON."""
    return _reader("from_json")


def _reader(name: str) -> Reader | None:
    read = function("otlp_rows.c", name, 2)
    if read is None:
        return None

    def spans_of(data: bytes) -> list[Span] | None:
        with no_collection():
            found: list[Span] | None = read(data, _tables())
        return found

    return spans_of


@cache
def numberer() -> Callable[[list[Span], dict[Any, int], dict[str, int]], list[Row] | None] | None:
    """The rows of packed spans with the numbers of their groups and sources; None without C, and None for spans of
    which one is not packed or has a group or source without a number."""
    number = function("otlp_rows.c", "numbered", 2)
    if number is None:
        return None

    def rows_of(spans: list[Span], groups: dict[Any, int], sources: dict[str, int]) -> list[Row] | None:
        with no_collection():
            found: list[Row] | None = number(spans, (groups, sources, _tables()))
        return found

    return rows_of


@cache
def _tables() -> tuple[Any, ...]:
    """What the conventions say, as the C file reads it, and what it leaves to Python."""
    from agent_forge.traces.otlp import STATUSES

    rules = {name: (rank, FIELDS.index(field)) for name, (rank, field, _, _) in FIELD_RULES.items()}
    kinds = tuple((name, kinds, _around(AGENT_SPANS.get(name))) for name, kinds in KIND_OF.items())
    python = (_span_of_protobuf, _span_of_json, _source_of, _session_of)
    return Packed, rules, kinds, STATUSES, "other", *python, tuple(name.encode() for name in ASKED)


def _around(pairs: tuple[tuple[str, str], ...] | None) -> tuple[tuple[bytes, bytes], ...] | None:
    return None if pairs is None else tuple((before.encode(), after.encode()) for before, after in pairs)


def _span_of_protobuf(data: bytes, source: str) -> Span:
    from agent_forge.traces.otlp_protobuf import read_span_message

    return read_span_message(data, **_source(source))


def _span_of_json(data: bytes, source: str) -> Span:
    from agent_forge.traces.files import parse
    from agent_forge.traces.otlp import read_span

    return read_span(parse(data), **_source(source))


def _source_of(group: dict[str, bytes], part: dict[str, bytes]) -> str | None:
    """The text of the source that the members of a "resourceSpans" and of a "scopeSpans" tell; None: for Python."""
    from agent_forge.traces.files import parse
    from agent_forge.traces.otlp import read_source

    if group.keys() - {"resource", "schemaUrl"} or part.keys() - {"scope", "schemaUrl"}:
        return None
    outer, inner = ({name: parse(data) for name, data in found.items()} for found in (group, part))
    return to_json(read_source(outer, inner))


def _session_of(source: str) -> str | None:
    """The session that a source's text tells."""
    for name in NAMES["session"]:
        if name in source:  # most tell none, and need not be parsed to know
            return session_around(**_source(source))
    return None


@lru_cache(maxsize=64)
def _source(text: str) -> dict[str, Any]:
    found: dict[str, Any] = from_json(text)
    return found
