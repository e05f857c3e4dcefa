"""How many spans per second do several processes store at once, in PostgreSQL and in SQLite?

    python benchmarks/trace_writers.py [--quick] [--writers 8] [--batch 100]

Each writer is a process that adds its spans batch by batch; a batch counts when it is committed with its rollups and
synced to disk. PostgreSQL is a server of this machine's own with the settings that it comes with (fsync on). Beside it
the same with `INSERT … VALUES` of many rows, which is how it was done before, and a SQLite file. All take turns, and
figures are medians over the rounds. The last column is what the machine could do with its cores to itself: one span's
CPU, the writers' and the server's, on all of them.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from servers import postgres_server

GOAL = 5_000  # spans per second, 8 writers, PostgreSQL
WAYS = ("PostgreSQL", "PostgreSQL, VALUES", "SQLite")

WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
from trace_writers import write
write(*sys.argv[2:4], *map(int, sys.argv[4:]))
"""


def batches(writer: int, spans: int, batch: int) -> list[list[object]]:
    """Traces of eight spans: an agent, tools and model calls with prompt and answer, as an agent's run leaves them."""
    from agent_forge.traces import Span

    rng = random.Random(writer)
    made = []
    for number in range(spans):
        if number % 8 == 0:
            trace, root = f"{rng.getrandbits(128):032x}", None
        start = 1_700_000_000_000_000_000 + number * 100_000_000
        span = Span(trace, f"{rng.getrandbits(64):016x}", f"step {number % 10}", parent_id=root, start_ns=start)
        span.end_ns, span.agent, span.kind = start + rng.randrange(10**9), f"agent-{number % 15}", "model"
        span.attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.temperature": 0.7}
        span.input_tokens, span.output_tokens, span.model = 100 + number % 50, 20, f"model-{number % 3}"
        span.inputs, span.outputs = f"What is the weather in Paris on day {number}?", "Sunny, with rain later."
        root = root or span.span_id
        made.append(span)
    return [made[at : at + batch] for at in range(0, spans, batch)]


def write(way: str, place: str, writer: int, spans: int, batch: int) -> None:
    """One writer: makes its spans, says that it is ready, waits for the start, writes, prints its CPU seconds."""
    from agent_forge.database.postgres import PostgresCursor
    from agent_forge.traces import Store

    if way.endswith("VALUES"):
        del PostgresCursor.insert
    work = batches(writer, spans, batch)
    with Store.open(place) as store:
        store.count()
        print("ready", flush=True)
        sys.stdin.readline()
        before = resource.getrusage(resource.RUSAGE_SELF)
        for part in work:
            store.add(part)
        after = resource.getrusage(resource.RUSAGE_SELF)
    print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def server_cpu(folder: str) -> float:
    """CPU seconds of the server's processes that have ended: each connection has one."""
    postmaster = Path(folder, "data", "postmaster.pid").read_text().split()[0]
    fields = Path(f"/proc/{postmaster}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")  # cutime and cstime of proc(5)


def measure(way: str, place: str, writers: int, spans: int, batch: int) -> tuple[float, float]:
    """Spans per second on the clock, and writers' CPU microseconds per span."""
    from agent_forge.traces import Store

    here = str(Path(__file__).resolve().parent)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    Store.open(place).close()
    processes = [
        subprocess.Popen([sys.executable, "-c", WRITER, here, way, place, str(n), str(spans), str(batch)], **pipes)
        for n in range(writers)
    ]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    start = time.perf_counter()
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    cpu = sum(float(process.communicate()[0]) for process in processes)
    took = time.perf_counter() - start
    with Store.open(place) as store:
        assert store.count() == writers * spans, "every span is stored"
    return writers * spans / took, cpu / (writers * spans) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer spans and rounds")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=100, help="spans per transaction")
    arguments = parser.parse_args()
    spans, rounds = (800, 1) if arguments.quick else (4_000, 3)
    results: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
    with postgres_server() as folder, tempfile.TemporaryDirectory() as files:
        import psycopg

        for number in range(rounds):
            for way in WAYS:
                place = str(Path(files) / str(number))
                if way != "SQLite":
                    name = f"w{number}{way[-1].lower()}"
                    with psycopg.connect(f"postgresql://postgres@/postgres?host={folder}", autocommit=True) as server:
                        server.execute(f"CREATE DATABASE {name}")
                    place = f"postgresql://postgres@/{name}?host={folder}"
                before = server_cpu(folder)
                figures = measure(way, place, arguments.writers, spans, arguments.batch)
                time.sleep(0.5)  # until the last connections have ended
                server = (server_cpu(folder) - before) / (arguments.writers * spans) * 1e6
                results[way].append((*figures, server))
    print(
        f"{arguments.writers} writers, {spans:,} spans each in batches of {arguments.batch}; {rounds} rounds;", end=" "
    )
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print(f"{'':22}{'spans/s':>10}{'writers, CPU µs':>18}{'server, CPU µs':>17}{'spans/s at most':>18}")
    for way, figures in results.items():
        rate, cpu, server = (statistics.median(part) for part in zip(*figures, strict=True))
        met = "" if way != WAYS[0] else " met" if rate >= GOAL else f" missed (goal {GOAL:,})"
        most = (os.cpu_count() or 1) * 1e6 / (cpu + server)
        print(f"{way:22}{rate:10,.0f}{cpu:18.0f}{server:17.0f}{most:18,.0f}{met}")


if __name__ == "__main__":
    main()
