"""How fast does the server accept spans over HTTP, compared with `store.add` of the same requests?

The same OTLP requests (protobuf, 500 spans each) go once through `store.add` in this process, request by request, and
once over HTTP into a server in a process of its own, from a few connections. Both are durable when they return. The CPU
ratio compares the store's process with the server's alone; on the clock, client and server share the machine.

    python benchmarks/otlp_intake.py [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from serve_concurrency import Server

from agent_forge.traces import Span, Store
from agent_forge.traces.otlp_protobuf import read_protobuf_rows, write_protobuf
from agent_forge.traces.recorder import new_span_id, new_trace_id

GOAL = 0.5
CONNECTIONS = 4
EACH = 500


def spans(count: int) -> list[Span]:
    """Traces of ten: model calls and tools with messages, tokens and an agent."""
    items: list[Span] = []
    for number in range(count // 10):
        trace, parent = new_trace_id(), None
        for place in range(10):
            start = 1_700_000_000_000_000_000 + number * 1_000_000 + place * 1000
            kind = "model" if place % 2 else "tool"
            span = Span(trace, new_span_id(), f"step {place}", kind, parent, start, start + 500_000, "ok")
            span.inputs = {"messages": [{"role": "user", "content": "what is the weather in Paris today?"}]}
            span.outputs = {"text": "sunny " * 5}
            span.agent, span.model, span.input_tokens, span.output_tokens = "Explore", "small", 20, 7
            parent = parent or span.span_id
            items.append(span)
    return items


def requests(count: int) -> list[bytes]:
    items = spans(count)
    return [write_protobuf(items[at : at + EACH]) for at in range(0, count, EACH)]


def directly(bodies: list[bytes], folder: Path) -> tuple[float, float]:
    """Seconds by the clock and of CPU."""
    with Store.open(folder) as store:
        begun, spent = time.perf_counter(), time.process_time()
        for body in bodies:
            store.add_rows(read_protobuf_rows(body))
        return time.perf_counter() - begun, time.process_time() - spent


async def _send(port: int, bodies: list[bytes]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for body in bodies:
        head = "POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-protobuf\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1]
        if status != b"200":
            raise SystemExit(f"the intake answered {status.decode()}")
    writer.close()


async def _all(port: int, bodies: list[bytes]) -> None:
    await asyncio.gather(*(_send(port, bodies[place::CONNECTIONS]) for place in range(CONNECTIONS)))


def over_http(bodies: list[bytes], server: Server) -> tuple[float, float]:
    begun, spent = time.perf_counter(), server.cpu_s()
    asyncio.run(_all(server.port, bodies))
    return time.perf_counter() - begun, server.cpu_s() - spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    count, rounds = (10_000, 3) if arguments.quick else (40_000, 5)
    rows: list[tuple[float, float, float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(None, Path(folder) / "home")
        try:
            over_http(requests(1000), server)
            for number in range(rounds):
                rows.append(
                    (*directly(requests(count), Path(folder) / str(number)), *over_http(requests(count), server))
                )
        finally:
            server.close()
    print(f"{count:,} spans per round in requests of {EACH}, {CONNECTIONS} connections, spans/s\n")
    print("| round | store | intake | ratio | CPU ratio | intake per CPU s |\n|---|---|---|---|---|---|")
    for number, (alone, alone_cpu, served, served_cpu) in enumerate(rows, 1):
        rates = f"{count / alone:,.0f} | {count / served:,.0f}"
        per_cpu = count / served_cpu
        print(f"| {number} | {rates} | {alone / served:.2f} | {alone_cpu / served_cpu:.2f} | {per_cpu:,.0f} |")
    middle = statistics.median(row[0] / row[2] for row in rows)
    print(f"\nmedian ratio {middle:.2f} (goal ≥ {GOAL}): {'met' if middle >= GOAL else 'missed'}")


if __name__ == "__main__":
    main()
