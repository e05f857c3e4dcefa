"""How many OTLP spans per second are stored, and how does that compare with a bare `executemany` of the same rows?

    python benchmarks/trace_ingest.py [--quick]

The goal: 20,000 spans per second on one core, that is 50 µs of CPU per span, from the bytes of a request in protobuf or
JSON to committed spans with their rollups. Beside it, as the limit of the machine: `sqlite3.executemany` of rows that
are already encoded, into the same schema, in WAL mode with the same synchronous setting and as many rows per
transaction: 500 (a request) or 5,000 (a stream). Two loads: light (two-span traces, six attributes on one of them) and
rich (traces of eight, ten attributes on each with prompt and answer). All take turns; figures are medians over the
rounds, of time on the clock and of CPU time, which a busy machine distorts less. `raw, no empty columns` is the same
executemany without the columns that are NULL in every row, which is how ours writes them. Every request is committed
before it counts as done. With `two clients`, one request is read while the other is being written, which SQLite does
without Python's lock; `stream` does the same for one long stream. Other servers are measured in trace_peers.py,
agentlightning's own store in agent_lightning_roundtrip.py.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import Any

from agent_forge.traces import Store
from agent_forge.traces.otlp import read_json_rows, read_request, read_rows
from agent_forge.traces.otlp_protobuf import read_protobuf_rows, write_protobuf
from agent_forge.traces.rows import COLUMNS, Row
from agent_forge.traces.store import BATCH, INSERT

GOAL = 20_000  # spans per CPU second
REQUEST = 500  # spans per request, and per transaction
START_NS = 1_760_000_000_000_000_000


LIGHT = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "openai",
    "gen_ai.request.model": "model-1",
    "gen_ai.request.temperature": 0.7,
    "gen_ai.usage.input_tokens": 120,
    "gen_ai.usage.output_tokens": 20,
}


def value_of(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"doubleValue": value}


def chat(number: int, session: int) -> dict[str, Any]:
    question = {"role": "user", "parts": [{"type": "text", "content": f"What is the weather in Paris today? {number}"}]}
    answer = {"role": "assistant", "parts": [{"type": "text", "content": "Sunny, with rain later in the evening."}]}
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": f"model-{number % 3}",
        "gen_ai.agent.name": f"agent-{number % 15}",
        "gen_ai.conversation.id": f"session-{session}",
        "gen_ai.usage.input_tokens": 100 + number,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.request.temperature": 0.7,
        "gen_ai.input.messages": json.dumps([question]),
        "gen_ai.output.messages": json.dumps([answer]),
    }


def request(number: int, spans: int = REQUEST, rich: bool = True) -> dict[str, Any]:
    """One OTLP request as a JSON object."""
    rng = random.Random(number)
    items: list[dict[str, Any]] = []
    for index in range(spans):
        span_id = f"{rng.getrandbits(64):016x}"
        if index % (8 if rich else 2) == 0:
            trace_id, root = f"{rng.getrandbits(128):032x}", span_id
        start = START_NS + number * 60_000_000_000 + index * 100_000_000
        attributes = chat(index, number) if rich else LIGHT if span_id != root else {}
        data = {
            "traceId": trace_id,
            "spanId": span_id,
            "name": f"chat {index % 10}",
            "kind": 3,
            "startTimeUnixNano": str(start),
            "endTimeUnixNano": str(start + rng.randrange(1_000_000, 3_000_000_000)),
            "attributes": [{"key": key, "value": value_of(value)} for key, value in attributes.items()],
            "status": {"code": 2 if index % 50 == 0 else 1},
        }
        if span_id != root:
            data["parentSpanId"] = root
        items.append(data)
    scope = {"scope": {"name": "benchmark", "version": "1"}, "spans": items}
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "benchmark"}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}


Read = Callable[[bytes], list[Row]]
READ: dict[str, Read] = {"protobuf": read_protobuf_rows, "JSON": read_json_rows}


def ours(bodies: list[bytes], read: Read, folder: Path) -> tuple[float, float]:
    with Store.open(folder) as store:
        took = clock(lambda: [store.add_rows(read(body)) for body in bodies])
        assert store.count() == REQUEST * len(bodies)
    return took


def clients(bodies: list[bytes], read: Read, folder: Path) -> tuple[float, float]:
    """Two clients that each send a request when the one before was committed, as a server with threads has them."""
    with Store.open(folder) as store, ThreadPoolExecutor(2) as two:
        took = clock(lambda: list(two.map(lambda body: store.add_rows(read(body)), bodies)))
        assert store.count() == REQUEST * len(bodies)
    return took


def stream(bodies: list[bytes], read: Read, folder: Path) -> tuple[float, float]:
    with Store.open(folder) as store:
        rows = (row for body in bodies for row in read(body))
        took = clock(lambda: store.add_batches(iter(lambda: list(islice(rows, BATCH)), [])))
        assert store.count() == REQUEST * len(bodies)
    return took


def raw(rows: list[list[tuple[Any, ...]]], folder: Path, columns: tuple[str, ...] = COLUMNS) -> tuple[float, float]:
    Store.open(folder).close()  # the same schema and indexes
    connection = sqlite3.connect(folder / "traces.db", isolation_level=None)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA wal_autocheckpoint=4000")

    statement = INSERT.statement(columns, 1)

    def insert() -> None:
        for batch in rows:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(statement, batch)
            connection.execute("COMMIT")

    took = clock(insert)
    connection.close()
    return took


def clock(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds on the clock and of CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


LIMITS = ("raw executemany", "raw executemany, stream")
NARROW = "raw, no empty columns"


def measure(name: str, documents: list[dict[str, Any]], rounds: int) -> None:
    bodies = {
        "JSON": [json.dumps(document).encode() for document in documents],
        "protobuf": [write_protobuf(read_request(document)) for document in documents],
    }
    spans = REQUEST * len(documents)
    results: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        with Store.open(Path(place) / "rows") as store:
            rows = [store.numbered(read_rows(document)) for document in documents]
        narrow = INSERT.columns_of(list(chain.from_iterable(rows)))
        places = [COLUMNS.index(name) for name in narrow]
        narrowed = [[tuple(row[place] for place in places) for row in batch] for batch in rows]
        merged = [list(chain.from_iterable(rows[at : at + 10])) for at in range(0, len(rows), 10)]
        gc.collect()
        gc.freeze()  # the requests that wait here as objects are the benchmark's own: a server has only its bytes
        for number in range(rounds):
            folder = Path(place) / str(number)
            results.setdefault(LIMITS[0], []).append(raw(rows, folder / "raw"))
            results.setdefault(NARROW, []).append(raw(narrowed, folder / "narrow", narrow))
            for kind, read in READ.items():
                results.setdefault(f"{kind}, request by request", []).append(ours(bodies[kind], read, folder / kind))
                results.setdefault(f"{kind}, two clients", []).append(clients(bodies[kind], read, folder / f"{kind}-2"))
            results.setdefault(LIMITS[1], []).append(raw(merged, folder / "raw-stream"))
            for kind, read in READ.items():
                results.setdefault(f"{kind}, stream", []).append(stream(bodies[kind], read, folder / f"{kind}-stream"))
    sizes = ", ".join(f"{kind} {len(parts[0]) / REQUEST:.0f} bytes" for kind, parts in bodies.items())
    print(f"\n{name}: {spans:,} spans, {sizes} per span; {rounds} rounds; load {os.getloadavg()[0]:.1f}\n")
    print(f"{'':30}{'µs per span':>12}{'CPU µs':>8}{'spans/s':>10}{'per CPU s':>11}{'CPU of raw':>12}")
    for label, times in results.items():
        wall, cpu = (statistics.median(part) / spans * 1e6 for part in zip(*times, strict=True))
        pairs = zip(results[LIMITS["stream" in label]], times, strict=True)
        ratio = statistics.median(own / limit for (_, limit), (_, own) in pairs)
        met = "" if label.startswith("raw") else " met" if 1e6 / cpu >= GOAL else " missed"
        print(f"{label:30}{wall:12.1f}{cpu:8.1f}{1e6 / wall:10,.0f}{1e6 / cpu:11,.0f}{ratio:10.2f} x{met}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer spans and rounds")
    arguments = parser.parse_args()
    count, rounds = (10, 3) if arguments.quick else (40, 5)
    measure("light", [request(number, rich=False) for number in range(count)], rounds)
    measure("rich", [request(number) for number in range(count)], rounds)


if __name__ == "__main__":
    main()
