"""The C readers of OTLP requests (otlp_decode.c)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from agent_forge.traces.compiled import SLOTS, function, no_collection
from agent_forge.traces.conventions import FIELD_RULES, KIND_OF, read_value
from agent_forge.traces.otlp import STATUSES, read_any, read_span
from agent_forge.traces.span import Span


@cache
def decoder() -> Callable[[bytes], list[Span] | None] | None:
    """Reads the spans of a request that is of the ordinary kind, and gives None for any other; None without C."""
    decode = function("otlp_decode.c", "decode", 2)
    if decode is None:
        return None
    tables = _tables()

    def spans_of(data: bytes) -> list[Span] | None:
        with no_collection():
            found: list[Span] | None = decode(data, tables)
        return found

    return spans_of


@cache
def json_reader() -> Callable[[list[Any], dict[str, Any]], list[Span] | None] | None:
    """Reads the parsed JSON spans of one scope, of which {"resource", "scope"} is given; None without C, and None for
    a list with a span that is to be refused."""
    decode = function("otlp_decode.c", "json_spans", 3)
    if decode is None:
        return None
    tables = (*_tables(), JSON_NAMES, read_any, read_span)

    def spans_of(given: list[Any], source: dict[str, Any]) -> list[Span] | None:
        with no_collection():
            found: list[Span] | None = decode(given, source, tables)
        return found

    return spans_of


# In the order of the C file's names.
JSON_NAMES = (
    "traceId", "spanId", "parentSpanId", "name", "kind", "startTimeUnixNano", "endTimeUnixNano", "attributes", "status",
    "events", "links", "key", "value", "stringValue", "intValue", "doubleValue", "boolValue", "code", "message",
)  # fmt: skip


def _tables() -> tuple[Any, ...]:
    """What the conventions say, as the C file reads it."""
    fields = {field: number for number, field in enumerate(dict.fromkeys(rule[1] for rule in FIELD_RULES.values()))}
    places = {field: SLOTS.index(field) if field in SLOTS else -1 for field in fields}
    rules = {
        name: (rank, fields[field], places[field], field, kind, partial(read_value, convert))
        for name, (rank, field, kind, convert) in FIELD_RULES.items()
    }
    return Span, SLOTS, rules, tuple(KIND_OF.items()), STATUSES, "other"
