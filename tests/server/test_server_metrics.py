"""What a server tells about itself: metrics, logs, spans to elsewhere, and events for those who look on."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import time
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent_forge.server.hub import LONGEST, Hub
from agent_forge.server.logs import ToLog, make_log


def metrics(server: Any) -> dict[str, dict[tuple[str, ...], float]]:
    """Samples by name and label values, in the order of the labels' names."""
    with server.client() as client:
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(value for _, value in sorted(sample.labels.items()))] = sample.value
    return found


def test_requests_are_counted_by_route_and_status(plain: Any) -> None:
    with plain.client() as client:
        for _ in range(3):
            client.get("/v1/runs/nobody")
        client.get("/no/such/place")
    found = metrics(plain)
    counts = found["agent_forge_http_request_seconds_count"]
    assert counts["GET", "/v1/runs/{run}", "404"] >= 3
    assert not any("nobody" in "".join(labels) for labels in counts)  # names of clients' making are no labels
    assert found["agent_forge_http_requests_in_flight"][()] == 1.0
    assert "process_resident_memory_bytes" in found


def test_a_completion_is_counted(live: Any) -> None:
    def tokens(kind: str) -> float:
        return metrics(live)["agent_forge_model_tokens_total"].get((kind, "tiny"), 0.0)

    with live.client() as client:
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 7, "temperature": 0}
        usage = client.post("/v1/completions", json=body).json()["usage"]
        before = tokens("prompt"), tokens("completion")
        client.post("/v1/completions", json=body)
    assert (tokens("prompt") - before[0], tokens("completion") - before[1]) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )
    found = metrics(live)
    assert found["agent_forge_model_parameters"]["tiny",] == 35040
    assert found["agent_forge_model_size_bytes"]["tiny",] == 4 * 35040
    assert found["agent_forge_model_queue_depth"]["tiny",] == 0
    assert found["agent_forge_model_first_token_seconds_count"]["tiny",] >= 2
    assert found["agent_forge_model_steps_total"]["tiny",] > 0


def test_spans_taken_in_are_counted(plain: Any) -> None:
    from test_server_intake import post, some_spans

    from agent_forge.traces.otlp_protobuf import write_protobuf

    body = write_protobuf(some_spans(5))
    post(plain, body)
    before = metrics(plain)
    post(plain, write_protobuf(some_spans(5)))
    post(plain, b"garbage")
    after = metrics(plain)
    assert (
        after["agent_forge_trace_spans_ingested_total"][()] - before["agent_forge_trace_spans_ingested_total"][()] == 5
    )
    assert after["agent_forge_trace_bytes_ingested_total"][()] > before["agent_forge_trace_bytes_ingested_total"][()]
    assert after["agent_forge_trace_requests_refused_total"]["invalid",] >= 1
    assert after["agent_forge_trace_waiting_bytes"][()] == 0


def test_the_forge_is_seen_through_its_registry(start_server: Any, tmp_path: Any) -> None:
    """Phases of other processes: durations, errors by type, and the latest figures of a session that runs."""
    from agent_forge.forge.events import Bus, jsonl_sink
    from agent_forge.forge.registry import Registry

    registry = Registry(tmp_path)
    registry.start_session("s1", {})
    registry.record_phase("s1", "base", state="completed", started_s=100.0, ended_s=130.0)
    registry.record_phase(
        "s1", "merge", state="failed", started_s=130.0, ended_s=131.0, error="OutOfMemoryError: 2 GiB"
    )
    registry.record_phase("s1", "prune", state="failed", started_s=131.0, ended_s=132.0, error="the gate was not met")
    bus = Bus(jsonl_sink(tmp_path / "sessions" / "s1" / "events.jsonl"))
    bus.tell("progress", "base", step=10, loss=2.5, note="text")
    server = start_server(home=str(tmp_path))
    found = metrics(server)
    assert found["agent_forge_phase_seconds_sum"]["base", "completed"] == pytest.approx(30.0)
    assert found["agent_forge_phase_seconds_bucket"]["15.0", "base", "completed"] == 0
    assert found["agent_forge_phase_seconds_bucket"]["60.0", "base", "completed"] == 1
    assert found["agent_forge_phase_errors_total"] == {
        ("merge", "OutOfMemoryError"): 1.0,
        ("prune", "AgentForgeError"): 1.0,
    }
    assert found["agent_forge_phase_progress"]["loss", "base", "s1"] == 2.5
    bus.tell("progress", "base", step=20, loss=2.0)
    assert metrics(server)["agent_forge_phase_progress"]["loss", "base", "s1"] == 2.0
    registry.end_session("s1", "completed")
    assert "agent_forge_phase_progress" not in metrics(server)


def test_a_broken_registry_does_not_break_the_metrics(start_server: Any, tmp_path: Any) -> None:
    (tmp_path / "registry.db").write_bytes(b"this is no database" * 100)
    found = metrics(start_server(home=str(tmp_path)))
    assert "agent_forge_phase_seconds_count" not in found
    assert "agent_forge_http_requests_in_flight" in found


def test_readiness_says_what_is_wrong(start_server: Any, tmp_path: Any) -> None:
    (tmp_path / "traces.db").write_bytes(b"this is no database" * 100)
    server = start_server(home=str(tmp_path))
    with server.client() as client:
        answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"]["traces"] != "ok"


