"""PostgreSQL: the same tables and statements as in SQLite, in a schema of their own. Needs psycopg."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache, lru_cache, partial
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from agent_forge.database.schema import Schema, too_new
from agent_forge.errors import DataError, MissingExtraError, StoreError

TYPES = {"serial": "BIGSERIAL PRIMARY KEY", "int": "BIGINT", "real": "DOUBLE PRECISION", "packed": ""}
# The server learns of the death of a process from its connection, a moment after it happened.
PATIENCE_S = 0.5
ROWS = 1_000  # in one statement; what it holds must stay far below a gigabyte

# Connections of a parent process: closing them in a child would end the parent's sessions.
_INHERITED: list[Any] = []


class PostgresDatabase:
    """Connections to one PostgreSQL database."""

    dialect = "postgresql"

    def __init__(self, url: str, schema: Schema) -> None:
        self._url = url
        self.schema = schema
        self.where = _without_password(url)
        self._forget()
        with self.write() as cursor:
            _migrate(cursor, self.where, self.schema)

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._durability = "on"  # the server's `synchronous_commit`
        self._pool = threading.Lock()
        self._idle: list[Any] = []
        self._claiming = threading.RLock()
        self._session: Any = None  # the connection that holds the claims
        self._claimed: set[int] = set()

    @contextmanager
    def read(self) -> Iterator[PostgresCursor]:
        """A cursor on a connection of its own."""
        with self._connection() as connection:
            yield PostgresCursor(connection)

    @contextmanager
    def write(self) -> Iterator[PostgresCursor]:
        """A cursor in a transaction that is committed when the block ends, and undone if it fails."""
        with self._connection() as connection:
            # Writers take turns, as they do in SQLite. A turn ends with the commit, which does not wait for the disk:
            # the next writer's turn begins meanwhile, and one sync of the server serves all who wait for it.
            connection.execute(f"BEGIN; SELECT pg_advisory_xact_lock({self.schema.application_id})")
            try:
                yield PostgresCursor(connection)
            except BaseException:
                with suppress(_psycopg().Error):  # a broken connection has no transaction any more
                    connection.execute("ROLLBACK")
                raise
            connection.execute(f"COMMIT; {self._sync}")

    @property
    def _sync(self) -> str:
        """The statement that waits until everything committed is on disk, where the schema asks for that: an empty
        message, with the durability that the server is set to, waits for all before it."""
        if not self.schema.synced:
            return ""
        setting = f"set_config('synchronous_commit', '{self._durability}', true)"
        return f"SELECT {setting}, pg_logical_emit_message(true, 'agent-forge', '')"

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        with self._errors():
            self._leave_parent()
            with self._pool:
                connection = self._idle.pop() if self._idle else None
            connection = connection or self._opened()
            try:
                yield connection
            finally:
                if connection.closed or connection.broken:
                    connection.close()
                else:
                    with self._pool:
                        self._idle.append(connection)

    def _leave_parent(self) -> None:
        """A forked child leaves its parent's connections alone."""
        if os.getpid() != self._pid:
            _INHERITED.extend([*self._idle, self._session])
            self._forget()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        psycopg = _psycopg()
        try:
            yield
        except psycopg.Error as error:
            raise _translated(error, self.where) from error
        except UnicodeEncodeError as error:
            raise DataError(f"a value cannot be stored: {error}", where=self.where) from error

    def _opened(self) -> Any:
        # A database without an encoding (initdb in the C locale makes one) would give bytes for text.
        text = {"client_encoding": "utf8", "application_name": "agent-forge"}
        connection = _psycopg().connect(self._url, autocommit=True, **text)
        self._durability = connection.execute("SHOW synchronous_commit").fetchone()[0]
        connection.execute(f"SET search_path TO {self.schema.namespace}")
        connection.execute("SET synchronous_commit TO off")
        return connection

    # Claims are session-level advisory locks, all on one connection, which also writes for them: a
    # process that has lost its connection, and with it its claims, can no longer write under them.

    def claim(self, number: int) -> SessionClaim | None:
        """Claims a number; None if it is claimed already."""
        end = time.monotonic() + PATIENCE_S
        while (claim := self._claim(number)) is None and time.monotonic() < end:
            time.sleep(0.02)
        return claim

    def _claim(self, number: int) -> SessionClaim | None:
        with self._errors():
            self._leave_parent()
            with self._claiming:
                if self._session is None or self._session.closed or self._session.broken:
                    self._session = self._opened()
                    # So that the server notices within half a minute that a whole machine has died.
                    for name, value in (("idle", 10), ("interval", 5), ("count", 3)):
                        self._session.execute(f"SET tcp_keepalives_{name} TO {value}")
                    self._claimed = set()
                if number in self._claimed:  # a session may take the same lock twice
                    return None
                values = (self.schema.application_id, number)
                if not self._session.execute("SELECT pg_try_advisory_lock(%s, %s)", values).fetchone()[0]:
                    return None
                self._claimed.add(number)
                return SessionClaim(self, self._session, number)

    @contextmanager
    def write_claimed(self, session: Any) -> Iterator[PostgresCursor]:
        """A transaction on the connection that holds a claim."""
        lost = "the connection to the server was lost, and with it the claim"
        with self._claiming, self._errors():
            if session is not self._session or session.closed or os.getpid() != self._pid:
                raise StoreError(lost, where=self.where, fix="Resume when the server can be reached")
            with session.transaction():
                yield PostgresCursor(session)
            if self.schema.synced:
                session.execute(self._sync)

    def release(self, session: Any, number: int) -> None:
        """Gives a claim up."""
        with self._claiming:
            if session is self._session and os.getpid() == self._pid:
                self._claimed.discard(number)
                with suppress(_psycopg().Error):  # a session that has ended has no locks
                    session.execute("SELECT pg_advisory_unlock(%s, %s)", (self.schema.application_id, number))

    def is_claimed(self, number: int) -> bool:
        """Whether a process, this one included, holds a claim on a number."""
        with self.read() as cursor:
            row = cursor.execute(
                "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND classid = ? AND objid = ?"
                " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
                (self.schema.application_id, number),
            ).fetchone()
            return row is not None

    def vacuum(self) -> None:
        """Makes the room of deleted rows usable again and refreshes the planner's statistics."""
        with self.read() as cursor:
            for table in self.schema.tables:
                cursor.execute(f"VACUUM (ANALYZE) {table}")

    def check(self) -> list[str]:
        """PostgreSQL checks its own pages; here, that every table is there."""
        with self.read() as cursor:
            tables = _tables(cursor, self.schema)
        return [f"the table {name!r} is missing" for name in self.schema.tables if name not in tables]

    def size(self) -> int:
        """Bytes of the tables and their indexes."""
        with self.read() as cursor:
            sizes = "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c WHERE c.relkind = 'r'"
            row = cursor.execute(f"{sizes} AND c.relnamespace = ?::regnamespace", (self.schema.namespace,)).fetchone()
            return int(row[0])

    def close(self) -> None:
        """Closes the idle connections; a later use opens new ones. Claims stay."""
        if os.getpid() != self._pid:
            return
        with self._pool:
            idle, self._idle = self._idle, []
        with self._claiming:
            if self._session is not None and not self._claimed:
                idle.append(self._session)
                self._session = None
        for connection in idle:
            with suppress(Exception):
                connection.close()


