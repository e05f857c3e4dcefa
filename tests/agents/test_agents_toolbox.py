"""Toolboxes: names, modules, handlers, and the check before a run."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_forge.agents import PlanRefused, Tool, Toolbox, as_handler, check, tool
from agent_forge.agents.tools import ArgumentsInvalid, UnknownTool
from agent_forge.errors import ToolError
from agent_forge.plans import Plan, Task


@tool
def add(a: float, b: float) -> float:
    """Adds."""
    return a + b


@tool
def shout(text: str, times: int = 1) -> str:
    """Louder."""
    return text.upper() * times


BOX = Toolbox([add, shout])


def test_names_and_specs() -> None:
    assert BOX.names == ("add", "shout")
    assert len(BOX) == 2
    assert "add" in BOX
    assert list(BOX) == [add, shout]
    assert repr(BOX) == "Toolbox(add, shout)"
    spec = BOX.specs()[0]
    assert spec["type"] == "function"
    assert spec["function"]["name"] == "add"
    assert spec["function"]["parameters"]["required"] == ["a", "b"]
    assert asyncio.run(BOX.call("shout", {"text": "a", "times": 2})) == "AA"


def test_unknown_tool_names_the_nearest() -> None:
    with pytest.raises(UnknownTool, match="no tool 'shuot', did you mean 'shout'"):
        BOX.get("shuot")
    with pytest.raises(UnknownTool, match="known: add, shout"):
        BOX.get("zzz")
    with pytest.raises(UnknownTool, match=r"no tool .x.$"):
        Toolbox().get("x")


def test_registering() -> None:
    box = Toolbox()

    def plain(x: int) -> int:
        return x

    made = box.register(plain)
    assert isinstance(made, Tool)
    assert box.register(made) is made
    with pytest.raises(ToolError, match="two tools named 'plain'"):
        box.register(plain)


SOURCE = """
from __future__ import annotations
from dataclasses import dataclass
from agent_forge.agents import tool

@dataclass
class Pair:
    a: int
    b: int

@tool
def total(pair: Pair) -> int:
    "Sums a pair."
    return pair.a + pair.b

_hidden = total
"""


def test_tools_from_a_file_and_from_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_pair_tools.py").write_text(SOURCE, encoding="utf-8")
    from_file = Toolbox.from_module(tmp_path / "my_pair_tools.py")
    assert asyncio.run(from_file.call("total", {"pair": {"a": 1, "b": 2}})) == 3
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    from_module = Toolbox.from_module("my_pair_tools")
    assert from_module.names == ("total",)
    assert sys.path == before
    assert "calculator" in Toolbox.from_module("agent_forge.agents.tools.calculator")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = 1", "it contains no tools"),
        ("import no_such_thing", "importing it failed with ModuleNotFoundError: No module named 'no_such_thing'"),
        ("1/0", "importing it failed with ZeroDivisionError"),
        ("import sys; sys.exit(3)", "importing it failed with SystemExit"),
        ("def (", "importing it failed with SyntaxError"),
        (
            "from agent_forge.agents import tool\n@tool\ndef f() -> int: return 1\ng = f\n"
            "@tool\ndef h() -> int: return 2\n@tool(name='h')\ndef i() -> int: return 3\n",
            "two tools named 'h'",
        ),
        ("from agent_forge.agents import tool\n@tool\ndef f(x) -> int: return 1\n", "argument 'x': it has no type"),
    ],
)
def test_modules_that_cannot_be_used(tmp_path: Path, source: str, words: str) -> None:
    path = tmp_path / "tools_under_test.py"
    path.write_text(source, encoding="utf-8")
    with pytest.raises(ToolError) as caught:
        Toolbox.from_module(path)
    assert words in str(caught.value)
    if "no tools" not in words and "two tools" not in words:
        assert "agent_forge_tools_tools_under_test" not in sys.modules


def test_modules_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolError, match="there is no such file"):
        Toolbox.from_module(tmp_path / "none.py")
    with pytest.raises(ToolError, match="no_such_module: there is no such module"):
        Toolbox.from_module("no_such_module")
    with pytest.raises(ToolError, match="there is no such module"):
        Toolbox.from_module("no_such_package.tools")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imports_missing_one.py").write_text("import no_such_dependency\n", encoding="utf-8")
    with pytest.raises(ToolError, match="No module named 'no_such_dependency'"):
        Toolbox.from_module("imports_missing_one")


def test_the_handler_calls_the_tool_that_the_task_names() -> None:
    handler = as_handler(BOX)

    def run(task: Task) -> Any:
        return asyncio.run(handler(task, {}))  # type: ignore[arg-type]

    assert run(Task(id="a", action="add", args={"a": 1, "b": 2})) == 3
    with pytest.raises(UnknownTool, match="task 'a': there is no tool 'adds', did you mean 'add'"):
        run(Task(id="a", action="adds"))
    with pytest.raises(ToolError, match=r"task .b.: it names no tool. Use one of add, shout"):
        run(Task(id="b", goal="think"))
    with pytest.raises(ArgumentsInvalid):
        run(Task(id="c", action="add", args={"a": 1}))


def test_check_finds_every_fault_before_the_run() -> None:
    good = Plan(
        [
            Task(id="a", action="add", args={"a": 1, "b": 2}),
            Task(id="b", action="shout", args={"text": "{a}", "times": "{a}"}),
        ]
    )
    check(good, BOX)
    with pytest.raises(PlanRefused) as caught:
        check(
            Plan(
                [
                    Task(id="a", action="ad"),
                    Task(id="b"),
                    Task(id="c", action="add", args={"a": "one", "c": 1}),
                ]
            ),
            BOX,
        )
    for words in ("task 'a'", "no tool 'ad'", "task 'b': no tool fits", "add(b): it is missing", "'a' must be number"):
        assert words in str(caught.value)
    with pytest.raises(PlanRefused, match="task 'x': no tool"):
        check(Plan([Task(id="x")]), BOX)
    with pytest.raises(PlanRefused, match="there is no argument 'txt', did you mean 'text'"):
        check(
            Plan(
                [
                    Task(id="x", action="shout", args={"txt": "{y}", "text": "a"}),
                    Task(id="y", action="add", args={"a": 1, "b": 1}),
                ]
            ),
            BOX,
        )


def test_groups_need_no_tool() -> None:
    check(Plan([Task(id="g"), Task(id="a", action="add", args={"a": 1, "b": 2}, parent="g")]), BOX)
