"""Public plan sets as rows, and the mixture of them: from a small folder in their formats, and from the real one."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from plan_sets import SEAL_FIELDS, write_sets

from agent_forge.errors import DataError
from agent_forge.learning.datasets import SETS, function_of, parameter_schema, read_set, split_rows
from agent_forge.learning.material import gather, public_groups
from agent_forge.learning.mixture import Mixture, Shares, as_missing, as_said, values_of
from agent_forge.learning.rows import PlanRow, references, with_references, write_plan_rows
from agent_forge.learning.settings import PlannerSettings

DATA = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sets(tmp_path_factory.mktemp("sets"))


def by_id(rows: list[PlanRow]) -> dict[str, PlanRow]:
    assert len({row.id for row in rows}) == len(rows)
    return {row.id: row for row in rows}


@pytest.mark.parametrize(
    ("name", "count"),
    [("sgd", 13), ("snips", 70), ("seal_tools", 13), ("nestful", 5), ("ultratool", 4), ("break", 10)],
)
def test_every_row_of_a_set_is_read(folder: Path, name: str, count: int) -> None:
    rows = read_set(name, folder)
    assert len(rows) == count
    assert {row.source for row in rows} == {name}
    assert [row.faults() for row in rows] == [[]] * count
    assert len(by_id(rows)) == count


def test_sgd(folder: Path) -> None:
    row = by_id(read_set("sgd", folder))["sgd-chain"]
    assert [tool["name"] for tool in row.tools] == ["FindHotel", "BookHotel"]
    assert row.calls == (
        {"tool": "FindHotel", "args": {"city": "Oslo"}},
        {"tool": "BookHotel", "args": {"place_id": {"ref": 1, "field": "place_id"}, "nights": "2"}},
    )
    assert row.tools[0]["returns"] == ["place_id", "city"]
    assert row.answer == '1 FindHotel(city="Oslo")\n2 BookHotel(place_id=#1.place_id, nights="2")\n'


def test_snips(folder: Path) -> None:
    row = by_id(read_set("snips", folder))["snips-3"]
    assert row.calls == ({"tool": "Tool3", "args": {"artist": "Artist3", "track": "song number 3"}},)
    assert len(row.tools) == 7


def test_seal_tools(folder: Path) -> None:
    rows = by_id(read_set("seal_tools", folder))
    assert rows["seal-chain"].calls[1] == {"tool": "getTide", "args": {"place": {"ref": 1, "field": "place"}}}
    assert rows["seal-getTide-2"].calls == ({"tool": "getTide", "args": {"place": "Port2", "days": 2}},)  # a number
    assert "seal-unknown" not in rows
    assert rows["seal-chain"].tools[0]["parameters"]["properties"]["days"]["type"] == "integer"


def test_nestful(folder: Path) -> None:
    rows = by_id(read_set("nestful", folder))
    assert rows["non-executable-glaive-0"].calls == (
        {"tool": "get_route", "args": {"places": ["Oslo", "Town0"]}},
        {"tool": "get_pace", "args": {"km": {"ref": 1, "field": "distance"}, "all": [{"ref": 1, "field": None}, 2]}},
    )
    (bus,) = rows["non-executable-sgd-0"].tools
    fare = bus["parameters"]["properties"]["fare"]
    assert (fare["default"], fare["enum"]) == ("Economy", ["Economy", "Flexible"])
    assert bus["parameters"]["required"] == ["origin"]


def test_ultratool_and_break(folder: Path) -> None:
    row = read_set("ultratool", folder)[0]
    assert row.answer == "1 read_file()\n2 send_file(#1)\n"
    words = read_set("break", folder)[0]
    assert words.request == "Who wrote book 0, then?"
    assert words.answer == "1 book 0\n2 the writer of #1\n"
    assert words.prompt.startswith("Request: ")


def test_a_set_that_is_unknown_or_broken_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no plan set 'bfcl'"):
        read_set("bfcl", folder)
    with pytest.raises(DataError, match="'snips' cannot be read"):
        read_set("snips", tmp_path)
    (tmp_path / "snips").mkdir()
    (tmp_path / "snips/train.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(DataError, match="'snips' cannot be read"):
        read_set("snips", tmp_path)


def test_types_in_the_spelling_of_other_languages() -> None:
    assert parameter_schema({"type": "List", "items": {"type": "float"}}) == {
        "type": "array",
        "items": {"type": "number"},
    }
    assert parameter_schema({}) == {"type": "string"}
    assert function_of("f", "", {"a": {"type": "int"}}, ["a", "b"], None)["parameters"]["required"] == ["a"]


@pytest.mark.parametrize("name", sorted(SETS))
def test_the_real_sets(name: str) -> None:
    if not DATA.is_dir():
        pytest.skip("shared/data is absent")
    rows = read_set(name, DATA)
    least = {"sgd": 11_000, "snips": 13_000, "seal_tools": 650, "nestful": 100, "ultratool": 3_000, "break": 1_900}
    assert len(rows) >= least[name]
    assert all(row.request.strip() for row in rows)


def test_rows_are_split_once(folder: Path) -> None:
    rows = read_set("snips", folder)
    train, held = split_rows(rows, 0.2, seed=1)
    assert len(held) == 14
    assert sorted(row.id for row in [*train, *held]) == sorted(row.id for row in rows)
    assert split_rows(rows, 0.2, seed=1) == (train, held)


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ({"tool": "g", "args": {}}, "'g' is not shown"),
        ({"tool": "f", "args": {"a": 1, "z": 2}}, "no parameter 'z'"),
        ({"tool": "f", "args": {}}, "'a' is left out"),
        ({"tool": "f", "args": {"a": [{"ref": 1, "field": None}]}}, "refers to call 1"),
        ({"tool": "f", "args": {"a": {"ref": 0}}}, "refers to call 0"),
        ({"tool": "f", "args": {"a": None}}, None),
    ],
)
def test_faults_of_a_row(call: dict[str, Any], fault: str | None) -> None:
    row = PlanRow("x", "do it", (function_of("f", "", {"a": {}}, ["a"], None),), (call,))
    assert [fault in each for each in row.faults()] == ([True] if fault else [])


def test_references_are_found_and_changed_anywhere() -> None:
    value = {"a": [{"ref": 1, "field": "x"}, {"b": {"ref": 2}}], "c": "#1"}
    assert [each["ref"] for each in references(value)] == [1, 2]
    changed = with_references(value, lambda each: {"ref": each["ref"] + 1, "field": None})
    assert [each["ref"] for each in references(changed)] == [2, 3]
    assert changed["c"] == "#1"


def test_rows_are_written_as_json_lines(folder: Path, tmp_path: Path) -> None:
    import json

    rows = [*read_set("sgd", folder), *read_set("break", folder)]
    assert write_plan_rows(rows, tmp_path / "rows.jsonl") == len(rows)
    documents = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [document["id"] for document in documents] == [row.id for row in rows]
    assert documents[0]["calls"] == list(rows[0].calls)
    assert documents[-1]["steps"] == list(rows[-1].steps or ())


# The mixture


def sheets(folder: Path, count: int, **options: Any) -> list[list[PlanRow]]:
    return list(itertools.islice(Mixture(folder, seed=4, **options).groups(), count))


@pytest.mark.untraced
def test_the_sheets_of_a_mixture_are_sound_and_of_all_sources(folder: Path) -> None:
    groups = sheets(folder, 400)
    for group in groups:
        assert [row.faults() for row in group] == [[]] * len(group)
        assert all(row.tools == group[0].tools for row in group)
    sources = {row.source.partition(":")[0] for group in groups for row in group}
    assert sources == {"generated", *SETS}


@pytest.mark.untraced
def test_what_is_held_out_never_appears(folder: Path) -> None:
    held = frozenset({"sgd-chain", "sgd-0", "snips-1", "seal-getWeather-1", "ultratool-0", "break-1"})
    groups = sheets(folder, 400, held_out=held, held_out_fields=frozenset({"Health/Staff", "Health/Body"}))
    ids = {row.id for group in groups for row in group}
    assert not ids & held
    assert {"sgd-1", "snips-2", "seal-getWeather-2", "ultratool-1", "break-2"} <= ids
    withheld = {_plain(name) for name, field in SEAL_FIELDS.items() if field.startswith("Health")}
    shown = {_plain(tool["name"]) for group in groups for row in group for tool in row.tools}
    assert not shown & withheld
    assert _plain("getWeather") in shown
    asked = " ".join(row.request for group in groups for row in group)
    assert "findNurse" not in asked
    assert "getPulse" not in asked


def test_more_tools_are_generated_for_and_for_nothing_else(folder: Path) -> None:
    depth = {"type": "object", "properties": {"depth": {"type": "integer"}}, "required": ["depth"]}
    more = [{"name": f"dive{n}", "description": f"Dive {n}.", "field": "sea", "parameters": depth} for n in range(40)]
    groups = sheets(folder, 200, more=more)
    rows = [row for group in groups for row in group if any("dive" in call["tool"].lower() for call in row.calls)]
    assert {row.source.partition(":")[0] for row in rows} == {"generated"}


def test_sets_that_are_too_small_are_named(folder: Path) -> None:
    held = frozenset(row.id for name in ("snips", "ultratool") for row in read_set(name, folder))
    with pytest.raises(DataError, match="too few rows to learn from: snips 0 of 40, ultratool 0 of 3"):
        Mixture(folder, seed=0, held_out=held)


def _plain(name: str) -> frozenset[str]:
    """A tool's name under any style: its words."""

    from agent_forge.learning.values import name_words

    return frozenset(name_words(name))


