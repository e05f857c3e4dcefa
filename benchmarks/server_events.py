"""What does an event between servers cost, in Redis and in PostgreSQL?

    python benchmarks/server_events.py [--quick] [--events 20000]

EVENTS of one run, published by one server as fast as they are taken and heard by another, on real servers that end with
the benchmark. CPU is that of the whole server program (Redis, or all processes of PostgreSQL), from /proc; the control
is what redis-benchmark gets from the same Redis with the three commands of an event, pipelined as ours are. Needs redis
and psycopg, and their servers; what is missing is named and left out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from servers import Unavailable, postgres_server, redis_server

from agent_forge.server.events import TOGETHER, ServerEvents

TICK = os.sysconf("SC_CLK_TCK")
EVENT = {"kind": "done", "run": "20261116-120000-abcdef", "at_s": 1234567.875, "task": "step-12", "state": "done"}


def server_cpu(name: str, folder: str) -> float:
    """Seconds of CPU of all processes called `name` that work in `folder`, ended children included."""
    total = 0.0
    for entry in Path("/proc").iterdir():
        with suppress(OSError, IndexError, ValueError):
            named = entry.name.isdigit() and (entry / "comm").read_text().strip().startswith(name)
            if named and str(entry.joinpath("cwd").resolve()).startswith(folder):
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                total += sum(map(int, fields[11:15])) / TICK
    return total


def measure(label: str, url: str, program: str, folder: str, count: int) -> None:
    heard, last = 0, threading.Event()

    def deliver(topic: str, event: object) -> None:
        nonlocal heard
        heard += 1
        if heard == count:
            last.set()

    sender, listener = ServerEvents(url, lambda topic, event: None), ServerEvents(url, deliver)
    assert sender._subscribed.wait(60)
    assert listener._subscribed.wait(60)
    before, own, begun = server_cpu(program, folder), time.process_time(), time.perf_counter()
    for _ in range(count):
        while sender._waiting.qsize() > 5_000:
            time.sleep(0.001)
        sender.publish("run:one", EVENT)
    assert last.wait(600)
    took, cpu = time.perf_counter() - begun, server_cpu(program, folder) - before
    own = time.process_time() - own
    print(f"{label}: {count:,} events, {count / took:,.0f}/s; the server {cpu / count * 1e6:.0f} µs of CPU per event,"
          f" sender and listener together {own / count * 1e6:.0f} µs")  # fmt: skip
    sender.close()
    listener.close()


def redis_control(socket: str, folder: str, count: int) -> None:
    """The three commands of an event, by redis-benchmark."""
    body = "x" * 120
    commands = {
        "XADD": ["XADD", "control", "MAXLEN", "20000", "*", "event", body],
        "EXPIRE": ["EXPIRE", "control", "86400"],
        "PUBLISH": ["PUBLISH", "nobody", body],
    }
    whole = 0.0
    for name, command in commands.items():
        before, begun = server_cpu("redis-server", folder), time.perf_counter()
        tool = ["redis-benchmark", "-s", socket, "-n", str(count), "-c", "1", "-P", str(TOGETHER), "-q", *command]
        subprocess.run(tool, check=True, stdout=subprocess.DEVNULL)
        took, cpu = time.perf_counter() - begun, server_cpu("redis-server", folder) - before
        whole += cpu / count
        print(f"  redis-benchmark {name:8}{count / took:10,.0f} commands/s, {cpu / count * 1e6:6.2f} µs of CPU each")
    print(f"  the three together: {whole * 1e6:.1f} µs of CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="500 events")
    parser.add_argument("--events", type=int, default=20_000)
    arguments = parser.parse_args()
    count = 500 if arguments.quick else arguments.events
    try:
        with redis_server() as url:
            folder = str(Path(url.removeprefix("unix://")).parent)
            measure("Redis", url, "redis-server", folder, count)
            with suppress(FileNotFoundError):
                redis_control(url.removeprefix("unix://"), folder, 10 * count)
    except (Unavailable, ImportError) as error:
        print(f"Redis is left out: {error}")
    try:
        with postgres_server() as folder:
            measure("PostgreSQL", f"postgresql://postgres@/postgres?host={folder}", "postgres", folder, count)
    except (Unavailable, ImportError) as error:
        print(f"PostgreSQL is left out: {error}")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
