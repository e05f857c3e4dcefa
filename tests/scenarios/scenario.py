"""What scenarios share: how often they try, the server as a process, spans to send, and the table of results."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx

from agent_forge.traces import Span
from agent_forge.traces.recorder import new_span_id, new_trace_id

LONG = os.environ.get("AGENT_FORGE_SCENARIOS") == "long"


def times(short: int, long: int) -> int:
    """How often to try: a few times in `make test`, often in `make scenarios`."""
    return long if LONG else short


def report(number: int, what: str, attempts: int, held: int, figures: str = "") -> None:
    """Adds a row to the table that `make scenarios` prints, and fails unless every attempt held."""
    if table := os.environ.get("AGENT_FORGE_SCENARIO_TABLE"):
        with Path(table).open("a", encoding="utf-8") as file:
            file.write(f"| {number} | {what} | {attempts:,} | {held:,} | {figures} |\n")
    assert held == attempts, f"{what}: {held} of {attempts} held. {figures}"


class Serve:
    """`agent-forge serve` in a process. Its log is read as it comes, so that it never waits for us."""

    def __init__(self, home: str | Path, *options: str, **environment: str) -> None:
        command = [sys.executable, "-m", "agent_forge", "serve", "--port", "0", "--home", str(home), *options]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, errors="replace", env={**os.environ, **environment}
        )
        assert self.process.stderr is not None
        first = self.process.stderr.readline()
        match = re.search(r"http://[^\s:]+:(\d+)", first)
        if match is None:
            raise RuntimeError(f"the server did not start: {first}{self.process.stderr.read()}")
        self.url, self.port = match[0].replace("0.0.0.0", "127.0.0.1"), int(match[1])
        self.lines: list[str] = [first]
        self._reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr or ()), daemon=True)
        self._reader.start()

    def client(self, **options: Any) -> httpx.Client:
        """A client for its address."""
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False, **options)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Ends it and returns its exit status."""
        self.process.send_signal(how)
        status = self.process.wait(60)
        self._reader.join(10)
        return status

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of its log so far."""
        return [json.loads(line) for line in list(self.lines) if line.startswith("{")]

    @property
    def memory_mb(self) -> float:
        """The most memory that it has held so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024

    def __enter__(self) -> Serve:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)
        self._reader.join(10)


def spans_of_a_trace(count: int, size: int = 0) -> list[Span]:
    """Finished spans of one new trace; `size` letters of input in each."""
    trace = new_trace_id()
    spans = [Span(trace, new_span_id(), f"step {n}", "tool", None, 10 + n, 20 + n, "ok") for n in range(count)]
    for span in spans:
        span.inputs = {"text": "x" * size}
    return spans
