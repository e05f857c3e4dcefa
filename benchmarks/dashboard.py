"""How fast does the dashboard start, and how long do its pages take with a million spans?

    python benchmarks/dashboard.py [--quick] [--spans N]

First the start: CPU seconds and memory of `agent-forge serve` until its first page, against a bare Starlette + Jinja2 +
uvicorn program in the same run (the limit), and against Phoenix and MLflow as measured on a 2-core machine
(`docs/results/dashboard.md`). Then every page: the server's own time (`Server-Timing`) of the first response, with
nothing cached, and the median of the next ones, against the goal of 300 ms; and the CPU time of the first response,
which does not depend on the load.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from trace_queries import spans as generate_spans

from agent_forge.plans import Task
from agent_forge.runtime import Journal, execute
from agent_forge.traces import Store

LIMIT_MS = 300
PEERS = {"Arize Phoenix 20.26": (29.7, 486), "MLflow 3.18 server": (69.8, 1_108)}  # CPU s, MB to the first answer
BARE = """
import sys, uvicorn, jinja2
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route
template = jinja2.Environment(autoescape=True).from_string("<h1>{{ name }}</h1>")
app = Starlette(routes=[Route("/", lambda request: HTMLResponse(template.render(name="bare")))])
config = uvicorn.Config(app, port=int(sys.argv[1]), log_level="error")
uvicorn.Server(config).run()
"""


def fill(home: Path, spans: int, runs: int) -> None:
    """Fills a store with spans and a journal with runs."""
    print(f"filling {home} with {spans:,} spans and {runs:,} runs …", file=sys.stderr)
    with Store.open(home) as store:
        store.add_many(generate_spans(spans))
    journal = Journal.open(home)

    async def handler(task: Task, inputs: dict[str, object]) -> str:
        return task.id

    async def all_runs() -> None:
        for _ in range(runs):
            plan = [Task(f"t{n}", depends_on=[f"t{n - 1}"] if n % 3 else []) for n in range(12)]
            await execute(plan, handler, journal=journal)

    asyncio.run(all_runs())
    journal.close()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def thread_ms(pid: int) -> float:
    """The CPU time of all threads so far, to the microsecond."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e6


def memory_mb(pid: int) -> float:
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) / 1024


@contextmanager
def started(command: list[str], port: int) -> Iterator[tuple[int, str]]:
    """A server process on a port, from its start."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        yield process.pid, f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def first_page(pid: int, url: str) -> tuple[float, float, float]:
    """Seconds, CPU seconds and megabytes until the first page."""
    begin = time.perf_counter()
    with httpx.Client(trust_env=False, timeout=60) as client:
        while time.perf_counter() - begin < 60:
            try:
                assert client.get(url, headers={"accept": "text/html"}).status_code == 200
                return time.perf_counter() - begin, cpu_s(pid), memory_mb(pid)
            except httpx.TransportError:
                time.sleep(0.005)
    raise SystemExit("the server did not answer within a minute")


def serve(home: Path, port: int) -> list[str]:
    code = "import sys; from agent_forge.cli import main; main()"
    return [sys.executable, "-c", code, "serve", "--port", str(port), "--home", str(home), "--log-level", "error"]


def cold_starts(home: Path, rounds: int) -> None:
    best: dict[str, tuple[float, float, float]] = {}
    for turn in range(rounds):
        for name, command in (("bare", [sys.executable, "-c", BARE]), ("agent-forge serve", serve(home, 0))):
            port = 8_500 + 2 * turn + (name != "bare")
            full = [*command, str(port)] if name == "bare" else serve(home, port)
            with started(full, port) as (pid, url):
                result = first_page(pid, f"{url}/")
            best[name] = min(best.get(name, result), result, key=lambda one: one[1])
    wall, cpu, memory = best["agent-forge serve"]
    bare = best["bare"]
    print(f"\nto the first page (best of {rounds})         CPU s    wall s   peak MB   CPU against ours")
    print(f"  agent-forge serve                     {cpu:7.2f}  {wall:7.2f}  {memory:8.0f}                  1")
    print(
        f"  Starlette + Jinja2 + uvicorn, bare    {bare[1]:7.2f}  {bare[0]:7.2f}  {bare[2]:8.0f}  {bare[1] / cpu:17.2f}"
    )
    for name, (seconds, megabytes) in PEERS.items():
        print(f"  {name + ' (cited)':36s}  {seconds:7.2f}           {megabytes:8.0f}  {seconds / cpu:17.0f}")


def addresses(home: Path) -> list[str]:
    with Store.open(home) as store:
        newest = store.traces(limit=1).items[0]
        far = store.traces(limit=1, oldest_first=True).items[0].start_ns + 10**9
        span = store.trace(newest.trace_id)[0]
    from agent_forge.runtime import Journal

    run = Journal.open(home).page(1)[0][0].run
    return [
        "/", "/runs", f"/runs/{run}", "/traces", f"/traces?after={far}-f", "/traces?status=error",
        "/traces?min_reward=0.9", f"/traces?agent={span.agent or 'agent-3'}", "/traces?agent=nobody",
        "/traces?text=nothing+like+this", f"/traces/{newest.trace_id}", f"/traces/{newest.trace_id}/{span.span_id}",
        "/sessions", "/trust", "/forge", "/models", "/data",
    ]  # fmt: skip


def page_times(home: Path, rounds: int) -> None:
    print(f"\nserver time of a page, ms         CPU of first    first    median   worst    of {LIMIT_MS} ms")
    worst = 0.0
    with started(serve(home, 8_499), 8_499) as (pid, url):
        first_page(pid, f"{url}/healthz")
        with httpx.Client(base_url=url, trust_env=False, timeout=60, headers={"accept": "text/html"}) as client:
            for address in addresses(home):
                before = thread_ms(pid)
                times = [server_ms(client, address)]
                spent = thread_ms(pid) - before
                times += [server_ms(client, address) for _ in range(rounds)]
                worst = max(worst, *times)
                label = address if len(address) <= 34 else address[:33] + "…"
                middle, most = statistics.median(times[1:]), max(times)
                print(
                    f"  {label:34s} {spent:10.1f} {times[0]:8.1f}  {middle:8.1f}  {most:7.1f}   {most / LIMIT_MS:8.2f}"
                )
        print(f"worst of all: {worst:.0f} ms, {worst / LIMIT_MS:.2f} of the limit; peak memory {memory_mb(pid):.0f} MB")


def server_ms(client: httpx.Client, address: str) -> float:
    response = client.get(address)
    assert response.status_code == 200, (address, response.status_code)
    return sum(float(part) for part in re.findall(r"dur=([\d.]+)", response.headers["server-timing"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100,000 spans")
    parser.add_argument("--spans", type=int, help="instead of a million")
    parser.add_argument("--home", help="home folder to use; filled if it is new")
    options = parser.parse_args()
    spans = options.spans or (100_000 if options.quick else 1_000_000)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(options.home or folder)
        if not (home / "traces.db").exists():
            fill(home, spans, 300)
        cold_starts(Path(folder) / "empty", 2 if options.quick else 5)
        page_times(home, 3 if options.quick else 7)


if __name__ == "__main__":
    main()
