"""What does a recorded span cost the program that records it, measured against the OpenTelemetry SDK?

    python benchmarks/trace_recording.py [--quick]

Three questions, all answered in one run and in turns:

1. The hot path: CPU time of the recording thread per span (two-span traces, six attributes on one), ours into a SQLite
   store, the SDK with its BatchSpanProcessor into a null exporter (the cheapest it can be) and into the SDK's own
   JSON lines; beside it the CPU time of the whole process.
2. A burst of 22,000 spans: how many arrive.
3. A run of 200 tasks with 20 ms tools, with and without recording: how much longer it takes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from agent_forge.traces import Recorder, Store

ATTRIBUTES = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "openai",
    "gen_ai.request.model": "model-1",
    "gen_ai.request.temperature": 0.7,
    "gen_ai.usage.input_tokens": 120,
    "gen_ai.usage.output_tokens": 20,
}


class Null(SpanExporter):
    """Takes spans and does nothing with them."""

    def __init__(self) -> None:
        self.seen = 0

    def export(self, spans: Any) -> SpanExportResult:
        self.seen += len(spans)
        return SpanExportResult.SUCCESS


class Lines(Null):
    """Writes each span's own JSON to a file, as the SDK's console exporter does."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("w")

    def export(self, spans: Any) -> SpanExportResult:
        self._file.writelines(json.dumps(json.loads(span.to_json())) + "\n" for span in spans)
        self._file.flush()
        return super().export(spans)


def sdk(exporter: Null) -> tuple[Callable[[int], None], Callable[[], int]]:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("benchmark")

    def record(pairs: int) -> None:
        for _ in range(pairs):
            with tracer.start_as_current_span("agent"):
                with tracer.start_as_current_span("chat", attributes=ATTRIBUTES):
                    pass

    def end() -> int:
        provider.shutdown()
        return exporter.seen

    return record, end


class Nothing:
    """A store that counts."""

    def __init__(self) -> None:
        self.seen = 0

    def add(self, spans: Any) -> int:
        self.seen += len(spans)
        return len(spans)

    def count(self) -> int:
        return self.seen


def ours(store: Any) -> tuple[Callable[[int], None], Callable[[], int]]:
    recorder = Recorder(store)

    def record(pairs: int) -> None:
        for _ in range(pairs):
            with recorder.span("agent", "agent"):
                with recorder.span("chat", "model", attributes=ATTRIBUTES):
                    pass

    def end() -> int:
        recorder.close()
        assert recorder.dropped == 0
        return int(recorder.store.count())

    return record, end


MAKERS: dict[str, Callable[[Path], tuple[Callable[[int], None], Callable[[], int]]]] = {
    "agent-forge, into SQLite": lambda place: ours(Store.open(place / "store")),
    "agent-forge, into nothing": lambda place: ours(Nothing()),
    "OTel SDK, batch processor, null exporter": lambda place: sdk(Null()),
    "OTel SDK, batch processor, JSON lines": lambda place: sdk(Lines(place / "lines")),
}


def cost(make: tuple[Callable[[int], None], Callable[[], int]], pairs: int) -> tuple[float, float, int]:
    """CPU µs per span in the recording thread, in the whole process until all is stored, and the spans stored."""
    record, end = make
    record(50)
    gc.collect()
    whole, own = time.process_time(), time.thread_time()
    record(pairs)
    hot = time.thread_time() - own
    stored = end()
    everything = time.process_time() - whole
    return hot / pairs / 2 * 1e6, everything / pairs / 2 * 1e6, stored - 100


def hot_path(pairs: int, rounds: int) -> None:
    results: dict[str, list[tuple[float, float, int]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            place = Path(folder) / str(number)
            place.mkdir()
            for name, make in MAKERS.items():
                results.setdefault(name, []).append(cost(make(place), pairs))
    mine = [hot for hot, _, _ in results["agent-forge, into SQLite"]]
    print(f"1. Hot path, {pairs * 2:,} spans, median of {rounds} rounds\n")
    print(f"{'':42}{'hot µs':>8}{'all µs':>8}{'× ours':>8}{'stored':>9}")
    for name, costs in results.items():
        ratio = statistics.median(hot / own for (hot, _, _), own in zip(costs, mine, strict=True))
        hot, everything = (statistics.median(part) for part in list(zip(*costs, strict=True))[:2])
        stored = statistics.median(count for _, _, count in costs) / (pairs * 2)
        print(f"{name:42}{hot:8.1f}{everything:8.1f}{ratio:8.1f}{stored:8.0%}")


def burst() -> None:
    print("\n2. A burst of 22,000 spans\n")
    with tempfile.TemporaryDirectory() as folder:
        for name, (record, end) in (
            ("agent-forge", ours(Store.open(Path(folder) / "store"))),
            ("OTel SDK, batch processor, JSON lines", sdk(Lines(Path(folder) / "lines"))),
        ):
            record(11_000)
            arrived = end()
            print(f"{name:42}{arrived:8,} arrived{1 - arrived / 22_000:8.0%} lost")


async def run_tasks(recorder: Recorder | None) -> float:
    async def tool(number: int) -> None:
        if recorder is None:
            await asyncio.sleep(0.02)
            return
        with recorder.span("tool", "tool", inputs={"number": number}) as span:
            await asyncio.sleep(0.02)
            span.outputs = {"text": "done"}

    begin = time.perf_counter()
    for first in range(0, 200, 10):  # twenty levels of ten parallel tasks
        await asyncio.gather(*(tool(first + number) for number in range(10)))
    return time.perf_counter() - begin


def overhead(rounds: int) -> None:
    """On the clock, and as CPU time of the thread that runs the tasks, which a busy machine distorts less."""
    times: dict[str, list[tuple[float, float]]] = {"bare": [], "recorded": []}
    with tempfile.TemporaryDirectory() as folder, Recorder(folder) as recorder:
        for _ in range(rounds):
            for name, using in (("bare", None), ("recorded", recorder)):
                own = time.thread_time()
                wall = asyncio.run(run_tasks(using))
                times[name].append((wall, time.thread_time() - own))
    print(f"\n3. 200 tasks of 20 ms, ten at a time, {rounds} rounds (400 ms if nothing else took time)\n")
    for label, choose in (("median", statistics.median), ("best", min)):
        bare, recorded = (choose(wall for wall, _ in times[name]) * 1000 for name in ("bare", "recorded"))
        print(f"{label:7} {bare:7.1f} ms bare, {recorded:7.1f} ms recorded: {recorded / bare - 1:+.2%}")
    cpu = [statistics.median(own for _, own in times[name]) * 1000 for name in ("bare", "recorded")]
    added = (cpu[1] - cpu[0]) / 400
    print(f"CPU of the running thread: {cpu[0]:.1f} ms bare, {cpu[1]:.1f} ms recorded: {added:+.2%} of the run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer spans and rounds")
    quick = parser.parse_args().quick
    hot_path(2_000 if quick else 5_000, 3 if quick else 7)
    burst()
    overhead(3 if quick else 9)


if __name__ == "__main__":
    main()
