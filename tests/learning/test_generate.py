"""Rows from tool schemas: right by construction, and checked here by other means."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from plan_sets import CATALOGUE, ODD

from agent_forge.agents.grounding import Mentions, grounded
from agent_forge.agents.planner.script import is_reference, read_line
from agent_forge.errors import DataError
from agent_forge.learning.generate import Generator, Mix, Styled, alike, in_style, link_of, restyled
from agent_forge.learning.rows import PlanRow, references
from agent_forge.learning.values import Values


def check(row: PlanRow) -> None:
    """The calls fit the tools, their values are valid, and each was said, is listed, or is an earlier result."""
    assert row.faults() == []
    said = [Mentions(row.request)]
    schemas = {tool["name"]: tool["parameters"] for tool in row.tools}
    assert len(schemas) == len(row.tools)
    for call in row.calls:
        schema = schemas[call["tool"]]
        values = {name: v for name, v in call["args"].items() if v is not None and not is_reference(v)}
        Draft202012Validator({**schema, "required": []}).validate(values)
        for name, value in values.items():
            assert grounded(value, schema["properties"][name], said), (name, value, row.request)
        assert list(call["args"]) == [name for name in schema["properties"] if name in call["args"]]
    lines = row.answer.splitlines()
    read = [read_line(line) for line in lines]
    assert read == ([{**call, "after": []} for call in row.calls] or [None])


@pytest.mark.untraced
@pytest.mark.parametrize("restyle", [False, True])
def test_every_row_is_sound(restyle: bool) -> None:
    kinds: Counter[str] = Counter()
    for row in Generator(CATALOGUE, seed=7, restyle=restyle).rows(900):
        check(row)
        kinds[row.source] += 1
        calls = len(row.calls)
        of_kind = row.source.removeprefix("generated:")
        linked = [each for call in row.calls for each in references(call["args"])]
        missing = [name for call in row.calls for name, value in call["args"].items() if value is None]
        assert bool(linked) == (of_kind == "chained") or (of_kind == "dialogue" and calls == 2)
        assert bool(missing) == (of_kind == "missing")
        several = {"same": {2, 3, 4}, "listed": {2, 3, 4}, "several": {2, 3, 4, 5}, "chained": {2, 3}}
        assert calls in {"none": {0}, "told": {1, 2, 3, 4}, "dialogue": {1, 2}, **several}.get(of_kind, {1})
        if of_kind in ("same", "listed", "told"):
            assert len({call["tool"] for call in row.calls}) == 1
            assert not any(call in row.calls[:place] for place, call in enumerate(row.calls))
    assert set(kinds) == {f"generated:{name}" for name in Mix.__dataclass_fields__}
    assert min(kinds.values()) >= 8


@pytest.mark.untraced
def test_tools_of_any_shape_have_rows() -> None:
    used = set()
    for row in Generator([*CATALOGUE, *ODD], seed=3, shown=(1, 3)).rows(600):
        check(row)
        used |= {call["tool"] for call in row.calls}
    assert {tool["name"] for tool in ODD} <= used


def test_a_single_tool_is_enough_and_none_are_refused() -> None:
    rows = list(Generator(ODD[:1], seed=1).rows(5))
    assert [row.id for row in rows] == [f"generated-{n}" for n in range(1, 6)]
    with pytest.raises(DataError, match="no tools"):
        Generator([], seed=1)


SCRIPT = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from plan_sets import CATALOGUE
from agent_forge.learning.generate import Generator
rows = Generator(CATALOGUE, seed=11, restyle=True).rows(150)
print(hashlib.sha256("".join(row.prompt + row.answer for row in rows).encode()).hexdigest())
"""


