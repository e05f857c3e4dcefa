"""JSON text of recorded values and requests: the same with orjson and with the standard library alone."""

from __future__ import annotations

import gc
import json
import math
import random
from enum import Enum
from pathlib import Path
from pprint import pformat
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_forge.errors import TraceError
from agent_forge.traces import values
from agent_forge.traces.otlp import read_json
from agent_forge.traces.span import collection_paused
from agent_forge.traces.values import from_json, to_json

QUIET = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FIXTURE = Path(__file__).parent / "fixtures" / "otlp" / "openinference-openai.json"


@pytest.fixture(autouse=True)
def orjson() -> None:
    pytest.importorskip("orjson")


class Colour(Enum):
    RED = "red"


class Size(str, Enum):
    BIG = "big"


def by_the_standard_library() -> Any:
    return patch.object(values, "_codec", lambda: (values._standard_json, json.loads))


ODD = [
    {"text": 'quo"te \\ \n\t\r\b\f \x01 é\u2028 \U0001f600 \x7f'},
    [1.5, -0.0, 1e300, 1e-7, 12345678901234567890, 2**62, 2**80, -(2**70), True, None, [], {}, ""],
    [math.nan, math.inf, -math.inf, None],
    {1: 2, None: 3, 1.5: 4},
    {"set": {3}, "pair": (1, 2), "bytes": b"\xff"},
    "lone \ud800",
    {"é": "\ud800"},
    [Colour.RED, Size.BIG, UUID(int=3)],
    "null",
]


@pytest.mark.parametrize("value", ODD, ids=range(len(ODD)))
def test_odd_values_are_written_alike(value: Any) -> None:
    text = to_json(value)
    with by_the_standard_library():
        assert pformat(from_json(to_json(value))) == pformat(from_json(text))


def test_a_value_that_holds_itself_or_nests_too_deep_is_cut() -> None:
    loop: list[Any] = []
    loop.append(loop)
    deep: list[Any] = []
    for _ in range(2000):
        deep = [deep]
    for value in (loop, deep):
        assert to_json(value) == "[" * 64 + '"…"' + "]" * 64


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@given(anything)
@QUIET
def test_random_values_come_back_and_are_written_alike(value: Any) -> None:
    text = to_json(value)
    assert pformat(from_json(text)) == pformat(value)
    with by_the_standard_library():
        assert from_json(to_json(value)) == from_json(text) or "NaN" in text


# Requests

SPAN = {"traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331", "name": "chat"}


def body(**fields: Any) -> bytes:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [SPAN, {**SPAN, **fields}]}]}]}).encode()


def read_or_refusal(data: bytes) -> str:
    try:
        return pformat(read_json(data))
    except (TraceError, ValueError, AttributeError, TypeError) as error:
        return f"refused: {type(error).__name__}: {error}"


def read_alike(data: bytes) -> str:
    fast = read_or_refusal(data)
    with by_the_standard_library():
        assert read_or_refusal(data) == fast
    return fast


TEXTS = [
    b'{"a":"\\u00e9\\n\\/\\"\\\\\\u0041"}', "é \U0001f600 \u2028".encode(), b"\\ud83d\\ude00", b"lone \\ud800",
    b"\\ud83dx", b"nul \\u0000", b"bad \\x", b"\xff", b"raw \x01", b"tab \t", b"\\u001f\\b\\f\\r", b"cut \\u12", b"",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_texts_are_read_alike(text: bytes) -> None:
    read_alike(body(name="@").replace(b'"@"', b'"' + text + b'"'))
    pair = {"key": "gen_ai.request.model", "value": {"stringValue": "@"}}
    read_alike(body(attributes=[pair]).replace(b'"@"', b'"' + text + b'"'))


@pytest.mark.parametrize(
    "number", ["1", "-0", "007", "1.", "-", "1e5", "1E+2", ".5", "1e", "0.1e-3", "9223372036854775808", "1e999", "NaN"]
)
@pytest.mark.parametrize("kind", ["intValue", "doubleValue", "boolValue"])
def test_numbers_are_read_alike(number: str, kind: str) -> None:
    data = body(attributes=[{"key": "gen_ai.usage.cost", "value": {kind: "@"}}])
    for marks in ("", '"'):
        read_alike(data.replace(b'"@"', f"{marks}{number}{marks}".encode()))


def test_damaged_requests_are_read_alike() -> None:
    rng, read = random.Random(7), 0
    original = FIXTURE.read_bytes()
    for number in range(300):
        data = bytearray(original[: rng.randrange(len(original))] if number % 4 == 0 else original)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.choice(b'{}[]":,\\ 0a\x00\xff')
        read += not read_alike(bytes(data)).startswith("refused")
    assert read > 20


def test_the_collector_is_left_as_it_was() -> None:
    with collection_paused():
        assert not gc.isenabled()
        with collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
