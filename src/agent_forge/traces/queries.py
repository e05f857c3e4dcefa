# ruff: noqa: S608 (statements are put together from names in this file, never from values)
"""Searches of the store, as SQL that SQLite and PostgreSQL share."""

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
        fix = "Write it as 2026-01-31 or 2026-01-31T12:00:00Z"
        raise UsageError(f"{moment!r} is not a moment in time", fix=fix) from error
    when = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
    return round(when.timestamp() * 1e6) * 1000


@dataclass(frozen=True)
class Where:
    """A filter on spans: every field that is not None must match."""

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
    text: str | None = None  # in the name, error, inputs, outputs or attributes; ASCII letters in either case


FILTERS = tuple(field.name for field in fields(Where))
_GROUPED = ("agent", "model", "kind", "name", "category")
# filter: (condition on a span, condition on a trace)
_CONDITIONS: dict[str, tuple[str, str]] = {
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
Sql = tuple[str, list[Any]]  # a statement or condition, and its values


def where(filters: Mapping[str, Any]) -> Where:
    """The filter of keyword arguments. Raises UsageError for an unknown name or status."""
    if unknown := sorted(set(filters) - set(FILTERS)):
        raise UsageError(f"spans cannot be filtered by {unknown[0]!r}", fix=f"Filters are {', '.join(FILTERS)}")
    if (status := filters.get("status")) is not None and status not in STATUSES:
        raise UsageError(f"there is no status {status!r}", fix=f"Statuses are {', '.join(STATUSES)}")
    return Where(**filters)


def spans_query(
    filters: Mapping[str, Any], columns: Sequence[str], limit: int, after: tuple[int, Any] | None, oldest_first: bool
) -> Sql:
    """The statement for a page of spans; `seq` is added to the columns."""
    select = f"SELECT {', '.join(columns)}, seq FROM spans"
    return _paged(select, "spans", "seq", _span_conditions(where(filters)), limit, after, oldest_first)


def traces_query(filters: Mapping[str, Any], limit: int, after: tuple[int, Any] | None, oldest_first: bool) -> Sql:
    """The statement for a page of traces, with the columns of `store.Summary`."""
    spec = where(filters)
    conditions = _own_conditions(spec, of_trace=True)
    # The other filters are met by a trace that has a span which meets all of them.
    of_span = _span_conditions(Where(**{name: getattr(spec, name) for name in (*_GROUPED, "text")}))
    if of_span:
        matching = " AND ".join(["spans.trace_id = traces.trace_id", *(sql for sql, _ in of_span)])
        values = [value for _, values in of_span for value in values]
        conditions.append((f"EXISTS (SELECT 1 FROM spans WHERE {matching})", values))
    select = f"SELECT {', '.join(TRACE_COLUMNS)}, coalesce(root_reward, given_reward) FROM traces"
    return _paged(select, "traces", "trace_id", conditions, limit, after, oldest_first)


def _paged(
    select: str,
    table: str,
    tie: str,
    conditions: list[Sql],
    limit: int,
    after: tuple[int, Any] | None,
    oldest_first: bool,
) -> Sql:
    if limit < 2:  # one row more than the page shows tells whether there is another page
        raise UsageError(f"the page size must be at least 1, not {limit - 1}")
    order, beyond = ("ASC", ">") if oldest_first else ("DESC", "<")
    if after is not None:
        conditions = [*conditions, (f"({table}.start_ns, {table}.{tie}) {beyond} (?, ?)", list(after))]
    filtered = f" WHERE {' AND '.join(sql for sql, _ in conditions)}" if conditions else ""
    sql = f"{select}{filtered} ORDER BY {table}.start_ns {order}, {table}.{tie} {order} LIMIT ?"
    return sql, [*(value for _, values in conditions for value in values), limit]


def _span_conditions(spec: Where) -> list[Sql]:
    conditions = _own_conditions(spec, of_trace=False)
    if names := [name for name in _GROUPED if getattr(spec, name) is not None]:
        # The names that make a group share one index. A folded group holds other names too, so they are compared.
        values = [getattr(spec, name) for name in names]
        folded = " AND ".join(f"g.{name} IN (?, '{FOLDED}')" if name == "name" else f"g.{name} = ?" for name in names)
        exact = " AND ".join(f"spans.{name} = ?" for name in names)
        grouped = f"spans.grp IN (SELECT g.id FROM groups g WHERE {folded}) AND {exact}"
        conditions.append((grouped, [*values, *values]))
    if spec.text is not None:
        patterns = [_pattern(spec.text)] * 2 + [_pattern(spec.text, in_json=True)] * 3
        conditions.append((_TEXT, patterns))
    return conditions


def _own_conditions(spec: Where, *, of_trace: bool) -> list[Sql]:
    conditions: list[Sql] = []
    for name, sql in _CONDITIONS.items():
        if (value := getattr(spec, name)) is not None:
            conditions.append((sql[of_trace], [to_ns(value) if name in ("since", "until") else value]))
    return conditions


def _pattern(text: str, *, in_json: bool = False) -> str:
    """A LIKE pattern for `text`, or for `text` as it is written in JSON."""
    text = json.dumps(text, ensure_ascii=False)[1:-1] if in_json else text
    for special in "!%_":
        text = text.replace(special, "!" + special)
    return f"%{text}%"


def cursor_of(after: str | None, *, text: bool = False) -> tuple[int, Any] | None:
    """The position that the `next` of a page stands for. Raises UsageError for anything else."""
    if after is None:
        return None
    try:
        start, tie = after.split("-")
        return int(start), tie if text else int(tie)
    except ValueError as error:
        raise UsageError(f"{after!r} is not the `next` of a page", fix="Leave it out to begin at the start") from error
