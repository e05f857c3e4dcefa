"""Scenario 12: whatever bytes come in, a parser reads them or raises one of our errors; and the C behind it, compiled
with AddressSanitizer and UndefinedBehaviorSanitizer, has nothing to report. (Headers of model files: scenario 6.)"""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scenario import report, spans_of_a_trace, times

from agent_forge.errors import AgentForgeError
from agent_forge.forge.checkpoint import Card, Metric
from agent_forge.forge.merging import parse_recipe
from agent_forge.forge.pipeline import PRESETS, read_pipeline
from agent_forge.inference.loading import read_json
from agent_forge.inference.local_model import read_tool_calls
from agent_forge.inference.tool_calls import split_calls
from agent_forge.inference.wire import read_completion
from agent_forge.plans import Plan, Task, parse_plan, to_json, to_lines, to_xml, to_yaml
from agent_forge.server.intake import _read_json, unpack
from agent_forge.server.requests import parse_json
from agent_forge.traces.delegation import read_log
from agent_forge.traces.files import read_file
from agent_forge.traces.otlp_protobuf import read_protobuf_rows
from agent_forge.traces.transcript import read_transcript

HERE = Path(__file__).parent
PIECES = [
    b"null", b"true", b"-1", b"1e999", b"NaN", b"9" * 5000, b"1.5", b'""', b"{", b"}", b"[" * 3000, b"]", b",", b":",
    b'"', b"'", b"\\", b"\\ud800", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\r", b"\n", b"\n\n", b"  ", b"\t", b"- ", b"#",
    b"&a ", b"*a", b"<<: *a", b"!!python/object/apply:os.system", b"<!ENTITY a SYSTEM 'file:///etc/passwd'>", b"<a ",
    b"</", b"/>", b"]]>", b"&#0;", b"&lt", b"(", b")", b"{a}", b"{s1.x}", b"{item}", b"1. ", b"Task 1: ", b"```",
    b"<tool_call>", b"</tool_call>", "\u2028".encode(), "\u202e".encode(), b"\x1b[2J", b"..",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, 0, -1, 2**63, 2**64, 10**400, 1e308, -0.5, "", "x", "-1", "1e5", "\x00", "\ud800", "x" * 5000, [], {},
    [None], [[]], {"": None}, [{}], {"key": {}}, {"stringValue": 1}, {"intValue": "x"}, {"values": 1}, "{a}", "a", "b",
]  # fmt: skip
PLAN = Plan(
    [Task("a", "Find the height of x", "search", {"query": "x", "n": 1}), Task("b", "Say {a}", "say", {"of": "{a}"})]
)
OTLP = {
    "resourceSpans": [{
        "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "x"}}]},
        "scopeSpans": [{"scope": {"name": "s"}, "spans": [{
            "traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174", "name": "I", "kind": 2,
            "startTimeUnixNano": "1544712660000000000", "endTimeUnixNano": "1544712661000000000",
            "attributes": [{"key": "n", "value": {"arrayValue": {"values": [{"intValue": "7"}, {"doubleValue": 1}]}}}],
            "events": [{"name": "e", "timeUnixNano": "1"}], "status": {"code": 2, "message": "m"},
            "links": [{"traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b175"}],
        }]}],
    }],
}  # fmt: skip
ANSWER = {
    "model": "m",
    "choices": [{
        "message": {"content": [{"type": "text", "text": "x"}],
                    "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}]},
        "finish_reason": "stop",
    }],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "cost": 0.1},
}  # fmt: skip
CALL = b'I look. <tool_call>{"name": "find", "arguments": {"for": "otters", "n": [1, {"a": null}]}}</tool_call>'
CARD = Card("x", {"a": 1}, ("b",), {"c": "d"}, metrics={"e": Metric(1.0)})
RECIPE = b"""merge_method: ties
base_model: base
models: [{model: a, parameters: {weight: 0.5, density: [0, 1]}}, {model: b, parameters: {weight: 1}}]
parameters: {normalize: true}
dtype: bfloat16
"""
TRANSCRIPT = b"\n".join(
    json.dumps(line).encode()
    for line in [
        {"type": "user", "timestamp": "2026-01-01T00:00:00Z", "sessionId": "s", "message": {"content": "category: x"}},
        {"type": "assistant", "timestamp": "2026-01-01T00:00:01Z", "message": {
            "id": "m", "model": "x", "usage": {"input_tokens": 1, "output_tokens": 2},
            "content": [{"type": "tool_use", "id": "t", "name": "R", "input": {"a": 1}}, {"type": "text", "text": ""}],
        }},
    ]
)  # fmt: skip


