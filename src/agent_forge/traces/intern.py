"""Numbers for what many spans share: their group (agent, name, kind, model, category) and their source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import compress
from threading import Lock
from typing import Any, Protocol

from agent_forge.traces.otlp_native import numberer
from agent_forge.traces.packed import Packed
from agent_forge.traces.rows import GROUP, SOURCE, Row, to_rows
from agent_forge.traces.span import Span
from agent_forge.traces.values import from_json, storable, to_json

MAX_GROUPS = 10_000  # names beyond so many share one group, so that a flood of names cannot flood the rollups
FOLDED = "(other)"  # the name of that group
Group = tuple[str, str, str, str, str]  # agent, name, kind, model, category

_NAMES = "agent, name, kind, model, category"
_MATCH = " AND ".join(f"{name} = ?" for name in _NAMES.split(", "))
_ADD_GROUP = f"INSERT INTO groups ({_NAMES}) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"  # noqa: S608 (constants)
_FIND_GROUP = f"SELECT id FROM groups WHERE {_MATCH}"  # noqa: S608 (constants)


class Transactions(Protocol):
    """What interning needs of a database."""

    def read(self) -> Any: ...
    def write(self) -> Any: ...


class Interned:
    """The numbers this process knows, in front of the tables `groups` and `sources`."""

    def __init__(self, database: Transactions) -> None:
        self._database = database
        self._lock = Lock()
        self._groups: dict[Group, int] = {}
        self._sources: dict[str, int] = {}
        self._bodies: dict[int, dict[str, Any]] = {}

    def rows(self, spans: list[Span]) -> list[Row]:
        """The rows of spans: those of packed ones as they are, with their numbers, and those of others made now."""
        number = numberer()
        if number is None:
            return to_rows(spans, self.of(spans))
        if (found := number(spans, self._groups, self._sources)) is not None:
            return found
        ready = [type(span) is Packed and span.row is not None for span in spans]
        packed, others = (
            list(compress(spans, ready)),
            [span for span, is_ready in zip(spans, ready, strict=True) if not is_ready],
        )
        self._learn_packed(packed)
        quick, made = iter(number(packed, self._groups, self._sources) or ()), iter(to_rows(others, self.of(others)))
        return [next(quick if is_ready else made) for is_ready in ready]

    def _learn_packed(self, spans: list[Span]) -> None:
        rows = [span.row for span in spans if isinstance(span, Packed) and span.row is not None]
        groups = {row[GROUP] for row in rows} - self._groups.keys()
        bodies = {row[SOURCE][0] for row in rows} - self._sources.keys()
        if groups or bodies:
            self._learn(groups, bodies)

    def of(self, spans: Sequence[Span]) -> list[tuple[int, int | None]]:
        """The numbers of each span's group and source. New ones are stored first, in a transaction of their own."""
        known, bodies = self._groups, _source_bodies(spans)
        groups: list[Group] = []
        new: set[Group] = set()
        for span in spans:
            rare = span.rare
            category = None if rare is None else rare.get("category")
            group = (span.agent or "", span.name, span.kind, span.model or "", category or "")
            groups.append(group)
            if group not in known:
                new.add(group)
        unheard = {body for body in set(bodies) if body is not None and body not in self._sources}
        if new or unheard:
            self._learn(new, unheard)
        source = self._sources.get
        return [(known[group], source(body) if body else None) for group, body in zip(groups, bodies, strict=True)]

    def _learn(self, groups: Iterable[Group], bodies: Iterable[str]) -> None:
        with self._lock:
            with self._database.write() as cursor:
                numbers = {group: _group_id(cursor, group) for group in sorted(groups)}
                sources = {body: _source_id(cursor, body) for body in sorted(bodies)}
            self._groups.update(numbers)  # only what is committed is known
            self._sources.update(sources)

    def sources(self, numbers: set[int]) -> dict[int, dict[str, Any]]:
        """The sources with these numbers: {"resource", "scope"} each."""
        if unknown := numbers - self._bodies.keys():
            with self._database.read() as cursor:
                for number in unknown:
                    found = cursor.execute("SELECT body FROM sources WHERE id = ?", (number,)).fetchone()
                    self._bodies[number] = from_json(found[0])
        return self._bodies


def _source_bodies(spans: Sequence[Span]) -> list[str | None]:
    """The JSON text of each span's process and library. Spans of one request share them, so each is written once."""
    known: dict[tuple[int, int], str | None] = {(id(None), id(None)): None}
    found: list[str | None] = []
    for span in spans:
        rare = span.rare
        if rare is None:
            found.append(None)
            continue
        resource, scope = rare.get("resource"), rare.get("scope")
        key = (id(resource), id(scope))
        if key not in known:
            known[key] = to_json({"resource": resource, "scope": scope})
        found.append(known[key])
    return found


def _group_id(cursor: Any, group: Group) -> int:
    names: list[Any] = [storable(name) for name in group]
    found = cursor.execute(_FIND_GROUP, names).fetchone()
    if found is None:
        if cursor.execute("SELECT count(*) FROM groups").fetchone()[0] >= MAX_GROUPS:
            names[1] = FOLDED
        cursor.execute(_ADD_GROUP, names)
        found = cursor.execute(_FIND_GROUP, names).fetchone()
    return int(found[0])


def _source_id(cursor: Any, body: str) -> int:
    digest = sha256(body.encode()).hexdigest()
    cursor.execute("INSERT INTO sources (body, digest) VALUES (?, ?) ON CONFLICT DO NOTHING", (body, digest))
    return int(cursor.execute("SELECT id FROM sources WHERE digest = ?", (digest,)).fetchone()[0])
