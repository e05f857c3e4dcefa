"""Claims on numbers, each a lock on one byte of a file; the system releases them when their process ends."""

from __future__ import annotations

import os
import threading
import time

from agent_forge.errors import StoreError
from agent_forge.platforms import lock, unlock

# Whoever asks whether a number is claimed holds its lock for a moment, which must not look like a claim.
PATIENCE_S = 0.05


class FileLocks:
    """The locks of one file. Those of one process do not exclude each other, so it remembers its own."""

    _held: set[tuple[str, int]] = set()  # noqa: RUF012
    _files: dict[str, int] = {}  # noqa: RUF012  never closed: closing one handle would drop every lock on the file
    _guard = threading.Lock()

    def __init__(self, path: str | None) -> None:
        """Without a file, the locks are those of this object alone."""
        self._in_file = path is not None
        self._path = str(id(self)) if path is None else os.path.realpath(path)

    def take(self, number: int, patience_s: float = PATIENCE_S) -> bool:
        """Whether the lock is ours now."""
        end = time.monotonic() + patience_s
        while not self._take(number):
            if time.monotonic() >= end:
                return False
            time.sleep(0.005)
        return True

    def _take(self, number: int) -> bool:
        with self._guard:
            if (self._path, number) in self._held:
                return False
            if self._in_file and not self._locked(number):
                return False
            self._held.add((self._path, number))
            return True

    def release(self, number: int) -> None:
        with self._guard:
            if (self._path, number) in self._held:
                self._held.discard((self._path, number))
                if self._in_file:
                    unlock(self._file(), number)

    def is_taken(self, number: int) -> bool:
        if not self.take(number, 0.0):
            return True
        self.release(number)
        return False

    def _locked(self, number: int) -> bool:
        try:
            return lock(self._file(), number)
        except OSError:  # a file system without locks
            return False

    def _file(self) -> int:
        key = f"{os.getpid()}:{self._path}"  # a forked child has no locks of its parent and opens its own
        if key not in self._files:
            try:
                self._files[key] = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            except OSError as error:
                raise StoreError(f"the lock file cannot be opened: {error.strerror}", where=self._path) from error
        return self._files[key]
