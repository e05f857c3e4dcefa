"""The journal's SQLite file: how it is made, recognised and opened, and the locks on its runs.

The file is born whole (a temporary file takes its name when its tables are there), so a file of that name without our
mark is not ours and is left as it is. It is only ever read through SQLite: closing a plain file handle on a database
would drop the locks that SQLite holds on it in this process.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent_forge.errors import StoreError
from agent_forge.files import sync_folder

try:
    import fcntl
except ImportError:  # Windows has no such locks: there, two processes on one run are not kept apart
    fcntl = None  # type: ignore[assignment]

FILE = "runs.db"
APPLICATION_ID = 0x4146726E  # "AFrn"
VERSION = 1
BUSY_S = 60.0
CHECKED_BYTES = 16 * 2**20  # a file up to this size is checked as a whole when it is opened

SCHEMA = """
CREATE TABLE runs (
  id INTEGER PRIMARY KEY, run TEXT NOT NULL UNIQUE, state TEXT NOT NULL, created_s REAL NOT NULL, ended_s REAL,
  tasks INTEGER, plan TEXT, settings TEXT NOT NULL, error TEXT, trace_id TEXT);
CREATE TABLE task_log (
  run INTEGER NOT NULL, seq INTEGER NOT NULL, task TEXT NOT NULL, item INTEGER NOT NULL, state TEXT NOT NULL,
  effects INTEGER NOT NULL, attempts INTEGER, started_s REAL, ended_s REAL, result TEXT, more TEXT,
  PRIMARY KEY (run, seq)) WITHOUT ROWID;
"""


@contextmanager
def store_errors(where: str) -> Iterator[None]:
    """Turns SQLite's errors into StoreErrors that say what to do."""
    try:
        yield
    except sqlite3.Error as error:
        text = str(error)
        if "full" in text or "I/O" in text:
            fix = "free some disk space; what was committed before is safe and the run can be resumed"
        elif "locked" in text or "busy" in text:
            fix = "another process keeps the file locked; wait for it or end it"
        elif isinstance(error, sqlite3.DatabaseError) and ("malformed" in text or "not a database" in text):
            fix = "move the file away to begin a new journal; it was not changed"
        else:
            fix = None
        raise StoreError(f"the journal cannot be used: {text}", where=where, fix=fix) from error


def open_file(path: Path) -> sqlite3.Connection:
    """A connection to the journal, made if it is not there. Raises StoreError for a foreign or damaged file."""
    with store_errors(str(path)):
        if not path.exists():
            _create(path)
        connection = _connect(path)
        try:
            _recognise(connection, path)
            connection.execute("PRAGMA journal_mode=WAL")
            # A commit survives kill -9 as soon as it returns; a power cut may take back the last ones (never part of
            # one), since the log is synced at checkpoints and not at every commit.
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("PRAGMA wal_autocheckpoint=4000")
        except BaseException:
            connection.close()
            raise
        return connection


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)


def _create(path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        connection = sqlite3.connect(temporary, isolation_level=None)
        connection.executescript(
            f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={VERSION}; BEGIN; {SCHEMA} COMMIT;"
        )
        connection.close()
        with suppress(FileExistsError):  # another process was faster: its file is as good
            os.link(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise StoreError(f"the journal cannot be made: {error.strerror}", where=str(path)) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _recognise(connection: sqlite3.Connection, path: Path) -> None:
    found = connection.execute("PRAGMA application_id").fetchone()[0]
    if found != APPLICATION_ID:
        raise StoreError(
            "the file is not a journal of Agent Forge", where=str(path), fix="move it away or name another home folder"
        )
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise StoreError(f"the journal has version {version}, this program knows {VERSION}", where=str(path))
    if path.stat().st_size <= CHECKED_BYTES:
        (state,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise StoreError(
                f"the journal is damaged: {state}",
                where=str(path),
                fix="move the file away to begin a new journal; it was not changed",
            )


class RunLocks:
    """Locks on runs, one byte of one file each; the system lets go of them when the process ends, however it ends."""

    _held: set[tuple[str, int]] = set()  # noqa: RUF012  of this process, in which file locks do not exclude each other
    _files: dict[str, int] = {}  # noqa: RUF012  never closed: closing one handle would drop every lock on the file
    _guard = threading.Lock()

    def __init__(self, path: Path) -> None:
        self._path = os.fspath(path.resolve())

    def take(self, number: int) -> bool:
        """Whether the lock is ours now."""
        with self._guard:
            if (self._path, number) in self._held:
                return False
            if fcntl is not None:
                try:
                    fcntl.lockf(self._file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
                except OSError:
                    return False
            self._held.add((self._path, number))
            return True

    def give(self, number: int) -> None:
        """Lets go of a lock."""
        with self._guard:
            if (self._path, number) in self._held:
                self._held.discard((self._path, number))
                if fcntl is not None:
                    fcntl.lockf(self._file(), fcntl.LOCK_UN, 1, number)

    def is_free(self, number: int) -> bool:
        """Whether nobody holds the lock."""
        if not self.take(number):
            return False
        self.give(number)
        return True

    def _file(self) -> int:
        key = f"{os.getpid()}:{self._path}"  # a forked child has no locks of its parent and opens its own
        if key not in self._files:
            self._files[key] = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        return self._files[key]
