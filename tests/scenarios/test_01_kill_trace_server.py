"""Scenario 1: kill -9 of the trace server at random moments. Every acknowledged span is there, exactly once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
from scenario import Serve, report, spans_of_a_trace, times

from agent_forge.traces import Store
from agent_forge.traces.otlp import write_request

SPANS = 20  # per request
# The control: acknowledges a span when it has ended, before it is stored.
HASTY = """
import sys, time
from agent_forge.traces import Recorder
recorder = Recorder(sys.argv[1], delay_s=60)
for n in range(100):
    with recorder.span(f"step {n}"):
        pass
print("acknowledged 100", flush=True)
time.sleep(60)
"""


def send(url: str, acknowledged: list[Any], sent: list[Any]) -> None:
    """Posts one trace after another until the server is gone."""
    with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
        while True:
            spans = spans_of_a_trace(SPANS, 200)
            sent.append(spans)
            try:
                response = client.post("/v1/traces", json=write_request(spans))
            except httpx.HTTPError:
                return
            if response.status_code == 200:
                acknowledged.append(spans)


def test_every_acknowledged_span_survives_exactly_once(tmp_path: Path) -> None:
    draws, acknowledged, sent = random.Random(1), [], []
    kills = times(3, 50)
    for _ in range(kills):
        with Serve(tmp_path) as server:
            senders = [threading.Thread(target=send, args=(server.url, acknowledged, sent)) for _ in range(2)]
            for sender in senders:
                sender.start()
            time.sleep(draws.uniform(0.05, 0.6))
            server.stop(signal.SIGKILL)
            for sender in senders:
                sender.join(60)
    with Store.open(tmp_path) as store:
        assert store.check() == []
        whole = sum(len(store.trace(spans[0].trace_id)) == SPANS for spans in acknowledged)
        assert store.count() == sum(len(store.trace(spans[0].trace_id)) for spans in sent)  # nothing twice
    assert len(sent) >= len(acknowledged) + kills  # the control: every kill met requests in flight
    cut = len(sent) - len(acknowledged)
    figures = f"{kills} kills, {SPANS * len(acknowledged):,} acknowledged spans, {cut} requests cut off"
    report(1, "kill -9 of the trace server: acknowledged requests whole, none twice", len(acknowledged), whole, figures)


def test_the_control_loses_what_is_acknowledged_too_early(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HASTY, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "acknowledged 100\n"
        process.kill()
    with Store.open(tmp_path) as store:
        assert store.count() < 100
