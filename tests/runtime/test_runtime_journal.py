from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent_forge.errors import StoreError, UsageError
from agent_forge.plans import Plan, Task
from agent_forge.runtime import Budget, Journal, Limits, Retry, RunResult, TaskResult, ToolRules, execute, resume, spend
from agent_forge.runtime.journal_file import FILE

PLAN = [Task("a"), Task("b", depends_on=["a"]), Task("c", depends_on=["b"])]


class Counting:
    """A handler that counts its calls; while it carries out `die_in`, the home folder is copied: a process that is
    killed at this moment would leave exactly these files."""

    def __init__(self, home: Path | None = None, die_in: str | None = None) -> None:
        self.calls: list[str] = []
        self.home = home
        self.die_in = die_in

    async def __call__(self, task: Task, inputs: dict[str, Any]) -> Any:
        self.calls.append(task.id)
        await asyncio.sleep(0.001)
        if task.id == self.die_in and self.home is not None:
            self.calls_then = list(self.calls)
            shutil.copytree(self.home, self.home / "copy")
        return self.value(task, inputs)

    def value(self, task: Task, inputs: dict[str, Any]) -> Any:
        return {"id": task.id, "from": sorted(inputs)}


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    opened = Journal.open(tmp_path)
    yield opened
    opened.close()


def crash(
    home: Path, plan: Any, die_in: str, handler: type[Counting] = Counting, **settings: Any
) -> tuple[Journal, list[str]]:
    """The journal as a process leaves it that dies in the middle of a task, and the calls it had made."""
    first = Journal.open(home)
    victim = handler(home, die_in)
    asyncio.run(execute(plan, victim, journal=first, run_id="r", **settings))
    first.close()
    return Journal.open(home / "copy"), victim.calls_then


def test_a_resumed_run_repeats_nothing_that_was_finished(tmp_path: Path) -> None:
    journal, calls = crash(tmp_path, PLAN, "b")
    assert calls == ["a", "b"]
    assert [(each.run, each.state, each.done) for each in journal.runs()] == [("r", "interrupted", 1)]
    handler = Counting()
    result = asyncio.run(resume("r", handler, journal=journal))
    assert handler.calls == ["b", "c"]
    assert result.state == "done"
    assert result.run == "r"
    assert result.tasks["a"].reused
    assert result.tasks["a"].result == {"id": "a", "from": []}
    assert [(each.state, each.done, each.tasks) for each in journal.runs()] == [("done", 3, 3)]
    again = Counting()
    assert asyncio.run(resume("r", again, journal=journal)).state == "done"
    assert again.calls == []


def test_a_side_effect_is_at_most_once(tmp_path: Path) -> None:
    plan = [Task("a"), Task("pay", meta={"side_effects": True}), Task("b", depends_on=["pay"])]
    journal, _ = crash(tmp_path, plan, "pay")
    assert journal.load("r").in_doubt == ["pay"]
    handler = Counting()
    result = asyncio.run(resume("r", handler, journal=journal))
    assert "pay" not in handler.calls
    assert result.tasks["pay"].state == "in_doubt"
    assert "not known" in (result.tasks["pay"].error or "")
    assert result.tasks["b"].state == "skipped"
    assert result.state == "failed"
    settled = asyncio.run(resume("r", handler, journal=journal, known={"pay": "receipt 7"}))
    assert settled.state == "done"
    assert "pay" not in handler.calls
    assert journal.load("r").results["pay"] == "receipt 7"


def test_a_side_effect_of_a_tool_is_written_down_before_it_is_called(journal: Journal) -> None:
    seen: list[list[str]] = []

    def handler(task: Task, inputs: dict[str, Any]) -> str:
        other = Journal(journal.path)
        seen.append(other.load("r").in_doubt)
        other.close()
        return "paid"

    limits = Limits(tools={"pay": ToolRules(side_effects=True)})
    plan = [Task("x"), Task("p", action="pay", depends_on=["x"])]
    result = asyncio.run(execute(plan, handler, journal=journal, run_id="r", limits=limits))
    assert seen == [[], ["p"]]
    assert result.state == "done"
    assert journal.load("r").in_doubt == []