def test_the_same_seed_gives_the_same_rows_in_every_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here, and in a process with another seed for the hashes of strings."""
    here = str(Path(__file__).parent)
    monkeypatch.setattr(sys, "argv", ["-c", here])
    monkeypatch.setattr(sys, "path", [*sys.path])
    exec(SCRIPT, {})
    env = {**os.environ, "PYTHONHASHSEED": "1"}
    other = subprocess.run([sys.executable, "-c", SCRIPT, here], env=env, capture_output=True, text=True)
    assert other.stdout == capsys.readouterr().out != "", other.stderr
    first, other = (next(iter(Generator(CATALOGUE, seed=seed).rows(1))) for seed in (1, 2))
    assert first != other


def test_the_rows_asked_for_are_a_prefix() -> None:
    few, many = (list(Generator(CATALOGUE, seed=5).rows(count)) for count in (7, 20))
    assert many[:7] == few


def test_a_mix_without_a_kind_never_makes_it() -> None:
    rows = list(Generator(CATALOGUE, seed=2, mix=Mix(none=0, missing=0, corrected=0)).rows(200))
    kinds = ("single", "same", "listed", "told", "dialogue", "several", "chained")
    assert {row.source for row in rows} == {f"generated:{kind}" for kind in kinds}


def test_a_story_has_a_share_for_each_call_and_what_they_have_in_common() -> None:
    area = {"type": "object", "properties": {"base": {"type": "integer"}, "height": {"type": "integer"}}}
    function = {
        "name": "triangle_area",
        "description": "Area of a triangle",
        "parameters": {**area, "required": ["base"]},
    }
    rows = list(
        Generator([function], seed=4, mix=Mix(**{**dict.fromkeys(Mix.__dataclass_fields__, 0.0), "told": 1.0})).rows(60)
    )
    several = [row for row in rows if len(row.calls) > 1]
    assert len(several) > 30
    for row in rows:
        check(row)
    assert any("second" in row.request for row in several)
    assert any(re.search(r"\b(two|three|four)\b", row.request) for row in several), "a number that is no argument"


def test_a_dialogue_ends_with_what_is_wanted_and_hands_it_on() -> None:
    """A value that is taken back is not in the call, and the second call has what the first one has of its names."""
    only = Mix(**{**dict.fromkeys(Mix.__dataclass_fields__, 0.0), "dialogue": 1.0})
    city = {"city": {"enum": ["Oslo", "Rome", "Bonn"]}, "nights": {"type": "integer", "minimum": 10, "maximum": 99}}
    schema = {"type": "object", "properties": city, "required": ["city", "nights"]}
    find = {"name": "find_hotel", "description": "Find a hotel", "parameters": schema, "returns": ["hotel_name"]}
    named = {**schema, "properties": {**city, "hotel_name": {"type": "string"}}, "required": ["city", "hotel_name"]}
    book = {"name": "book_hotel", "description": "Book a room", "parameters": named}
    rows = list(Generator([find, book], seed=5, mix=only).rows(300))
    changed = handed_on = 0
    for row in rows:
        check(row)
        first = row.calls[0]["args"]["city"]
        cities = re.findall("Oslo|Rome|Bonn", row.request, re.IGNORECASE)
        changed += len(row.calls) == 1 and len(set(cities)) == 2
        assert len(row.calls) == 2 or cities[-1].title() == first
        if [call["tool"] for call in row.calls] == ["find_hotel", "book_hotel"]:
            assert row.calls[1]["args"]["city"] == first
            assert row.calls[1]["args"]["hotel_name"] == {"ref": 1, "field": "hotel_name"}
            handed_on += 1
    assert changed > 5
    assert handed_on > 40


@pytest.mark.parametrize(
    ("name", "about", "value"),
    [("rate", "as a decimal", 0.05), ("rate", "", 0.05), ("rate", "in percent", 5), ("percent_off", "", 5)],
)
def test_a_percentage_is_written_as_the_parameter_asks(name: str, about: str, value: float) -> None:
    values = Values(random.Random(1))
    drawn = [values.draw(name, {"type": "number", "description": about}) for _ in range(300)]
    assert {each.value for each in drawn if each.said in ("5%", "5 percent")} == {value}


@pytest.mark.parametrize("kind", ["several", "dialogue"])
def test_a_value_that_two_tools_share_suits_both(kind: str) -> None:
    """Two parameters of one name with other choices: what is said once for both must be allowed by both."""
    only = Mix(**{**dict.fromkeys(Mix.__dataclass_fields__, 0.0), kind: 1.0})
    choices = {"hotel": ["single", "double"], "train": ["first", "second", "single"]}
    tools = [
        {
            "name": f"book_{name}",
            "description": f"Book a {name}",
            "parameters": {"type": "object", "properties": {"type": {"enum": each}}, "required": ["type"]},
        }
        for name, each in choices.items()
    ]
    rows = list(Generator(tools, seed=6, mix=only, shown=(2,)).rows(120))
    for row in rows:
        check(row)
    shared = [row for row in rows if len(row.calls) > 1 and len({call["args"]["type"] for call in row.calls}) == 1]
    assert shared


def test_near_tools_never_stand_side_by_side() -> None:
    twins = [*CATALOGUE, {**CATALOGUE[0], "name": "get_weathers"}]
    assert alike(twins[0], twins[-1])
    for row in Generator(twins, seed=2).rows(200):
        assert {"getWeather", "get_weathers"} - {tool["name"] for tool in row.tools}


def test_links_go_from_a_field_to_a_parameter_of_its_name() -> None:
    assert link_of(CATALOGUE[0], CATALOGUE[2]) == ("city_id", "city_id")
    assert link_of(CATALOGUE[2], CATALOGUE[3]) == ("booking_id", "booking_id")
    assert link_of(CATALOGUE[1], CATALOGUE[2]) is None
    doctor = {"name": "find", "returns": ["doctor_name"]}
    patient = {"name": "track", "parameters": {"properties": {"patient_name": {"type": "string"}}}}
    assert link_of(doctor, patient) is None


@pytest.mark.parametrize("style", ["as it is", "snake", "camel", "pascal", "dotted"])
def test_calls_follow_their_tools_into_another_style(style: str) -> None:
    tools = [CATALOGUE[0], CATALOGUE[2]]
    styled = [Styled.of(tool, style, None) for tool in tools]
    calls = [
        {"tool": "getWeather", "args": {"city": "Oslo"}},
        {"tool": "book_hotel", "args": {"city_id": {"ref": 1, "field": "city_id"}, "nights": 2}},
    ]
    row = PlanRow("x", "…", tuple(each.function for each in styled), tuple(restyled(calls, tools, styled)))
    assert row.faults() == []
    assert [call["tool"] for call in row.calls] == [in_style("getWeather", style), in_style("book_hotel", style)]
    assert row.calls[1]["args"] == {
        styled[1].parameters["city_id"]: {"ref": 1, "field": styled[0].fields["city_id"]},
        "nights": 2,
    }


def test_values_have_the_form_of_their_kind() -> None:
    forms = {
        "time": r"\d\d:\d\d|\d\d?(:\d\d)? (am|pm|PM)",
        "email": r"\w+[._]?[\w'-]+@[\w-]+\.[a-z]+",
        "url": r"(https://|(http://)?www\.)?[\w-]+\.[a-z]+(/[\w/]+)?",
        "phone": r"555-\d{3}-\d{4}|\+\d+ \d+",
        "file": r"[\w/]*[\w-]+\.\w+",
        "address": r"\d+ .+",
    }
    values = Values(random.Random(3))
    for kind, form in forms.items():
        for _ in range(60):
            value = values.of_kind(kind)
            assert re.fullmatch(form, str(value.value)), (kind, value)
            assert (value.said, value.kind) == (value.value, kind)
