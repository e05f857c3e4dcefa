"""Events through PostgreSQL, where there is no Redis: rows in a table, and NOTIFY for whoever listens. Needs psycopg.

Writers take turns (`Database.write`), so rows become visible in the order of their numbers: who reads what comes after
the last number that it has seen misses nothing, also when its connection was away.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from agent_forge.database import Database, Schema, open_database
from agent_forge.errors import MissingExtraError, StoreError
from agent_forge.server.hub import Event

CHANNEL = "agent_forge_events"
TOGETHER = 1_000  # rows that are read at once
PRUNE_S = 60.0  # how often old rows are removed; also how long those are kept that belong to no run
DAY_S = 86_400.0  # how long the events of a run are kept
SCHEMA = Schema(
    name="server events",
    application_id=0x41466576,  # "AFev"
    migrations=(
        (
            # A row without event only says that the topic has begun.
            """CREATE TABLE events (
                 id {serial}, topic TEXT NOT NULL, sender TEXT NOT NULL, event TEXT,
                 at_s {real} NOT NULL DEFAULT extract(epoch FROM clock_timestamp()))""",
            "CREATE INDEX events_topic ON events (topic, id)",
            "CREATE INDEX events_at ON events (at_s)",
        ),
    ),
    synced=False,  # what a power cut takes back, nobody waits for any more
)
PRUNE = (
    "DELETE FROM events WHERE at_s < extract(epoch FROM clock_timestamp()) - ?"
    " AND (at_s < extract(epoch FROM clock_timestamp()) - ? OR left(topic, 4) <> 'run:')"
)


class PostgresCarrier:
    """A PostgreSQL database, for `ServerEvents`. It is opened when it is first used: a server starts without it."""

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise MissingExtraError("events in PostgreSQL", "scale") from error
        self._url, self._psycopg = url, psycopg
        self.where = "PostgreSQL"
        self._lock = threading.Lock()
        self._opened: Database | None = None
        self._listening: Any = None
        self._last: int | None = None  # the number of the last row that was heard
        self._pruned = time.monotonic()

    @property
    def _database(self) -> Database:
        with self._lock:
            if self._opened is None:
                self._opened = open_database(self._url, SCHEMA)
                self.where = self._opened.where
            return self._opened

    def send(self, sender: str, items: Sequence[tuple[str, Event]]) -> None:
        """Sends events, all or none."""
        rows = [(topic, sender, json.dumps(event)) for topic, event in items]
        with self._database.write() as cursor:
            cursor.insert("events", ("topic", "sender", "event"), rows, "")
            cursor.execute(f"NOTIFY {CHANNEL}")
            if time.monotonic() - self._pruned > PRUNE_S:
                cursor.execute(PRUNE, (PRUNE_S, DAY_S))
                self._pruned = time.monotonic()

    def begin(self, topic: str) -> None:
        """Makes `has_begun` true for a day."""
        with self._database.write() as cursor:
            cursor.execute("INSERT INTO events (topic, sender) VALUES (?, '')", (topic,))

    def has_begun(self, topic: str) -> bool:
        with self._database.read() as cursor:
            row = cursor.execute("SELECT 1 FROM events WHERE topic = ? LIMIT 1", (topic,)).fetchone()
        return row is not None

    def past(self, topic: str, after: str) -> list[tuple[str, Event]]:
        """The events of a topic, with their numbers, later than the number `after`."""
        with self._database.read() as cursor:
            rows = cursor.execute(
                "SELECT id, event FROM events WHERE topic = ? AND id > ? AND event IS NOT NULL ORDER BY id",
                (topic, int(after or 0)),
            ).fetchall()
        return [(str(number), json.loads(event)) for number, event in rows]

    def subscribe(self) -> None:
        database = self._database
        with self._errors():
            if self._listening is not None:
                self._listening.close()
            self._listening = self._psycopg.connect(self._url, autocommit=True, application_name="agent-forge")
            self._listening.execute(f"LISTEN {CHANNEL}")
        if self._last is None:
            with database.read() as cursor:
                self._last = int(cursor.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()[0])

    def heard(self, timeout_s: float) -> list[tuple[str, str, Event]]:
        """What servers, this one included, have sent meanwhile: (sender, topic, event). After the timeout it looks,
        too: a pooler may keep notifications back."""
        with self._errors():
            for _ in self._listening.notifies(timeout=timeout_s, stop_after=1):
                pass
        with self._database.read() as cursor:
            rows = cursor.execute(
                f"SELECT id, sender, topic, event FROM events WHERE id > ? ORDER BY id LIMIT {TOGETHER}",  # noqa: S608
                (self._last,),
            ).fetchall()
        if rows:
            self._last = rows[-1][0]
        return [(sender, topic, json.loads(event)) for _, sender, topic, event in rows if event is not None]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._psycopg.Error as error:
            raise StoreError(f"the server cannot be reached: {error}", where=self.where) from error

    def close(self) -> None:
        for part in (self._listening, self._opened):
            if part is not None:
                with suppress(Exception):
                    part.close()
