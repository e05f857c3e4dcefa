# ruff: noqa: S608 (statements are put together from names, never from values)
"""Many rows in few statements.

`sqlite3` gives the interpreter lock away around every step of a statement. `executemany` makes a step a row, and beside
a busy thread the lock comes back late each time: 620 µs a span were measured, against 80 µs with 500 rows a statement
(docs/results/traces.md). So rows go in as statements of many rows, in a few fixed sizes that stay prepared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

SIZES = (500, 100, 20, 5, 1)  # rows a statement; 500 × 28 columns is below SQLite's limit of 32,766 variables


@dataclass(frozen=True)
class Insert:
    """`INSERT INTO table (columns) VALUES … ending`."""

    table: str
    columns: tuple[str, ...]
    ending: str

    def text(self, rows: int = 1) -> str:
        """The statement for so many rows."""
        return _text(self, rows)

    def chunks(self, rows: Sequence[Sequence[Any]]) -> Iterator[tuple[str, list[Any]]]:
        """Statements with their values, the largest first."""
        at = 0
        for size in SIZES:
            while len(rows) - at >= size:
                yield self.text(size), list(chain.from_iterable(rows[at : at + size]))
                at += size

    def run(self, cursor: Any, rows: Sequence[Sequence[Any]]) -> int:
        """Inserts rows in the transaction that is open. Returns how many were inserted or changed."""
        return sum(cursor.execute(text, values).rowcount for text, values in self.chunks(rows))


@lru_cache(maxsize=256)
def _text(insert: Insert, rows: int) -> str:
    marks = ", ".join("?" * len(insert.columns))
    values = ", ".join([f"({marks})"] * rows)
    return f"INSERT INTO {insert.table} ({', '.join(insert.columns)}) VALUES {values} {insert.ending}"


def adding(table: str, key: Iterable[str], sums: Iterable[str]) -> Insert:
    """An insert that adds its sums to the row that has the same key."""
    key, sums = tuple(key), tuple(sums)
    added = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in sums)
    return Insert(table, (*key, *sums), f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {added}")
