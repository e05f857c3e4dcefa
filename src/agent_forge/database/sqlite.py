"""SQLite files: how they are made, recognised, opened and written.

A database is born whole: its schema is written to a temporary file that then takes the store's name, so
a file of that name without our mark in its header is not ours and is left alone, byte for byte.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent_forge.database.file_locks import FileLocks
from agent_forge.database.schema import MEMORY, Schema, too_new
from agent_forge.errors import DataError, StoreError
from agent_forge.files import sync_folder

TYPES = {"serial": "INTEGER PRIMARY KEY", "int": "INTEGER", "real": "REAL", "packed": "WITHOUT ROWID"}
BUSY_S = 60.0  # how long a writer waits for other processes' writers
ELSEWHERE = "Name another file or folder, or move this one away"

# Connections of a parent process. Closing them in a child could release the parent's locks, so they stay open.
_INHERITED: list[sqlite3.Connection] = []
_RECOGNISED: set[tuple[str, int]] = set()  # the real paths and inodes of files that are ours
_RECOGNISING = threading.Lock()


class SqliteDatabase:
    """Connections to one SQLite file in WAL mode; one writer at a time, readers beside it."""

    dialect = "sqlite"

    def __init__(self, path: str | os.PathLike[str], schema: Schema) -> None:
        self.where = os.fspath(path)
        self.schema = schema
        self._memory = self.where == MEMORY
        self._locks = FileLocks(None if self._memory else f"{self.where}.lock")
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
            with suppress(OSError):  # earlier versions left some readable for everyone
                Path(self.where).chmod(0o600)

    def _forget(self) -> None:
        self._pid = os.getpid()
        self.writing = threading.RLock()
        self._pool = threading.Lock()
        self._idle: list[sqlite3.Connection] = [_connect(MEMORY)] if self._memory else []

    @contextmanager
    def read(self) -> Iterator[sqlite3.Cursor]:
        """A cursor on a connection of its own (in memory: on the only one)."""
        with self._connection() as connection, _errors(self.where):
            yield connection.cursor()

    def write(self) -> Transaction:
        """A cursor in a transaction that is committed when the block ends, and undone if it fails."""
        return Transaction(self)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        connection = self.take()
        try:
            yield connection
        finally:
            self.give_back(connection)

    def take(self) -> sqlite3.Connection:
        """A connection that is nobody else's until it is given back."""
        if os.getpid() != self._pid:  # a forked child: its parent's connections are not its own
            _INHERITED.extend(self._idle)
            self._forget()
        if self._memory:
            self.writing.acquire()
            return self._idle[0]
        with self._pool:
            connection = self._idle.pop() if self._idle else None
        return connection or _open(self.where, self.schema)

    def give_back(self, connection: sqlite3.Connection) -> None:
        """Lets others use the connection."""
        if self._memory:
            self.writing.release()
            return
        with self._pool:
            self._idle.append(connection)

    def claim(self, number: int) -> FileClaim | None:
        """Claims a number; None if it is claimed already."""
        return FileClaim(self, self._locks, number) if self._locks.take(number) else None

    def is_claimed(self, number: int) -> bool:
        """Whether a process, this one included, holds a claim on a number."""
        return self._locks.is_taken(number)

    def vacuum(self) -> None:
        """Gives free pages back to the file system. Waits for writers and needs room for a copy."""
        with self._connection() as connection, self.writing, _errors(self.where):
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def check(self) -> list[str]:
        """The faults that `PRAGMA integrity_check` reports; empty when the file is sound."""
        with self.read() as cursor:
            lines = [str(row[0]) for row in cursor.execute("PRAGMA integrity_check")]
        return [] if lines == ["ok"] else lines

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


class Transaction:
    """A `write` of a SqliteDatabase. A class, not a generator: small commits are what a journal consists of, and three
    nested context managers would cost a third of one."""

    __slots__ = ("_connection", "_database")

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    def __enter__(self) -> sqlite3.Cursor:
        database = self._database
        self._connection = database.take()
        database.writing.acquire()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            return self._connection.cursor()
        except BaseException as error:
            self._leave()
            if (ours := _translated(error, database.where)) is not None:
                raise ours from error
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        failure = error
        if failure is None:
            try:
                self._connection.execute("COMMIT")
            except BaseException as raised:
                failure = raised
        if failure is not None:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
        self._leave()
        if failure is not None and (ours := _translated(failure, self._database.where)) is not None:
            raise ours from failure
        if failure is not None and failure is not error:
            raise failure

    def _leave(self) -> None:
        self._database.writing.release()
        self._database.give_back(self._connection)


