"""The span as an object."""

from __future__ import annotations

from typing import Any

import pytest
from trace_spans import full, make

from agent_forge.errors import TraceError
from agent_forge.traces import KINDS, Span


def test_fields_and_attributes_are_set_by_name() -> None:
    span = make().set(reward=0.5, model="m", colour="red").link(make(3)).event("retry", 7, n=1)
    assert (span.reward, span.model, span.attributes) == (0.5, "m", {"colour": "red"})
    assert span.links == [(make(3).trace_id, make(3).span_id)]
    assert span.events == [{"name": "retry", "time_ns": 7, "attributes": {"n": 1}}]


def test_a_misspelt_field_is_an_error() -> None:
    with pytest.raises(AttributeError):
        make().outptus = 3  # type: ignore[attr-defined]


def test_durations() -> None:
    assert (make().duration_ns, make().duration_s) == (1_000_000, 0.001)
    assert (make(end_ns=None).duration_ns, make(end_ns=None).duration_s) == (None, None)


def test_to_a_dictionary_and_back() -> None:
    for span in (make(), full(), make(inputs=[], outputs={}), make(inputs="", outputs=0)):
        assert Span.from_dict(span.to_dict()) == span
    assert "reward" not in make().to_dict()
    assert make(outputs={}).to_dict()["outputs"] == {}


def test_a_dictionary_that_is_no_span() -> None:
    with pytest.raises(TraceError, match="'span_id'"):
        Span.from_dict({"trace_id": "1", "name": "x"})
    with pytest.raises(TraceError, match="'colour'"):
        Span.from_dict({**make().to_dict(), "colour": 1})


def test_every_kind_is_explained() -> None:
    assert {"plan", "model", "tool", "agent", "observation", "reward", "phase"} <= set(KINDS)
    assert all(KINDS.values())


WRONG = [
    ("trace_id", "zz"), ("trace_id", "0" * 32), ("span_id", 5), ("parent_id", "AB" * 8), ("name", 5), ("kind", "llm"),
    ("kind", ["tool"]), ("status", "bad"), ("start_ns", "abc"), ("start_ns", 1.5), ("start_ns", -1), ("end_ns", 2**63),
    ("agent", 7), ("model", ["m"]), ("session", {}), ("error", 5), ("attributes", [1]), ("links", "x"),
    ("links", [["a"]]), ("links", [["a", "b"]]), ("events", {"a": 1}), ("events", [{}]), ("input_tokens", "many"),
    ("input_tokens", True), ("cost", "1.5"), ("reward", "good"), ("resource", 3), ("scope", "y"), ("logprobs", "z"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), WRONG, ids=lambda value: str(value)[:20])
def test_a_field_of_another_type_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(TraceError, match=f"the span's {field} is not"):
        Span.from_dict({**make().to_dict(), field: value})


def test_fields_may_be_null() -> None:
    values = make().to_dict()
    empty = dict.fromkeys(("agent", "attributes", "links", "end_ns", "reward", "parent_id", "events"))
    assert Span.from_dict({**values, **empty}) == Span.from_dict({k: v for k, v in values.items() if k not in empty})
