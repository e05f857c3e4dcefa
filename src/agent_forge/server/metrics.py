"""`/metrics`: what the server and the forge are doing, for Prometheus.

Nothing here is on a hot path. What happens thousands of times per second (tokens, steps of a batch) is counted when its
request ends, or sampled when Prometheus scrapes. Forge runs are other processes; their figures are read from the
registry and the session logs at that moment, so they cost a forge run nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_forge.errors import AgentForgeError
from agent_forge.server.context import Context

if TYPE_CHECKING:
    from agent_forge.forge.events import Tail
    from agent_forge.server.models.request import CompletionRequest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
PHASE_SECONDS = (1, 5, 15, 60, 300, 900, 3600, 14_400, 43_200, 86_400)
_TYPE = re.compile(r"([A-Za-z_]\w{0,60}): ")


class Metrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self, context: Context) -> None:
        self.registry = CollectorRegistry()
        common: dict[str, Any] = {"registry": self.registry, "namespace": "agent_forge"}
        self.requests = Histogram(
            "http_request_seconds", "Time to respond", ("method", "route", "status"), buckets=SECONDS, **common
        )
        self.in_flight = Gauge("http_requests_in_flight", "Requests in progress", **common)
        self.tokens = Counter("model_tokens", "Tokens read and written", ("model", "kind"), **common)
        self.answers = Counter("model_answers", "Answers", ("model", "finish"), **common)
        self.first_token = Histogram(
            "model_first_token_seconds", "Time to the first token", ("model",), buckets=SECONDS, **common
        )
        self.queued = Histogram("model_queue_seconds", "Time in the queue", ("model",), buckets=SECONDS, **common)
        self.token_time = Histogram(
            "model_token_seconds", "Time per token, averaged over an answer", ("model",), buckets=SECONDS, **common
        )
        self.spans = Counter("trace_spans_ingested", "Spans received and stored", **common)
        self.span_bytes = Counter("trace_bytes_ingested", "Bytes of trace requests, unpacked", **common)
        self.intake = Histogram("trace_intake_seconds", "Time until spans are on disk", buckets=SECONDS, **common)
        self.intake_refused = Counter("trace_requests_refused", "Trace requests refused", ("reason",), **common)
        self.runs = Counter("agent_runs", "Agent runs that ended", ("state",), **common)
        for collector in (ServingCollector(context), ForgeCollector(context)):
            self.registry.register(collector)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def count_completion(self, completion: CompletionRequest) -> None:
        """Counts a completion request when it has ended."""
        name = completion.model.name
        self.tokens.labels(name, "prompt").inc(completion.prompt_tokens)
        self.tokens.labels(name, "completion").inc(completion.written)
        for job in completion.jobs:
            self.answers.labels(name, job.finish or "cancelled").inc()
            if job.started_s is not None:
                self.queued.labels(name).observe(job.started_s - job.queued_s)
            if job.first_s is not None:
                self.first_token.labels(name).observe(job.first_s - job.queued_s)
                if job.ended_s is not None and job.written > 1:
                    self.token_time.labels(name).observe((job.ended_s - job.first_s) / (job.written - 1))


def metrics_of(context: Context) -> Metrics:
    """The metrics of a server."""
    metrics: Metrics = context.part("metrics", lambda: Metrics(context))
    return metrics


def routes(context: Context) -> list[Route]:
    """`/metrics`."""
    metrics = metrics_of(context)

    def show(request: Request) -> Response:  # in a thread: it reads the registry
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return [Route("/metrics", show)]


class ServingCollector:
    """The state at the moment of a scrape: models in memory, queues, the writer of the store."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def describe(self) -> list[Any]:
        """Nothing in advance: registering must not open anything."""
        return []

    def collect(self) -> Iterator[Any]:
        models = self._context.parts.get("models")
        ready = [] if models is None else models.ready()
        rows = {
            "model_parameters": ("Parameters of a loaded model", [(m.name, m.loaded.parameters) for m in ready]),
            "model_size_bytes": ("Bytes of a loaded model's weights", [(m.name, m.loaded.bytes) for m in ready]),
            "model_load_seconds": ("Time a model took to load", [(m.name, m.loaded.seconds) for m in ready]),
            "model_queue_depth": ("Requests in the queue", [(m.name, m.engine.waiting) for m in ready]),
            "model_batch_size": ("Requests in the running batch", [(m.name, m.engine.running) for m in ready]),
        }
        for name, (about, values) in rows.items():
            yield _gauge(name, about, "model", values)
        steps = CounterMetricFamily("agent_forge_model_steps", "Steps of the batch", labels=["model"])
        for model in ready:
            steps.add_metric([model.name], model.engine.steps)
        yield steps
        yield _gauge("gpu_memory_bytes", "GPU memory in use by this process", "device", _gpu_memory())
        yield from self._waiting()

    def _waiting(self) -> Iterator[Any]:
        parts = self._context.parts
        if (intake := parts.get("intake")) is not None:
            yield GaugeMetricFamily("agent_forge_trace_waiting_bytes", "Bytes received, not stored yet", intake.held)
        if (recorder := parts.get("recorder")) is not None:
            yield GaugeMetricFamily("agent_forge_trace_pending_spans", "Own spans not stored yet", recorder.pending)
            yield CounterMetricFamily("agent_forge_trace_dropped_spans", "Own spans dropped", recorder.dropped)
        if (runs := parts.get("runs")) is not None:
            yield GaugeMetricFamily("agent_forge_agent_runs_active", "Active agent runs", runs.active)


