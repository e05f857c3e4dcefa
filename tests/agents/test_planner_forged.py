"""The planner that comes with the package: its own weights, the tools of a newcomer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from agent_forge import plan, run, tool
from agent_forge.agents.choices import choose_planner
from agent_forge.agents.planner import ForgedPlanner, PlanningFailed, PlanRefused, forged
from agent_forge.agents.planner.writer import PlanWriter
from agent_forge.agents.tools.schemas import plain_schema
from agent_forge.cli import run as command

CALLED: list[tuple[str, dict[str, Any]]] = []


@tool
def get_weather(city: str) -> str:
    """Current weather in a city."""
    CALLED.append(("get_weather", {"city": city}))
    return f"rain in {city}"


@tool
def read_csv(path: str) -> str:
    """Read a CSV file."""
    CALLED.append(("read_csv", {"path": path}))
    return f"rows of {path}"


@tool
def exchange_rate(currency: str) -> float:
    """Exchange rate of the euro to a currency."""
    CALLED.append(("exchange_rate", {"currency": currency}))
    return 11.2


@tool
def play_song(title: str, artist: str = "") -> str:
    """Play a song."""
    CALLED.append(("play_song", {"title": title, "artist": artist}))
    return "playing"


TOOLS = [get_weather, read_csv, exchange_rate, play_song]


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLED.clear()


@pytest.mark.parametrize(
    ("request_", "calls"),
    [
        ("Get the weather in Oslo and Rome.", [("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Rome"})]),
        ("Play Bohemian Rhapsody by Queen", [("play_song", {"title": "Bohemian Rhapsody", "artist": "Queen"})]),
        ("Who won the world cup in 1998?", [(None, {})]),
    ],
)
def test_it_plans_with_tools_it_never_saw(request_: str, calls: list[tuple[str | None, dict[str, Any]]]) -> None:
    planned = ForgedPlanner().plan_now(request_, tools=TOOLS)
    assert [(task.action, dict(task.args)) for task in planned] == calls
    assert planned.provenance is not None
    assert planned.provenance.planner == "forged"
    assert 0.0 <= (planned.provenance.confidence or 0.0) <= 1.0


def test_it_is_the_default_for_tools_of_ones_own_and_what_it_plans_runs(tmp_path: Path) -> None:
    result = run("Get the weather in Oslo and Rome.", tools=TOOLS, home=tmp_path)
    assert result.ok
    assert sorted(args["city"] for _, args in CALLED) == ["Oslo", "Rome"]
    assert result.provenance is not None
    assert result.provenance.planner == "forged"


def test_a_request_that_no_tool_serves_is_refused_and_nothing_is_called(tmp_path: Path) -> None:
    with pytest.raises(PlanRefused, match="no tool fits"):
        run("Who won the world cup in 1998?", tools=TOOLS, home=tmp_path)
    assert not CALLED


def test_a_plan_it_is_not_sure_of_is_shown_but_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forged.PlanModel, "probability", lambda self, confidence: 0.05)
    monkeypatch.setattr("agent_forge.agents.request_run.RequestRun._by_rules", _raise)
    assert plan("Play Bohemian Rhapsody by Queen", tools=TOOLS, planner="forged")["s1"].action == "play_song"
    with pytest.raises(PlanRefused, match=r"only 5% of such plans are right: play_song\(title=.*English"):
        run("Play Bohemian Rhapsody by Queen", tools=TOOLS, planner="forged", home=tmp_path)
    assert not CALLED


def test_the_plan_command_says_that_a_plan_would_not_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "songs.json").write_text(json.dumps([each.spec for each in TOOLS]))
    call = ["plan", "Play Bohemian Rhapsody by Queen", "--tools", str(tmp_path / "songs.json"), "--planner", "forged"]
    for probability, is_open in ((0.05, True), (0.95, False)):
        monkeypatch.setattr(forged.PlanModel, "probability", lambda self, confidence, p=probability: p)
        assert command(call) == 0
        assert ("open: the planner is not sure of this plan" in capsys.readouterr().out) is is_open


async def _raise(self: Any, error: Exception, recorder: Any) -> None:
    raise error


def test_without_its_file_everything_works_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forged, "SHIPPED", tmp_path / "nothing")
    assert choose_planner(None).name == "rules"
    with pytest.raises(Exception, match="weights are not there"):
        choose_planner("forged")


def test_the_tools_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = forged.PlanModel(forged.SHIPPED)
    functions = [forged.function_of(each) for each in TOOLS]
    read: list[int] = []
    inner = model.model.read
    monkeypatch.setattr(model.model, "read", lambda history, ids: read.append(len(ids)) or inner(history, ids))
    first = model.write("Get the weather in Oslo.", functions)
    tokens, read[:] = sum(read), []
    second = model.write("Get the weather in Oslo.", functions)
    assert (first.text, first.confidences) == (second.text, second.confidences)
    tools = len(model.tokenizer.encode(forged.tools_text(functions), add_special_tokens=False).ids)
    assert tokens - sum(read) == tools


def test_a_request_that_is_too_long_is_refused_at_once() -> None:
    with pytest.raises(PlanningFailed, match="tokens"):
        ForgedPlanner().plan_now("weather in Oslo, " * 1500, tools=TOOLS)


def test_rows_of_a_file_become_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tools = [{"name": "get_weather", "description": "Current weather in a city", "parameters": schema}]
    rows = [
        {"id": "a", "request": "Get the weather in Oslo and Rome.", "tools": tools},
        {"id": "b", "request": "What is the capital of France?", "tools": [{"type": "function", "function": tools[0]}]},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    assert command(["plan", "--rows", str(file), "--planner", "forged"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["id"] == "a"
    assert [call["args"] for call in first["calls"]] == [{"city": "Oslo"}, {"city": "Rome"}]
    assert second == {"id": "b", "calls": [], "none": True}
    file.write_text('{"id": 1, "request": "x"}\n')
    assert command(["plan", "--rows", str(file), "--planner", "forged"]) != 0
    assert re.search(r"line 1 is not a row", capsys.readouterr().err)


def test_references_and_waits_become_references_of_plans() -> None:
    calls = [
        {"tool": "find", "args": {"q": "a {s1} b"}, "after": []},
        {"tool": "buy", "args": {"ids": [{"ref": 1, "field": "id"}], "whole": {"ref": 1, "field": None}}, "after": [1]},
    ]
    first, second = forged.tasks_of(calls, "x")
    assert dict(first.args) == {"q": "a {{s1}} b"}
    assert dict(second.args) == {"ids": ["{s1.id}"], "whole": "{s1}"}
    assert second.depends_on == ("s1",)


def test_schemas_in_the_wild_are_read_as_json_schema() -> None:
    """References as pydantic writes them, and types by Python's names, as BFCL has them."""
    schema = {
        "type": "dict",
        "properties": {
            "unit": {"allOf": [{"$ref": "#/$defs/Unit"}], "description": "The unit"},
            "point": {"type": "tuple", "items": {"type": "float"}},
            "tree": {"$ref": "#/$defs/Tree"},
            "lost": {"$ref": "#/$defs/Nothing"},
            "any": {"type": "any"},
        },
        "required": ["unit"],
        "$defs": {
            "Unit": {"enum": ["C", "F"], "type": "str"},
            "Tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/Tree"}}},
        },
    }
    plain = plain_schema(schema)
    assert plain["type"] == "object"
    assert plain["properties"]["unit"] == {"enum": ["C", "F"], "type": "string", "description": "The unit"}
    assert plain["properties"]["point"] == {"type": "array", "items": {"type": "number"}}
    assert plain["properties"]["lost"] == {} == plain["properties"]["any"]
    assert "$ref" not in json.dumps(plain)
    jsonschema.Draft202012Validator.check_schema(plain)
    jsonschema.validate({"unit": "C", "point": [1.5, 2], "tree": {"left": {}}}, plain)