def text(read: Callable[[str], Any]) -> Callable[[bytes, Path], Any]:
    """A parser of text: what is not UTF-8 never comes so far."""
    return lambda data, _: read(data.decode(errors="replace"))


def in_file(read: Callable[[Path], Any], name: str = "file") -> Callable[[bytes, Path], Any]:
    """A parser of a file."""

    def from_file(data: bytes, folder: Path) -> Any:
        (folder / name).write_bytes(data)
        return read(folder / name)

    return from_file


def completion(data: bytes) -> Any:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):  # the client has its own word for that
        return None
    return read_completion(document, model="m", where="here")


def protobuf() -> bytes:
    google = pytest.importorskip("google.protobuf.json_format")
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    document = json.loads(json.dumps(OTLP))
    span = document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    for each in (span, *span["links"]):
        each["traceId"], each["spanId"] = "W47/95gDgQPSabYzgT/GDA==", "7uGbfsPBsXQ="
    made: bytes = google.ParseDict(document, service.ExportTraceServiceRequest()).SerializeToString()
    return made


def sound(name: str) -> bytes:
    """An input that the parser takes."""
    otlp_json, spans = json.dumps(OTLP).encode(), [span.to_dict() for span in spans_of_a_trace(3, 5)]
    lines = "\n".join(json.dumps(span) for span in spans).encode()
    seeds: dict[str, Any] = {
        "plan": to_json(PLAN).encode(), "plan in YAML": to_yaml(PLAN).encode(), "plan in XML": to_xml(PLAN).encode(),
        "plan in lines": to_lines(PLAN).encode(),
        "recipe": RECIPE, "pipeline": (PRESETS / "nano.yaml").read_bytes(), "tool calls": CALL, "local calls": CALL,
        "completion": json.dumps(ANSWER).encode(), "request": json.dumps(ANSWER).encode(), "config": b'{"a": [1, "x"]}',
        "card": CARD.to_json().encode(), "OTLP JSON": otlp_json, "OTLP, packed": gzip.compress(otlp_json, mtime=0),
        "trace file": lines, "trace file, OTLP": otlp_json, "delegation log": lines, "transcript": TRANSCRIPT,
    }  # fmt: skip
    return protobuf() if name.startswith("OTLP protobuf") else bytes(seeds[name])