def test_failures_are_tried_again_but_not_those_of_side_effects(journal: Journal) -> None:
    async def down(task: Task, inputs: dict[str, Any]) -> Any:
        raise ValueError("down")

    plan = [Task("read"), Task("write", meta={"side_effects": True}), Task("end", depends_on=["read"])]
    first = asyncio.run(execute(plan, down, journal=journal, run_id="r"))
    assert first.state == "failed"
    handler = Counting()
    second = asyncio.run(resume("r", handler, journal=journal))
    assert handler.calls == ["read", "end"]
    assert second.tasks["write"].state == "failed"
    assert second.tasks["write"].error == "ValueError: down"


def test_results_are_the_same_before_and_after_a_resume(journal: Journal) -> None:
    def handler(task: Task, inputs: dict[str, Any]) -> Any:
        return {"pair": (1, 2), 3: None} if task.id == "a" else inputs["a"]

    result = asyncio.run(execute([Task("a"), Task("b", depends_on=["a"])], handler, journal=journal, run_id="r"))
    assert result.tasks["b"].result == {"pair": [1, 2], "3": None} == journal.load("r").results["a"]


def test_a_result_that_is_no_json_fails_its_task(journal: Journal) -> None:
    result = asyncio.run(
        execute([Task("a"), Task("b")], lambda task, inputs: object() if task.id == "a" else 1, journal=journal)
    )
    assert result.tasks["a"].state == "failed"
    assert "not JSON" in (result.tasks["a"].error or "")
    assert result.tasks["b"].state == "done"
    with pytest.raises(Exception, match="not JSON"):
        asyncio.run(execute(PLAN, Counting(), journal=journal, run_id="x", known={"a": object()}))
    assert asyncio.run(resume("x", Counting(), journal=journal)).state == "done", "its lock was given back"


class Doubling(Counting):
    def value(self, task: Task, inputs: dict[str, Any]) -> Any:
        return [1, 2, 3] if task.id == "list" else task.args["x"] * 2


def test_elements_of_a_fan_out_are_not_repeated(tmp_path: Path) -> None:
    plan = [Task("list"), Task("each", args={"x": "{item}"}, for_each="{list}")]
    journal, _ = crash(tmp_path, plan, "each[2]", Doubling, concurrency=1)
    again = Doubling()
    result = asyncio.run(resume("r", again, journal=journal))
    assert again.calls == ["each[2]"]
    assert result.tasks["each"].result == [2, 4, 6]
    whole = asyncio.run(resume("r", again, journal=journal))
    assert whole.tasks["each"].result == [2, 4, 6]
    assert again.calls == ["each[2]"]


def test_elements_with_side_effects_are_at_most_once(tmp_path: Path) -> None:
    plan = [Task("list"), Task("each", args={"x": "{item}"}, for_each="{list}", meta={"side_effects": True})]
    journal, _ = crash(tmp_path, plan, "each[1]", Doubling, concurrency=1)
    again = Doubling()
    result = asyncio.run(resume("r", again, journal=journal))
    assert again.calls == ["each[2]"]
    assert result.tasks["each"].state == "in_doubt"
    assert [item.state for item in result.tasks["each"].items or []] == ["done", "in_doubt", "done"]


def test_a_streamed_plan_is_kept_as_far_as_it_was_written(tmp_path: Path) -> None:
    async def stream() -> AsyncIterator[Task]:
        yield PLAN[0]
        yield PLAN[1]
        while not (tmp_path / "copy").exists():  # the crash is before
            await asyncio.sleep(0.001)
        yield PLAN[2]

    journal, _ = crash(tmp_path, stream(), "b")
    stored = journal.load("r")
    assert stored.plan is not None
    assert list(stored.plan.tasks) == ["a", "b"]
    handler = Counting()
    assert asyncio.run(resume("r", handler, journal=journal)).state == "done"
    assert handler.calls == ["b"]


def test_a_changed_plan_is_kept(journal: Journal) -> None:
    async def update(plan: Plan, name: str, outcome: TaskResult) -> Plan | None:
        return Plan([*PLAN, Task("d", depends_on=["c"])]) if name == "a" else None

    asyncio.run(execute(PLAN, Counting(), journal=journal, run_id="r", update=update))
    stored = journal.load("r")
    assert stored.plan is not None
    assert list(stored.plan.tasks) == ["a", "b", "c", "d"]
    assert [each.tasks for each in journal.runs()] == [4]


