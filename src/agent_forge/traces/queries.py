"""The questions people ask the store, as SQL that SQLite and PostgreSQL share."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from typing import Any

from agent_forge.errors import UsageError

Moment = int | float | str | datetime  # ns since the epoch (int), s (float), ISO 8601 text, or a datetime


def to_ns(moment: Moment) -> int:
    """A moment as nanoseconds since the epoch.

    >>> to_ns("2026-01-01T00:00:00Z") == to_ns(1767225600.0) == to_ns(1767225600000000000)
    True
    """
    if isinstance(moment, int):
        return moment
    if isinstance(moment, float):
        return round(moment * 1e9)
    try:
        when = moment if isinstance(moment, datetime) else datetime.fromisoformat(moment.replace("Z", "+00:00"))
    except ValueError as error:
        fix = "write it as 2026-01-31 or 2026-01-31T12:00:00Z"
        raise UsageError(f"{moment!r} is not a moment in time", fix=fix) from error
    when = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
    return round(when.timestamp()) * 1_000_000_000 if when.microsecond == 0 else round(when.timestamp() * 1e6) * 1000


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
    text: str | None = None  # occurs in the name, error, inputs, outputs or attributes; letters in either case

    def conditions(self) -> tuple[list[str], list[Any]]:
        """SQL conditions on the table `spans`, and their values."""
        found: list[tuple[str, list[Any]]] = []
        for name in ("trace_id", "session", "status"):
            if (value := getattr(self, name)) is not None:
                found.append((f"spans.{name} = ?", [value]))
        if groups := [
            name for name in ("agent", "model", "kind", "name", "category") if getattr(self, name) is not None
        ]:
            found.append(self._group(groups))
        for name, condition in _RANGES.items():
            if (value := getattr(self, name)) is not None:
                found.append((condition, [to_ns(value) if name in ("since", "until") else value]))
        if self.text is not None:
            found.append((_TEXT, [_pattern(self.text), *[_pattern(self.text, in_json=True)] * 3]))
        return [condition for condition, _ in found], [value for _, values in found for value in values]

    def _group(self, names: list[str]) -> tuple[str, list[Any]]:
        """The five names that make a group share one index; names beyond the groups' limit are checked as well."""
        values = [getattr(self, name) for name in names]
        folded = " AND ".join(f"g.{name} IN (?, '{FOLDED}')" if name == "name" else f"g.{name} = ?" for name in names)
        exact = " AND ".join(f"spans.{name} = ?" for name in names)
        return f"spans.grp IN (SELECT g.id FROM groups g WHERE {folded}) AND {exact}", [*values, *values]


FOLDED = "(other)"  # the group of names beyond the limit on groups
FILTERS = tuple(field.name for field in fields(Where))
_RANGES = {
    "since": "spans.start_ns >= ?",
    "until": "spans.start_ns < ?",
    "min_reward": "spans.reward >= ?",
    "max_reward": "spans.reward <= ?",
}
_TEXT = (
    "(lower(spans.name || ' ' || coalesce(spans.error, '')) LIKE ? ESCAPE '!' OR lower(spans.inputs) LIKE ? ESCAPE '!'"
    " OR lower(spans.outputs) LIKE ? ESCAPE '!' OR lower(spans.attributes) LIKE ? ESCAPE '!')"
)


def _pattern(text: str, *, in_json: bool = False) -> str:
    """A LIKE pattern for `text`, as it stands in JSON if asked."""
    text = json.dumps(text, ensure_ascii=False)[1:-1] if in_json else text
    for special in "!%_":
        text = text.replace(special, "!" + special)
    return f"%{text.lower()}%"


def where(filters: dict[str, Any]) -> Where:
    """The filter of keyword arguments. Raises UsageError for a name that is none."""
    if unknown := sorted(set(filters) - set(FILTERS)):
        raise UsageError(f"spans cannot be filtered by {unknown[0]!r}", fix=f"filters are {', '.join(FILTERS)}")
    return Where(**filters)
