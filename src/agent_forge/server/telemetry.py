"""The server's own work as OpenTelemetry spans, sent to an OTLP endpoint (Jaeger, Tempo, another Agent Forge)."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from agent_forge._version import __version__
from agent_forge.errors import MissingExtraError, UsageError


def provider(endpoint: str) -> Any:
    """A tracer provider that exports to `endpoint`; a URL without a path gets /v1/traces.

    With `Recorder(join=…)` every span we record becomes an OpenTelemetry span with the same ids. Raises
    MissingExtraError without the OpenTelemetry SDK, UsageError for an invalid URL.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"{endpoint!r} is not an http or https URL", fix="Write for example http://localhost:4318")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingExtraError("sending spans to an OTLP endpoint", "otel") from error
    url = endpoint if parts.path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"
    resource = Resource.create({"service.name": "agent-forge", "service.version": __version__})
    tracer_provider = TracerProvider(resource=resource)
    tracer_provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    return tracer_provider
