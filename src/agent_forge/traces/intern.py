"""Numbers for what many spans share: their group (agent, name, kind, model, category) and their source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from threading import Lock
from typing import Any

from agent_forge.database import Database
from agent_forge.traces.span import Span
from agent_forge.traces.values import from_json, storable, to_json

MAX_GROUPS = 10_000  # names beyond this limit share one group, so that a flood of names cannot flood the rollups
FOLDED = "(other)"  # the name of that group
Group = tuple[str, str, str, str, str]  # agent, name, kind, model, category

_NAMES = "agent, name, kind, model, category"
_MATCH = " AND ".join(f"{name} = ?" for name in _NAMES.split(", "))
_ADD_GROUP = f"INSERT INTO groups ({_NAMES}) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"  # noqa: S608 (constants)
_FIND_GROUP = f"SELECT id FROM groups WHERE {_MATCH}"  # noqa: S608 (constants)


class Interned:
    """The numbers that this process has seen, in front of the tables `groups` and `sources`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = Lock()
        self._groups: dict[Group, int] = {}
        self._sources: dict[str, int] = {}
        self._bodies: dict[int, dict[str, Any]] = {}

    def numbers(self, spans: Sequence[Span]) -> list[tuple[int, int | None]]:
        """The numbers of each span's group and source. New ones are stored first, in a transaction of their own."""
        groups: list[Group] = []
        for span in spans:
            rare = span.rare
            category = None if rare is None else rare.get("category")
            groups.append((span.agent or "", span.name, span.kind, span.model or "", category or ""))
        bodies = _source_bodies(spans)
        new_groups = set(groups) - self._groups.keys()
        new_bodies = {body for body in set(bodies) if body is not None and body not in self._sources}
        if new_groups or new_bodies:
            self._add(new_groups, new_bodies)
        source_of = self._sources.get
        return [
            (self._groups[group], source_of(body) if body else None) for group, body in zip(groups, bodies, strict=True)
        ]

    def _add(self, groups: Iterable[Group], bodies: Iterable[str]) -> None:
        with self._lock:
            with self._database.write() as cursor:
                group_numbers = {group: _group_id(cursor, group) for group in sorted(groups)}
                source_numbers = {body: _source_id(cursor, body) for body in sorted(bodies)}
            self._groups.update(group_numbers)  # after the commit
            self._sources.update(source_numbers)

    def sources(self, numbers: set[int]) -> dict[int, dict[str, Any]]:
        """At least the sources with these numbers: {"resource", "scope"} each."""
        if missing := numbers - self._bodies.keys():
            with self._database.read() as cursor:
                for number in missing:
                    row = cursor.execute("SELECT body FROM sources WHERE id = ?", (number,)).fetchone()
                    self._bodies[number] = from_json(row[0])
        return self._bodies


def _source_bodies(spans: Sequence[Span]) -> list[str | None]:
    """The JSON text of each span's process and library, encoded once for the spans of a request, which share them."""
    texts: dict[tuple[int, int], str | None] = {(id(None), id(None)): None}
    bodies: list[str | None] = []
    for span in spans:
        rare = span.rare
        if rare is None:
            bodies.append(None)
            continue
        resource, scope = rare.get("resource"), rare.get("scope")
        key = (id(resource), id(scope))
        if key not in texts:
            texts[key] = to_json({"resource": resource, "scope": scope})
        bodies.append(texts[key])
    return bodies


def _group_id(cursor: Any, group: Group) -> int:
    names: list[Any] = [storable(name) for name in group]
    row = cursor.execute(_FIND_GROUP, names).fetchone()
    if row is None:
        if cursor.execute("SELECT count(*) FROM groups").fetchone()[0] >= MAX_GROUPS:
            names[1] = FOLDED
        cursor.execute(_ADD_GROUP, names)
        row = cursor.execute(_FIND_GROUP, names).fetchone()
    return int(row[0])


def _source_id(cursor: Any, body: str) -> int:
    digest = sha256(body.encode()).hexdigest()
    cursor.execute("INSERT INTO sources (body, digest) VALUES (?, ?) ON CONFLICT DO NOTHING", (body, digest))
    return int(cursor.execute("SELECT id FROM sources WHERE digest = ?", (digest,)).fetchone()[0])