# Logs


def test_a_line_of_the_log_is_json_with_the_trace(start_server: Any, capfd: pytest.CaptureFixture[str]) -> None:
    server = start_server(log_level="info")
    with server.client() as client:
        trace = client.get("/v1/runs/nobody").headers["x-trace-id"]
        client.get("/healthz")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
    [line] = [line for line in lines if line["trace_id"] == trace]
    assert (line["event"], line["method"], line["path"], line["status"]) == ("request", "GET", "/v1/runs/nobody", 404)
    assert line["level"] == "info"
    assert line["ms"] > 0
    assert not [line for line in lines if line["path"] == "/healthz"]  # polled all the time: only at the level debug


def test_a_path_cannot_repaint_the_terminal_that_shows_the_log() -> None:
    file = io.StringIO()
    make_log("info", file).info("request", path="/\x1b[2J\x9b2J\u202e")
    assert not set(file.getvalue()) & set("\x1b\x9b\u202e")
    assert json.loads(file.getvalue())["path"] == "/\x1b[2J\x9b2J\u202e"


def test_logs_of_other_libraries_come_out_the_same() -> None:
    file = io.StringIO()
    logger = logging.getLogger("test.other")
    logger.handlers, logger.propagate = [ToLog(make_log("info", file))], False
    logger.warning("disk %d %% full", 93)
    token = "to be kept to oneself"
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("it failed")
    first, second = (json.loads(line) for line in file.getvalue().splitlines())
    assert (first["event"], first["level"], first["logger"]) == ("disk 93 % full", "warning", "test.other")
    assert second["exception"][0]["exc_type"] == "ValueError"
    assert second["exception"][0]["frames"]
    assert token not in file.getvalue()  # the values of variables are nobody's business


def test_a_fault_nobody_foresaw_is_an_answer_and_a_line_of_the_log(
    start_server: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    from starlette.routing import Route

    def broken(request: Any) -> Any:
        raise ZeroDivisionError("a secret")

    server = start_server(log_level="info")
    server.app.router.routes.insert(0, Route("/broken", broken))
    with server.client() as client:
        answer = client.get("/broken")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "secret" not in answer.text
    written, end = "", time.monotonic() + 60
    while "ZeroDivisionError" not in written and time.monotonic() < end:  # it is logged after the answer is sent
        written += capfd.readouterr().err
        time.sleep(0.01)
    [line] = [json.loads(line) for line in written.splitlines() if "ZeroDivisionError" in line]
    assert line["level"] == "error"
    assert metrics(server)["agent_forge_http_request_seconds_count"]["GET", "/broken", "500"] == 1


# Spans to elsewhere


def test_our_own_work_is_sent_to_an_otlp_endpoint(start_server: Any, plain: Any, tiny_path: Any) -> None:
    """Another server stands for Jaeger: what one does is found in the other, with the same ids."""
    server = start_server(models=(f"tiny={tiny_path}",), otlp_endpoint=plain.url)
    with server.client() as client:
        body = {"model": "tiny", "prompt": "hello", "max_tokens": 3, "temperature": 0}
        trace = client.post("/v1/completions", json=body).headers["x-trace-id"]
    server.context.recorder.flush()
    assert server.context.parts["telemetry"].force_flush()
    [ours], [theirs] = server.context.traces.trace(trace), plain.context.traces.trace(trace)
    assert (theirs.span_id, theirs.name, theirs.kind) == (ours.span_id, "text_completion tiny", "model")
    assert theirs.output_tokens == ours.output_tokens == 3
    assert theirs.resource["service.name"] == "agent-forge"


def test_an_endpoint_that_is_no_url_is_refused() -> None:
    from agent_forge.errors import UsageError
    from agent_forge.server.telemetry import provider

    with pytest.raises(UsageError, match="not an http"):
        provider("localhost:4318")


# Events


def test_a_slow_reader_loses_the_oldest_and_knows_it() -> None:
    async def read() -> tuple[Any, int, int]:
        hub = Hub()
        with hub.subscribe("a", "b") as news:
            assert hub.readers == 1
            for number in range(LONGEST + 5):
                hub.publish("a", {"number": number})
            hub.publish("c", {"number": -1})
            first = await news.next()
            assert await news.next(0) is not None
        return first, news.missed, hub.readers

    first, missed, readers = asyncio.run(read())
    assert first == {"topic": "a", "number": 5}
    assert (missed, readers) == (5, 0)


def test_waiting_ends_with_the_time() -> None:
    async def read() -> Any:
        with Hub().subscribe("a") as news:
            return await news.next(0.01)

    assert asyncio.run(read()) is None


def test_events_are_followed_as_a_stream() -> None:
    from agent_forge.server.sse import follow

    async def read() -> bytes:
        hub = Hub()
        answer: Any = follow(hub.subscribe("runs"), first=[{"kind": "begun"}])
        hub.publish("runs", {"kind": "later", "n": 1})
        parts = [await anext(answer._source) for _ in range(3)]
        await answer._source.aclose()
        assert hub.readers == 0
        return b"".join(parts)

    assert asyncio.run(read()) == (
        b': welcome\n\nevent: begun\ndata: {"kind":"begun"}\n\n'
        b'event: later\ndata: {"topic":"runs","kind":"later","n":1}\n\n'
    )