class SessionClaim:
    """A claim in PostgreSQL: an advisory lock of one session."""

    def __init__(self, database: PostgresDatabase, session: Any, number: int) -> None:
        self._database = database
        self._session = session
        self._number = number

    def write(self) -> Any:
        """A transaction that fails if the claim was lost."""
        return self._database.write_claimed(self._session)

    def release(self) -> None:
        """Gives the claim up."""
        self._database.release(self._session, self._number)


class PostgresCursor:
    """A psycopg cursor that takes the store's statements as they are written for SQLite."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._cursor = connection.cursor()

    def together(self) -> AbstractContextManager[Any]:
        """A block whose statements are sent without waiting for each other's results."""
        pipeline: AbstractContextManager[Any] = self._connection.pipeline()
        return pipeline

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Runs a statement with `?` marks. Returns psycopg's cursor."""
        return self._cursor.execute(_dialect(sql), values)

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], ending: str) -> int:
        """`INSERT INTO table (columns) … ending` of many rows. Returns how many were inserted or changed.

        They travel as one JSON document: psycopg and the server would spend most of their time on the marks of a long
        `VALUES`, and COPY, which cannot end in ON CONFLICT, would need a temporary table (docs/results/traces.md).
        """
        changed = 0
        names = ", ".join(columns)
        sql = f"INSERT INTO {table} ({names}) SELECT {names} FROM json_populate_recordset(NULL::{table}, %s) {ending}"  # noqa: S608 (names, never values)
        for start in range(0, len(rows), ROWS):
            changed += self._cursor.execute(sql, (_json(columns, rows[start : start + ROWS]),)).rowcount
        return changed


