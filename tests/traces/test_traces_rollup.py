"""The sums kept at ingest equal those computed from the rows, whatever is added, repeated, finished and deleted."""

from __future__ import annotations

import gzip
import math
from collections import defaultdict
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_spans import HOUR, START, make, randoms

from agent_forge.database import open_database
from agent_forge.errors import TraceError, UsageError
from agent_forge.traces import Span, Store
from agent_forge.traces.migrations import SCHEMA
from agent_forge.traces.rollup import add_sums, add_traces, rebuild
from agent_forge.traces.rows import bucket_of, to_rows
from agent_forge.traces.store import INSERT, _file

BY = ("agent", "name", "kind", "model", "category", "status")
TABLES = ("rollup_hour", "rollup_day", "rollup_duration", "rollup_bucket", "rollup_minute", "traces")


def tables(store: Store) -> dict[str, list[tuple[object, ...]]]:
    with store._database.read() as cursor:
        return {table: sorted(cursor.execute(f"SELECT * FROM {table}").fetchall(), key=str) for table in TABLES}


def rebuilt(store: Store) -> dict[str, list[tuple[object, ...]]]:
    with store._database.write() as cursor:
        rebuild(cursor, START + 400 * 24 * HOUR)
    return tables(store)


def same(one: dict[str, list[tuple[object, ...]]], other: dict[str, list[tuple[object, ...]]]) -> bool:
    for table in TABLES:
        if len(one[table]) != len(other[table]):
            return False
        for row, twin in zip(one[table], other[table], strict=True):
            for left, right in zip(row, twin, strict=True):
                if left != right and not math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-9):  # type: ignore[arg-type]
                    return False
    return True


def brute_force(spans: list[Span], by: tuple[str, ...]) -> dict[tuple[object, ...], list[float]]:
    found: dict[tuple[object, ...], list[float]] = defaultdict(lambda: [0.0] * 8)
    for span in spans:
        if span.end_ns is None:
            continue
        sums = found[tuple(getattr(span, name) for name in by)]
        sums[0] += 1
        sums[1] += span.status == "error"
        sums[2] += (span.end_ns - span.start_ns) / 1e9
        sums[3] += span.input_tokens or 0
        sums[4] += span.output_tokens or 0
        sums[5] += span.cost or 0
        sums[6] += span.reward is not None
        sums[7] += span.reward or 0
    return found