class FileClaim:
    """A claim in a SQLite file: a lock on one byte of the file beside it."""

    def __init__(self, database: SqliteDatabase, locks: FileLocks, number: int) -> None:
        self._database = database
        self._locks = locks
        self._number = number

    def write(self) -> Transaction:
        """A transaction, as `SqliteDatabase.write`."""
        return self._database.write()

    def release(self) -> None:
        """Gives the claim up."""
        self._locks.release(self._number)


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    connection.execute("PRAGMA foreign_keys=ON")  # as PostgreSQL does
    return connection


def _open(path: str, schema: Schema) -> sqlite3.Connection:
    with _errors(path):
        connection = _connect(path)
        connection.execute(f"PRAGMA synchronous={'FULL' if schema.synced else 'NORMAL'}")
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
    connection.execute(f"PRAGMA page_size={schema.page_size}")
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


def _recognise(path: Path, schema: Schema) -> None:
    """Refuses a file that is not a whole database of this schema, reading its header and changing nothing.

    Once per process and file: closing a plain file handle on a database drops the locks that SQLite
    holds on it for this process (sqlite.org/howtocorrupt.html, section 2.2). Before the first time it
    holds none.
    """
    where = str(path)
    with _RECOGNISING:
        try:
            status = path.stat()
            file_id = os.path.realpath(where), status.st_ino
            if file_id in _RECOGNISED:
                return
            with path.open("rb") as file:
                header = file.read(100)
        except OSError as error:
            raise StoreError(f"the store cannot be read: {error.strerror}", where=where) from error
        if len(header) < 100 or not header.startswith(b"SQLite format 3\x00"):
            raise StoreError(f"the file is not a {schema.name}", where=where, fix=ELSEWHERE)
        # The fields of sqlite.org/fileformat.html, section 1.3.
        page_size, pages = struct.unpack_from(">H", header, 16)[0], struct.unpack_from(">I", header, 28)[0]
        version, application_id = struct.unpack_from(">i", header, 60)[0], struct.unpack_from(">i", header, 68)[0]
        _check_kind(application_id, version, where, schema)
        log = Path(f"{where}-wal")
        if status.st_size < pages * (65536 if page_size == 1 else page_size) and not (
            log.exists() and log.stat().st_size
        ):
            what, fix = "the file has been cut short", "Restore it from a copy, or move it away"
            raise StoreError(what, where=where, fix=fix)
        _RECOGNISED.add(file_id)


def _check_kind(application_id: int, version: int, where: str, schema: Schema) -> None:
    if application_id != schema.application_id:
        what = f"the file is not a {schema.name} but another program's database"
        raise StoreError(what, where=where, fix=ELSEWHERE)
    if version > schema.version:
        raise too_new(version, where, schema)


def _complete(cursor: sqlite3.Cursor, where: str, schema: Schema) -> None:
    """Refuses a database whose log holds what its header does not, or that lacks a table."""
    application_id, version = cursor.execute("PRAGMA application_id").fetchone()[0], _version(cursor)
    _check_kind(application_id, version, where, schema)
    tables = {row[0] for row in cursor.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if missing := [name for name in schema.tables if name not in tables and version == schema.version]:
        raise StoreError(f"the table {missing[0]!r} is missing", where=where, fix="Restore the file from a copy")


@contextmanager
def _errors(where: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if (ours := _translated(error, where)) is not None:
            raise ours from error
        raise


_VALUES = (
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    sqlite3.IntegrityError,
    OverflowError,
    UnicodeEncodeError,
)


def _translated(error: BaseException, where: str) -> StoreError | DataError | None:
    """What an error of SQLite means for people; None for an error that is not SQLite's."""
    if isinstance(error, _VALUES):
        return DataError(f"a value cannot be stored: {error}", where=where)
    if not isinstance(error, sqlite3.Error):
        return None
    text = "disk is full" if "disk I/O error" in str(error) and _is_full(where) else str(error)
    for words, what, fix in _FAULTS:
        if words in text:
            return StoreError(what, where=where, fix=fix)
    return StoreError(f"the store failed: {text}", where=where)


def _is_full(where: str) -> bool:
    """Whether the disk has no room for a page: where a file cannot even be made, SQLite reports an I/O error."""
    with suppress(OSError):
        return shutil.disk_usage(Path(where).parent).free < 65536
    return False


# Messages rather than codes: `sqlite_errorcode` came with Python 3.11.
_FAULTS = (
    ("disk is full", "the disk is full", "Free some space and continue: nothing that was stored is lost"),
    ("disk I/O error", "the disk cannot be written", "Check the disk and its free space"),
    ("locked", f"other processes have kept the store busy for {BUSY_S:.0f} s", "Close them or try again"),
    ("readonly", "the store may only be read", "Check the permissions of the file and its folder"),
    ("unable to open", "the store cannot be opened", "Check the permissions of the file and its folder"),
    ("malformed", "the file is damaged", "Restore it from a copy, or move it away"),
    ("not a database", "the file is not one of ours", ELSEWHERE),
)