def test_tools_described_in_a_file_may_name_types_as_python_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = {"type": "dict", "properties": {"city": {"type": "str"}, "days": {"type": "int"}}, "required": ["city"]}
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([{"name": "get_weather", "description": "The weather in a city", "parameters": schema}]))
    assert command(["plan", "Get the weather in Oslo", "--tools", str(file), "--planner", "forged", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(task["action"], task["args"]) for task in document["tasks"]] == [("get_weather", {"city": "Oslo"})]
    assert document["missing"] == []


def write(writer: PlanWriter, text: str) -> None:
    """Makes a writer write a text, token by token."""
    done = ""
    while done != text:
        options = [int(token) for token in np.flatnonzero(writer._walk.allowed())]
        fitting = [token for token in options if text[len(done) :].startswith(writer._tokens.texts[token] or "\0")]
        token = max(fitting, key=lambda each: len(writer._tokens.texts[each]))
        done += writer._tokens.texts[token]
        writer.choose(logits(writer, {token: 99.0}))


def logits(writer: PlanWriter, scores: dict[int, float]) -> np.ndarray:
    found = np.full(writer.vocabulary.size, -30.0, dtype=np.float32)
    for token, score in scores.items():
        found[token] = score
    return found


def function(name: str, **kinds: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    return {"name": name, "parameters": {"type": "object", "properties": properties, "required": [*kinds]}}


def test_a_missing_value_does_not_become_an_earlier_result() -> None:
    vocabulary = forged.plan_model(forged.SHIPPED).vocabulary
    writer = PlanWriter(vocabulary, [function("mail", to="string")], "Mail Ann and Bob")
    tokens = writer._tokens
    write(writer, '1 mail(to="Ann")\n2 mail(to')
    # `=` would be followed by `?` or by `#1`, `="` by a text; asking costs a turn, in the second call too
    assert writer.choose(logits(writer, {tokens.equals: 1.0, tokens.quote: 0.0})) == tokens.quote
    other = PlanWriter(vocabulary, [function("mail", to="string")], "Mail Ann and Bob")
    write(other, '1 mail(to="Ann")\n2 mail(to=')
    ask, refer = min(tokens.asking), vocabulary.tokens("#")[0]
    assert other.choose(logits(other, {ask: 1.0, refer: 0.0})) == ask


def test_a_number_is_used_as_often_as_it_was_said() -> None:
    vocabulary = forged.plan_model(forged.SHIPPED).vocabulary
    add = function("add", a="integer", b="integer")
    for request, second in (("Add 7 and 4", "4"), ("Add 7 and 7 to 4", "7")):
        writer = PlanWriter(vocabulary, [add], request)
        write(writer, "1 add(a=7, b=")
        seven, four = (vocabulary.tokens(digit)[0] for digit in "74")
        assert writer._tokens.texts[writer.choose(logits(writer, {seven: 1.0, four: 0.0})) or 0] == second


def test_a_text_is_used_as_often_as_it_was_said() -> None:
    vocabulary = forged.plan_model(forged.SHIPPED).vocabulary
    text = function("text", to="string", message="string")
    for request, second in (("Text Ann 'Hello'", "Hello"), ("Text Ann 'Ann, hello'", "Ann")):
        writer = PlanWriter(vocabulary, [text], request)
        write(writer, '1 text(to="Ann", message="')
        ann, hello = (vocabulary.tokens(word)[0] for word in ("Ann", "Hello"))
        chosen = writer.choose(logits(writer, {ann: 1.0, hello: 0.0}))
        assert second.startswith(writer._tokens.texts[chosen or 0])


def test_a_call_that_comes_again_ends_the_plan() -> None:
    vocabulary = forged.plan_model(forged.SHIPPED).vocabulary
    writer = PlanWriter(vocabulary, [function("mail", to="string")], "Mail Ann and Bob")
    write(writer, '1 mail(to="Ann")\n2 mail(to="Ann"')
    for token in vocabulary.tokens(")\n"):
        writer.choose(logits(writer, {token: 9.0}))
    assert writer.ended
    assert [call["args"] for call in writer.calls] == [{"to": "Ann"}]


def test_what_the_rules_are_sure_of_fills_what_was_left_open() -> None:
    left = [{"tool": "read_csv", "args": {"path": None}}, {"tool": "get_weather", "args": {"city": None}}]
    assert [call["args"] for call in forged.filled(left, TOOLS, "Read data/sales.csv")] == [
        {"path": "data/sales.csv"},
        {"city": None},
    ]
    used = [{"tool": "read_csv", "args": {"path": "sales.csv"}}, {"tool": "read_csv", "args": {"path": None}}]
    assert forged.filled(used, TOOLS, "Read sales.csv")[1]["args"] == {"path": None}
