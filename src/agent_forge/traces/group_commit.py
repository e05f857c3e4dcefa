"""Adding by many threads at once, in few transactions.

A commit waits for the disk, and costs the same for one span as for a thousand. Who comes while another thread writes
waits for its turn, and then writes everything that has come meanwhile, or finds that it has been written already. Each
call returns when what it gave is committed. A lone caller waits for nobody.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock

from agent_forge.errors import TraceError
from agent_forge.traces.rows import Row

MOST = 5_000  # rows in a transaction of several callers


@dataclass(eq=False, slots=True)
class Parcel:
    """What one caller gave, and what became of it."""

    rows: list[Row]
    added: int = 0
    error: Exception | None = None
    done: bool = False


class Turns:
    """Callers that take turns. `write` stores the rows of some parcels in one transaction and notes what was added."""

    def __init__(self, write: Callable[[list[Parcel]], None]) -> None:
        self._write = write
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self.turn = Lock()
        self._line: deque[Parcel] = deque()

    def add(self, rows: list[Row]) -> int:
        """Returns how many rows were new, when they are committed. Raises what `write` does."""
        if os.getpid() != self._pid:  # a forked child: who waited in the parent does not wait here
            self._forget()
        own = Parcel(rows)
        self._line.append(own)
        try:
            with self.turn:
                while not own.done:
                    self._write_some(self._taken())
        except BaseException:  # nobody waits for it any more
            with suppress(ValueError):
                self._line.remove(own)
            raise
        if own.error is not None:
            raise own.error
        return own.added

    def _taken(self) -> list[Parcel]:
        taken, size = [self._line.popleft()], 0
        while self._line and (size := size + len(taken[-1].rows)) < MOST:
            taken.append(self._line.popleft())
        return taken

    def _write_some(self, parcels: list[Parcel]) -> None:
        """All in one transaction; if something in it cannot be stored, each alone, so that one bears the blame."""
        try:
            self._write(parcels)
        except TraceError as error:
            if len(parcels) > 1:
                for parcel in parcels:
                    self._write_some([parcel])
                return
            parcels[0].error = error
        except Exception as error:
            for parcel in parcels:
                parcel.error = error
        except BaseException:  # this thread is being interrupted: whoever still waits writes the others' parcels
            self._line.extendleft(reversed(parcels))
            raise
        for parcel in parcels:
            parcel.done = True
