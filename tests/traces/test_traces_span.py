"""The span as an object."""

from __future__ import annotations

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
