# ruff: noqa: S608 (the statements are put together from names, never from values)
"""Sums that are counted but not written yet.

Writing the rollup tables costs as much for 500 spans as for 5,000: the same few hundred groups, hours and buckets. So
a batch is only counted, in memory, and the tables are written when `MOST` spans have come together. `rollup_mark` says
up to which span the tables reach, and changes in the same transaction as they do. Statistics count the spans after the
mark from their rows (stats.py), so they are exact at any moment, and a process that is killed leaves nothing behind but
a mark that the next one goes on from. What other processes have added after the mark is read from the rows as well.
"""

from __future__ import annotations

import os
from typing import Any

from agent_forge.traces.rollup import Sums
from agent_forge.traces.rows import (
    BUCKET,
    COLUMNS,
    COST,
    END,
    GROUP,
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    REWARD,
    START,
    STATUS,
    Row,
)

MOST = 5_000  # spans that may wait: what statistics have to count from the rows at worst

# As wide as a row, with nothing in the columns that no sum needs.
_COUNTED = {START, END, STATUS, INPUT_TOKENS, OUTPUT_TOKENS, COST, REWARD, GROUP, BUCKET}
_WIDE = ", ".join(name if place in _COUNTED else "NULL" for place, name in enumerate(COLUMNS))
_ROWS = f"SELECT {_WIDE} FROM spans WHERE seq > ? AND seq <= ?"
_PLACES = "SELECT (SELECT seq FROM rollup_mark), (SELECT coalesce(max(seq), 0) FROM spans)"


def places(cursor: Any) -> tuple[int, int]:
    """The mark, and the last span there is."""
    mark, last = cursor.execute(_PLACES).fetchone()
    return int(mark), int(last)


class Pending:
    """What this process has counted since the mark. To be used inside a transaction, by one thread at a time."""

    def __init__(self) -> None:
        self.forget()

    def forget(self, mark: int = -1) -> None:
        """Nothing is counted. Always allowed: what is not counted here is counted from the rows."""
        self._mark = mark
        self._pid = os.getpid()
        self._sums = Sums()
        self._counted: list[tuple[int, int]] = []  # spans after the first and up to the second number

    def count(self, rows: list[Row], mark: int) -> None:
        """Counts rows that are about to be stored. Raises where they cannot be counted."""
        self._go_on_from(mark)
        self._sums.add(rows)

    def _go_on_from(self, mark: int) -> None:
        """Another process may have written the sums, with what was counted here; a forked child has counted nothing."""
        if mark != self._mark or os.getpid() != self._pid:
            self.forget(mark)

    def stored(self, last: int, now: int) -> None:
        """Says that what was just counted was given the numbers after `last`, up to `now`."""
        if self._counted and self._counted[-1][1] == last:
            last, _ = self._counted.pop()
        self._counted.append((last, now))

    def write(self, cursor: Any, mark: int, now: int) -> None:
        """Writes the sums of all spans up to `now`, and moves the mark there."""
        self._go_on_from(mark)
        at = mark
        for first, last in [*self._counted, (now, now)]:
            if at < first:
                self._sums.add(cursor.execute(_ROWS, (at, first)).fetchall())
            at = last
        self._sums.write(cursor)
        move_mark(cursor, now)
        self.forget(now)


def move_mark(cursor: Any, now: int) -> None:
    """Says that the tables hold the spans up to `now`."""
    cursor.execute("UPDATE rollup_mark SET seq = ?", (now,))
