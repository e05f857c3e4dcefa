"""The trace store: spans in SQLite or PostgreSQL, durable when `add` returns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

from agent_forge.errors import UsageError
from agent_forge.home import home
from agent_forge.traces.queries import FOLDED, Moment, to_ns, where
from agent_forge.traces.rollup import Sums, rebuild, rebuild_trace
from agent_forge.traces.rows import COLUMNS, Row, from_json, to_json, to_row, to_span
from agent_forge.traces.span import Span
from agent_forge.traces.sqlite import MEMORY, SqliteDatabase

FILE = "traces.db"
MAX_GROUPS = 10_000  # names beyond so many share one group, so that a flood of names cannot flood the rollups
BATCH = 2_000  # spans a transaction when a long stream is added

_INSERT = (
    f"INSERT INTO spans ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
    " ON CONFLICT (trace_id, span_id) DO NOTHING"
)
_FINISH = (
    f"UPDATE spans SET {', '.join(f'{name} = ?' for name in COLUMNS[2:])}"
    " WHERE trace_id = ? AND span_id = ? AND end_ns IS NULL"
)
_SELECT = f"SELECT {', '.join(f'spans.{name}' for name in COLUMNS)}, spans.seq FROM spans"

T = TypeVar("T")
Group = tuple[str, str, str, str, str]  # agent, name, kind, model, category


class Database(Protocol):
    """What the store needs of SQLite and of PostgreSQL."""

    dialect: str
    where: str

    def read(self) -> AbstractContextManager[Any]: ...
    def write(self) -> AbstractContextManager[Any]: ...
    def vacuum(self) -> None: ...
    def check(self) -> list[str]: ...
    def size(self) -> int: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some results, and where the next ones begin (None: there are no more)."""

    items: list[T] = field(default_factory=list)
    next: str | None = None

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


