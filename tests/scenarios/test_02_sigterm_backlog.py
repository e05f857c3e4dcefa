"""Scenario 2: SIGTERM while 20,000 spans wait for a store that is busy. All that was acknowledged is stored."""

from __future__ import annotations

import signal
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import httpx
from scenario import Serve, report, spans_of_a_trace, times

from agent_forge.traces import Store
from agent_forge.traces.otlp import write_request


def test_what_waits_is_stored_before_the_server_ends(tmp_path: Path) -> None:
    count, requests = times(100, 1_000), 20
    with Serve(tmp_path) as server:
        with server.client() as client:
            assert client.post("/v1/traces", json=write_request(spans_of_a_trace(1))).status_code == 200
        busy = sqlite3.connect(tmp_path / "traces.db", isolation_level=None, check_same_thread=False)
        busy.execute("BEGIN IMMEDIATE")  # now nothing can be stored
        sent = [spans_of_a_trace(count) for _ in range(requests)]
        answers: list[Any] = [None] * requests

        def send(place: int) -> None:
            try:
                with server.client() as client:
                    answers[place] = client.post("/v1/traces", json=write_request(sent[place])).status_code
            except httpx.HTTPError as error:
                answers[place] = error

        senders = [threading.Thread(target=send, args=(place,)) for place in range(requests)]
        for sender in senders:
            sender.start()
        with server.client() as client:
            while _waiting(client) < requests * count * 50:  # all bodies have arrived
                time.sleep(0.05)
        assert answers == [None] * requests  # the control: there is a backlog, and nobody has an answer
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert server.process.poll() is None  # it waits for the store
        busy.execute("ROLLBACK")
        released = time.monotonic()
        status = server.process.wait(60)
        seconds = time.monotonic() - released
        for sender in senders:
            sender.join(60)
    acknowledged = [spans for spans, answer in zip(sent, answers, strict=True) if answer == 200]
    with Store.open(tmp_path) as store:
        assert store.check() == []
        stored = [len(store.trace(spans[0].trace_id)) for spans in sent]
        held = sum(len(store.trace(spans[0].trace_id)) == count for spans in acknowledged)
    assert set(stored) <= {0, count}  # whole requests or nothing
    assert status in (0, -signal.SIGTERM, 143)
    figures = (
        f"{count * requests:,} spans waiting, {len(acknowledged)} of {requests} acknowledged, end {seconds:.1f} s after"
    )
    report(2, "SIGTERM with a backlog: acknowledged requests stored", len(acknowledged), held, figures)
    assert acknowledged


def _waiting(client: httpx.Client) -> float:
    for line in client.get("/metrics").text.splitlines():
        if line.startswith("agent_forge_trace_waiting_bytes "):
            return float(line.rpartition(" ")[2])
    return 0
