# ruff: noqa: S608 (statements are put together from names, never from values)
"""Many rows in few statements.

`sqlite3` releases the interpreter lock around every step of a statement. `executemany` takes a step per row, and beside
a busy thread the lock comes back late each time: 620 µs per span were measured, against 80 µs with 500 rows per
statement (docs/results/traces.md). So rows go in as statements of many rows, in a few fixed sizes that stay prepared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any

SIZES = (500, 100, 20, 5, 1)  # rows per statement; 500 × 29 columns is below SQLite's limit of 32,766 variables


@dataclass(frozen=True)
class Insert:
    """`INSERT INTO table (columns) VALUES … ending`.

    `optional` has the columns that are often empty in a whole batch, in sets that tend to be empty together. An empty
    set is left out of the statement, which makes the insert of a span a third cheaper.
    """

    table: str
    columns: tuple[str, ...]
    ending: str
    optional: tuple[tuple[str, ...], ...] = ()

    def run(self, cursor: Any, rows: Sequence[Sequence[Any]]) -> int:
        """Inserts rows in the open transaction. Returns how many were inserted or changed."""
        columns = self.columns_of(rows) if self.optional and rows else self.columns
        if columns != self.columns:
            rows = list(map(itemgetter(*map(self.columns.index, columns)), rows))
        if (insert := getattr(cursor, "insert", None)) is not None:  # PostgreSQL has a way of its own
            return int(insert(self.table, columns, rows, self.ending))
        changed = start = 0
        for size in SIZES:
            while len(rows) - start >= size:
                values = list(chain.from_iterable(rows[start : start + size]))
                changed += cursor.execute(self.statement(columns, size), values).rowcount
                start += size
        return changed

    def columns_of(self, rows: Sequence[Sequence[Any]]) -> tuple[str, ...]:
        """The columns without those optional sets in which every row holds None."""
        empty: set[str] = set()
        for names in self.optional:
            places = [self.columns.index(name) for name in names]
            if all(row[place] is None for place in places for row in rows):
                empty.update(names)
        return tuple(name for name in self.columns if name not in empty) if empty else self.columns

    @lru_cache(maxsize=512)  # noqa: B019 (a handful of constants, one per table)
    def statement(self, columns: tuple[str, ...], rows: int) -> str:
        """The statement for so many rows."""
        marks = f"({', '.join('?' * len(columns))})"
        return f"INSERT INTO {self.table} ({', '.join(columns)}) VALUES {', '.join([marks] * rows)} {self.ending}"


def adding(table: str, key: Iterable[str], sums: Iterable[str]) -> Insert:
    """An insert that adds its sums to the row that has the same key."""
    key, sums = tuple(key), tuple(sums)
    added = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in sums)
    return Insert(table, (*key, *sums), f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {added}")
