from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import agent_forge.runtime
from agent_forge.runtime import RunResult, TaskResult, run_simulated
from agent_forge.runtime.result import ENDED, FAILURES, TASK_STATES
from agent_forge.runtime.simulated import NothingLeft

MODULES = [f"agent_forge.runtime.{found.name}" for found in pkgutil.iter_modules(agent_forge.runtime.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings(name: str) -> None:
    if name.endswith("process_worker"):
        pytest.skip("it has no examples and is a program")
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_state_has_its_sentence() -> None:
    assert set(ENDED) | {"done"} == set(TASK_STATES)
    assert set(FAILURES) < set(TASK_STATES)


def test_durations_and_the_longest_chain_without_a_plan() -> None:
    tasks = {
        "a": TaskResult("done", started_s=0.0, ended_s=2.0),
        "b": TaskResult("failed", started_s=2.0, ended_s=3.0),
        "c": TaskResult("skipped"),
    }
    result = RunResult("r", "failed", tasks, 3.0, needs={"a": (), "b": ("a", "ghost"), "c": ("b",)})
    assert result.critical_path_s == 3.0
    assert tasks["c"].duration_s == 0.0
    assert not result.ok
    assert tasks["a"].ok


def test_simulated_time_notices_what_would_never_end() -> None:
    import asyncio

    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(NothingLeft):
        run_simulated(forever())


def test_results_made_when_asked_for_are_those_of_a_dictionary() -> None:
    from agent_forge.runtime.result import TaskResults

    failed = TaskResult("failed", error="no", attempts=1)
    tasks = TaskResults(("b", "a"), {"a": (11.0, 12.5), "b": failed}, {"a": {"x": 1}}, 10.0)
    expected = {"b": failed, "a": TaskResult("done", {"x": 1}, None, 1.0, 2.5, 1)}
    assert list(tasks.states()) == ["failed", "done"]
    assert RunResult("r", "failed", tasks, 3.0).counts() == {"failed": 1, "done": 1}
    assert list(tasks) == ["b", "a"]
    assert len(tasks) == 2
    assert "a" in tasks
    assert "c" not in tasks
    assert tasks == expected
    assert repr(tasks) == repr(expected)
    assert tasks["a"] is tasks["a"]  # what a caller changes stays changed
    with pytest.raises(KeyError):
        tasks["c"]
