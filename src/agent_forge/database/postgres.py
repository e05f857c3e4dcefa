"""PostgreSQL: the same tables and statements as in SQLite, in a schema of their own. Needs psycopg."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from agent_forge.database.schema import Schema, too_new
from agent_forge.errors import DataError, MissingExtraError, StoreError

TYPES = {"serial": "BIGSERIAL PRIMARY KEY", "int": "BIGINT", "real": "DOUBLE PRECISION", "packed": ""}

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
        self._pool = threading.Lock()
        self._idle: list[Any] = []

    @contextmanager
    def read(self) -> Iterator[Cursor]:
        """A cursor on a connection of its own."""
        with self._connection() as connection:
            yield Cursor(connection.cursor())

    @contextmanager
    def write(self) -> Iterator[Cursor]:
        """A cursor in a transaction that is on disk when the block ends, and undone if it fails."""
        with self._connection() as connection:
            with connection.transaction():
                cursor = Cursor(connection.cursor())
                # writers take turns, as they do in SQLite
                cursor.execute("SELECT pg_advisory_xact_lock(?)", (self.schema.application_id,))
                yield cursor

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        psycopg = _psycopg()
        if os.getpid() != self._pid:
            _INHERITED.extend(self._idle)
            self._forget()
        connection = None
        try:
            with self._pool:
                connection = self._idle.pop() if self._idle else None
            connection = connection or self._opened(psycopg)
            yield connection
        except psycopg.Error as error:
            raise _translated(error, self.where) from error
        finally:
            self._put_back(connection)

    def _opened(self, psycopg: Any) -> Any:
        # A database without an encoding (initdb in the C locale makes one) would give bytes for text.
        text = {"client_encoding": "utf8", "application_name": "agent-forge"}
        connection = psycopg.connect(self._url, autocommit=True, **text)
        connection.execute(f"SET search_path TO {self.schema.namespace}")
        return connection

    def _put_back(self, connection: Any) -> None:
        if connection is None:
            return
        if connection.closed or connection.broken:
            connection.close()
            return
        with self._pool:
            self._idle.append(connection)

    def vacuum(self) -> None:
        """Makes the room of deleted rows usable again and refreshes the planner's statistics."""
        with self.read() as cursor:
            for table in self.schema.tables:
                cursor.execute(f"VACUUM (ANALYZE) {table}")

    def check(self) -> list[str]:
        """PostgreSQL checks its own pages; here, that every table is there."""
        with self.read() as cursor:
            return [
                f"the table {name!r} is missing"
                for name in self.schema.tables
                if name not in _tables(cursor, self.schema)
            ]

    def size(self) -> int:
        """Bytes of the tables and their indexes."""
        with self.read() as cursor:
            sizes = "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c WHERE c.relkind = 'r'"
            found = cursor.execute(f"{sizes} AND c.relnamespace = ?::regnamespace", (self.schema.namespace,))
            return int(found.fetchone()[0])

    def close(self) -> None:
        """Closes the idle connections; a later use opens new ones."""
        if os.getpid() != self._pid:
            return
        with self._pool:
            idle, self._idle = self._idle, []
        for connection in idle:
            with suppress(Exception):
                connection.close()


class Cursor:
    """A psycopg cursor that takes the store's statements as they are written for SQLite."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Runs a statement with `?` marks. Returns psycopg's cursor."""
        return self._cursor.execute(_dialect(sql), values)


@lru_cache(maxsize=512)
def _dialect(sql: str) -> str:
    # SQLite's LIKE does not distinguish the case of ASCII letters; ILIKE is PostgreSQL's nearest.
    return sql.replace("?", "%s").replace(" LIKE ", " ILIKE ")


def _migrate(cursor: Cursor, where: str, schema: Schema) -> None:
    cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {schema.namespace}")
    cursor.execute(f"SET LOCAL search_path TO {schema.namespace}")
    tables = _tables(cursor, schema)
    if tables and "schema_version" not in tables:
        fix = "name another database: this one holds other tables of that name"
        raise StoreError(f"the schema {schema.namespace!r} is not a {schema.name}", where=where, fix=fix)
    cursor.execute("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)")
    version = int(cursor.execute("SELECT coalesce(max(version), 0) FROM schema_version").fetchone()[0])
    if version > schema.version:
        raise too_new(version, where, schema)
    for number, migration in enumerate(schema.migrations[version:], start=version + 1):
        for statement in migration:
            cursor.execute(statement.format(**TYPES))
        cursor.execute("INSERT INTO schema_version VALUES (?)", (number,))


def _tables(cursor: Cursor, schema: Schema) -> set[str]:
    found = cursor.execute(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = ?", (schema.namespace,)
    )
    return {row[0] for row in found.fetchall()}


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
    if (error.sqlstate or "").startswith(("22", "23")) or type(error).__name__ in ("ProgrammingError", "DataError"):
        return DataError(f"a value cannot be stored: {str(error).strip().splitlines()[0]}", where=where)
    if error.sqlstate == "53100":
        return StoreError("the server's disk is full", where=where, fix="free some space there and go on")
    if error.sqlstate is None or error.sqlstate.startswith(("08", "57")):
        text = str(error).strip().splitlines()
        what = f"the server cannot be reached: {text[0] if text else 'no answer'}"
        return StoreError(what, where=where, fix="check that it runs and that the URL is right")
    return StoreError(f"the store failed: {str(error).strip().splitlines()[0]}", where=where)