def test_settings_and_use_go_on_where_they_were(journal: Journal) -> None:
    async def handler(task: Task, inputs: dict[str, Any]) -> int:
        spend(tokens=10)
        return 1

    budget, retry = Budget(tokens=15), Retry(2, first_s=0.5)
    first = asyncio.run(
        execute(PLAN, handler, journal=journal, run_id="r", budget=budget, retry=retry, on_failure="continue")
    )
    assert first.state == "over_budget"
    stored = journal.load("r")
    assert stored.settings["budget"] == budget
    assert stored.settings["retry"] == retry
    assert stored.usage.tokens == 20
    second = asyncio.run(resume("r", handler, journal=journal))
    assert second.state == "over_budget"
    assert second.usage.tokens == 20
    third = asyncio.run(resume("r", handler, journal=journal, budget=Budget(tokens=100)))
    assert third.state == "done"
    assert third.usage.tokens == 30


def test_names_of_runs(journal: Journal) -> None:
    asyncio.run(execute(PLAN, Counting(), journal=journal, run_id="r"))
    with pytest.raises(StoreError, match="already"):
        asyncio.run(execute(PLAN, Counting(), journal=journal, run_id="r"))
    with pytest.raises(StoreError, match="no run 'x'"):
        asyncio.run(resume("x", Counting(), journal=journal))
    generated = asyncio.run(execute(PLAN, Counting(), journal=journal)).run
    assert [each.run for each in journal.runs()] == [generated, "r"]


def test_a_stream_that_brought_nothing_cannot_be_resumed(journal: Journal) -> None:
    async def nothing() -> AsyncIterator[Task]:
        return
        yield

    asyncio.run(execute(nothing(), Counting(), journal=journal, run_id="r"))
    with pytest.raises(UsageError, match="no plan"):
        asyncio.run(resume("r", Counting(), journal=journal))


