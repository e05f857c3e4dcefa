"""What a database of ours holds, in words that SQLite and PostgreSQL share."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent_forge.errors import StoreError

MEMORY = ":memory:"  # a SQLite database without a file
_CREATED, _DROPPED = re.compile(r"CREATE TABLE (\w+)"), re.compile(r"DROP TABLE (\w+)")


@dataclass(frozen=True)
class Schema:
    """Tables as numbered migrations.

    A migration is never edited once it has been released: a change is a new entry at the end. Types
    that differ are written `{serial}`, `{int}`, `{real}`; `{packed}` marks tables whose rows live in
    their primary key.
    """

    name: str  # as people call it: "trace store"
    application_id: int  # four letters; marks SQLite files as ours, and is the lock that writers of PostgreSQL share
    migrations: tuple[tuple[str, ...], ...]
    namespace: str = ""  # the PostgreSQL schema that the tables live in; made from the name unless given
    # Whether every commit waits for the disk. Without it a commit survives the death of the process
    # as soon as it returns, but a power cut may take back the last ones (never part of one).
    synced: bool = True
    page_size: int = 8192  # of SQLite files; small commits are cheaper with small pages

    def __post_init__(self) -> None:
        if not self.namespace:
            object.__setattr__(self, "namespace", f"agent_forge_{self.name.replace(' ', '_')}")

    @property
    def version(self) -> int:
        return len(self.migrations)

    @property
    def tables(self) -> tuple[str, ...]:
        text = "\n".join(statement for migration in self.migrations for statement in migration)
        dropped = _DROPPED.findall(text)
        return tuple(name for name in _CREATED.findall(text) if name not in dropped)


def too_new(version: int, where: str, schema: Schema) -> StoreError:
    what = f"the {schema.name} has schema version {version}, and this program knows versions up to {schema.version}"
    return StoreError(what, where=where, fix="Upgrade agent-forge")
