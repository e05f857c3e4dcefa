"""The language of the forged planner: what is written is read as it was, and prompts say what a tool is."""

from __future__ import annotations

import doctest
import importlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_forge.agents.planner.script import (
    answer_text,
    clip,
    examples_in,
    note_on,
    read_line,
    request_text,
    result_fields,
    tool_line,
    tools_text,
    type_text,
    writable,
)

MODULES = [
    "agents.grounding",
    "agents.planner.constraint",
    "agents.planner.forged",
    "agents.planner.script",
    "agents.planner.writer",
    "learning.generate",
    "learning.values",
    "tasks.calls",
]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
fields = st.one_of(st.none(), st.from_regex(r"(?:[\w.-]|\[\w?\]){1,6}", fullmatch=True))
references = st.fixed_dictionaries({"ref": st.integers(1, 12), "field": fields})
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts)
values = st.recursive(
    st.one_of(scalars, references),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        # an object with a field `ref` would be a reference
        st.dictionaries(texts.filter(lambda name: name != "ref"), inner, max_size=4),
    ),
    max_leaves=8,
)
tools = st.one_of(
    st.sampled_from(["get_weather", "a.b", "x/y", "do it", "none"]), texts.filter(lambda t: writable("tool", t))
)
names = texts.filter(lambda name: writable("parameter", name))
calls = st.lists(
    st.fixed_dictionaries(
        {
            "tool": tools,
            "args": st.dictionaries(names, values, max_size=4),
            "after": st.lists(st.integers(1, 12), max_size=3, unique=True),
        }
    ),
    min_size=1,
    max_size=4,
)


@given(calls)
def test_calls_are_read_as_they_were_written(plan: list[dict[str, Any]]) -> None:
    text = answer_text(plan)
    lines = text.split("\n")
    assert lines.pop() == ""
    assert [read_line(line) for line in lines] == plan
    assert [line.partition(" ")[0] for line in lines] == [str(n) for n in range(1, len(plan) + 1)]


def test_no_calls_are_none() -> None:
    assert answer_text([]) == "none\n"
    assert read_line("none\n") is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "get_weather()",  # no number
        "1 get_weather",
        "1 get_weather(city",
        "1 get_weather(city)",
        "1 get_weather(city=)",
        '1 get_weather(city="Oslo)',
        '1 get_weather(city="Oslo" unit="C")',
        '1 get_weather(city="Oslo",unit="C")',
        "1 f(x=[1, 2)",
        "1 f(x=[1 2])",
        '1 f(x={"a": 1)',
        '1 f(x={"a"=1})',
        "1 f(x={1: 2})",
        "1 f(x=Oslo)",
        "none()",
    ],
)
def test_what_is_no_call_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_line(line)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    for line in (text, f"1 f({text})", f"1 f(x={text})", f"1 f(x=[{text}])"):
        try:
            call = read_line(line)
        except ValueError:
            continue
        assert call is None or set(call) == {"tool", "args", "after"}


def test_a_prompt_is_the_tools_and_then_the_request() -> None:
    weather = {
        "name": "get_weather",
        "description": "The weather of a city today. Needs no key.",
        "parameters": {
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["C", "F"], "default": "C"}},
            "required": ["city"],
        },
        "returns": ["temperature"],
    }
    mail = {"name": "send_mail", "parameters": {"properties": {"to": {"type": "string"}}, "required": ["to"]}}
    assert tools_text([weather, mail]) == (
        "Tools:\n"
        'get_weather(city: string, unit?: "C"|"F" = "C") -> temperature: The weather of a city today\n'
        "send_mail(to: string)\n"
    )
    assert request_text("Mail  Bob\nthe weather.") == "Request: Mail Bob the weather.\nPlan:\n"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, "any"),
        ({"type": "array"}, "[any]"),
        ({"type": "array", "items": {"type": "array", "items": {"type": "number"}}}, "[[number]]"),
        ({"type": ["string", "null"]}, "string|null"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "string"}]}, "string|integer"),
        ({"type": "object"}, "object"),
        ({"type": "object", "properties": {"a": {"type": "string"}, "b": True}}, "{a: string, b: any}"),
        ({"enum": [*range(20)]}, "|".join(map(str, range(12))) + "|…"),
        ({"enum": ["ü", None, True]}, '"ü"|null|true'),
    ],
)
def test_types_in_a_few_tokens(schema: dict[str, Any], text: str) -> None:
    assert type_text(schema) == text


@pytest.mark.parametrize(
    ("returns", "names"),
    [
        (None, []),
        (["id", "name"], ["id", "name"]),
        ({"type": "object", "properties": {"id": {}, "name": {}}}, ["id", "name"]),
        ({"type": "string"}, []),
        ({"id": "The number", "name": "The name"}, ["id", "name"]),
    ],
)
def test_the_fields_of_a_result(returns: Any, names: list[str]) -> None:
    assert result_fields({"name": "f", "returns": returns}) == names
    assert tool_line({"name": "f", "returns": returns}) == (f"f() -> {', '.join(names)}" if names else "f()")


def test_descriptions_are_shortened() -> None:
    assert clip("Gets the weather. It needs a city.", 18) == "Gets the weather"
    assert clip("one two three four", 2) == "one two"
    assert clip("Version 2.1 of it", 9) == "Version 2.1 of it"
    assert note_on("Unit of temperature, such as 'C' or 'F'") == "Unit of temperature, e.g. C, F"
    assert note_on("") == ""
    assert examples_in("Nothing here") == []


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_hold(name: str) -> None:
    module = importlib.import_module(f"agent_forge.{name}")
    assert doctest.testmod(module).failed == 0
