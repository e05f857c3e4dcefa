"""Traces out of the store: files in several formats, or an OTLP endpoint.

`FORMATS` maps a name to a function that writes traces (lists of spans) to a path and returns the number of records.
Add a format by adding a function to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agent_forge.errors import TraceError, UsageError
from agent_forge.files import atomic_write
from agent_forge.traces.otlp import write_request
from agent_forge.traces.records import to_trace_log, write_records
from agent_forge.traces.rows import PLAIN
from agent_forge.traces.span import Span
from agent_forge.traces.values import to_json
from agent_forge.urls import without_credentials

Traces = Iterable[list[Span]]
Writer = Callable[[Traces, Path], int]


def export_traces(traces: Traces, format: str, out: str | Path) -> int:
    """Writes traces to a file, completely or not at all, and returns the number of records. Raises UsageError."""
    if format not in FORMATS:
        raise UsageError(f"there is no format {format!r}", fix=f"Formats are {', '.join(FORMATS)}")
    out = Path(out)
    if not out.parent.is_dir():
        raise UsageError("the folder does not exist", where=str(out.parent), fix="Create it first")
    return FORMATS[format](traces, out)


def write_jsonl(traces: Traces, out: Path) -> int:
    """One span per line, with the field names of Span; `read_file` reads them back unchanged."""
    count = 0
    with atomic_write(out) as file:
        for span in _spans(traces):
            file.write(to_json(span.to_dict()) + "\n")
            count += 1
    return count


def write_otlp(traces: Traces, out: Path) -> int:
    """OTLP/JSON: one request, or a request per line if the file's name ends in .jsonl."""
    count = 0
    lines = out.suffix == ".jsonl"
    with atomic_write(out) as file:
        file.write("" if lines else '{"resourceSpans": [')
        for number, trace in enumerate(traces):
            groups = write_request(trace)["resourceSpans"]
            if lines:
                file.write(to_json({"resourceSpans": groups}) + "\n")
            else:
                file.write((",\n" if number else "\n") + ",\n".join(to_json(group) for group in groups))
            count += len(trace)
        file.write("" if lines else "\n]}\n")
    return count


_TYPES = {
    "start_ns": "int64", "end_ns": "int64", "input_tokens": "int64", "output_tokens": "int64", "otel_kind": "int64",
    "cost": "float64", "reward": "float64",
}  # fmt: skip
_JSON = ("inputs", "outputs", "attributes", "links", "events", "sampling", "assessment", "resource")


def write_parquet(traces: Traces, out: Path, *, rows: int = 20_000) -> int:
    """Parquet: the plain fields as columns, the others as JSON text; `duration_ns` is added."""
    try:
        import pyarrow as arrow  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError("Parquet needs pyarrow, which is not installed", fix="Run `pip install pyarrow`") from error
    columns = [(name, getattr(arrow, _TYPES.get(name, "string"))()) for name in PLAIN]
    columns += [("duration_ns", arrow.int64()), *((name, arrow.string()) for name in _JSON)]
    schema = arrow.schema(columns)
    count = 0
    stream = _spans(traces)
    with atomic_write(out, "wb") as file, parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while part := [_record(span) for span in islice(stream, rows)]:
            writer.write_table(arrow.Table.from_pylist(part, schema=schema))
            count += len(part)
    return count


def _record(span: Span) -> dict[str, Any]:
    record = {name: getattr(span, name) for name in PLAIN} | {"duration_ns": span.duration_ns}
    for name in _JSON:
        value = getattr(span, name)
        record[name] = None if value is None or value in ([], {}) else to_json(value)
    return record


def _dataset(format: str, traces: Traces, out: Path) -> int:
    from agent_forge.traces.dataset import write_dataset

    return write_dataset(traces, format, str(out))


FORMATS: dict[str, Writer] = {
    "jsonl": write_jsonl,
    "otlp": write_otlp,
    "parquet": write_parquet,
    "trace-log": partial(write_records, to_trace_log),
    **{name: partial(_dataset, name) for name in ("messages", "sharegpt", "dpo", "agent-lightning", "turns")},
    "trajectory": partial(_dataset, "turns"),  # its name before there were data sets
}


def _spans(traces: Traces) -> Iterator[Span]:
    return (span for trace in traces for span in trace)


def send_otlp(
    traces: Traces,
    endpoint: str,
    *,
    headers: Mapping[str, str] | None = None,
    protobuf: bool = True,
    batch: int = 500,
    timeout_s: float = 30.0,
) -> int:
    """Sends traces to an OTLP/HTTP endpoint (Jaeger, Tempo, Phoenix, Langfuse). Returns the number of spans sent.

    `protobuf=False` sends JSON, which needs no extra package but which not every server accepts. A URL without a path
    gets /v1/traces. Raises TraceError when the endpoint cannot be reached or refuses.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"{endpoint!r} is not an http or https URL", fix="Use one such as http://localhost:4318")
    url = endpoint if parts.path.strip("/") else f"{endpoint.rstrip('/')}/v1/traces"
    stream, count = _spans(traces), 0
    while part := list(islice(stream, batch)):
        _post(url, part, {**(headers or {})}, protobuf, timeout_s)
        count += len(part)
    return count


def _post(url: str, spans: list[Span], headers: dict[str, str], protobuf: bool, timeout_s: float) -> None:
    import httpx

    shown = without_credentials(url)
    if protobuf:
        from agent_forge.traces.otlp_protobuf import write_protobuf

        body, kind = write_protobuf(spans), "application/x-protobuf"
    else:
        body, kind = json.dumps(write_request(spans)).encode(), "application/json"
    try:  # redirects are not followed: they would carry the headers, which may hold a key, to another server
        answer = httpx.post(url, content=body, headers={"Content-Type": kind, **headers}, timeout=timeout_s)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = without_credentials(str(error)) or type(error).__name__
        raise TraceError(f"the endpoint cannot be reached: {reason}", where=shown, fix="Check that it runs") from error
    if not answer.is_success:
        text = answer.text[:500].strip() or answer.reason_phrase
        raise TraceError(f"the endpoint answered {answer.status_code}: {text}", where=shown)
