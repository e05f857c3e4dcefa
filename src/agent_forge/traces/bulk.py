# ruff: noqa: S608 (statements are put together from names, never from values)
"""Many rows in few statements.

`sqlite3` gives the interpreter lock away around every step of a statement. `executemany` makes a step a row, and beside
a busy thread the lock comes back late each time: 620 µs a span were measured, against 80 µs with 500 rows a statement
(docs/results/traces.md). So rows go in as statements of many rows, in a few fixed sizes that stay prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any

from agent_forge.traces.compiled import function

SIZES = (500, 100, 20, 5, 1)  # rows a statement; 500 × 28 columns is below SQLite's limit of 32,766 variables


@dataclass(frozen=True)
class Insert:
    """`INSERT INTO table (columns) VALUES … ending`.

    `optional` has the columns that often hold nothing in a whole batch, in sets that tend to be empty together. A set
    that is empty is left out of the statement: the row is the same, and a span costs 9 µs instead of 15.
    """

    table: str
    columns: tuple[str, ...]
    ending: str
    optional: tuple[tuple[str, ...], ...] = ()

    def text(self, rows: int = 1) -> str:
        """The statement for so many rows."""
        return _text(self, rows)

    def chunks(self, rows: Sequence[Sequence[Any]]) -> Iterator[tuple[str, list[Any]]]:
        """Statements with their values, the largest first."""
        kept = self.needed(rows) if self.optional else self.columns
        insert = self if kept == self.columns else replace(self, columns=kept, optional=())
        if insert is not self:
            pick = itemgetter(*(place for place, name in enumerate(self.columns) if name in kept))
            rows = list(map(pick, rows))
        at = 0
        for size in SIZES:
            while len(rows) - at >= size:
                yield insert.text(size), list(chain.from_iterable(rows[at : at + size]))
                at += size

    def needed(self, rows: Sequence[Sequence[Any]]) -> tuple[str, ...]:
        """The columns without the optional ones that hold nothing in any of the rows."""
        full = filled(rows, len(self.columns))
        empty = {
            name
            for names in self.optional
            if not any(full >> self.columns.index(name) & 1 for name in names)
            for name in names
        }
        return tuple(name for name in self.columns if name not in empty) if empty else self.columns

    def run(self, cursor: Any, rows: Sequence[Sequence[Any]]) -> int:
        """Inserts rows in the transaction that is open. Returns how many were inserted or changed."""
        return sum(cursor.execute(text, values).rowcount for text, values in self.chunks(rows))


def filled(rows: Sequence[Sequence[Any]], columns: int) -> int:
    """The columns in which some row has a value: bit n for column n."""
    quick = _quick_filled()
    found = None if quick is None else quick(rows, columns)
    if found is not None:
        return int(found)
    return sum(1 << place for place in range(columns) if any(row[place] is not None for row in rows))


@cache
def _quick_filled() -> Callable[..., Any] | None:
    return function("span_sums.c", "filled", 2)


@lru_cache(maxsize=512)
def _text(insert: Insert, rows: int) -> str:
    marks = ", ".join("?" * len(insert.columns))
    values = ", ".join([f"({marks})"] * rows)
    return f"INSERT INTO {insert.table} ({', '.join(insert.columns)}) VALUES {values} {insert.ending}"


def adding(table: str, key: Iterable[str], sums: Iterable[str]) -> Insert:
    """An insert that adds its sums to the row that has the same key."""
    key, sums = tuple(key), tuple(sums)
    added = ", ".join(f"{name} = {table}.{name} + excluded.{name}" for name in sums)
    return Insert(table, (*key, *sums), f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {added}")
