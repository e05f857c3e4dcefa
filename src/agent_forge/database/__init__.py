"""Where records are kept: a SQLite file by default, PostgreSQL by URL, the same statements for both."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from agent_forge.database.schema import MEMORY, Schema

__all__ = ["MEMORY", "Claim", "Cursor", "Database", "Schema", "is_url", "open_database"]


class Cursor(Protocol):
    """What both drivers' cursors do; statements mark their values with `?`."""

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Any: ...


class Claim(Protocol):
    """Sole ownership of a number, among all processes that use the database, until it is released.

    It ends with its process, however that ends.
    """

    def write(self) -> AbstractContextManager[Any]:
        """As `Database.write`, beside other writers where the database can. Raises StoreError if the claim was lost."""

    def release(self) -> None: ...


class Database(Protocol):
    """An open database. A `write` is committed when its block ends, and undone if it fails."""

    where: str
    dialect: str

    def read(self) -> AbstractContextManager[Any]: ...
    def write(self) -> AbstractContextManager[Any]: ...

    def claim(self, number: int) -> Claim | None:
        """Claims a number; None if it is claimed already, by another process or this one."""

    def is_claimed(self, number: int) -> bool: ...
    def vacuum(self) -> None: ...
    def check(self) -> list[str]: ...
    def size(self) -> int: ...
    def close(self) -> None: ...


def is_url(place: str | os.PathLike[str]) -> bool:
    """Whether `place` is the URL of a PostgreSQL database, and not a path."""
    return isinstance(place, str) and place.startswith(("postgresql://", "postgres://"))


def open_database(place: str | os.PathLike[str], schema: Schema) -> Database:
    """Opens the database at a path or at a `postgresql://` URL; makes it if it is not there.

    Raises StoreError for a file or schema that is not of this kind, is damaged, or is of a newer version.
    """
    if is_url(place):
        from agent_forge.database.postgres import PostgresDatabase

        return PostgresDatabase(os.fspath(place), schema)
    from agent_forge.database.sqlite import SqliteDatabase

    return SqliteDatabase(place, schema)
