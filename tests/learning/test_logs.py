"""Rows from traces and from logs of tool calls: what ran and was right, with its tools; the rest is counted."""

from __future__ import annotations

import doctest
import json
from pathlib import Path
from typing import Any

import pytest

from agent_forge import run, tool
from agent_forge.errors import DataError
from agent_forge.learning import logs
from agent_forge.learning.logs import read_rows_file, rows_of_chat, rows_of_traces
from agent_forge.learning.material import gather
from agent_forge.learning.rows import write_plan_rows
from agent_forge.learning.settings import PlannerSettings
from agent_forge.plans import Plan, Task
from agent_forge.settings import trace_store
from agent_forge.traces import Store
from agent_forge.traces.scores import add_score


@tool
def find_flight(city: str) -> dict[str, str]:
    """Find a flight to a city."""
    if city == "Nowhere":
        raise ValueError("no such city")
    return {"number": "LH7"}


@tool
def book_flight(number: str, seats: int = 1) -> str:
    """Book a flight by its number."""
    return f"booked {number}"


class Fixed:
    """A planner that always finds a flight and books it."""

    name = "fixed"

    def __init__(self, city: str) -> None:
        self.city = city

    async def plan(self, request: str, *, tools: Any = ()) -> Plan:
        find = Task("s1", action="find_flight", args={"city": self.city})
        return Plan([find, Task("s2", action="book_flight", args={"number": "{s1.number}"})])


def fly(home: Path, request: str, city: str) -> str | None:
    return run(request, tools=[find_flight, book_flight], planner=Fixed(city), home=home, approve="all").trace_id


def test_a_run_that_was_right_is_a_row_and_others_are_counted(tmp_path: Path) -> None:
    fly(tmp_path, "Book a flight to Oslo.", "Oslo")
    scored = fly(tmp_path, "Book me a flight to Rome.", "Rome")
    bad = fly(tmp_path, "Book a flight to Bonn.", "Bonn")
    fly(tmp_path, "Book a flight to Nowhere.", "Nowhere")  # fails
    fly(tmp_path, "Fly to ghp_0123456789abcdefghijABCDEFGHIJ012345.", "Fly")  # masked before it is written
    with Store.open(trace_store(tmp_path)) as store:
        add_score(store, store.trace(str(scored)), 1.0, by="me")
        add_score(store, store.trace(str(bad)), 0.0, by="me")
        found = rows_of_traces(store.each_trace())
    assert {row.request for row in found.rows} == {"Book a flight to Oslo.", "Book me a flight to Rome."}
    assert found.dropped == {"not right": 2, "masked": 1}
    row = next(row for row in found.rows if "Rome" in row.request)
    assert row.calls == (
        {"tool": "find_flight", "args": {"city": "Rome"}},
        {"tool": "book_flight", "args": {"number": {"ref": 1, "field": "number"}}},
    )
    assert {each["name"] for each in row.tools} == {"find_flight", "book_flight"}
    assert row.tools[1]["parameters"]["required"] == ["number"]
    assert not row.faults()


def test_a_planners_rows_come_from_the_right_runs_of_a_home_each_once(tmp_path: Path) -> None:
    wordings = ("Book a flight to {}.", "I need to be in {} tomorrow, get me on a plane", "Who can fly me over to {}?")
    for number, city in enumerate(("Oslo", "Rome", "Bonn", "Lima", "Kyoto", "Oslo", "Nowhere")):
        fly(tmp_path, wordings[number % 3].format(city) if city != "Oslo" else "Oslo, by plane!", city)
    material = gather(PlannerSettings(traces=str(tmp_path), held_out=0.4), seed=0)
    cities = [row.calls[0]["args"]["city"] for row in (*material.train, *material.held_out)]
    assert sorted(cities) == ["Bonn", "Kyoto", "Lima", "Oslo", "Rome"]
    assert len(material.held_out) == 2
    assert material.dropped == {"not right": 1, "duplicates": 1}
    assert material.audit["rows"] == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="too few to learn from"):
        gather(PlannerSettings(traces=str(tmp_path / "empty")), seed=0)
    with pytest.raises(DataError, match="there are no traces"):  # a misspelt folder is not made
        gather(PlannerSettings(traces=str(tmp_path / "emtpy")), seed=0)
    assert not (tmp_path / "emtpy").exists()


