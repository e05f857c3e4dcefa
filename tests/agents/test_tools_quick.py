"""The quick check never says yes where a whole validator says no, and says yes to what calls usually look like."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agent_forge.agents.tools.quick import quick_check

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(-2, 2).map(lambda x: round(x, 1)), st.sampled_from("abc")
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
)
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
            "enum": st.lists(LEAVES, min_size=1, max_size=3),
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=3),
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
            "additionalProperties": st.booleans(),
            "description": st.just("x"),
        },
    )


SCHEMAS = st.recursive(
    st.fixed_dictionaries({}, optional={"type": TYPES, "enum": st.lists(LEAVES, min_size=1)}), _schemas
)


@given(SCHEMAS, VALUES)
def test_yes_means_yes(schema: Any, value: Any) -> None:
    check = quick_check(schema)
    if check is not None and check(value):
        assert Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, {"n": 3}),
        ({"type": "object", "properties": {"u": {"enum": ["km", "mi"]}}, "additionalProperties": False}, {"u": "km"}),
        ({"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "null"}]}}, [1, 2.5, None]),
    ],
)
def test_plain_calls_pass_quickly(schema: Any, value: Any) -> None:
    check = quick_check(schema)
    assert check is not None
    assert check(value)


@pytest.mark.parametrize("schema", [{"pattern": "a"}, {"$ref": "#"}, {"type": "odd"}, {"items": {"minimum": 1}}, True])
def test_unknown_keywords_are_for_the_validator(schema: Any) -> None:
    assert quick_check(schema) is None
