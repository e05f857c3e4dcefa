"""How fast are OTLP requests stored, measured against a bare `executemany` of the same rows?

    python benchmarks/trace_ingest.py [--quick] [--peers]

The limit: `sqlite3.executemany` of rows that are already encoded, into the same schema, in WAL mode with the same
synchronous setting and the same 500 rows a transaction. Ours starts from the bytes of an OTLP/JSON request and ends
with the spans committed and the rollups kept. The two take turns, and the ratio is the median over the rounds.
`--peers` adds agentlightning's own stores (installed into a virtual environment of its own, which takes a while).
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from agent_forge.traces import Store
from agent_forge.traces.otlp import read_request
from agent_forge.traces.store import INSERT

REQUEST = 500  # spans a request, and a transaction
START_NS = 1_760_000_000_000_000_000


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


def request(number: int, spans: int = REQUEST) -> bytes:
    """One OTLP/JSON request: traces of eight spans, ten attributes each, about 1.1 kB a span."""
    rng = random.Random(number)
    found: list[dict[str, Any]] = []
    for index in range(spans):
        span_id = f"{rng.getrandbits(64):016x}"
        if index % 8 == 0:
            trace_id, root = f"{rng.getrandbits(128):032x}", span_id
        start = START_NS + number * 60_000_000_000 + index * 100_000_000
        data = {
            "traceId": trace_id,
            "spanId": span_id,
            "name": f"chat {index % 10}",
            "kind": 3,
            "startTimeUnixNano": str(start),
            "endTimeUnixNano": str(start + rng.randrange(1_000_000, 3_000_000_000)),
            "attributes": [{"key": key, "value": value_of(value)} for key, value in chat(index, number).items()],
            "status": {"code": 2 if index % 50 == 0 else 1},
        }
        if span_id != root:
            data["parentSpanId"] = root
        found.append(data)
    scope = {"scope": {"name": "benchmark", "version": "1"}, "spans": found}
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "benchmark"}}]}
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}).encode()


def ours(bodies: list[bytes], folder: Path) -> float:
    with Store.open(folder) as store:
        begin = time.perf_counter()
        for body in bodies:
            store.add(read_request(json.loads(body), whole=False))
        took = time.perf_counter() - begin
        assert store.count() == REQUEST * len(bodies)
    return took


def raw(rows: list[list[tuple[Any, ...]]], folder: Path, synchronous: str = "FULL") -> float:
    Store.open(folder).close()  # the same schema and indexes
    connection = sqlite3.connect(folder / "traces.db", isolation_level=None)
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute("PRAGMA wal_autocheckpoint=4000")
    begin = time.perf_counter()
    for batch in rows:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(INSERT.text(), batch)
        connection.execute("COMMIT")
    took = time.perf_counter() - begin
    connection.close()
    return took


def encoded(bodies: list[bytes], folder: Path) -> list[list[tuple[Any, ...]]]:
    with Store.open(folder) as store:
        return [store.rows(read_request(json.loads(body), whole=False)) for body in bodies]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="10,000 spans, 3 rounds")
    parser.add_argument("--peers", action="store_true", help="also agentlightning's stores")
    arguments = parser.parse_args()
    count, rounds = (20, 3) if arguments.quick else (60, 7)
    bodies = [request(number) for number in range(count)]
    spans = count * REQUEST
    results: dict[str, list[float]] = {"raw executemany": [], "agent-forge, OTLP/JSON to commit": []}
    with tempfile.TemporaryDirectory() as place:
        rows = encoded(bodies, Path(place) / "rows")
        for number in range(rounds):
            results["raw executemany"].append(raw(rows, Path(place) / f"raw{number}"))
            results["agent-forge, OTLP/JSON to commit"].append(ours(bodies, Path(place) / f"ours{number}"))
    raws = results["raw executemany"]
    print(f"{spans:,} spans, {REQUEST} a request, {len(bodies[0]) / REQUEST:.0f} bytes a span, {rounds} rounds\n")
    print(f"{'':36}{'µs a span':>10}{'spans/s':>10}{'ratio':>8}")
    for name, times in results.items():
        took = statistics.median(times)
        ratio = statistics.median(mine / own for mine, own in zip(raws, times, strict=True))
        print(f"{name:36}{took / spans * 1e6:10.1f}{spans / took:10,.0f}{ratio:8.2f}")
    if arguments.peers:
        subprocess.run([sys.executable, str(Path(__file__).with_name("trace_ingest_peers.py"))], check=True)


if __name__ == "__main__":
    main()
