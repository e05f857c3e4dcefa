# ruff: noqa: S608 (statements are put together from names in this file, never from values)
"""The questions people ask the store, as SQL that SQLite and PostgreSQL share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from typing import Any

from agent_forge.errors import UsageError
from agent_forge.traces.intern import FOLDED
from agent_forge.traces.span import STATUSES

Moment = int | float | str | datetime  # ns since the epoch (int), s (float), ISO 8601 text, or a datetime


def to_ns(moment: Moment) -> int:
    """A moment as nanoseconds since the epoch.

    >>> to_ns("2026-01-01T00:00:00Z") == to_ns(1767225600.0) == to_ns(1767225600000000000)
    True
    """
    if isinstance(moment, int):
        return moment
    if isinstance(moment, float):
        return round(moment * 1e6) * 1000
    try:
        when = moment if isinstance(moment, datetime) else datetime.fromisoformat(moment.replace("Z", "+00:00"))
    except ValueError as error:
        fix = "write it as 2026-01-31 or 2026-01-31T12:00:00Z"
        raise UsageError(f"{moment!r} is not a moment in time", fix=fix) from error
    when = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
    return round(when.timestamp() * 1e6) * 1000


@dataclass(frozen=True)
class Where:
    """A filter on spans. What is None does not filter; everything given must hold."""

    trace_id: str | None = None
    session: str | None = None
    agent: str | None = None
    model: str | None = None
    kind: str | None = None
    name: str | None = None
    category: str | None = None
    status: str | None = None
    since: Moment | None = None  # started at or after
    until: Moment | None = None  # started before
    min_reward: float | None = None
    max_reward: float | None = None
    text: str | None = None  # occurs in the name, error, inputs, outputs or attributes; ASCII letters in either case


FILTERS = tuple(field.name for field in fields(Where))
_GROUPED = ("agent", "model", "kind", "name", "category")
# filter: (condition on a span, condition on a trace or None: some span of the trace must pass)
_CONDITIONS: dict[str, tuple[str, str | None]] = {
    "trace_id": ("spans.trace_id = ?", "traces.trace_id = ?"),
    "session": ("spans.session = ?", "traces.session = ?"),
    "status": ("spans.status = ?", "traces.status = ?"),
    "since": ("spans.start_ns >= ?", "traces.start_ns >= ?"),
    "until": ("spans.start_ns < ?", "traces.start_ns < ?"),
    "min_reward": ("spans.reward >= ?", "coalesce(traces.root_reward, traces.given_reward) >= ?"),
    "max_reward": ("spans.reward <= ?", "coalesce(traces.root_reward, traces.given_reward) <= ?"),
}
_TEXT = (
    "(spans.name LIKE ? ESCAPE '!' OR spans.error LIKE ? ESCAPE '!' OR spans.inputs LIKE ? ESCAPE '!'"
    " OR spans.outputs LIKE ? ESCAPE '!' OR spans.attributes LIKE ? ESCAPE '!')"
)
TRACE_COLUMNS = (
    "trace_id", "start_ns", "end_ns", "spans", "errors", "unfinished", "name", "kind", "status", "error", "agent",
    "category", "session", "input_tokens", "output_tokens", "cost",
)  # fmt: skip


def where(filters: Mapping[str, Any]) -> Where:
    """The filter of keyword arguments. Raises UsageError for a name or a status that is none."""
    if unknown := sorted(set(filters) - set(FILTERS)):
        raise UsageError(f"spans cannot be filtered by {unknown[0]!r}", fix=f"filters are {', '.join(FILTERS)}")
    if (status := filters.get("status")) is not None and status not in STATUSES:
        raise UsageError(f"there is no status {status!r}", fix=f"one of {', '.join(STATUSES)}")
    return Where(**filters)


def spans_query(
    filters: Mapping[str, Any], columns: Sequence[str], limit: int, after: tuple[int, Any] | None, oldest_first: bool
) -> tuple[str, list[Any]]:
    """The statement for a page of spans; `seq` is added to the columns."""
    conditions, values = _span_conditions(where(filters))
    return _paged(
        f"SELECT {', '.join(columns)}, seq FROM spans", "spans", "seq", conditions, values, limit, after, oldest_first
    )


def traces_query(
    filters: Mapping[str, Any], limit: int, after: tuple[int, Any] | None, oldest_first: bool
) -> tuple[str, list[Any]]:
    """The statement for a page of traces, with the columns of `store.Summary`."""
    given = where(filters)
    conditions: list[str] = []
    values: list[Any] = []
    for name, (_, condition) in _CONDITIONS.items():
        if (value := getattr(given, name)) is not None and condition is not None:
            conditions.append(condition)
            values.append(_value(name, value))
    inner = Where(**{name: getattr(given, name) for name in (*_GROUPED, "text")})
    found, wanted = _span_conditions(inner)
    if found:
        conditions.append(
            f"EXISTS (SELECT 1 FROM spans WHERE {' AND '.join(['spans.trace_id = traces.trace_id', *found])})"
        )
        values += wanted
    select = f"SELECT {', '.join(TRACE_COLUMNS)}, coalesce(root_reward, given_reward) FROM traces"
    return _paged(select, "traces", "trace_id", conditions, values, limit, after, oldest_first)


def _paged(
    select: str,
    table: str,
    tie: str,
    conditions: list[str],
    values: list[Any],
    limit: int,
    after: tuple[int, Any] | None,
    oldest_first: bool,
) -> tuple[str, list[Any]]:
    if limit < 2:  # one more than is shown is asked for, to know whether there is another page
        raise UsageError(f"a page of {limit - 1} is none", fix="give a limit of 1 or more")
    order, beyond = ("ASC", ">") if oldest_first else ("DESC", "<")
    if after is not None:
        conditions.append(f"({table}.start_ns, {table}.{tie}) {beyond} (?, ?)")
        values += after
    filtered = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"{select}{filtered} ORDER BY {table}.start_ns {order}, {table}.{tie} {order} LIMIT ?", [*values, limit]


def _span_conditions(given: Where) -> tuple[list[str], list[Any]]:
    found: list[tuple[str, list[Any]]] = []
    for name, (condition, _) in _CONDITIONS.items():
        if (value := getattr(given, name)) is not None:
            found.append((condition, [_value(name, value)]))
    if names := [name for name in _GROUPED if getattr(given, name) is not None]:
        found.append(_group(given, names))
    if given.text is not None:
        found.append((_TEXT, [*[_pattern(given.text)] * 2, *[_pattern(given.text, in_json=True)] * 3]))
    return [condition for condition, _ in found], [value for _, values in found for value in values]


def _value(name: str, value: Any) -> Any:
    return to_ns(value) if name in ("since", "until") else value


def _group(given: Where, names: list[str]) -> tuple[str, list[Any]]:
    """The five names that make a group share one index. A folded group holds other names too, so they are compared."""
    values = [getattr(given, name) for name in names]
    folded = " AND ".join(f"g.{name} IN (?, '{FOLDED}')" if name == "name" else f"g.{name} = ?" for name in names)
    exact = " AND ".join(f"spans.{name} = ?" for name in names)
    return f"spans.grp IN (SELECT g.id FROM groups g WHERE {folded}) AND {exact}", [*values, *values]


def _pattern(text: str, *, in_json: bool = False) -> str:
    """A LIKE pattern for `text`, as it stands in JSON if asked."""
    text = json.dumps(text, ensure_ascii=False)[1:-1] if in_json else text
    for special in "!%_":
        text = text.replace(special, "!" + special)
    return f"%{text}%"


def cursor_of(after: str | None, *, text: bool = False) -> tuple[int, Any] | None:
    """The place in a listing that the `next` of a page names. Raises UsageError if it is none."""
    if after is None:
        return None
    try:
        start, tie = after.split("-")
        return int(start), tie if text else int(tie)
    except ValueError as error:
        raise UsageError(f"{after!r} is not the `next` of a page", fix="leave it out to begin at the start") from error
