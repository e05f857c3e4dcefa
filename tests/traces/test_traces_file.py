"""The SQLite file: foreign, damaged and full ones, and many processes at one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from trace_spans import make, randoms, span_id, trace_id

from agent_forge.errors import StoreError
from agent_forge.traces import Recorder, Store


def filled(folder: Path, spans: int = 3000) -> Path:
    with Store.open(folder) as store:
        store.add(randoms(spans))
        path = Path(store.where)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path


def foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE spans (trace_id TEXT)")
    connection.commit()
    connection.close()


def cut(path: Path) -> None:
    whole = filled(path.parent / "other")
    path.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])


def newer(path: Path) -> None:
    shutil.copy(filled(path.parent / "other"), path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


BROKEN = {
    "empty": (lambda path: path.write_bytes(b""), "not a trace store"),
    "text": (lambda path: path.write_text("my notes\n" * 100), "not a trace store"),
    "half a header": (lambda path: path.write_bytes(b"SQLite format 3\0" + b"\1" * 20), "not a trace store"),
    "another program's": (foreign, "another program's"),
    "cut short": (cut, "cut short"),
    "newer": (newer, "version 99"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_that_is_not_a_whole_store_is_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "traces.db"
    spoil, words = BROKEN[kind]
    spoil(path)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=words) as refused:
        Store.open(tmp_path)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("traces.db-*"))
    assert not list(tmp_path.glob(".traces.db*"))


def test_damage_in_the_middle_is_named_and_nothing_is_made_worse(tmp_path: Path) -> None:
    path = filled(tmp_path)
    data = bytearray(path.read_bytes())
    for at in range(8192, len(data), 8192):
        data[at : at + 400] = os.urandom(400)
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"damaged|failed"):
        Store.open(tmp_path).search(text="otter")


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    path = filled(tmp_path)
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE rollup_hour")
    connection.close()
    with pytest.raises(StoreError, match="rollup_hour"):
        Store.open(tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be made"):
        Store.open(tmp_path / "file" / "traces.db")


def test_the_file_is_private(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        assert Path(store.where).stat().st_mode & 0o077 == 0


def test_a_full_disk_is_an_error_and_the_store_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.add(randoms(60))
        with store._database.read() as cursor:  # the next write uses this connection again
            pages = cursor.execute("PRAGMA page_count").fetchone()[0]
            cursor.execute(f"PRAGMA max_page_count={pages + 2}")
        big = [make(5000 + n, trace=700, inputs="x" * 5000) for n in range(100)]
        with pytest.raises(StoreError, match=r"disk is full.*Free some space"):
            store.add(big)
        assert store.count() == 60
        with store._database.read() as cursor:
            cursor.execute("PRAGMA max_page_count=1000000")
        assert store.add(big) == 100
        assert store.check() == []


def test_a_recorder_keeps_what_a_full_disk_refused(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    recorder = Recorder(store)
    with recorder.span("before"):
        pass
    recorder.flush()
    with store._database.read() as cursor:
        cursor.execute(f"PRAGMA max_page_count={cursor.execute('PRAGMA page_count').fetchone()[0]}")
    for _ in range(200):
        with recorder.span("big", inputs="x" * 20_000):  # none of them fits a page
            pass
    with pytest.raises(StoreError, match="full"):
        recorder.flush()
    assert recorder.pending == 200
    assert recorder.dropped == 0
    with store._database.read() as cursor:
        cursor.execute("PRAGMA max_page_count=1000000")
    recorder.close()
    assert (store.count(), recorder.pending) == (201, 0)


def run(code: str, *arguments: object) -> subprocess.Popen[str]:
    text = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    return subprocess.Popen(text, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})


WRITER = """
    import sys
    from agent_forge.traces import Store
    from trace_spans import make
    place, writer, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    store = Store.open(place)
    for step in range(rounds):
        first = writer * 1_000_000 + step * 100
        spans = [make(first + n, trace=first + n // 10, agent=f"a{n % 7}", name=f"n{step % 5}") for n in range(100)]
        print(first, store.add(spans), flush=True)
"""


def test_several_processes_write_at_once_and_nothing_is_locked_or_lost(place: str) -> None:
    writers = [run(WRITER, place, number, 8) for number in range(4)]  # the first of them makes the store
    for writer in writers:
        output, _ = writer.communicate(timeout=120)
        assert writer.returncode == 0
        assert [line.split()[1] for line in output.splitlines()] == ["100"] * 8
    with Store.open(place) as store:
        assert store.count() == 3200
        assert sum(a.spans for a in store.aggregate(["agent", "name"])) == 3200
        assert store.check() == []


def test_kill_9_eight_times_and_every_acknowledged_batch_is_there(tmp_path: Path) -> None:
    """Batches are acknowledged on a pipe once `add` has returned; the writer is killed somewhere in its writing."""
    acknowledged: list[int] = []
    for number in range(8):
        process = run(WRITER, tmp_path, number, 100_000)
        assert process.stdout is not None
        for _ in range(number % 4 + 1):
            line = process.stdout.readline()
            acknowledged.append(int(line.split()[0]))
        time.sleep((number * 7919 % 13) / 1000)
        process.send_signal(signal.SIGKILL)
        output, _ = process.communicate()
        lines = [line.split() for line in output.splitlines(keepends=True) if line.endswith("\n")]
        acknowledged += [int(first) for first, _ in lines]
    with Store.open(tmp_path) as store:
        assert store.check() == []
        with store._database.read() as cursor:
            stored = {tuple(row) for row in cursor.execute("SELECT trace_id, span_id FROM spans")}
        for first in acknowledged:
            for n in range(100):
                assert (trace_id(first + n // 10), span_id(first + n)) in stored
        assert len(stored) == store.count() == sum(a.spans for a in store.aggregate(["agent"]))
        assert len(stored) % 100 == 0  # a batch is there whole or not at all


BORN = """
    import sys
    from agent_forge.traces import Store
    print(Store.open(sys.argv[1]).count())
"""


def test_processes_that_make_the_store_at_the_same_moment_get_the_same_one(tmp_path: Path) -> None:
    processes = [run(BORN, tmp_path / "new") for _ in range(6)]
    for process in processes:
        assert process.communicate(timeout=60)[0] == "0\n"
        assert process.returncode == 0
    assert [path.name for path in (tmp_path / "new").iterdir() if not path.name.startswith("traces.db-")] == [
        "traces.db"
    ]


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with Store.open(tmp_path) as store:
        assert store.add([make()]) == 1


def test_a_locked_store_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_forge.database.sqlite.BUSY_S", 0.05)
    with Store.open(tmp_path) as store:
        other = sqlite3.connect(store.where, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="busy"):
            store.add([make()])
        assert store.search().items == []  # reading goes on beside a writer
        other.execute("ROLLBACK")
        other.close()
        assert store.add([make()]) == 1


def test_what_a_batch_acknowledges_can_be_read_by_sqlite_alone(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.add([make(inputs={"q": "otters"})])
        connection = sqlite3.connect(store.where)
        [(text,)] = connection.execute("SELECT inputs FROM spans").fetchall()
        connection.close()
    assert json.loads(text) == {"q": "otters"}
