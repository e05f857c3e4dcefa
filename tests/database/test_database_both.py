"""The same statements on SQLite and PostgreSQL: durable writes, undone failures, migrations, refused strangers."""

from __future__ import annotations

import math
import multiprocessing
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from agent_forge.database import Database, Schema, is_url, open_database
from agent_forge.errors import DataError, MissingExtraError, StoreError

FIRST = ("CREATE TABLE things (id {serial}, name TEXT NOT NULL UNIQUE, size {int}, share {real})",)
SECOND = (
    "CREATE TABLE parts (thing {int} NOT NULL REFERENCES things (id), name TEXT NOT NULL, PRIMARY KEY (thing, name))"
    " {packed}",
    "ALTER TABLE things ADD COLUMN note TEXT",
)
OLD = Schema("test box", 0x41467465, (FIRST,))
SCHEMA = replace(OLD, migrations=(FIRST, SECOND))
Opener = Callable[[Schema], Database]


def _url(postgres: str) -> str:
    return f"postgresql://postgres@/postgres?host={postgres}"


def _fresh(postgres: str) -> str:
    """The URL of a database without the tables of these tests."""
    import psycopg

    with psycopg.connect(_url(postgres), autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS agent_forge_test_box CASCADE")
    return _url(postgres)


@pytest.fixture(params=["sqlite", "postgresql", "memory"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    opened: list[Database] = []
    place = {"sqlite": str(tmp_path / "deep" / "box.db"), "memory": ":memory:"}.get(request.param)
    if place is None:
        place = _fresh(request.getfixturevalue("postgres"))

    def open_one(schema: Schema) -> Database:
        opened.append(open_database(place, schema))
        return opened[-1]

    yield open_one
    for database in opened:
        database.close()


def names(database: Database) -> list[str]:
    with database.read() as cursor:
        return [row[0] for row in cursor.execute("SELECT name FROM things ORDER BY name").fetchall()]


def insert(database: Database, *new: str) -> None:
    with database.write() as cursor:
        for name in new:
            cursor.execute("INSERT INTO things (name, size, share) VALUES (?, ?, ?)", (name, 2**40, 0.1))


def test_a_write_is_whole_or_undone(opener: Opener) -> None:
    database = opener(SCHEMA)
    insert(database, "a", "b")

    def half() -> None:
        with database.write() as cursor:
            cursor.execute("INSERT INTO things (name) VALUES (?)", ("c",))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    with pytest.raises(DataError, match="a value cannot be stored"):
        insert(database, "d", "a")
    assert names(database) == ["a", "b"]
    with database.read() as cursor:
        row = cursor.execute("SELECT size, share FROM things WHERE name LIKE ?", ("A",)).fetchone()
    assert tuple(row) == (2**40, 0.1)


def test_many_rows_travel_as_one_document(postgres: str) -> None:
    database = open_database(_fresh(postgres), SCHEMA)
    columns, ending = ("name", "size", "share"), "ON CONFLICT (name) DO UPDATE SET size = things.size + excluded.size"
    rows = [(f"n{i}", i, i / 3) for i in range(2_500)]
    odd = [("Ł\u2028\"'\\ %s ?", None, math.inf), ("low", -(2**63), -math.inf)]
    with database.write() as cursor:
        assert cursor.insert("things", columns, rows, ending) == 2_500
        assert cursor.insert("things", columns, [], ending) == 0
        assert cursor.insert("things", columns, odd, "ON CONFLICT DO NOTHING") == 2
        assert cursor.insert("things", columns, odd, "ON CONFLICT DO NOTHING") == 0
    with database.write() as cursor, cursor.together():
        cursor.insert("things", columns, rows, ending)
    with database.read() as cursor:
        stored = cursor.execute("SELECT name, size, share FROM things ORDER BY id").fetchall()
    assert stored == [(name, 2 * size, share) for name, size, share in rows] + odd
    for wrong in (("big", 2**64, 0.0), ("zero\0", 1, 0.0), ("lone\ud800", 1, 0.0), (b"bytes", 1, 0.0), (None, 1, 0.0)):
        with pytest.raises(DataError, match="a value cannot be stored"), database.write() as cursor:
            cursor.insert("things", columns, [("new", 1, 1.0), wrong], ending)
    assert "new" not in names(database), "all or nothing"
    database.close()


def test_what_is_referred_to_must_be_there(opener: Opener) -> None:
    with pytest.raises(DataError), opener(SCHEMA).write() as cursor:
        cursor.execute("INSERT INTO parts (thing, name) VALUES (?, ?)", (99, "x"))


def test_check_size_vacuum_and_use_after_close(opener: Opener) -> None:
    database = opener(SCHEMA)
    insert(database, *(f"n{i}" for i in range(50)))
    assert database.check() == []
    assert database.size() > 0
    database.vacuum()
    database.close()
    assert len(names(database)) == 50


def test_an_old_database_is_brought_up_to_date_and_a_newer_one_refused(opener: Opener) -> None:
    old = opener(OLD)
    if old.where == ":memory:":
        pytest.skip("what is in memory has no older version")
    insert(old, "kept")
    old.close()
    new = opener(SCHEMA)
    with new.write() as cursor:
        cursor.execute("UPDATE things SET note = ?", ("added",))
    assert names(new) == ["kept"]
    new.close()
    assert names(opener(SCHEMA)) == ["kept"]
    with pytest.raises(StoreError, match=r"schema version 2, and this program knows versions up to 1.*Upgrade"):
        opener(OLD)


def test_a_missing_table_is_found(opener: Opener) -> None:
    database = opener(SCHEMA)
    if database.where == ":memory:":
        pytest.skip("what is in memory is always new")
    with database.write() as cursor:
        cursor.execute("DROP TABLE parts")
    if database.dialect == "postgresql":
        assert database.check() == ["the table 'parts' is missing"]
        return
    database.close()
    with pytest.raises(StoreError, match="the table 'parts' is missing"):
        opener(SCHEMA)


def test_threads_write_beside_each_other(opener: Opener) -> None:
    database = opener(SCHEMA)
    threads = [threading.Thread(target=lambda n=n: [insert(database, f"{n}-{i}") for i in range(10)]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names(database)) == 40


def _child(database: Database) -> None:
    insert(database, "child")
    database.close()


def test_a_forked_child_has_connections_of_its_own(opener: Opener) -> None:
    database = opener(SCHEMA)
    insert(database, "parent")
    child = multiprocessing.get_context("fork").Process(target=_child, args=(database,))
    if database.where == ":memory:":
        pytest.skip("memory is not shared with a child")
    child.start()
    child.join(60)
    assert child.exitcode == 0
    insert(database, "after")
    assert names(database) == ["after", "child", "parent"]


def _claims_and_dies(place: str, ready: Connection) -> None:
    claim = open_database(place, SCHEMA).claim(7)
    ready.send(claim is not None)
    time.sleep(60)


def test_a_claim_is_one_process_alone_and_ends_with_it(opener: Opener) -> None:
    database, other = opener(SCHEMA), opener(SCHEMA)
    if database.where == ":memory:":
        other = database
    claim = database.claim(7)
    assert claim is not None
    assert database.claim(7) is None, "not twice in one process either"
    assert other.claim(7) is None
    assert (other.is_claimed(7), other.is_claimed(8)) == (True, False)
    with claim.write() as cursor:
        cursor.execute("INSERT INTO things (name) VALUES (?)", ("claimed",))
    claim.release()
    assert names(database) == ["claimed"]
    assert not other.is_claimed(7)
    again = other.claim(7)
    assert again is not None
    again.release()


def test_a_claim_ends_when_its_process_is_killed(opener: Opener, request: pytest.FixtureRequest) -> None:
    database = opener(SCHEMA)
    if database.where == ":memory:":
        pytest.skip("memory is not shared with a child")
    place = database.where if database.dialect == "sqlite" else _url(request.getfixturevalue("postgres"))
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    child = fork.Process(target=_claims_and_dies, args=(place, theirs))
    child.start()
    assert ours.recv(), "the child has the claim"
    assert database.claim(7) is None
    assert database.is_claimed(7)
    child.kill()
    child.join(60)
    claim = database.claim(7)
    assert claim is not None
    claim.release()


def test_a_claim_is_lost_with_its_connection(postgres: str) -> None:
    import psycopg

    database = open_database(_fresh(postgres), SCHEMA)
    claim = database.claim(7)
    assert claim is not None
    with psycopg.connect(_url(postgres), autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'agent-forge'")
    with pytest.raises(StoreError, match="cannot be reached"), claim.write() as cursor:
        cursor.execute("INSERT INTO things (name) VALUES (?)", ("late",))
    with pytest.raises(StoreError, match="and with it the claim"), claim.write():
        pass
    claim.release()
    second = open_database(_url(postgres), SCHEMA)
    assert second.claim(7) is not None
    assert names(second) == []
    second.close()


def test_several_processes_make_the_same_file(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    workers = [
        fork.Process(target=lambda: insert(open_database(tmp_path / "x.db", SCHEMA), str(os.getpid())))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert len(names(open_database(tmp_path / "x.db", SCHEMA))) == 4
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".new")] == []


def _other_program(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")


def _cut(path: Path) -> None:
    database = open_database(path, SCHEMA)
    insert(database, *(f"{i}" * 2000 for i in range(20)))
    database.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    os.truncate(path, 8192)
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _another_of_ours(path: Path) -> None:
    open_database(path, replace(SCHEMA, application_id=0x41467472)).close()


STRANGERS = {
    "is not a test box": lambda path: path.write_bytes(b"hello"),
    "not a test box": lambda path: path.touch(),
    "but another program's database": _other_program,
    "another program": _another_of_ours,
    "has been cut short|is damaged": _cut,
}


@pytest.mark.parametrize("said", STRANGERS)
def test_a_file_that_is_not_ours_is_left_byte_for_byte(said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    STRANGERS[said](path)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=said):
        open_database(path, SCHEMA)
    assert path.read_bytes() == before


def test_a_damaged_page_is_an_error_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    database = open_database(path, SCHEMA)
    insert(database, *(f"{i}" * 500 for i in range(100)))
    database.vacuum()
    database.close()
    with open(path, "r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * (path.stat().st_size - 8192))
    with pytest.raises(StoreError, match="damaged"):
        names(open_database(path, SCHEMA))


def test_places_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be made"):
        open_database(tmp_path / "file" / "x.db", SCHEMA)
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match="cannot be read"):
        open_database(tmp_path / "folder", SCHEMA)


def test_a_foreign_postgres_schema_is_refused(postgres: str) -> None:
    import psycopg

    url = _fresh(postgres)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA agent_forge_test_box CREATE TABLE theirs (x int)")
    with pytest.raises(StoreError, match="is not a test box"):
        open_database(url, SCHEMA)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA agent_forge_test_box CASCADE")


def test_a_lost_connection_is_replaced(postgres: str) -> None:
    import psycopg

    url = _fresh(postgres)
    database = open_database(url, SCHEMA)
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'agent-forge'")
    with pytest.raises(StoreError, match="the server cannot be reached"):
        names(database)
    assert names(database) == [], "the next call has a new connection"
    database.close()


def test_a_database_without_an_encoding_keeps_text(postgres: str) -> None:
    import psycopg

    with psycopg.connect(f"postgresql://postgres@/postgres?host={postgres}", autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS bare")
        connection.execute("CREATE DATABASE bare TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
    url = f"postgresql://postgres@/bare?host={postgres}"
    open_database(url, SCHEMA).close()
    database = open_database(url, SCHEMA)  # a second time: it knows its own tables
    insert(database, "Łódź")
    assert names(database) == ["Łódź"]
    database.close()


def test_a_server_that_is_not_there_and_a_password_that_stays_secret(tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed: the extra `scale` brings it")
    with pytest.raises(StoreError, match="cannot be reached") as caught:
        open_database(f"postgresql://me:secret@localhost:1/box?host={tmp_path}&password=secret", SCHEMA)
    assert "secret" not in f"{caught.value.where} {caught.value.fix}"
    assert caught.value.where == "postgresql://me@localhost:1/box"


def test_without_psycopg_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"install .*\[scale\]"):
        open_database("postgresql:///x", SCHEMA)
    assert is_url("postgres://x")
    assert not is_url("/a/path")
    assert not is_url(Path("postgresql://x"))