WINDOWS = [
    (None, None),
    (START + HOUR // 3, START + 55 * HOUR + 7),
    (START + 5, START + 50),
    (START + 3 * HOUR, START + 9 * HOUR),
    (START + 30 * HOUR, None),
    (None, START + 26 * HOUR + 1),
]


def test_aggregates_are_those_of_a_loop(store: Store) -> None:
    spans = randoms(400)
    spans += [make(n, trace=n, start_ns=START + n - 9000) for n in range(9000, 9060)]  # dense at the window's edges
    store.add_many(spans, batch=70)
    for by, (since, until) in product([("agent",), ("name", "status"), BY], WINDOWS):
        inside = [s for s in spans if (since is None or s.start_ns >= since) and (until is None or s.start_ns < until)]
        wanted = brute_force(inside, by)
        found = store.aggregate(by, since=since, until=until)
        assert {tuple(a.group.values()) for a in found} == set(wanted), (by, since, until)
        for a in found:
            sums = [a.spans, a.errors, a.duration_s, a.input_tokens, a.output_tokens, a.cost, a.reward_n, a.reward_sum]
            assert sums == pytest.approx(wanted[tuple(a.group.values())], rel=1e-9), (by, since, until)


def test_only_some_groups(store: Store) -> None:
    spans = randoms(200)
    store.add(spans)
    [found] = store.aggregate(["kind"], kind="model", status="ok")
    assert found.spans == sum(s.kind == "model" and s.status == "ok" and s.end_ns is not None for s in spans)
    assert store.aggregate(["kind"], agent="nobody") == []


def test_rewards_have_a_mean_and_a_spread(store: Store) -> None:
    store.add([make(n, reward=value, agent="a") for n, value in enumerate([0.0, 0.5, 1.0])])
    store.add([make(9, reward=0.25, agent="b"), make(10, agent="c")])
    spread = {a.group["agent"]: (a.reward_n, a.reward_mean, a.reward_std) for a in store.aggregate(["agent"])}
    assert spread == {"a": (3, 0.5, 0.5), "b": (1, 0.25, None), "c": (0, None, None)}
    assert store.aggregate(["agent"])[0].mean_s == pytest.approx(0.001)


def test_percentiles_are_within_a_bucket_of_the_true_ones(store: Store) -> None:
    spans = [span for span in randoms(3000) if span.end_ns is not None]
    store.add_many(spans)
    shares = (0.5, 0.95, 0.99)
    found = store.percentiles(["name"], of=shares)
    for name in ("chat", "search", "write"):
        durations = sorted(span.duration_s for span in spans if span.name == name)
        for share, value in zip(shares, found[(name,)], strict=True):
            true = durations[max(0, math.ceil(share * len(durations)) - 1)]
            assert value == pytest.approx(true, rel=0.1), (name, share)


def test_percentiles_of_a_window(store: Store) -> None:
    store.add([make(n, start_ns=START + n * HOUR, end_ns=START + n * HOUR + 2**n) for n in range(60)])
    found = store.percentiles(["name"], of=[1.0], since=START + 2 * HOUR, until=START + 31 * HOUR)
    assert found[("work",)][0] == pytest.approx(2**30 / 1e9, rel=0.1)


def test_a_window_that_ends_before_it_begins_is_empty(store: Store) -> None:
    store.add([make()])
    assert store.aggregate(["name"], since=START + 5, until=START) == []
    assert store.percentiles(["name"], since=START + 5, until=START) == {}
    assert store.timeline(since=START + 10 * HOUR, until=START) == []


def test_the_time_line(store: Store) -> None:
    minute = 60_000_000_000
    store.add(
        [
            make(n, start_ns=START + n * minute // 2, agent="ab"[n % 2], status=["ok", "error"][n % 5 == 0])
            for n in range(40)
        ]
    )
    assert [(t.start_ns, t.spans) for t in store.timeline(minutes=5)] == [
        (START + n * 5 * minute, 10) for n in range(4)
    ]
    assert sum(t.errors for t in store.timeline()) == 8
    assert sum(t.spans for t in store.timeline(since=START + minute, until=START + 3 * minute)) == 4
    [hour] = store.timeline(minutes=60, agent="a")
    assert (hour.start_ns, hour.spans, hour.errors) == (START, 20, 4)
    with pytest.raises(UsageError, match="hour"):
        store.timeline(minutes=5, agent="a")


def test_the_sums_equal_a_rebuild_after_everything_that_can_happen(store: Store) -> None:
    spans = randoms(300)
    store.add_many(spans, batch=37)
    store.add_many(spans[::3], batch=11)
    for span in spans:
        if span.end_ns is None:
            span.end_ns = span.start_ns + 5_000_000
    store.add_many(spans, batch=50)
    assert all(trace.unfinished == 0 for trace in store.traces(limit=1000))
    kept = tables(store)
    assert same(kept, rebuilt(store))
    assert store.delete(before=START + 50 * HOUR) > 0
    assert same(tables(store), rebuilt(store))


def test_a_trace_row_made_again_is_the_same(store: Store) -> None:
    from agent_forge.traces.rollup import rebuild_trace

    spans = randoms(120)
    store.add_many(spans, batch=1000)
    before = tables(store)
    with store._database.write() as cursor:
        for trace in {span.trace_id for span in spans}:
            rebuild_trace(cursor, trace)
    assert same(before, tables(store))


def test_two_processes_add_to_the_same_sums(place: str) -> None:
    """Two stores stand for two processes."""
    spans = randoms(300)
    with Store.open(place) as one, Store.open(place) as other:
        for at in range(0, 300, 50):
            one.add(spans[at : at + 20])
            other.add(spans[at + 20 : at + 50])
        assert one.aggregate(BY) == other.aggregate(BY)
        assert same(tables(one), rebuilt(one))


def test_a_batch_that_fails_is_not_counted(store: Store) -> None:
    bad = make(70)
    bad.input_tokens = "many"  # type: ignore[assignment]
    store.add(randoms(30))
    with pytest.raises(TraceError, match="cannot be stored"):
        store.add([make(60, 60), bad])
    store.add([make(61, 61)])
    assert sum(a.spans for a in store.aggregate(["name"])) == 1 + sum(s.end_ns is not None for s in randoms(30))
    assert same(tables(store), rebuilt(store))


def test_spans_that_get_the_numbers_of_deleted_ones_are_counted(store: Store) -> None:
    store.add([make(n, n, start_ns=START + n * HOUR) for n in range(20)])
    assert store.delete(before=START + 100 * HOUR) == 20
    store.add([make(n, n, start_ns=START + 200 * HOUR) for n in range(50, 60)])
    store.add([make(n, n, start_ns=START + 200 * HOUR) for n in range(55, 65)])  # half of them again
    assert sum(a.spans for a in store.aggregate(["name"])) == 15


def test_a_store_made_by_version_2_opens_and_counts_what_it_had_not_written(tmp_path: Path) -> None:
    """A stored one: it had written the sums of 50 of its 90 spans."""
    packed = Path(__file__).parent / "fixtures" / "stores" / "version-2.db.gz"
    (tmp_path / "traces.db").write_bytes(gzip.decompress(packed.read_bytes()))
    with Store.open(tmp_path) as store:
        assert sorted(store.search(limit=100), key=lambda span: span.span_id) == randoms(90)
        assert same(tables(store), rebuilt(store))
        assert store.check() == []
        assert store.add([make(9999, 9999)]) == 1
    with Store.open(tmp_path) as store:
        assert store.count() == 91


@pytest.mark.parametrize("version", [1, 2])
def test_a_store_of_an_older_version_is_brought_up_to_date(place: str, version: int) -> None:
    """Version 1 wrote the sums with every batch, version 2 for some thousand spans at a time."""
    spans = [span for span in randoms(200) if span.end_ns is not None]
    where = place if place.startswith("postgresql") else _file(place)
    old = Store(open_database(where, replace(SCHEMA, migrations=SCHEMA.migrations[:version])))
    for part, counted in ((spans[:100], True), (spans[100:], version == 1)):
        rows = old.numbered(to_rows(part))
        with old._database.write() as cursor:
            INSERT.run(cursor, rows)
            add_traces(cursor, rows)
            if counted:
                add_sums(cursor, rows)
            if counted and version == 2:
                cursor.execute("UPDATE rollup_mark SET seq = (SELECT max(seq) FROM spans)")
    old._database.close()
    with Store.open(place) as store:
        store.add([make(9999, 9999)])
        assert sum(a.spans for a in store.aggregate(["name"])) == store.count() == len(spans) + 1
        assert same(tables(store), rebuilt(store))


@given(st.integers(min_value=1, max_value=10**15))
def test_a_bucket_is_a_quarter_octave(duration: int) -> None:
    bucket = bucket_of(duration)
    assert 2 ** (bucket / 4) * (1 - 1e-9) <= duration <= 2 ** ((bucket + 1) / 4) * (1 + 1e-9)


def test_the_sums_spare_negative_durations() -> None:
    assert bucket_of(-5) == bucket_of(0) == 0
