"""Queries over a store of a million spans, measured against DuckDB over Parquet of the same spans.

    python benchmarks/trace_queries.py [--quick] [--spans N]

Ours answers from the rollups that are written at ingest (their cost is measured too), DuckDB from Parquet (zstd) with
the same rows. Both must return the same numbers. The trace by id is measured at 10,000 spans and at the full size.
DuckDB is installed into an environment of its own, below the folder for temporary files.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from agent_forge.traces import Span, Store, export_traces
from agent_forge.traces.rows import to_rows
from agent_forge.traces.store import INSERT

START_NS = 1_767_225_600_000_000_000
WEEK_NS = 7 * 86_400_000_000_000
AGENTS = 15

DUCKDB = """
import json, statistics, sys, time
import duckdb
path, rounds = sys.argv[1], int(sys.argv[2])
connection = duckdb.connect()
connection.execute(f"CREATE VIEW spans AS SELECT * FROM '{path}'")
queries = json.load(sys.stdin)
answers = {}
for name, sql in queries.items():
    times = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        rows = connection.execute(sql).fetchall()
        times.append(time.perf_counter() - begin)
    answers[name] = [statistics.median(times[1:]) * 1000, rows]
print(json.dumps(answers, default=float))
"""
QUERIES = {
    "stats by agent and name": (
        "SELECT agent, name, count(*), count(*) FILTER (status = 'error'), sum(duration_ns) / 1e9,"
        " sum(input_tokens), sum(output_tokens), sum(cost) FROM spans GROUP BY 1, 2 ORDER BY 1, 2"
    ),
    "rewards by agent and category": (
        "SELECT agent, category, count(reward), avg(reward) FROM spans GROUP BY 1, 2 ORDER BY 1, 2"
    ),
    "p50, p95, p99 by name": (
        "SELECT name, quantile_cont(duration_ns, [0.5, 0.95, 0.99]) FROM spans GROUP BY 1 ORDER BY 1"
    ),
    "spans per minute": (
        "SELECT start_ns // 60000000000, count(*), count(*) FILTER (status = 'error') FROM spans GROUP BY 1 ORDER BY 1"
    ),
    "errors by model, last day": (
        f"SELECT model, count(*) FROM spans WHERE status = 'error' AND start_ns >= {START_NS + 6 * 86_400_000_000_000}"
        " GROUP BY 1 ORDER BY 1"
    ),
    "slowest 50": "SELECT * FROM spans ORDER BY duration_ns DESC LIMIT 50",
    "one trace by id": "SELECT * FROM spans WHERE trace_id = '{trace}' ORDER BY start_ns",
}


def spans(count: int) -> Iterator[Span]:
    """Traces of eight spans over a week. An agent has its own tools, models and kinds of task, as agents do."""
    rng = random.Random(0)
    for number in range(count):
        if number % 8 == 0:
            trace, root = f"{rng.getrandbits(128):032x}", None
            start = START_NS + WEEK_NS * number // count
            agent = rng.randrange(AGENTS)
            category = f"category-{agent % 5 + rng.randrange(2)}"
        kind = "agent" if root is None else rng.choice(["model", "tool"])
        name = f"agent-{agent}" if root is None else f"{kind}-{agent % 4 + rng.randrange(3)}"
        begin = start + number % 8 * 10_000_000
        span = Span(
            trace, f"{rng.getrandbits(64):016x}", name, kind, root, begin, begin + int(10 ** rng.uniform(6, 10))
        )
        span.status, span.agent, span.category = "error" if rng.random() < 0.03 else "ok", f"Agent{agent}", category
        span.session = f"session-{number // 800}"
        if kind == "model":
            span.model, span.input_tokens, span.output_tokens = (
                f"model-{agent % 3}",
                rng.randrange(2000),
                rng.randrange(300),
            )
            span.cost = span.input_tokens * 1e-6
        if root is None:
            root, span.reward = span.span_id, round(rng.random(), 3)
        span.inputs, span.outputs = {"query": f"what about item {rng.randrange(10**6)}?"}, {"text": "an answer " * 8}
        yield span


def fill(store: Store, count: int, label: str) -> tuple[str, float]:
    """Fills a store; returns a trace in its middle and the seconds it took."""
    middle, begin, done = "", time.perf_counter(), 0
    stream = spans(count)
    while part := list(islice(stream, 2_000)):
        store.add(part)
        done += len(part)
        middle = middle or (part[0].trace_id if done > count // 2 else "")
        if sys.stderr.isatty():
            print(f"\r{label}: {done:,} of {count:,}", end="", file=sys.stderr)
    return middle, time.perf_counter() - begin


def timed(question: Callable[[], Any], rounds: int) -> tuple[float, Any]:
    """The median in ms, after one round to warm up, and the answer."""
    times, answer = [], question()
    for _ in range(rounds):
        begin = time.perf_counter()
        answer = question()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1000, answer


def ours(store: Store, trace: str, rounds: int) -> dict[str, tuple[float, Any]]:
    last = START_NS + 6 * 86_400_000_000_000
    questions: dict[str, Callable[[], Any]] = {
        "stats by agent and name": lambda: store.aggregate(["agent", "name"]),
        "rewards by agent and category": lambda: store.aggregate(["agent", "category"]),
        "p50, p95, p99 by name": lambda: store.percentiles(["name"]),
        "spans per minute": lambda: store.timeline(),
        "errors by model, last day": lambda: store.aggregate(["model"], since=last, status="error"),
        "slowest 50": lambda: store.slowest(50),
        "one trace by id": lambda: store.trace(trace),
    }
    return {name: timed(question, rounds) for name, question in questions.items()}


def compare(mine: dict[str, tuple[float, Any]], theirs: dict[str, Any]) -> None:
    """Both must have counted the same."""
    close = lambda a, b: abs(a - b) <= 1e-6 * max(1.0, abs(b))  # noqa: E731
    for a, row in zip(mine["stats by agent and name"][1], theirs["stats by agent and name"][1], strict=True):
        counts = [*a.group.values(), a.spans, a.errors]
        assert counts == row[:4], (counts, row)
        assert close(a.duration_s, row[4])
        assert close(a.input_tokens, row[5] or 0)
    for a, row in zip(
        mine["rewards by agent and category"][1], theirs["rewards by agent and category"][1], strict=True
    ):
        assert a.reward_n == row[2]
        assert close(a.reward_mean, row[3])
    for (name,), row in zip(sorted(mine["p50, p95, p99 by name"][1]), theirs["p50, p95, p99 by name"][1], strict=True):
        for value, true in zip(mine["p50, p95, p99 by name"][1][(name,)], row[1], strict=True):
            assert abs(value * 1e9 / true - 1) < 0.11, (name, value, true)
    assert [[t.start_ns // 60_000_000_000, t.spans, t.errors] for t in mine["spans per minute"][1]] == theirs[
        "spans per minute"
    ][1]
    assert len(mine["one trace by id"][1]) == len(theirs["one trace by id"][1])
    slowest = [span.span_id for span in mine["slowest 50"][1]]
    assert slowest == [row[1] for row in theirs["slowest 50"][1]]


def rollup_cost(count: int) -> tuple[float, float]:
    """µs per span to add, and of that for the rollups and the rows of traces."""
    with tempfile.TemporaryDirectory() as place, Store.open(f"{place}/a") as full, Store.open(f"{place}/b") as plain:
        batches, stream = [], spans(count)
        while part := list(islice(stream, 500)):
            batches.append(part)
        bare = whole = 0.0
        for batch in batches:
            begin = time.perf_counter()
            full.add(batch)
            whole += time.perf_counter() - begin
            begin = time.perf_counter()
            rows = plain.numbered(to_rows(batch))
            with plain._database.write() as cursor:
                INSERT.run(cursor, rows)
            bare += time.perf_counter() - begin
    return whole / count * 1e6, (whole - bare) / count * 1e6


def duckdb_python() -> str:
    folder = Path(tempfile.gettempdir()) / "agent-forge-bench-duckdb"
    python = folder / "bin" / "python"
    if not python.exists():
        print("installing DuckDB …", file=sys.stderr)
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "duckdb"], check=True)
    return str(python)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100,000 spans")
    parser.add_argument("--spans", type=int, default=1_000_000)
    arguments = parser.parse_args()
    count, rounds = (100_000, 5) if arguments.quick else (arguments.spans, 9)
    python = duckdb_python()
    with tempfile.TemporaryDirectory() as place:
        with Store.open(Path(place) / "small") as small:
            trace, _ = fill(small, 10_000, "small")
            small_ms, _ = timed(lambda: small.trace(trace), 50)
        with Store.open(Path(place) / "large") as store:
            trace, took = fill(store, count, "large")
            parquet = Path(place) / "spans.parquet"
            export_traces(store.each_trace(), "parquet", parquet)
            mine = ours(store, trace, rounds)
            text_ms, _ = timed(lambda: store.search(text="item 123456?", limit=10), 1)
            size = Path(store.where).stat().st_size
        queries = json.dumps({name: sql.format(trace=trace) for name, sql in QUERIES.items()})
        command = [python, "-c", DUCKDB, str(parquet), str(rounds)]
        done = subprocess.run(command, input=queries, capture_output=True, text=True, check=True)
        theirs = json.loads(done.stdout)
    compare(mine, theirs)
    print(
        f"{count:,} spans, stored at {count / took:,.0f} spans/s, {size / count:.0f} bytes per span;"
        f" median of {rounds}\n"
    )
    print(f"{'':32}{'ours ms':>9}{'DuckDB ms':>11}{'× faster':>10}")
    for name, (ms, _) in mine.items():
        print(f"{name:32}{ms:9.2f}{theirs[name][0]:11.1f}{theirs[name][0] / ms:10.1f}")
    whole, rollups = rollup_cost(20_000)
    print(f"\none trace by id: {small_ms:.2f} ms at 10,000 spans, {mine['one trace by id'][0]:.2f} ms at {count:,}")
    print(f"a text without an index (LIKE over all spans): {text_ms:,.0f} ms")
    print(f"ingest: {whole:.1f} µs per span, of which the rollups {rollups:.1f} µs ({rollups / whole:.0%})")


if __name__ == "__main__":
    main()