def test_a_run_that_is_running_cannot_be_resumed(journal: Journal, tmp_path: Path) -> None:
    async def scenario() -> RunResult:
        async def handler(task: Task, inputs: dict[str, Any]) -> int:
            assert [each.state for each in journal.runs()] == ["running"]
            second = Journal.open(tmp_path)
            with pytest.raises(StoreError, match="another process"):
                await resume("r", Counting(), journal=second)
            second.close()
            code = (
                "import asyncio, sys; from agent_forge.runtime import Journal, resume\n"
                "from agent_forge.errors import StoreError\n"
                "try: asyncio.run(resume('r', print, journal=Journal.open(sys.argv[1])))\n"
                "except StoreError as error: print(error)\n"
            )
            ran = subprocess.run(
                [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60
            )
            assert "is being run by another process" in ran.stdout, ran.stderr
            return 1

        return await execute([Task("a")], handler, journal=journal, run_id="r")

    assert asyncio.run(scenario()).state == "done"
    assert asyncio.run(resume("r", Counting(), journal=journal)).state == "done"


# The file


def foreign_database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE precious (x)")
    connection.execute("INSERT INTO precious VALUES (1)")
    connection.commit()
    connection.close()


def half_written(path: Path) -> None:
    journal = Journal.open(path.parent)
    asyncio.run(execute([Task(f"t{n}") for n in range(2000)], lambda task, inputs: "x" * 50, journal=journal))
    journal._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    journal.close()
    os.truncate(path, path.stat().st_size // 2)


def from_the_future(path: Path) -> None:
    Journal.open(path.parent).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b"a diary, not a database\n" * 100),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000),
        foreign_database,
        half_written,
        from_the_future,
    ],
    ids=["text", "empty", "torn header", "foreign", "half", "future"],
)
def test_a_file_that_is_no_sound_journal_is_refused_and_left_alone(tmp_path: Path, spoil: Any) -> None:
    path = tmp_path / FILE
    spoil(path)
    before = path.read_bytes()
    with pytest.raises(StoreError) as caught:
        Journal.open(tmp_path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before


def test_rows_that_cannot_be_read_are_a_typed_error(journal: Journal) -> None:
    asyncio.run(execute(PLAN, Counting(), journal=journal, run_id="r"))
    journal._connection.execute("UPDATE runs SET plan = '{'")
    with pytest.raises(StoreError, match="cannot be read"):
        journal.load("r")


def test_a_folder_that_cannot_hold_a_journal(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        Journal(tmp_path / "missing" / FILE)


def test_a_full_disk_ends_the_run_with_a_typed_error(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    pages = journal._connection.execute("PRAGMA page_count").fetchone()[0]
    journal._connection.execute(f"PRAGMA max_page_count={pages + 8}")

    async def handler(task: Task, inputs: dict[str, Any]) -> str:
        await asyncio.sleep(0.001)
        return "x" * 3000

    plan = [Task(f"t{n}", depends_on=[f"t{n - 1}"] if n else []) for n in range(100)]
    result = asyncio.run(execute(plan, handler, journal=journal, run_id="r"))
    assert result.state == "failed"
    assert isinstance(result.exception, StoreError)
    assert "full" in (result.error or "")
    assert "resumed" in (result.error or "")
    done = {name for name, task in result.tasks.items() if task.state == "done"}
    assert 0 < len(done) < 100
    journal._connection.execute("PRAGMA max_page_count=1000000")
    finished = asyncio.run(resume("r", handler, journal=journal))
    assert finished.state == "done"
    reused = {name for name, task in finished.tasks.items() if task.reused}
    assert done - reused <= {max(done, key=lambda name: int(name[1:]))}, (
        "at most the one whose commit failed is repeated"
    )
    journal.close()


def test_a_full_disk_before_a_side_effect_keeps_it_from_happening(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    plan = [Task("big"), Task("pay", depends_on=["big"], meta={"side_effects": True})]
    called: list[str] = []

    def handler(task: Task, inputs: dict[str, Any]) -> str:
        called.append(task.id)
        if task.id == "big":
            pages = journal._connection.execute("PRAGMA page_count").fetchone()[0]
            journal._connection.execute(f"PRAGMA max_page_count={pages}")
        return "x" * 100_000

    result = asyncio.run(execute(plan, handler, journal=journal))
    assert called == ["big"]
    assert result.state == "failed"
    assert isinstance(result.exception, StoreError)
    journal.close()


def test_zero_work_tasks_share_their_commits(journal: Journal) -> None:
    commits = 0
    journal._connection.set_trace_callback(lambda statement: count(statement))

    def count(statement: str) -> None:
        nonlocal commits
        commits += statement == "COMMIT"

    asyncio.run(execute([Task(f"t{n}") for n in range(1000)], lambda task, inputs: None, journal=journal, run_id="r"))
    assert commits < 100
    assert len(journal.load("r").results) == 1000


def test_known_results_are_kept_with_the_run(journal: Journal) -> None:
    asyncio.run(execute(PLAN, Counting(), journal=journal, run_id="r", known={"a": [1]}))
    assert journal.load("r").results["a"] == [1]
    row = journal._connection.execute("SELECT settings FROM runs").fetchone()[0]
    assert json.loads(row)["on_failure"] == "skip"


def test_every_kind_of_task_comes_back_as_it_was(journal: Journal) -> None:
    tasks = [
        Task('plain \u00e9 "quoted"', "goal \u2028 {not a reference}"),
        Task("called", action="tool", args={"a": [1, None]}),
        Task("behind", depends_on=["called"], meta={"est_s": 2}),
        Task("group"),
        Task("child", parent="group", limit=3),
    ]
    journal.begin("r", Plan(tasks), {}).close()
    stored = journal.load("r").plan
    assert stored is not None
    assert list(stored) == tasks


@pytest.mark.parametrize("count", [1, 3, 255, 256, 257, 341, 1000])
def test_batches_of_any_size_are_written_whole(journal: Journal, count: int) -> None:
    log = journal.begin("r", None, {})
    for number in range(count):
        log.known(f"t{number}", TaskResult("done", number))
    log.commit()
    log.close()
    assert journal.load("r").results == {f"t{number}": number for number in range(count)}