def test_a_few_runs_beside_ones_own_tools_are_learnt_from_and_generated_requests_judge(tmp_path: Path) -> None:
    real = {"Get me over to Oslo, by plane!": "Oslo", "Who flies to Rome?": "Rome", "Bonn, please": "Bonn"}
    for request, city in real.items():
        fly(tmp_path, request, city)
    schemas = tmp_path / "tools.json"
    schemas.write_text(json.dumps(TOOLS))
    settings = PlannerSettings(traces=str(tmp_path), tools=str(schemas), generated=20, judged=4)
    material = gather(settings, seed=0)  # one of three would be held out
    assert set(real) <= {row.request for row in material.train}
    assert len(material.held_out) == 4
    assert not set(real) & {row.request for row in material.held_out}


TOOLS = [
    {"function": {"name": "find_flight", "parameters": {"properties": {"city": {"type": "string"}}}}},
    {"name": "book_flight", "parameters": {"properties": {"number": {"type": "string"}}, "required": ["number"]}},
]


def call(name: str, identity: str, **args: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(args)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": identity, "function": function}]}


def test_a_conversation_with_tool_calls_is_a_row_per_request() -> None:
    conversation = [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": "Fly me to Oslo"},
        call("find_flight", "a", city="Oslo"),
        {"role": "tool", "tool_call_id": "a", "content": '{"number": "LH7"}'},
        call("book_flight", "b", number="LH7"),
        {"role": "tool", "tool_call_id": "b", "content": "booked"},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": [{"type": "text", "text": "Also find one to Rome."}]},
        call("find_flight", "c", city="Rome"),
        {"role": "user", "content": "Thanks"},
        {"role": "assistant", "content": "You are welcome."},
        {"role": "user", "content": "Book another one"},
        call("book_flight", "d", number="XY9"),
    ]
    found = rows_of_chat({"messages": conversation, "tools": TOOLS})
    assert [row.request for row in found.rows] == ["Fly me to Oslo", "Also find one to Rome."]
    assert found.rows[0].calls[1]["args"] == {"number": {"ref": 1, "field": "number"}}
    assert found.dropped == {"no calls": 1, "a value that nobody gave": 1}


def test_files_of_rows_of_any_form(tmp_path: Path) -> None:
    asked = {"messages": [{"role": "user", "content": "Find a flight to Bonn"}], "tools": TOOLS}
    answer = {"choices": [{"message": call("find_flight", "a", city="Bonn")}]}
    (tmp_path / "log.jsonl").write_text(json.dumps({"request": asked, "response": answer}) + "\n\n")
    found = read_rows_file(tmp_path / "log.jsonl")
    assert [row.calls for row in found.rows] == [({"tool": "find_flight", "args": {"city": "Bonn"}},)]
    write_plan_rows(found.rows, tmp_path / "rows.jsonl")
    again = read_rows_file(tmp_path / "rows.jsonl")
    assert [(row.request, row.calls, row.prompt) for row in again.rows] == [
        (row.request, row.calls, row.prompt) for row in found.rows
    ]
    (tmp_path / "bad.jsonl").write_text('{"request": "x"}\n')
    with pytest.raises(DataError, match="line 1 is not a row"):
        read_rows_file(tmp_path / "bad.jsonl")
    with pytest.raises(DataError, match="cannot be read"):
        read_rows_file(tmp_path / "nowhere.jsonl")


def test_the_examples_hold() -> None:
    assert doctest.testmod(logs).failed == 0