def _json(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as a JSON array of objects. JSON has no infinity, but the server reads its name."""
    records = [
        dict(zip(columns, [str(value) if value in _INFINITE else value for value in row], strict=True)) for row in rows
    ]
    try:
        return _dumps()(records)
    except (TypeError, ValueError) as error:
        raise DataError(f"a value cannot be stored: {error}") from error


_INFINITE = frozenset((math.inf, -math.inf))


@cache
def _dumps() -> Callable[[Any], str]:
    try:
        import orjson
    except ImportError:
        return partial(json.dumps, ensure_ascii=False)
    return lambda value: orjson.dumps(value).decode()


@lru_cache(maxsize=512)
def _dialect(sql: str) -> str:
    # SQLite's LIKE does not distinguish the case of ASCII letters; ILIKE is PostgreSQL's nearest.
    return sql.replace("?", "%s").replace(" LIKE ", " ILIKE ")


def _migrate(cursor: PostgresCursor, where: str, schema: Schema) -> None:
    cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {schema.namespace}")
    cursor.execute(f"SET LOCAL search_path TO {schema.namespace}")
    tables = _tables(cursor, schema)
    if tables and "schema_version" not in tables:
        fix = "Name another database: this one holds other tables of that name"
        raise StoreError(f"the schema {schema.namespace!r} is not a {schema.name}", where=where, fix=fix)
    cursor.execute("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)")
    version = int(cursor.execute("SELECT coalesce(max(version), 0) FROM schema_version").fetchone()[0])
    if version > schema.version:
        raise too_new(version, where, schema)
    for number, migration in enumerate(schema.migrations[version:], start=version + 1):
        for statement in migration:
            cursor.execute(statement.format(**TYPES))
        cursor.execute("INSERT INTO schema_version VALUES (?)", (number,))


def _tables(cursor: PostgresCursor, schema: Schema) -> set[str]:
    rows = cursor.execute(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = ?", (schema.namespace,)
    )
    return {row[0] for row in rows.fetchall()}


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise MissingExtraError("PostgreSQL", "scale") from error
    return psycopg


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    user = f"{parts.username}@" if parts.username else ""
    port = f":{parts.port}" if parts.port else ""
    return urlunsplit((parts.scheme, f"{user}{parts.hostname or ''}{port}", parts.path, "", ""))


def _translated(error: Any, where: str) -> StoreError | DataError:
    text = str(error).strip().splitlines() or ["no answer"]
    if (error.sqlstate or "").startswith(("22", "23")) or type(error).__name__ in ("ProgrammingError", "DataError"):
        return DataError(f"a value cannot be stored: {text[0]}", where=where)
    if error.sqlstate == "53100":
        return StoreError("the server's disk is full", where=where, fix="Free some space there and continue")
    if error.sqlstate is None or error.sqlstate.startswith(("08", "57")):
        what = f"the server cannot be reached: {text[0]}"
        return StoreError(what, where=where, fix="Check that it is running and that the URL is right")
    return StoreError(f"the store failed: {text[0]}", where=where)
