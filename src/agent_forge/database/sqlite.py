"""SQLite files: how they are made, recognised, opened and written.

A database is born whole: its schema is written to a temporary file that then takes the store's name, so a file of that
name without our mark in its header is not ours and is left alone, byte for byte.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent_forge.database import MEMORY
from agent_forge.database.schema import Schema, too_new
from agent_forge.errors import DataError, StoreError
from agent_forge.files import sync_folder

TYPES = {"serial": "INTEGER PRIMARY KEY", "int": "INTEGER", "real": "REAL", "packed": "WITHOUT ROWID"}
BUSY_S = 60.0  # how long a writer waits for other processes' writers

# Connections of a parent process. Closing them in a child could release the parent's locks, so they are kept.
_INHERITED: list[sqlite3.Connection] = []


class SqliteDatabase:
    """Connections to one SQLite file in WAL mode; one writer at a time, readers beside it."""

    dialect = "sqlite"

    def __init__(self, path: str | os.PathLike[str], schema: Schema) -> None:
        self.where = os.fspath(path)
        self.schema = schema
        self._memory = self.where == MEMORY
        if not self._memory:
            _create(Path(self.where), schema)
            _recognise(Path(self.where), schema)
        self._forget()
        if self._memory:
            _build(self._idle[0], schema)
            return
        with self.read() as cursor:
            version = _version(cursor)
            _complete(cursor, self.where, schema)
        if version < schema.version:
            with self.write() as cursor:
                _migrate(cursor, schema)

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._writing = threading.RLock()
        self._pool = threading.Lock()
        self._idle: list[sqlite3.Connection] = [_connect(MEMORY)] if self._memory else []

    @contextmanager
    def read(self) -> Iterator[sqlite3.Cursor]:
        """A cursor on a connection of its own (in memory: on the only one)."""
        with self._connection() as connection, _errors(self.where):
            yield connection.cursor()

    @contextmanager
    def write(self) -> Iterator[sqlite3.Cursor]:
        """A cursor in a transaction that is on disk when the block ends, and undone if it fails."""
        with self._connection() as connection, self._writing, _errors(self.where):
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection.cursor()
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        if os.getpid() != self._pid:  # a forked child: its parent's connections are not its own
            _INHERITED.extend(self._idle)
            self._forget()
        if self._memory:
            with self._writing:
                yield self._idle[0]
            return
        with self._pool:
            connection = self._idle.pop() if self._idle else None
        connection = connection or _open(self.where)
        try:
            yield connection
        finally:
            with self._pool:
                self._idle.append(connection)

    def vacuum(self) -> None:
        """Gives free pages back to the file system. Waits for writers and needs room for a copy."""
        with self._connection() as connection, self._writing, _errors(self.where):
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def check(self) -> list[str]:
        """What `PRAGMA integrity_check` finds; empty when the file is sound."""
        with self.read() as cursor:
            found = [str(row[0]) for row in cursor.execute("PRAGMA integrity_check")]
        return [] if found == ["ok"] else found

    def size(self) -> int:
        """Bytes of the database, without its log."""
        with self.read() as cursor:
            pages = cursor.execute("PRAGMA page_count").fetchone()[0]
            return int(pages * cursor.execute("PRAGMA page_size").fetchone()[0])

    def close(self) -> None:
        """Closes the idle connections; a later use opens new ones."""
        if os.getpid() != self._pid or self._memory:
            return
        with self._pool:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    connection.execute("PRAGMA foreign_keys=ON")  # as PostgreSQL does
    return connection


def _open(path: str) -> sqlite3.Connection:
    with _errors(path):
        connection = _connect(path)
        connection.execute("PRAGMA synchronous=FULL")  # what was acknowledged survives a power cut
        connection.execute("PRAGMA wal_autocheckpoint=4000")
        connection.execute("PRAGMA cache_size=-32000")
        return connection


def _create(path: Path, schema: Schema) -> None:
    if path.exists():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    except OSError as error:
        raise StoreError(f"the store cannot be made: {error.strerror}", where=str(path)) from error
    os.close(fd)
    try:
        with _errors(str(path)):
            connection = _connect(temporary)
            _build(connection, schema)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.close()
        _publish(temporary, path)
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            with suppress(FileNotFoundError):
                Path(temporary + suffix).unlink()


def _publish(temporary: str, path: Path) -> None:
    """Gives the finished file its name, unless another process was faster: then theirs is the store."""
    Path(temporary).chmod(0o600)  # what is in it is nobody else's business
    with suppress(FileExistsError):
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            if not path.exists():
                Path(temporary).replace(path)
    sync_folder(path.parent)


def _build(connection: sqlite3.Connection, schema: Schema) -> None:
    connection.execute("PRAGMA page_size=8192")
    connection.execute("BEGIN")
    connection.execute(f"PRAGMA application_id={schema.application_id}")
    _migrate(connection.cursor(), schema)
    connection.execute("COMMIT")


def _version(cursor: sqlite3.Cursor) -> int:
    return int(cursor.execute("PRAGMA user_version").fetchone()[0])


def _migrate(cursor: sqlite3.Cursor, schema: Schema) -> None:
    """Brings the schema up to date, inside the transaction that is open."""
    for migration in schema.migrations[_version(cursor) :]:
        for statement in migration:
            cursor.execute(statement.format(**TYPES))
    cursor.execute(f"PRAGMA user_version={schema.version}")


def _complete(cursor: sqlite3.Cursor, where: str, schema: Schema) -> None:
    version = _version(cursor)  # the log may hold a newer one than the header that `_recognise` read
    if version > schema.version:
        raise too_new(version, where, schema)
    tables = {row[0] for row in cursor.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if missing := [name for name in schema.tables if name not in tables and version == schema.version]:
        raise StoreError(f"the table {missing[0]!r} is missing", where=where, fix="restore the file from a copy")


def _recognise(path: Path, schema: Schema) -> None:
    """Refuses a file that is not a whole database of this schema, reading its header and changing nothing."""
    where = str(path)
    try:
        with path.open("rb") as file:
            header, size = file.read(100), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise StoreError(f"the store cannot be read: {error.strerror}", where=where) from error
    elsewhere = "name another file or folder, or move this one away"
    if len(header) < 100 or not header.startswith(b"SQLite format 3\x00"):
        raise StoreError(f"the file is not a {schema.name}", where=where, fix=elsewhere)
    page_size, pages, version, application = _header(header)
    if application != schema.application_id:
        raise StoreError("the file is another program's database", where=where, fix=elsewhere)
    if version > schema.version:
        raise too_new(version, where, schema)
    log = Path(where + "-wal")
    if size < pages * page_size and not (log.exists() and log.stat().st_size):
        raise StoreError("the file has been cut short", where=where, fix="restore it from a copy, or move it away")


def _header(header: bytes) -> tuple[int, int, int, int]:
    """Page size, pages, schema version and application id (sqlite.org/fileformat.html, section 1.3)."""
    (page_size,) = struct.unpack_from(">H", header, 16)
    (pages,) = struct.unpack_from(">I", header, 28)
    (version,) = struct.unpack_from(">i", header, 60)
    (application,) = struct.unpack_from(">i", header, 68)
    return (65536 if page_size == 1 else page_size), pages, version, application


@contextmanager
def _errors(where: str) -> Iterator[None]:
    try:
        yield
    except (sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.IntegrityError, OverflowError) as error:
        raise DataError(f"a value cannot be stored: {error}", where=where) from error
    except sqlite3.Error as error:
        raise _translated(error, where) from error


# Messages rather than codes: `sqlite_errorcode` came with Python 3.11.
_FIXES = (
    ("disk is full", "the disk is full", "free some space and go on: nothing of what was stored is lost"),
    ("disk I/O error", "the disk cannot be written", "check the disk and its free space"),
    ("locked", f"other processes have kept the store busy for {BUSY_S:.0f} s", "close them or try again"),
    ("readonly", "the store may only be read", "check the permissions of the file and its folder"),
    ("unable to open", "the store cannot be opened", "check the permissions of the file and its folder"),
    ("malformed", "the file is damaged", "restore it from a copy, or move it away"),
    ("not a database", "the file is not one of ours", "name another file or folder, or move this one away"),
)


def _translated(error: sqlite3.Error, where: str) -> StoreError:
    text = str(error)
    for words, what, fix in _FIXES:
        if words in text:
            return StoreError(what, where=where, fix=fix)
    return StoreError(f"the store failed: {text}", where=where)
