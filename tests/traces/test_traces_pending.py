"""Statistics are exact whatever has been written to the sums so far, and whoever wrote it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_traces_rollup import BY, rebuilt, same, tables
from trace_spans import HOUR, START, make, randoms

from agent_forge.database import open_database
from agent_forge.errors import TraceError
from agent_forge.traces import Store
from agent_forge.traces import store as store_module
from agent_forge.traces.migrations import SCHEMA
from agent_forge.traces.pending import places
from agent_forge.traces.rollup import Sums, add_traces, count_rows, trace_rows
from agent_forge.traces.store import INSERT

WINDOWS = [(None, None), (START + HOUR // 3, START + 55 * HOUR + 7), (START + 30 * HOUR, None)]


def statistics(store: Store) -> list[Any]:
    found: list[Any] = []
    for since, until in WINDOWS:
        found += [[(a.group, a.spans, a.errors, round(a.duration_s, 6), a.input_tokens, round(a.reward_sum, 6))
                   for a in store.aggregate(BY, since=since, until=until)]]  # fmt: skip
        found.append(store.percentiles(["name", "kind"], since=since, until=until))
        for minutes in (1, 7, 60, 180):
            found.append(store.timeline(minutes=minutes, since=since, until=until))
        found.append(store.timeline(minutes=120, agent="Explore", since=since, until=until))
    return found


def mark_and_last(store: Store) -> tuple[int, int]:
    with store._database.read() as cursor:
        return places(cursor)


def settled(store: Store) -> None:
    """The sums are written, and are those of the rows; statistics are what they were before."""
    before = statistics(store)
    store.settle()
    mark, last = mark_and_last(store)
    assert mark == last
    assert statistics(store) == before
    kept = tables(store)
    assert same(kept, rebuilt(store))


@pytest.mark.parametrize("most", [1, 100, 10**9])
def test_some_of_the_spans_are_in_the_sums(store: Store, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MOST_PENDING", most)
    spans = [span for span in randoms(330) if span.end_ns is not None]
    store.add_many(spans, batch=37)
    mark, last = mark_and_last(store)
    assert {1: mark == last, 100: 0 < mark < last, 10**9: mark == 0}[most]
    assert sum(a.spans for a in store.aggregate(["name"])) == len(spans)
    settled(store)


def test_spans_of_other_processes_are_counted_too(place: str) -> None:
    """Two stores stand for two processes: neither knows what the other has counted."""
    spans = randoms(300)
    with Store.open(place) as one, Store.open(place) as other:
        for at in range(0, 200, 50):
            one.add(spans[at : at + 20])
            other.add(spans[at + 20 : at + 50])
        assert mark_and_last(one)[0] == 0
        one.settle()
        other.add(spans[200:240])  # what it had counted before is in the sums already
        one.add(spans[240:])
        assert statistics(one) == statistics(other)
        settled(other)
        settled(one)


def test_a_killed_process_leaves_nothing_uncounted(place: str) -> None:
    Store.open(place).add(randoms(100))  # never closed
    with Store.open(place) as store:
        assert mark_and_last(store)[0] == 0
        settled(store)


def test_a_batch_that_fails_is_not_counted(store: Store) -> None:
    bad = make(70)
    bad.input_tokens = "many"  # type: ignore[assignment]
    store.add(randoms(30))
    with pytest.raises(TraceError, match="cannot be stored"):
        store.add([make(60, 60), bad])
    store.add([make(61, 61)])
    assert sum(a.spans for a in store.aggregate(["name"])) == 1 + sum(s.end_ns is not None for s in randoms(30))
    settled(store)


def test_spans_that_get_the_numbers_of_deleted_ones_are_counted(store: Store) -> None:
    store.add([make(n, n, start_ns=START + n * HOUR) for n in range(20)])
    store.settle()
    assert store.delete(before=START + 100 * HOUR) == 20
    store.add([make(n, n, start_ns=START + 200 * HOUR) for n in range(50, 60)])
    assert sum(a.spans for a in store.aggregate(["name"])) == 10
    settled(store)


def test_a_store_of_the_first_version_is_brought_up_to_date(place: str) -> None:
    """That version wrote the sums with every batch and had no mark."""
    spans = [span for span in randoms(100) if span.end_ns is not None]
    from agent_forge.traces.store import _file

    where = place if place.startswith("postgresql") else _file(place)
    old = Store(open_database(where, replace(SCHEMA, migrations=SCHEMA.migrations[:1])))
    rows, sums = old.rows(spans), Sums()
    sums.add(rows)
    with old._database.write() as cursor:
        INSERT.run(cursor, rows)
        add_traces(cursor, rows)
        sums.write(cursor)
    old._database.close()
    with Store.open(place) as store:
        assert mark_and_last(store)[0] == mark_and_last(store)[1] > 0
        assert sum(a.spans for a in store.aggregate(["name"])) == store.count() == len(spans)
        store.add([make(9999, 9999)])
        settled(store)


def test_c_counts_like_python() -> None:
    spans = randoms(500)
    for span in spans[::7]:
        span.cost = 3  # type: ignore[assignment]  # a whole number where a broken one is usual
    with Store.open(":memory:") as store:
        for part in (spans[1:7], [s for s in spans if isinstance(s.cost, float)], spans):
            rows = store.rows(part)
            quick, slow = Sums(), Sums()
            quick.add(rows)
            quick.add(rows[:50])
            count_rows(rows + rows[:50], slow._hours, slow._durations, slow._minutes)
            assert quick._durations == slow._durations
            assert quick._minutes == slow._minutes
            assert quick._hours.keys() == slow._hours.keys()
            for key, sums in quick._hours.items():
                assert sums == pytest.approx(slow._hours[key])
            with store._database.write() as cursor:
                add_traces(cursor, rows)
            wanted = trace_rows(rows)
            with store._database.write() as cursor:
                found = cursor.execute("SELECT * FROM traces ORDER BY trace_id").fetchall()
                cursor.execute("DELETE FROM traces")
            for row, twin in zip(found, wanted, strict=True):
                assert list(row) == pytest.approx(twin)