SCRIPT = """
import hashlib, itertools, sys
from pathlib import Path
from agent_forge.learning.mixture import Mixture
groups = itertools.islice(Mixture(Path(sys.argv[1]), seed=9).groups(), 120)
print(hashlib.sha256("".join(row.prompt + row.answer for group in groups for row in group).encode()).hexdigest())
"""


@pytest.mark.untraced
def test_the_same_seed_gives_the_same_sheets_in_every_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here, and in a process with another seed for the hashes of strings."""
    monkeypatch.setattr(sys, "argv", ["-c", str(folder)])
    exec(SCRIPT, {})
    env = {**os.environ, "PYTHONHASHSEED": "1"}
    other = subprocess.run([sys.executable, "-c", SCRIPT, str(folder)], env=env, capture_output=True, text=True)
    assert other.stdout == capsys.readouterr().out != "", other.stderr


def test_a_share_of_nothing_is_never_drawn(folder: Path) -> None:
    shares = Shares(generated=0, sgd=0, snips=1, seal_tools=0, nestful=0, ultratool=0, words=0)
    assert {row.source for group in sheets(folder, 20, shares=shares) for row in group} == {"snips"}


def test_what_a_planner_is_judged_on_is_not_in_its_public_sheets(folder: Path) -> None:
    config = PlannerSettings(public=str(folder), sheets=40, judged=4)
    held_out = {row.id for row in gather(config, seed=2).held_out}
    assert {name.partition("-")[0] for name in held_out} == {"sgd", "snips", "seal", "ultratool"}
    groups = public_groups(config, seed=2)
    assert len(groups) == 40
    assert not held_out & {row.id for group in groups for row in group}
    assert public_groups(PlannerSettings(data=("rows.jsonl",)), seed=2) == []


def test_what_nobody_said_is_left_open() -> None:
    tools = (function_of("f", "", {"city": {}, "unit": {}, "day": {}}, ["city", "day"], None),)
    args = {"city": "Rome", "unit": "celsius", "day": {"ref": 1, "field": None}}
    (call,) = as_missing(PlanRow("x", "The weather in Oslo", tools, ({"tool": "f", "args": args},))).calls
    assert call["args"] == {"city": None, "day": {"ref": 1, "field": None}}
    (call,) = as_missing(PlanRow("x", "rome in Celsius", tools, ({"tool": "f", "args": args},))).calls
    assert call["args"] == args


def test_strings_are_written_as_they_were_said() -> None:
    assert as_said("american", "Some American food") == "American"
    assert as_said("American", "some american food") == "American"  # a name keeps its capital
    assert as_said("Oslo", "Rome") == "Oslo"
    assert values_of([PlanRow("x", "", (), ({"tool": "f", "args": {"a": "bb", "n": 3, "c": "b"}},))]) == {"a": ["bb"]}
