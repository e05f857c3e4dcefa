"""Results of pure tools across runs: kept by tool, version and arguments, and by nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_forge import Plan, Task, run, tool
from agent_forge.agents import Tool
from agent_forge.agents.tools.cache import FILE, version_of
from agent_forge.errors import ToolError
from agent_forge.traces import Store

CALLS: list[Any] = []


def squares(home: Path, *numbers: Any, of: Tool, **options: Any) -> list[Any]:
    tasks = [Task(f"t{index}", action=of.name, args={"n": number}) for index, number in enumerate(numbers)]
    result = run(Plan(tasks), tools=[of], home=home, **{"cache": True, **options})
    return [task.result if task.ok else task.state for task in result.tasks.values()]


def called() -> list[Any]:
    calls, CALLS[:] = list(CALLS), []
    return calls


@tool(pure=True)
def square(n: float) -> float:
    """The square of a number."""
    CALLS.append(n)
    return n * n


def test_a_result_is_found_by_tool_version_and_arguments(tmp_path: Path) -> None:
    called()
    assert squares(tmp_path, 2, 3, of=square) == [4, 9]
    assert sorted(called()) == [2, 3]
    assert squares(tmp_path, 3, 4, of=square) == [9, 16]
    assert called() == [4]
    assert squares(tmp_path, 3, of=square, cache=False) == [9]
    assert called() == [3]

    @tool(pure=True, name="square", version="2")
    def other(n: float) -> float:
        """Another version."""
        CALLS.append(n)
        return -n * n

    assert squares(tmp_path, 3, of=other) == [-9]
    assert squares(tmp_path, 3, of=other) == [-9]
    assert squares(tmp_path / "elsewhere", 3, of=square) == [9]
    assert called() == [3, 3]


def test_the_version_follows_the_source() -> None:
    def one(n: int) -> int:
        """One."""
        return n

    def two(n: int) -> int:
        """One."""
        return n + 1

    assert version_of(tool(one)) == version_of(tool(one)) != version_of(tool(two))
    assert version_of(tool(name="x", version="7")(one)) == "7"
    space: dict[str, Any] = {}
    exec("def typed(n: int) -> int:\n    return n * 2\n", space)  # no source to be had
    assert version_of(tool(space["typed"])) != version_of(tool(one))


def test_neither_impure_tools_nor_errors_nor_odd_results_are_kept(tmp_path: Path) -> None:
    @tool
    def impure(n: int) -> int:
        """Not marked."""
        CALLS.append(n)
        return n

    @tool(pure=True)
    def fails_first(n: int) -> int:
        """Fails once."""
        CALLS.append(n)
        if CALLS.count(n) == 1:
            raise ValueError("not yet")
        return n

    @tool(pure=True)
    def pairs(n: int) -> Any:
        """Gives a tuple."""
        CALLS.append(n)
        return {"pair": (n, n)}

    called()
    for each in (impure, pairs):
        for _ in range(2):
            squares(tmp_path, 5, of=each)
        assert called() == [5, 5]
    assert squares(tmp_path, 5, of=fails_first, repairs=0) == ["failed"]
    assert squares(tmp_path, 5, of=fails_first) == [5]
    assert squares(tmp_path, 5, of=fails_first) == [5]
    assert called() == [5, 5]
    with pytest.raises(ToolError, match="not pure"):
        tool(name="x", pure=True, side_effects=True)(lambda: None)


def test_a_hit_is_marked_in_the_trace_and_a_broken_cache_costs_a_warning(tmp_path: Path) -> None:
    plan = Plan([Task("a", action="square", args={"n": 8})])
    run(plan, tools=[square], home=tmp_path, cache=True)
    result = run(plan, tools=[square], home=tmp_path, cache=True)
    with Store.open(tmp_path) as store:
        marked = [span for span in store.trace(str(result.trace_id)) if span.attributes.get("agent_forge.cached")]
    assert len(marked) == 1
    (tmp_path / FILE).write_bytes(b"something else" * 1000)
    for suffix in ("-wal", "-shm"):
        (tmp_path / f"{FILE}{suffix}").unlink(missing_ok=True)
    called()
    result = run(plan, tools=[square], home=tmp_path, cache=True)
    assert (result.tasks["a"].result, called()) == (64, [8])
    assert "the result cache is not used" in result.warnings[0]
    assert (tmp_path / FILE).read_bytes().startswith(b"something else")