PARSERS: dict[str, Callable[[bytes, Path], Any]] = {
    **dict.fromkeys(["plan", "plan in YAML", "plan in XML", "plan in lines"], text(parse_plan)),
    "recipe": text(parse_recipe),
    "pipeline": in_file(lambda path: read_pipeline(str(path)), "p.yaml"),
    "tool calls": text(lambda words: split_calls(words, ["find"])),
    "local calls": text(read_tool_calls),
    "completion": lambda data, _: completion(data),
    "request": lambda data, _: parse_json(data),
    "config": in_file(read_json),
    "card": text(lambda words: Card.from_json(words, "here")),
    "OTLP JSON": lambda data, _: _read_json(data, []),
    "OTLP, packed": lambda data, _: unpack(data, 1 << 20),
    "OTLP protobuf": lambda data, _: read_protobuf_rows(data),
    "OTLP protobuf, partly": lambda data, _: read_protobuf_rows(data, []),
    "trace file": in_file(lambda path: list(read_file(path))),
    "trace file, OTLP": in_file(lambda path: list(read_file(path))),
    "delegation log": in_file(read_log),
    "transcript": in_file(lambda path: read_transcript(str(path))),
}
COUNT = times(30, 100_000 // len(PARSERS) + 1)


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Bytes changed, cut, repeated and put in."""
    for _ in range(draw.randint(1, 4)):
        at, other = sorted(draw.randrange(len(data) + 1) for _ in range(2))
        piece = draw.choice([draw.choice(PIECES), bytes([draw.randrange(256)]), b""])
        data = data[:at] + piece + data[draw.choice([at, at + 1, min(other, at + 12), min(other, at + 30)]) :]
        if draw.random() < 0.2:
            data = draw.choice([data[:other], data[:other] + data[at:]])
    return data


def altered(data: bytes, draw: random.Random) -> bytes:
    """A JSON document, or lines of them, in which one value or key is another: sound JSON, so it gets further."""
    try:
        lines = [json.loads(line) for line in data.splitlines()]
    except ValueError:
        return damaged(data, draw)
    node = lines
    while True:
        key = draw.choice(range(len(node)) if isinstance(node, list) else sorted(node))
        if isinstance(node[key], list | dict) and node[key] and draw.random() < 0.85:
            node = node[key]
            continue
        if isinstance(node, dict) and draw.random() < 0.3:
            node[draw.choice(["", "x", *node])] = node.pop(key)
        else:
            node[key] = draw.choice(VALUES)
        return "\n".join(map(json.dumps, lines)).encode()


def untyped(parse: Callable[[bytes, Path], Any], seed: bytes, folder: Path, name: str) -> list[tuple[str, bytes]]:
    """What came out of it other than an answer or one of our errors, with the input that brought it out."""
    draw, found = random.Random(f"12 {name}"), []
    for _ in range(COUNT):
        data = draw.choice([damaged, altered])(seed, draw)
        try:
            parse(data, folder)
        except AgentForgeError:
            continue
        except Exception as error:
            found.append((repr(error)[:200], data))
    return found


@pytest.mark.untraced
@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_reads_or_refuses(name: str, tmp_path: Path) -> None:
    seed = sound(name)
    PARSERS[name](seed, tmp_path)  # the control: the input itself is read
    found = untyped(PARSERS[name], seed, tmp_path, name)
    report(12, f"damaged input: {name}", COUNT, COUNT - len(found), "; ".join(map(str, found[:3])))


def test_a_parser_without_checks_is_caught(tmp_path: Path) -> None:
    """The control: the standard library's own errors are not ours."""
    assert untyped(lambda data, _: json.loads(data)["models"][0], b'{"models": [1]}', tmp_path, "json")


def sanitized(what: str, count: int) -> subprocess.CompletedProcess[str]:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no gcc with its sanitizers here")
    names = [f"-print-file-name=lib{name}.so" for name in ("asan", "ubsan")]
    found = [subprocess.run([compiler, name], capture_output=True, text=True, check=True) for name in names]
    libraries = [each.stdout.strip() for each in found]
    if not all(map(os.path.isabs, libraries)):
        pytest.skip("gcc has no sanitizers here")
    command = [sys.executable, str(HERE / "scenario_sanitized.py"), what, str(count), str(HERE.parent / "inference")]
    environment = {"LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": "detect_leaks=0", "CC": compiler}
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=3000, check=False
    )


C = {"entropy": (60, 20_000), "decoder": (15, 1000), "products": (0, 5000), "merging": (20, 1000)}


@pytest.mark.parametrize("what", [what for what in C if times(*C[what])])  # "products" takes three builds
def test_the_sanitizers_have_nothing_to_report(what: str) -> None:
    count = times(*C[what])
    done = sanitized(what, count)
    assert done.returncode == 0, done.stderr[-3000:]
    report(12, f"C under sanitizers: {what}", count, int(done.stdout))


@pytest.mark.parametrize(
    ("fault", "said"),
    {"beyond": "heap-buffer-overflow", "overflow": "signed integer overflow", "shift": "shift exponent"}.items(),
)
def test_the_sanitizers_see_a_planted_fault(fault: str, said: str) -> None:
    """The control."""
    done = sanitized(fault, 0)
    assert done.returncode != 0
    assert said in done.stderr
