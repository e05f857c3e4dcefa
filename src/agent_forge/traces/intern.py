"""Numbers for what many spans share: their group (agent, name, kind, model, category) and their source."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from threading import Lock
from typing import Any

from agent_forge.database import Database
from agent_forge.traces.rows import GROUP, SOURCE, Row
from agent_forge.traces.values import from_json

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
        self._sources: dict[str | None, int | None] = {None: None}
        self._bodies: dict[int, dict[str, Any]] = {}

    def number(self, rows: Iterable[Row]) -> None:
        """Puts numbers where the rows have the names of their group and the text of their source.

        New ones are stored first, in a transaction of their own. Rows that have their numbers stay as they are.
        """
        groups, sources = self._groups, self._sources
        rows = [row for row in rows if row[GROUP].__class__ is tuple]
        new_groups = {row[GROUP] for row in rows} - groups.keys()
        new_sources = {row[SOURCE] for row in rows} - sources.keys()
        if new_groups or new_sources:
            self._add(new_groups, new_sources)
        for row in rows:
            row[GROUP] = groups[row[GROUP]]
            row[SOURCE] = sources[row[SOURCE]]

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


def _group_id(cursor: Any, group: Group) -> int:
    names: list[Any] = list(group)
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
