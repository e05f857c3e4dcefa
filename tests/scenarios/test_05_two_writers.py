"""Scenario 5: two processes write to one store, on SQLite and PostgreSQL; and PostgreSQL itself is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from scenario import Serve, report, spans_of_a_trace, times

from agent_forge.traces import Store
from agent_forge.traces.otlp import write_request

WRITER = """
import sys, time
from agent_forge.traces import Span, Store
from agent_forge.traces.recorder import new_span_id, new_trace_id
written, end = 0, time.monotonic() + float(sys.argv[2])
with Store.open(sys.argv[1]) as store:
    while time.monotonic() < end:
        trace = new_trace_id()
        written += store.add([Span(trace, new_span_id(), "step", start_ns=1, end_ns=2) for _ in range(20)])
print(written)
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_two_writers_lose_nothing(tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> None:
    place = str(tmp_path)
    if kind == "postgresql":
        place = new_database(request.getfixturevalue("postgres"), "writers")
    seconds = times(2, 60)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, place, str(seconds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    results = [writer.communicate(timeout=seconds + 120) for writer in writers]
    assert [(writer.returncode, errors) for writer, (_, errors) in zip(writers, results, strict=True)] == [(0, "")] * 2
    written = [int(out) for out, _ in results]
    assert min(written) > 0  # the control: both wrote
    with Store.open(place) as store:
        stored = store.count()
        assert store.check() == []
    report(5, f"two writers for {seconds} s on {kind}: spans stored", sum(written), stored, "none locked out")


def new_database(folder: str, name: str) -> str:
    import psycopg

    with psycopg.connect(f"postgresql://postgres@/postgres?host={folder}", autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name}")
        connection.execute(f"CREATE DATABASE {name}")
    return f"postgresql://postgres@/{name}?host={folder}"


def test_postgresql_is_killed_and_comes_back(tmp_path: Path, postgres: str) -> None:
    """Its processes die by kill -9, and it recovers by itself. Acknowledged spans stay, and the server goes on."""
    url = new_database(postgres, "killed")
    taken, refused, rounds = [], 0, times(2, 20)
    postmaster = int((Path(postgres) / "data" / "postmaster.pid").read_text().split()[0])
    with Serve(tmp_path, AGENT_FORGE_STORE=url) as server, server.client() as client:
        for _ in range(rounds):
            for attempt in range(200):
                if attempt == 3:
                    kill_backends(postmaster)
                spans = spans_of_a_trace(5)
                response = client.post("/v1/traces", json=write_request(spans))
                if response.status_code == 200:
                    taken.append(spans)
                    if attempt > 10:
                        break
                    continue
                refused += 1
                assert response.status_code == 503
                assert response.headers["retry-after"] == "5"
                time.sleep(0.2)
            else:
                pytest.fail("the server did not find PostgreSQL again")
        assert client.get("/readyz").status_code == 200
    assert refused > 0  # the control: PostgreSQL was really gone
    with Store.open(url) as store:
        held = sum(len(store.trace(spans[0].trace_id)) == 5 for spans in taken)
        assert store.check() == []
    report(5, f"PostgreSQL killed {rounds} times: acknowledged requests kept", len(taken), held, f"{refused} refused")


def kill_backends(postmaster: int) -> None:
    """Kills the processes that serve connections: PostgreSQL then restarts them all, and recovers."""
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    for child in children:
        with suppress(FileNotFoundError, ProcessLookupError):  # one that has ended meanwhile
            if b"killed" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGKILL)
