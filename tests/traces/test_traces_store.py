"""The store, on both databases: what goes in comes out, once, and can be found."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from trace_spans import HOUR, START, full, make, randoms, span_id, trace_id

from agent_forge.errors import StoreError, TraceError, UsageError
from agent_forge.traces import Span, Store
from agent_forge.traces.queries import FILTERS


def test_a_span_comes_back_with_every_field(store: Store) -> None:
    span = full()
    assert store.add([span]) == 1
    [back] = store.trace(span.trace_id)
    assert back == span
    assert store.span(span.trace_id, span.span_id) == span
    assert store.span(span.trace_id, span_id(5)) is None
    assert store.trace(trace_id(5)) == []


def test_what_was_not_measured_stays_unknown(store: Store) -> None:
    store.add([make()])
    [back] = store.trace(trace_id(0))
    assert back == make()
    assert (back.cost, back.reward, back.input_tokens, back.inputs) == (None, None, None, None)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("", ""),
        ([], []),
        ({}, {}),
        (0, 0),
        (float("inf"), float("inf")),
        (b"\x00\xff", b"\x00\xff"),
        ({1: {2, 3}}, {"1": [2, 3]}),
        ("a\x00b", "a\x00b"),
        ("\ud800", "?"),
        (2**80, 2**80),
    ],
)
def test_any_value_can_be_recorded(store: Store, value: object, stored: object) -> None:
    store.add([make(inputs=value, outputs=[value], attributes={"x": value})])
    [back] = store.trace(trace_id(0))
    assert (back.inputs, back.outputs, back.attributes) == (stored, [stored], {"x": stored})


def test_names_that_a_database_has_no_letters_for(store: Store) -> None:
    store.add([make(0, name="a\x00b\ud800", agent="\ud800", error="\x00"), make(1, name="naïve ☃")])
    first, second = store.trace(trace_id(0))
    assert (first.name, first.agent, first.error) == ("a�b?", "?", "�")
    assert second.name == "naïve ☃"


def test_numbers_that_would_spoil_a_sum_are_unknown(store: Store) -> None:
    store.add([make(0, reward=float("nan"), cost=float("inf")), make(1, reward=0.5)])
    assert [span.reward for span in store.trace(trace_id(0))] == [None, 0.5]
    [total] = store.aggregate(by=["name"])
    assert (total.reward_n, total.reward_mean, total.cost_n) == (1, 0.5, 0)


def test_a_span_is_stored_once_however_often_it_is_sent(store: Store) -> None:
    spans = randoms(30)
    assert store.add(spans) == 30
    before = store.aggregate(by=["agent", "status"])
    assert store.add(spans[10:20]) == 0
    assert store.add([*spans[25:], make(100, trace=50)]) == 1
    assert store.count() == 31
    assert sum(a.spans for a in store.aggregate(by=["agent", "status"])) == sum(a.spans for a in before) + 1


def test_twice_in_one_batch_is_once(store: Store) -> None:
    assert store.add([make(0), make(0), make(1)]) == 2
    assert store.count() == 2
    assert store.aggregate(by=["name"])[0].spans == 2


def test_the_finished_span_replaces_the_unfinished_one_and_nothing_replaces_it(store: Store) -> None:
    running = make(0, end_ns=None, status="unset")
    done = make(0, outputs={"hits": 3}, reward=1.0)
    assert store.add([running]) == 1
    assert store.aggregate(by=["name"]) == []
    assert store.traces().items[0].unfinished == 1
    assert store.add([done]) == 1
    assert store.add([running]) == store.add([make(0, outputs="other")]) == 0
    assert store.trace(trace_id(0)) == [done]
    assert [(a.spans, a.reward_sum) for a in store.aggregate(by=["name"])] == [(1, 1.0)]
    assert [(t.spans, t.unfinished, t.reward) for t in store.traces()] == [(1, 0, 1.0)]


def test_unfinished_and_finished_in_one_batch(store: Store) -> None:
    assert store.add([make(0, end_ns=None), make(0)]) == 2
    assert store.trace(trace_id(0)) == [make(0)]


def test_nothing_is_added_of_nothing(store: Store) -> None:
    assert store.add([]) == 0
    assert store.count() == 0
    assert (store.search().items, store.search().next) == ([], None)
    assert store.slowest() == []


CHECKS = {
    "trace_id": lambda span, value: span.trace_id == value,
    "session": lambda span, value: span.session == value,
    "agent": lambda span, value: span.agent == value,
    "model": lambda span, value: span.model == value,
    "kind": lambda span, value: span.kind == value,
    "name": lambda span, value: span.name == value,
    "category": lambda span, value: span.category == value,
    "status": lambda span, value: span.status == value,
    "since": lambda span, value: span.start_ns >= value,
    "until": lambda span, value: span.start_ns < value,
    "min_reward": lambda span, value: span.reward is not None and span.reward >= value,
    "max_reward": lambda span, value: span.reward is not None and span.reward <= value,
    "text": lambda span, value: value.lower() in span.inputs["query"],
}
VALUES = {
    "trace_id": trace_id(3),
    "session": "s1",
    "agent": "Explore",
    "model": "a",
    "kind": "model",
    "name": "chat",
    "category": "search",
    "status": "error",
    "since": START + 20 * HOUR,
    "until": START + 50 * HOUR,
    "min_reward": 0.3,
    "max_reward": 0.7,
    "text": "OTTER 1",
}


def test_every_filter_finds_what_a_loop_finds(store: Store) -> None:
    assert set(CHECKS) == set(VALUES) == set(FILTERS)
    spans = randoms(300)
    store.add(spans)
    rng = random.Random(1)
    choices = [[name] for name in FILTERS] + [rng.sample(FILTERS, 3) for _ in range(40)]
    for names in choices:
        found = store.search(limit=1000, **{name: VALUES[name] for name in names})
        wanted = {s.span_id for s in spans if all(CHECKS[name](s, VALUES[name]) for name in names)}
        assert {span.span_id for span in found} == wanted, names


def test_traces_are_found_by_their_own_facts_and_by_their_spans(store: Store) -> None:
    spans = randoms(300)
    store.add(spans)
    by_trace: dict[str, list[Span]] = {}
    for span in spans:
        by_trace.setdefault(span.trace_id, []).append(span)
    errors = {key for key, all_ in by_trace.items() if all_[0].status == "error"}
    assert {t.trace_id for t in store.traces(limit=1000, status="error")} == errors
    both = {key for key, all_ in by_trace.items() if any(s.agent == "Plan" and s.model == "b" for s in all_)}
    assert {t.trace_id for t in store.traces(limit=1000, agent="Plan", model="b")} == both


def test_the_text_may_hold_anything(store: Store) -> None:
    odd = ['100% "sure"', "a_b", "back\\slash", "new\nline", "it's", "Ünïcode ☃", "!bang"]
    store.add([make(number, inputs={"text": text}) for number, text in enumerate(odd)])
    store.add([make(50, inputs={"text": "axb 100 pct"}), make(51, error="boom: 42"), make(52, name="namely")])
    for number, text in enumerate(odd):
        assert [span.span_id for span in store.search(text=text)] == [span_id(number)], text
    assert [span.span_id for span in store.search(text="BOOM")] == [span_id(51)]
    assert [span.span_id for span in store.search(text="name")] == [span_id(52)]


@pytest.mark.parametrize("oldest_first", [False, True])
def test_pages_meet_without_gap_or_overlap_while_spans_arrive(store: Store, oldest_first: bool) -> None:
    spans = [make(n, trace=n // 2, start_ns=START + (n // 7) * 1000) for n in range(100)]  # many at the same moment
    store.add(spans)
    seen: list[str] = []
    after = None
    while True:
        page = store.search(limit=9, after=after, oldest_first=oldest_first)
        seen += [span.span_id for span in page]
        late = START - 5000 if oldest_first else START + 10**9
        store.add([make(1000 + len(seen), trace=999, start_ns=late)])  # arrives behind the reader
        if (after := page.next) is None:
            break
    assert sorted(seen) == sorted(span.span_id for span in spans)
    assert len(seen) == len(set(seen))


def test_pages_of_traces(store: Store) -> None:
    store.add([make(n, trace=n, start_ns=START) for n in range(25)])
    seen, after = [], None
    while True:
        page = store.traces(limit=10, after=after)
        seen += [trace.trace_id for trace in page]
        if (after := page.next) is None:
            break
    assert seen == [trace_id(n) for n in reversed(range(25))]
    assert [t[0].trace_id for t in store.each_trace()] == seen[::-1]
    assert store.trace_ids("0" * 30 + "1") == [trace_id(n) for n in range(15, 25)][:10]


def test_a_summary_is_that_of_its_root(store: Store) -> None:
    root = make(
        0, kind="run", name="root", agent="Lead", session="s", end_ns=START + 9 * 10**9, status="error", error="no"
    )
    calls = [make(n, parent_id=span_id(0), kind="model", input_tokens=10, output_tokens=1, cost=0.5) for n in (1, 2)]
    agent = make(3, parent_id=span_id(0), kind="agent", input_tokens=20)  # repeats its calls' tokens
    rewards = [make(n, parent_id=span_id(0), kind="reward", reward=n / 10) for n in (4, 5)]
    for batch in ([calls[0]], [root, agent], [calls[1], *rewards]):
        store.add(batch)
    [trace] = store.traces()
    assert (trace.name, trace.kind, trace.agent, trace.session, trace.status) == ("root", "run", "Lead", "s", "error")
    assert (trace.spans, trace.errors, trace.error, trace.unfinished) == (6, 1, "no", 0)
    assert (trace.input_tokens, trace.output_tokens, trace.cost, trace.reward) == (20, 2, 1.0, 0.5)
    assert (trace.start_ns, trace.end_ns) == (START, START + 9 * 10**9)


def test_the_slowest(store: Store) -> None:
    spans = randoms(200)
    store.add(spans)
    wanted = sorted((span.duration_ns for span in spans if span.end_ns), reverse=True)[:20]
    assert [span.duration_ns for span in store.slowest(20)] == wanted
    assert len(store.slowest(1000)) == sum(span.end_ns is not None for span in spans)


def test_old_traces_are_deleted_whole(store: Store) -> None:
    old = [make(n, trace=0, start_ns=START + n) for n in range(3)]
    across = [make(10, trace=1, start_ns=START + 5), make(11, trace=1, start_ns=START + 2 * HOUR)]
    new = [make(20, trace=2, start_ns=START + 3 * HOUR)]
    store.add([*old, *across, *new])
    assert store.delete(before=START + HOUR) == 3
    assert {span.span_id for span in store.search()} == {span.span_id for span in [*across, *new]}
    assert len(store.traces()) == 2
    assert store.aggregate(by=["name"])[0].spans == 3
    assert store.delete(before="2020-01-01") == 0


def test_vacuum_gives_room_back(store: Store) -> None:
    store.add([make(n, trace=n, inputs="x" * 2000) for n in range(1000)])
    store.delete(before=START + HOUR)
    before, after = store.vacuum()
    assert after <= before
    assert store.count() == 0
    assert store.check() == []


def test_two_openings_see_the_same(place: str) -> None:
    with Store.open(place) as one, Store.open(place) as two:
        one.add([make(0, resource={"service.name": "a"}, scope={"name": "lib"})])
        assert two.trace(trace_id(0)) == one.trace(trace_id(0))
        two.add([make(1, resource={"service.name": "a"}, scope={"name": "lib"}, agent="x")])
        assert one.aggregate(by=["agent"])[1].group == {"agent": "x"}
        one.close()
        assert one.count() == 2  # a closed store opens again when it is used


def test_threads_share_a_store(store: Store) -> None:
    def work(number: int) -> None:
        for step in range(10):
            store.add([make(number * 1000 + step * 10 + n, trace=number, agent=f"a{step}") for n in range(10)])
            store.search(limit=5)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.count() == 600
    assert sum(a.spans for a in store.aggregate(by=["agent"])) == 600


def test_names_beyond_the_limit_share_a_group_and_are_still_found(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_forge.traces.intern.MAX_GROUPS", 3)
    store.add([make(n, name=f"GET /user/{n}") for n in range(10)])
    assert len(store.aggregate(by=["name"])) == 4
    assert sum(a.spans for a in store.aggregate(by=["name"])) == 10
    assert [span.span_id for span in store.search(name="GET /user/7")] == [span_id(7)]


@pytest.mark.parametrize(
    "fields",
    [
        {"reward": "good"},
        {"agent": 5},
        {"input_tokens": [1]},
        {"input_tokens": 2**70},
        {"start_ns": "now"},
        {"status": {}},
    ],
)
def test_a_span_with_a_value_no_database_takes_is_refused_and_nothing_is_stored(
    store: Store, fields: dict[str, object]
) -> None:
    bad = make(1)
    bad.set(**fields)
    with pytest.raises(TraceError, match="cannot be stored"):
        store.add([make(0), bad])
    assert store.count() == 0
    assert store.add([make(0)]) == 1


def test_calls_that_make_no_sense_are_refused(store: Store) -> None:
    for call in (
        lambda: store.search(colour="red"),
        lambda: store.search(after="x"),
        lambda: store.traces(after="1-2-3"),
        lambda: store.search(since="yesterday"),
        lambda: store.aggregate(by=["colour"]),
        lambda: store.aggregate(by=[]),
        lambda: store.percentiles(by=["status"]),
    ):
        with pytest.raises(UsageError):
            call()


def test_a_newer_schema_is_refused(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_forge.traces.migrations import SCHEMA

    newer = (*SCHEMA.migrations, ("ALTER TABLE spans ADD COLUMN colour TEXT",))
    monkeypatch.setattr("agent_forge.traces.store.SCHEMA", replace(SCHEMA, migrations=newer))
    with Store.open(place) as store:
        store.add([make()])
    monkeypatch.undo()
    with pytest.raises(StoreError, match=rf"version {SCHEMA.version + 1}.*Upgrade"):
        Store.open(place)


def test_an_older_schema_is_brought_up_to_date(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_forge.traces.migrations import SCHEMA

    with Store.open(place) as store:
        store.add([make()])
    newer = (*SCHEMA.migrations, ("ALTER TABLE spans ADD COLUMN colour TEXT",))
    monkeypatch.setattr("agent_forge.traces.store.SCHEMA", replace(SCHEMA, migrations=newer))
    with Store.open(place) as store, store._database.read() as cursor:
        assert cursor.execute("SELECT name, colour FROM spans").fetchall() == [("work", None)]


def test_where_never_shows_a_password() -> None:
    with pytest.raises(StoreError, match="cannot be reached") as failed:
        Store.open("postgresql://me:hunter2@127.0.0.1:9/traces?connect_timeout=2")
    assert "hunter2" not in str(failed.value)
    assert "127.0.0.1:9/traces" in str(failed.value)


def test_the_default_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_FORGE_HOME", str(tmp_path / "home"))
    assert Store.open().where == str(tmp_path / "home" / "traces.db")
    assert Store.open(tmp_path / "x.db").where == str(tmp_path / "x.db")
    assert Store.open(tmp_path / "folder").where == str(tmp_path / "folder" / "traces.db")


def test_a_store_in_memory() -> None:
    with Store.open(":memory:") as store:
        assert store.add(randoms(50)) == 50
        assert store.count() == 50
        assert store.check() == []


def test_a_stream_that_breaks_off_keeps_what_was_read(store: Store) -> None:
    def stream() -> Iterator[Span]:
        yield from (make(n) for n in range(25))
        raise RuntimeError("the file ends here")

    seen: list[int] = []
    with pytest.raises(RuntimeError, match="ends here"):
        store.add_many(stream(), batch=5, each=seen.append)
    assert set(seen) <= {5}
    assert store.count() % 5 == 0
    before = store.count()
    assert store.add_many((make(n) for n in range(30)), batch=5) == 30 - before


def test_a_bad_span_in_a_stream_is_refused_with_its_batch(store: Store) -> None:
    spans = [make(n) for n in range(12)]
    spans[7].reward = "good"  # type: ignore[assignment]
    with pytest.raises(TraceError):
        store.add_many(spans, batch=5)
    assert store.count() in (0, 5)


def test_a_schema_of_someone_else_is_refused(postgres: str) -> None:
    import psycopg

    url = f"postgresql://postgres@/postgres?host={postgres}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS agent_forge_traces CASCADE")
        connection.execute("CREATE SCHEMA agent_forge_traces")
        connection.execute("CREATE TABLE agent_forge_traces.spans (colour TEXT)")
        with pytest.raises(StoreError, match="not a trace store"):
            Store.open(url)
        assert connection.execute("SELECT count(*) FROM agent_forge_traces.spans").fetchone() == (0,)
        connection.execute("DROP SCHEMA agent_forge_traces CASCADE")


def test_a_server_that_hangs_up_is_an_error_and_the_next_call_connects_again(postgres: str) -> None:
    import psycopg

    url = f"postgresql://postgres@/postgres?host={postgres}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS agent_forge_traces CASCADE")
        store = Store.open(url)
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'agent-forge'"
        )
    with pytest.raises(StoreError, match="cannot be reached"):
        store.add([make()])
    assert store.add([make()]) == 1
    store.close()


@pytest.mark.parametrize("field", ["kind", "name", "status", "start_ns", "trace_id"])
def test_a_span_without_what_every_span_has_is_a_fault_of_the_span(store: Store, field: str) -> None:
    """Not of the database: a writer would try again for ever, and everything behind the span would wait."""
    span = make(1)
    setattr(span, field, None)
    with pytest.raises(TraceError, match="a span cannot be stored"):
        store.add([span])
    assert store.add([make(2)]) == 1


def test_a_filter_that_nothing_can_pass_is_refused(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        for filters in ({"status": "failed"}, {"limit": 0}):
            for ask in (store.search, store.traces):
                with pytest.raises(UsageError, match=r"there is no|page size"):
                    ask(**filters)  # type: ignore[operator]
