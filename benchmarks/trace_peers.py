"""How many spans per second do trace servers really store? Ours, Arize Phoenix and MLflow, the same requests over HTTP.

    python benchmarks/trace_peers.py [--quick] [--rich] [--size 512] [--only ours,phoenix,mlflow]

Each server gets a fresh SQLite database and the same OTLP/protobuf requests, one after the other, each after the
response to the previous one. The clock runs from the first request until every span can be counted in the server's
database file, so that what was merely accepted does not count as stored. Then more requests are sent and the server
gets SIGTERM as soon as the last is acknowledged: acknowledged spans that are not in the file afterwards are lost. The
peers are installed into environments of their own (AGENT_FORGE_PEERS names the folder), which takes minutes the first
time.
"""

from __future__ import annotations

import argparse
import http.client
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from trace_ingest import request

from agent_forge.traces.otlp import read_request
from agent_forge.traces.otlp_protobuf import write_protobuf

FOLDER = Path(os.environ.get("AGENT_FORGE_PEERS", Path(tempfile.gettempdir()) / "agent-forge-peers"))
PACKAGES = {"phoenix": "arize-phoenix==20.26.1", "mlflow": "mlflow==3.17.2"}
PATIENCE_S = 60.0  # how long spans that were acknowledged may take to appear


@dataclass(frozen=True)
class Server:
    """How to start a server on a port with its data in a folder, check that it is up, and count its spans."""

    command: Callable[[int, Path], list[str]]
    environment: Callable[[int, Path], dict[str, str]]
    health: str
    headers: dict[str, str]
    database: str
    count: str


def python(peer: str) -> str:
    """The interpreter of a peer's environment; the peer is installed the first time."""
    place = FOLDER / f"traces-{peer}"
    interpreter = place / "bin" / "python"
    if not (place / "ready").exists():
        print(f"installing {PACKAGES[peer]} into {place} …", file=sys.stderr, flush=True)
        venv.create(place, with_pip=True)
        subprocess.run([str(interpreter), "-m", "pip", "install", "-q", PACKAGES[peer]], check=True)
        (place / "ready").write_text(PACKAGES[peer])
    return str(interpreter)


def _mlflow(port: int, home: Path) -> list[str]:
    store = f"sqlite:///{home}/mlflow.db"
    where = ["--host", "127.0.0.1", "--port", str(port), "--backend-store-uri", store, "--workers", "1"]
    return [python("mlflow"), "-m", "mlflow", "server", *where, "--artifacts-destination", str(home / "files")]


SERVERS = {
    "ours": Server(
        lambda port, home: [sys.executable, "-m", "agent_forge", "serve", "--port", str(port), "--home", str(home)],
        lambda port, home: {"AGENT_FORGE_HOME": str(home)},
        "/healthz",
        {},
        "traces.db",
        "SELECT count(*) FROM spans",
    ),
    "phoenix": Server(
        lambda port, home: [python("phoenix"), "-m", "phoenix.server.main", "serve"],
        lambda port, home: {
            "PHOENIX_PORT": str(port),
            "PHOENIX_GRPC_PORT": str(free_port()),
            "PHOENIX_WORKING_DIR": str(home),
            "PHOENIX_TELEMETRY_ENABLED": "false",
        },
        "/healthz",
        {},
        "phoenix.db",
        "SELECT count(*) FROM spans",
    ),
    "mlflow": Server(
        _mlflow,
        lambda port, home: {"MLFLOW_DISABLE_TELEMETRY": "true"},
        "/health",
        {"x-mlflow-experiment-id": "0"},
        "mlflow.db",
        "SELECT count(*) FROM spans",
    ),
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(server: Server, home: Path) -> tuple[subprocess.Popen[bytes], str]:
    port = free_port()
    environment = {**os.environ, **server.environment(port, home)}
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(server.command(port, home), env=environment, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    until = time.monotonic() + 180
    while time.monotonic() < until and process.poll() is None:
        with suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(url + server.health, timeout=5).close()
            return process, url
        time.sleep(0.5)
    process.kill()
    raise SystemExit(f"the server did not come up:\n{(home / 'log').read_text(errors='replace')[-2000:]}")


def send(server: Server, url: str, bodies: list[bytes]) -> None:
    """One request after the other over one connection, as an exporter does."""
    headers = {"Content-Type": "application/x-protobuf", **server.headers}
    with closing(http.client.HTTPConnection(url.removeprefix("http://"), timeout=600)) as connection:
        for body in bodies:
            connection.request("POST", "/v1/traces", body, headers)
            response = connection.getresponse()
            response.read()
            if response.status != 200:
                raise SystemExit(f"the server answered {response.status}")


def stored(server: Server, home: Path) -> int:
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"file:{home / server.database}?mode=ro", uri=True)) as file:
        return int(file.execute(server.count).fetchone()[0])
    return 0


def wait_for(server: Server, home: Path, spans: int) -> int:
    """The number of spans in the database once all are there, or once none has arrived for a while."""
    before, since = -1, time.monotonic()
    while (count := stored(server, home)) < spans and time.monotonic() - since < PATIENCE_S:
        if count != before:
            before, since = count, time.monotonic()
        time.sleep(0.05)
    return count


def measure(name: str, bodies: list[bytes], size: int, more: list[bytes]) -> tuple[float, int, int]:
    """Stored spans per second, spans acknowledged before SIGTERM, and how many of those are in the database."""
    server = SERVERS[name]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        process, url = start(server, home)
        try:
            send(server, url, bodies[:1])  # warm
            wait_for(server, home, size)
            begin = time.perf_counter()
            send(server, url, bodies[1:])
            count = wait_for(server, home, size * len(bodies))
            took = time.perf_counter() - begin
            send(server, url, more)
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=120)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        acknowledged = size * (len(bodies) + len(more))
        return (count - size) / took, acknowledged, stored(server, home)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer spans")
    parser.add_argument("--rich", action="store_true", help="model calls with messages, eight spans per trace")
    parser.add_argument("--size", type=int, default=512, help="spans per request; the SDK's exporter sends 512")
    parser.add_argument("--only", default=",".join(SERVERS), help="servers, separated by commas")
    options = parser.parse_args()
    size = options.size
    counts = {"ours": 80, "phoenix": 6, "mlflow": 6}  # requests; the peers need seconds for each
    if options.quick:
        counts = {"ours": 20, "phoenix": 3, "mlflow": 3}
    print(f"{'rich' if options.rich else 'light'} spans, {size} per request; load {os.getloadavg()[0]:.1f}\n")
    print(f"{'':10}{'stored spans/s':>16}{'ours is':>10}{'acknowledged':>14}{'kept after SIGTERM':>20}")
    ours: float | None = None
    for name in options.only.split(","):
        total = counts[name] + 3
        bodies = [write_protobuf(read_request(request(number, size, rich=options.rich))) for number in range(total)]
        speed, acknowledged, kept = measure(name, bodies[: counts[name]], size, bodies[counts[name] :])
        ours = speed if name == "ours" else ours
        ratio = f"{ours / speed:8.0f} x" if ours and name != "ours" else ""
        print(f"{name:10}{speed:16,.0f}{ratio:>10}{acknowledged:14,}{kept:20,}", flush=True)


if __name__ == "__main__":
    main()
