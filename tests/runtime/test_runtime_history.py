"""What an onlooker sees of the journal: every task's last word, runs a page at a time, and that something is new."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agent_forge.errors import StoreError
from agent_forge.plans import Task
from agent_forge.runtime import Journal, execute
from agent_forge.runtime.history import History

DIAMOND = [
    Task("a", "begin"),
    Task("b", depends_on=["a"]),
    Task("c", depends_on=["b"]),
    Task("d", depends_on=["a"]),
]


async def handler(task: Task, inputs: dict[str, Any]) -> Any:
    await asyncio.sleep(0)
    if task.id == "b":
        raise ValueError("no")
    return {"id": task.id}


def run(home: Path, name: str, work: Any = handler, tasks: Any = DIAMOND) -> Any:
    journal = Journal.open(home)
    try:
        return asyncio.run(execute(tasks, work, journal=journal, run_id=name))
    finally:
        journal.close()


def test_every_task_is_there_however_it_ended(tmp_path: Path) -> None:
    run(tmp_path, "one")
    record = History.open(tmp_path).load("one")
    assert {name: task.state for name, task in record.tasks.items()} == {
        "a": "done", "b": "failed", "c": "skipped", "d": "done",
    }  # fmt: skip
    assert record.tasks["b"].error == "ValueError: no"
    assert record.tasks["d"].result == {"id": "d"}
    assert record.tasks["c"].duration_s is None
    assert record.tasks["a"].duration_s is not None
    assert record.plan is not None
    assert list(record.plan.tasks) == ["a", "b", "c", "d"]
    assert (record.line.state, record.line.done, record.line.failed) == ("failed", 2, 1)


def test_pages_neither_overlap_nor_leave_out(tmp_path: Path) -> None:
    for number in range(5):
        run(tmp_path, f"run-{number}", tasks=[Task("d")])
    history = History.open(tmp_path)
    first, after = history.page(limit=2)
    second, more = history.page(limit=2, before=after)
    third, end = history.page(limit=2, before=more)
    assert [line.run for line in (*first, *second, *third)] == [f"run-{n}" for n in (4, 3, 2, 1, 0)]
    assert end is None
    assert history.count() == 5
    assert history.page(state="failed") == ([], None)


def test_a_run_in_progress_shows_where_it_stands_and_its_version_moves(tmp_path: Path) -> None:
    history = History.open(tmp_path)
    seen: list[tuple[str, str]] = []

    async def looks(task: Task, inputs: dict[str, Any]) -> str:
        await asyncio.sleep(0.01)
        states = {name: found.state for name, found in history.load("live").tasks.items()}
        seen.append((history.version("live"), states[task.id]))
        return "x"

    before = history.version()
    run(tmp_path, "live", looks, [Task("a"), Task("b", depends_on=["a"])])
    assert [state for _, state in seen] == ["running", "running"]
    assert len({version for version, _ in seen} | {history.version("live")}) == 3
    assert history.version() != before


def test_fanned_out_tasks_keep_their_elements(tmp_path: Path) -> None:
    async def work(task: Task, inputs: dict[str, Any]) -> Any:
        return [1, 2] if task.id == "many" else task.goal

    run(tmp_path, "fan", work, [Task("many"), Task("each", "look at {item}", for_each="{many}")])
    each = History.open(tmp_path).load("fan").tasks["each"]
    assert [each.items[place].result for place in sorted(each.items)] == ["look at 1", "look at 2"]


def test_an_abandoned_run_is_interrupted(tmp_path: Path) -> None:
    run(tmp_path, "left")
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        connection.execute("UPDATE runs SET state = 'running', ended_s = NULL, created_s = created_s - 60")
        connection.execute("UPDATE task_log SET state = 'started' WHERE task = 'd'")
    record = History.open(tmp_path).load("left")
    assert record.line.state == "interrupted"
    assert record.tasks["d"].state == "interrupted"


def test_what_is_not_there_or_not_ours(tmp_path: Path) -> None:
    history = History.open(tmp_path)
    assert history.page() == ([], None)
    assert (history.count(), history.find("x"), history.of_trace("0" * 32)) == (0, None, None)
    with pytest.raises(StoreError, match="there is no run 'x'"):
        history.load("x")
    (tmp_path / "runs.db").write_bytes(b"")
    with pytest.raises(StoreError, match="not a journal"):
        history.page()