def _gauge(name: str, about: str, label: str, values: Iterable[tuple[str, float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"agent_forge_{name}", about, labels=[label])
    for key, value in values:
        family.add_metric([key], value)
    return family


def _gpu_memory() -> list[tuple[str, float]]:
    import sys

    torch = sys.modules.get("torch")  # not loaded without a model, and not worth loading for this
    if torch is None or not torch.cuda.is_available():
        return []
    return [(f"cuda:{number}", torch.cuda.memory_allocated(number)) for number in range(torch.cuda.device_count())]


class ForgeCollector:
    """The forge, from its registry: phase durations, errors by phase and type, models, progress of running sessions."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._tails: dict[str, Tail] = {}
        self._latest: dict[str, dict[tuple[str, str], float]] = {}

    def describe(self) -> list[Any]:
        """Nothing in advance: registering must not open anything."""
        return []

    def collect(self) -> Iterator[Any]:
        if not (self._context.home / "registry.db").is_file() and "registry" not in self._context.parts:
            return
        try:
            registry = self._context.registry
            sessions = registry.sessions()
            phases = [phase for session in sessions for phase in registry.phases(session["session"])]
            entries = registry.ls()
        except AgentForgeError:  # a registry that cannot be read has no metrics
            return
        yield _durations(phases)
        yield _errors(phases)
        yield _gauge("checkpoint_size_bytes", "Bytes of a registered checkpoint", "checkpoint",
                     [(entry.path.name, entry.bytes) for entry in entries])  # fmt: skip
        yield _gauge("checkpoint_parameters", "Parameters of a registered checkpoint", "checkpoint",
                     [(entry.path.name, entry.parameters) for entry in entries if entry.parameters])  # fmt: skip
        yield self._progress({session["session"] for session in sessions if session["state"] == "running"})

    def _progress(self, running: set[str]) -> GaugeMetricFamily:
        from agent_forge.forge.events import Tail

        family = GaugeMetricFamily(
            "agent_forge_phase_progress", "Latest figures of running phases", labels=["session", "phase", "metric"]
        )
        for ended in self._tails.keys() - running:
            del self._tails[ended], self._latest[ended]
        for session in sorted(running):
            path: Path = self._context.home / "sessions" / session / "events.jsonl"
            tail = self._tails.setdefault(session, Tail(path))
            latest = self._latest.setdefault(session, {})
            for event in tail.read():
                latest |= _numbers(event.phase, event.fields)
            for (phase, metric), value in latest.items():
                family.add_metric([session, phase, metric], value)
        return family


def _numbers(phase: str, fields: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    return {
        (phase, name): float(value)
        for name, value in fields.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _durations(phases: Iterable[Mapping[str, Any]]) -> HistogramMetricFamily:
    family = HistogramMetricFamily("agent_forge_phase_seconds", "Duration of phases", labels=["phase", "state"])
    seconds: dict[tuple[str, str], list[float]] = {}
    for phase in phases:
        if phase["started_s"] is not None and phase["ended_s"] is not None:
            seconds.setdefault((phase["name"], phase["state"]), []).append(phase["ended_s"] - phase["started_s"])
    for labels, values in seconds.items():
        buckets = [(str(float(limit)), float(sum(value <= limit for value in values))) for limit in PHASE_SECONDS]
        family.add_metric(list(labels), [*buckets, ("+Inf", float(len(values)))], sum(values))
    return family


def _errors(phases: Iterable[Mapping[str, Any]]) -> CounterMetricFamily:
    family = CounterMetricFamily("agent_forge_phase_errors", "Failed phases", labels=["phase", "type"])
    counts: dict[tuple[str, str], int] = {}
    for phase in phases:
        if phase["state"] == "failed":
            match = _TYPE.match(phase["error"] or "")
            key = (phase["name"], match[1] if match else "AgentForgeError")
            counts[key] = counts.get(key, 0) + 1
    for labels, count in counts.items():
        family.add_metric(list(labels), count)
    return family