class Store:
    """Spans in a database. Safe to use from several threads and processes.

    >>> import tempfile
    >>> from agent_forge.traces import Span, Store
    >>> store = Store.open(tempfile.mkdtemp())
    >>> store.add([Span("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "hello", start_ns=1, end_ns=2)])
    1
    >>> [span.name for span in store.trace("0af7651916cd43dd8448eb211c80319c")]
    ['hello']
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = Lock()
        self._groups: dict[Group, int] = {}
        self._sources: dict[str, int] = {}
        self._source_bodies: dict[int, dict[str, Any]] = {}

    @classmethod
    def open(cls, place: str | os.PathLike[str] | None = None) -> Store:
        """The store at `place`: a folder (its traces.db), a file, a postgresql:// URL, ":memory:", or None for the
        home folder. It is made if it is not there. Raises StoreError for a file that is not a whole trace store.
        """
        text = os.fspath(place) if place is not None else ""
        if text.startswith(("postgresql://", "postgres://")):
            from agent_forge.traces.postgres import PostgresDatabase

            return cls(PostgresDatabase(text))
        return cls(SqliteDatabase(text if text == MEMORY else _file(text)))

    @property
    def where(self) -> str:
        """The file or server of the store, without any password."""
        return self._database.where

    # Writing

    def add(self, spans: Iterable[Span]) -> int:
        """Stores spans in one transaction and returns how many were new or newly finished. They are on disk by then.

        A span is known by its trace and span id: sent again, it is not stored again. One that had been stored
        unfinished is replaced by its finished self; a finished one never changes.
        """
        batch = list(spans)
        if not batch:
            return 0
        rows = self._rows(batch)
        with self._database.write() as cursor:
            last = cursor.execute("SELECT coalesce(max(seq), 0) FROM spans").fetchone()[0]
            cursor.executemany(_INSERT, rows)
            if cursor.rowcount == len(rows):
                Sums(rows).write(cursor)
                return len(rows)
            return _add_some(cursor, rows, last)

    def add_many(
        self, spans: Iterable[Span], *, batch: int = BATCH, each: Callable[[int], object] | None = None
    ) -> int:
        """Adds a long stream, `batch` spans a transaction; `each` is told how many spans went by. Returns like `add`."""
        added, stream = 0, iter(spans)
        while part := list(islice(stream, batch)):
            added += self.add(part)
            if each is not None:
                each(len(part))
        return added

    def _rows(self, spans: Sequence[Span]) -> list[Row]:
        groups = [(s.agent or "", s.name, s.kind, s.model or "", s.category or "") for s in spans]
        bodies = [_source_body(span) for span in spans]
        self._intern(set(groups) - self._groups.keys(), {body for body in bodies if body} - self._sources.keys())
        known, sources = self._groups, self._sources
        return [
            to_row(span, known[group], sources[body] if body else None, _kept)
            for span, group, body in zip(spans, groups, bodies, strict=True)
        ]

    def _intern(self, groups: set[Group], bodies: set[str]) -> None:
        """Gives numbers to groups and sources that this process has not met."""
        if not groups and not bodies:
            return
        with self._lock, self._database.write() as cursor:
            numbers = {group: _group_id(cursor, group) for group in sorted(groups)}
            sources = {body: _source_id(cursor, body) for body in sorted(bodies)}
        self._groups.update(numbers)
        self._sources.update(sources)

    # Reading

    def trace(self, trace_id: str) -> list[Span]:
        """All spans of a trace in the order they started; empty if there is no such trace."""
        return self._spans(f"{_SELECT} WHERE trace_id = ? ORDER BY start_ns, seq", [trace_id])

    def span(self, trace_id: str, span_id: str) -> Span | None:
        """One span, or None."""
        found = self._spans(f"{_SELECT} WHERE trace_id = ? AND span_id = ?", [trace_id, span_id])
        return found[0] if found else None

    def search(
        self, *, limit: int = 100, after: str | None = None, oldest_first: bool = False, **filters: Any
    ) -> Page[Span]:
        """A page of spans, the newest first, that pass all filters (see `queries.Where` for their names).

        `after` is the `next` of the page before. Pages never overlap or leave out a span that was there when the
        first one was asked for, whatever is added meanwhile.
        """
        conditions, values = where(filters).conditions()
        order, beyond = ("ASC", ">") if oldest_first else ("DESC", "<")
        if after is not None:
            start, seq = _cursor_of(after)
            conditions.append(f"(spans.start_ns, spans.seq) {beyond} (?, ?)")
            values += [start, seq]
        sql = f"{_SELECT}{_where(conditions)} ORDER BY spans.start_ns {order}, spans.seq {order} LIMIT ?"
        with self._database.read() as cursor:
            rows = cursor.execute(sql, [*values, limit + 1]).fetchall()
        more = len(rows) > limit
        rows = rows[:limit]
        following = f"{rows[-1][5]}-{rows[-1][28]}" if more and rows else None
        return Page(self._decoded(rows), following)

    def _spans(self, sql: str, values: Sequence[Any]) -> list[Span]:
        with self._database.read() as cursor:
            rows = cursor.execute(sql, values).fetchall()
        return self._decoded(rows)

    def _decoded(self, rows: Sequence[Row]) -> list[Span]:
        sources = self._bodies({row[22] for row in rows} - {None})
        return [to_span(row[:28], sources.get(row[22])) for row in rows]

    def _bodies(self, numbers: set[int]) -> dict[int, dict[str, Any]]:
        if unknown := numbers - self._source_bodies.keys():
            with self._database.read() as cursor:
                for number in unknown:
                    body = cursor.execute("SELECT body FROM sources WHERE id = ?", (number,)).fetchone()[0]
                    self._source_bodies[number] = from_json(body)
        return self._source_bodies

    # Keeping

    def delete(self, *, before: Moment) -> int:
        """Deletes the traces whose last span started before a moment. Returns how many spans went."""
        moment = to_ns(before)
        old = "(SELECT trace_id FROM spans GROUP BY trace_id HAVING max(start_ns) < ?)"
        with self._database.write() as cursor:
            cursor.execute(f"DELETE FROM traces WHERE trace_id IN {old}", (moment,))
            gone = int(cursor.execute(f"DELETE FROM spans WHERE trace_id IN {old}", (moment,)).rowcount)
            if gone:
                rebuild(cursor, moment)
        return gone

    def count(self) -> int:
        """How many spans there are."""
        with self._database.read() as cursor:
            return int(cursor.execute("SELECT coalesce(sum(spans), 0) FROM traces").fetchone()[0])

    def vacuum(self) -> tuple[int, int]:
        """Gives the room of deleted spans back to the disk. Returns the size in bytes before and after."""
        before = self._database.size()
        self._database.vacuum()
        return before, self._database.size()

    def check(self) -> list[str]:
        """What is wrong with the database; empty when nothing is."""
        return self._database.check()

    def close(self) -> None:
        """Closes the connections. The store may be used again; it then opens new ones."""
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _file(text: str) -> str:
    if text and Path(text).suffix in (".db", ".sqlite", ".sqlite3") and not Path(text).is_dir():
        return text
    return str(home(text or None) / FILE)


def _where(conditions: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _cursor_of(after: str) -> tuple[int, int]:
    try:
        start, seq = after.split("-")
        return int(start), int(seq)
    except ValueError as error:
        raise UsageError(f"{after!r} is not the `next` of a page", fix="leave it out to begin at the start") from error


def _kept(span: Span) -> tuple[Any, Any]:
    return span.inputs, span.outputs


def _source_body(span: Span) -> str | None:
    if span.resource is None and span.scope is None:
        return None
    return to_json({"resource": span.resource, "scope": span.scope})


def _add_some(cursor: Any, rows: Sequence[Row], last: int) -> int:
    """Finishes a batch of which some spans were there already: counts what is new, and finishes the unfinished."""
    found = cursor.execute("SELECT trace_id, span_id FROM spans WHERE seq > ?", (last,)).fetchall()
    new = {tuple(row) for row in found}
    fresh: list[Row] = []
    finished: list[Row] = []
    for row in rows:
        if row[:2] in new:
            fresh.append(row)
            new.discard(row[:2])
        elif row[6] is not None and cursor.execute(_FINISH, (*row[2:], *row[:2])).rowcount == 1:
            finished.append(row)
    Sums(fresh).write(cursor)
    Sums(finished, traces=False).write(cursor)
    for trace_id in sorted({row[0] for row in finished}):
        rebuild_trace(cursor, trace_id)
    return len(fresh) + len(finished)


def _group_id(cursor: Any, group: Group) -> int:
    if cursor.execute("SELECT count(*) FROM groups").fetchone()[0] >= MAX_GROUPS:
        group = (group[0], FOLDED, *group[2:])
    names = "agent, name, kind, model, category"
    cursor.execute(f"INSERT INTO groups ({names}) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", group)
    match = " AND ".join(f"{name} = ?" for name in names.split(", "))
    return int(cursor.execute(f"SELECT id FROM groups WHERE {match}", group).fetchone()[0])


def _source_id(cursor: Any, body: str) -> int:
    digest = sha256(body.encode()).hexdigest()
    cursor.execute("INSERT INTO sources (body, digest) VALUES (?, ?) ON CONFLICT DO NOTHING", (body, digest))
    return int(cursor.execute("SELECT id FROM sources WHERE digest = ?", (digest,)).fetchone()[0])
