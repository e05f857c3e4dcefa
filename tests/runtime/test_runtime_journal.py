"""The journal, the same in SQLite and PostgreSQL: what a killed process leaves is resumed, nothing is done twice."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from runtime_plans import fresh_url

from agent_forge.errors import StoreError, UnknownRunError, UsageError
from agent_forge.plans import Plan, Task
from agent_forge.runtime import Budget, Journal, Limits, Retry, RunResult, TaskResult, ToolRules, execute, resume, spend
from agent_forge.runtime.journal import FILE

PLAN = [Task("a"), Task("b", depends_on=["a"]), Task("c", depends_on=["b"])]


class Counting:
    """A handler that counts its calls; its process ends, as if killed, while it carries out `die_in`."""

    def __init__(self, die_in: str | None = None, log: Path | None = None) -> None:
        self.calls: list[str] = []
        self.die_in = die_in
        self.log = log

    async def __call__(self, task: Task, inputs: dict[str, Any]) -> Any:
        self.calls.append(task.id)
        await asyncio.sleep(0.001)
        if task.id == self.die_in and self.log is not None:
            self.log.write_text(json.dumps(self.calls))
            os._exit(9)
        return self.value(task, inputs)

    def value(self, task: Task, inputs: dict[str, Any]) -> Any:
        return {"id": task.id, "from": sorted(inputs)}


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A home folder, or the URL of a database without a journal."""
    monkeypatch.delenv("AGENT_FORGE_STORE", raising=False)
    return str(tmp_path) if request.param == "sqlite" else fresh_url(request.getfixturevalue("postgres"))


@pytest.fixture
def journal(place: str) -> Iterator[Journal]:
    opened = Journal.open(place)
    yield opened
    opened.close()


@pytest.fixture
def file_journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal.open(tmp_path)
    yield opened
    opened.close()


def change(journal: Journal, sql: str) -> None:
    with journal._database.write() as cursor:
        cursor.execute(sql)


def crash(
    place: str, log: Path, plan: Any, die_in: str, handler: type[Counting] = Counting, **settings: Any
) -> tuple[Journal, list[str]]:
    """The journal as a process leaves it that dies in the middle of a task, and the calls it had made."""
    child = os.fork()
    if child == 0:
        work = execute(plan, handler(die_in, log), journal=Journal.open(place), run_id="r", **settings)
        asyncio.run(work)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    return Journal.open(place), json.loads(log.read_text())


def test_a_resumed_run_repeats_nothing_that_was_finished(place: str, tmp_path: Path) -> None:
    journal, calls = crash(place, tmp_path / "calls", PLAN, "b")
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


def test_a_side_effect_is_at_most_once(place: str, tmp_path: Path) -> None:
    plan = [Task("a"), Task("pay", meta={"side_effects": True}), Task("b", depends_on=["pay"])]
    journal, _ = crash(place, tmp_path / "calls", plan, "pay")
    assert journal.load("r").in_doubt == ["pay"]
    handler = Counting()
    result = asyncio.run(resume("r", handler, journal=journal))
    assert "pay" not in handler.calls
    assert result.tasks["pay"].state == "in_doubt"
    assert "may or may not have happened" in (result.tasks["pay"].error or "")
    assert result.tasks["b"].state == "skipped"
    assert result.state == "failed"
    settled = asyncio.run(resume("r", handler, journal=journal, known={"pay": "receipt 7"}))
    assert settled.state == "done"
    assert "pay" not in handler.calls
    assert journal.load("r").results["pay"] == "receipt 7"


def test_a_side_effect_of_a_tool_is_written_down_before_it_is_called(journal: Journal, place: str) -> None:
    seen: list[list[str]] = []

    def handler(task: Task, inputs: dict[str, Any]) -> str:
        other = Journal.open(place)
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


def test_elements_of_a_fan_out_are_not_repeated(place: str, tmp_path: Path) -> None:
    plan = [Task("list"), Task("each", args={"x": "{item}"}, for_each="{list}")]
    journal, _ = crash(place, tmp_path / "calls", plan, "each[2]", Doubling, concurrency=1)
    again = Doubling()
    result = asyncio.run(resume("r", again, journal=journal))
    assert again.calls == ["each[2]"]
    assert result.tasks["each"].result == [2, 4, 6]
    whole = asyncio.run(resume("r", again, journal=journal))
    assert whole.tasks["each"].result == [2, 4, 6]
    assert again.calls == ["each[2]"]


def test_elements_with_side_effects_are_at_most_once(place: str, tmp_path: Path) -> None:
    plan = [Task("list"), Task("each", args={"x": "{item}"}, for_each="{list}", meta={"side_effects": True})]
    journal, _ = crash(place, tmp_path / "calls", plan, "each[1]", Doubling, concurrency=1)
    again = Doubling()
    result = asyncio.run(resume("r", again, journal=journal))
    assert again.calls == ["each[2]"]
    assert result.tasks["each"].state == "in_doubt"
    assert [item.state for item in result.tasks["each"].items or []] == ["done", "in_doubt", "done"]


def test_a_streamed_plan_is_kept_as_far_as_it_was_written(place: str, tmp_path: Path) -> None:
    async def stream() -> AsyncIterator[Task]:
        yield PLAN[0]
        yield PLAN[1]
        await asyncio.sleep(60)  # the crash is before
        yield PLAN[2]

    journal, _ = crash(place, tmp_path / "calls", stream(), "b")
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


def test_a_run_that_is_running_cannot_be_resumed(journal: Journal, place: str) -> None:
    async def scenario() -> RunResult:
        async def handler(task: Task, inputs: dict[str, Any]) -> int:
            assert [each.state for each in journal.runs()] == ["running"]
            second = Journal.open(place)
            with pytest.raises(StoreError, match="another process"):
                await resume("r", Counting(), journal=second)
            second.close()
            code = (
                "import asyncio, sys; from agent_forge.runtime import Journal, resume\n"
                "from agent_forge.errors import StoreError\n"
                "try: asyncio.run(resume('r', print, journal=Journal.open(sys.argv[1])))\n"
                "except StoreError as error: print(error)\n"
            )
            ran = subprocess.run([sys.executable, "-c", code, place], capture_output=True, text=True, timeout=60)
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
    change(journal, "UPDATE runs SET plan = '{'")
    with pytest.raises(StoreError, match="cannot be read"):
        journal.load("r")


def test_a_folder_that_cannot_hold_a_journal(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be made"):
        Journal(tmp_path / "file" / FILE)


def allow_pages(journal: Journal, more: int) -> None:
    """What SQLite says when the disk is full, it says when the file may not grow."""
    with journal._database.read() as cursor:
        pages = cursor.execute("PRAGMA page_count").fetchone()[0]
        cursor.execute(f"PRAGMA max_page_count={pages + more}")


def test_a_full_disk_ends_the_run_with_a_typed_error(file_journal: Journal) -> None:
    journal = file_journal
    allow_pages(journal, 8)

    async def handler(task: Task, inputs: dict[str, Any]) -> str:
        await asyncio.sleep(0.001)
        return "x" * 3000

    plan = [Task(f"t{n}", depends_on=[f"t{n - 1}"] if n else []) for n in range(100)]
    result = asyncio.run(execute(plan, handler, journal=journal, run_id="r"))
    assert result.state == "failed"
    assert isinstance(result.exception, StoreError)
    assert "the disk is full. Free some space and continue" in (result.error or "")
    done = {name for name, task in result.tasks.items() if task.state == "done"}
    assert 0 < len(done) < 100
    allow_pages(journal, 1_000_000)
    finished = asyncio.run(resume("r", handler, journal=journal))
    assert finished.state == "done"
    reused = {name for name, task in finished.tasks.items() if task.reused}
    assert done - reused <= {max(done, key=lambda name: int(name[1:]))}, (
        "at most the one whose commit failed is repeated"
    )


def test_a_full_disk_before_a_side_effect_keeps_it_from_happening(file_journal: Journal) -> None:
    plan = [Task("big"), Task("pay", depends_on=["big"], meta={"side_effects": True})]
    called: list[str] = []

    def handler(task: Task, inputs: dict[str, Any]) -> str:
        called.append(task.id)
        if task.id == "big":
            allow_pages(file_journal, 0)
        return "x" * 100_000

    result = asyncio.run(execute(plan, handler, journal=file_journal))
    assert called == ["big"]
    assert result.state == "failed"
    assert isinstance(result.exception, StoreError)


def test_zero_work_tasks_share_their_commits(file_journal: Journal) -> None:
    commits = 0

    def count(statement: str) -> None:
        nonlocal commits
        commits += statement == "COMMIT"

    with file_journal._database.read() as cursor:
        cursor.connection.set_trace_callback(count)
    plan = [Task(f"t{n}") for n in range(1000)]
    asyncio.run(execute(plan, lambda task, inputs: None, journal=file_journal, run_id="r"))
    assert 0 < commits < 100
    assert len(file_journal.load("r").results) == 1000


def test_known_results_are_kept_with_the_run(journal: Journal) -> None:
    asyncio.run(execute(PLAN, Counting(), journal=journal, run_id="r", known={"a": [1]}))
    assert journal.load("r").results["a"] == [1]
    assert journal.load("r").settings["on_failure"] == "skip"


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


def test_notes_come_back_with_the_run(journal: Journal) -> None:
    asyncio.run(execute(PLAN, Counting(), journal=journal, run_id="r", notes={"request": "who?"}))
    asyncio.run(execute(PLAN, Counting(), journal=journal, run_id="plain"))
    assert [run.notes for run in journal.runs()] == [{}, {"request": "who?"}]
    assert journal.summary("r").as_dict().keys() >= {"run", "state", "done", "failed", "trace_id"}


def test_an_error_that_no_database_takes_as_it_is(journal: Journal) -> None:
    async def broken(task: Task, inputs: dict[str, Any]) -> Any:
        raise ValueError("a zero \0 and half a pair \ud800")

    result = asyncio.run(execute([Task("a")], broken, journal=journal, run_id="r"))
    assert result.state == "failed"
    assert "a zero \\x00 and half a pair \\ud800" in (journal.summary("r").error or "")
    assert journal.load("r").tasks["a"].error == result.tasks["a"].error


def test_a_name_that_no_database_takes_ends_the_run(journal: Journal) -> None:
    async def stream() -> AsyncIterator[Task]:  # whose ids are checked when it has ended
        yield Task("\ud800")

    result = asyncio.run(execute(stream(), Counting(), journal=journal, run_id="r"))
    assert (result.state, type(result.exception).__name__) == ("failed", "DataError")


# Where it is kept


def test_home_and_files_are_their_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_FORGE_STORE", raising=False)
    before = os.umask(0o022)
    try:
        journal = Journal.open(tmp_path / "home")
        asyncio.run(execute(PLAN, Counting(), journal=journal, run_id="r"))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "home").iterdir()}
        assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700
    finally:
        os.umask(before)
        journal.close()
    assert modes.keys() == {FILE, f"{FILE}-wal", f"{FILE}-shm", f"{FILE}.lock"}
    assert set(modes.values()) == {0o600}


def test_the_setting_store_names_the_journal_and_every_home_shares_it(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fresh_url(postgres)
    monkeypatch.setenv("AGENT_FORGE_STORE", url)
    first = tmp_path / "first"
    journal, _ = crash(str(first), tmp_path / "calls", PLAN, "b")
    assert journal.where.startswith("postgresql://")
    assert not first.exists()
    journal.close()
    handler = Counting()
    elsewhere = Journal.open(tmp_path / "second")
    assert asyncio.run(resume("r", handler, journal=elsewhere)).state == "done"
    assert handler.calls == ["b", "c"]
    assert [run.state for run in Journal(url).runs()] == ["done"]
    elsewhere.close()


def test_a_lost_connection_ends_the_run_before_another_process_can_take_it(postgres: str) -> None:
    """The connection that writes is the one that holds the claim: without it nothing more is written."""
    import psycopg

    url = fresh_url(postgres)
    journal = Journal(url)
    interrupted: list[str] = []

    async def handler(task: Task, inputs: dict[str, Any]) -> str:
        await asyncio.sleep(0.001)
        if task.id == "b" and not interrupted:
            with psycopg.connect(url, autocommit=True) as other:
                others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'agent-forge'"
                other.execute(others)
            await asyncio.sleep(0.05)
            interrupted.append(Journal(url).summary("r").state)
        return task.id

    result = asyncio.run(execute(PLAN, handler, journal=journal, run_id="r"))
    assert interrupted == ["interrupted"]
    assert result.state == "failed"
    assert isinstance(result.exception, StoreError)
    assert "c" not in result.results
    journal.close()
    again = asyncio.run(resume("r", handler, journal=Journal(url)))
    assert again.state == "done"
    assert [name for name, task in again.tasks.items() if task.reused] == ["a"]


# Looking on

DIAMOND = [Task("a", "begin"), Task("b", depends_on=["a"]), Task("c", depends_on=["b"]), Task("d", depends_on=["a"])]


async def fails_in_b(task: Task, inputs: dict[str, Any]) -> Any:
    await asyncio.sleep(0)
    if task.id == "b":
        raise ValueError("no")
    return {"id": task.id}


def test_every_task_is_there_however_it_ended(journal: Journal) -> None:
    asyncio.run(execute(DIAMOND, fails_in_b, journal=journal, run_id="one"))
    stored = journal.load("one")
    assert {name: task.state for name, task in stored.tasks.items()} == {
        "a": "done",
        "b": "failed",
        "c": "skipped",
        "d": "done",
    }
    assert stored.tasks["b"].error == "ValueError: no"
    assert stored.tasks["d"].result == {"id": "d"}
    assert stored.tasks["c"].duration_s is None
    assert stored.tasks["a"].duration_s is not None
    assert stored.plan is not None
    assert list(stored.plan.tasks) == ["a", "b", "c", "d"]
    assert (stored.summary.state, stored.summary.done, stored.summary.failed) == ("failed", 2, 1)


def test_pages_neither_overlap_nor_leave_out(journal: Journal) -> None:
    for number in range(5):
        asyncio.run(execute([Task("d")], fails_in_b, journal=journal, run_id=f"run-{number}"))
    first, after = journal.page(limit=2)
    second, more = journal.page(limit=2, before=after)
    third, end = journal.page(limit=2, before=more)
    assert [run.run for run in (*first, *second, *third)] == [f"run-{n}" for n in (4, 3, 2, 1, 0)]
    assert end is None
    assert journal.count() == 5
    assert journal.page(state="failed") == ([], None)


def test_a_run_in_progress_shows_where_it_stands_and_its_version_moves(journal: Journal) -> None:
    seen: list[tuple[str, str]] = []

    async def looks(task: Task, inputs: dict[str, Any]) -> str:
        await asyncio.sleep(0.01)
        states = {name: record.state for name, record in journal.load("live").tasks.items()}
        seen.append((journal.version("live"), states[task.id]))
        return "x"

    before = journal.version()
    asyncio.run(execute([Task("a"), Task("b", depends_on=["a"])], looks, journal=journal, run_id="live"))
    assert [state for _, state in seen] == ["running", "running"]
    assert len({version for version, _ in seen} | {journal.version("live")}) == 3
    assert journal.version() != before


def test_fanned_out_tasks_keep_their_elements(journal: Journal) -> None:
    async def work(task: Task, inputs: dict[str, Any]) -> Any:
        return [1, 2] if task.id == "many" else task.goal

    plan = [Task("many"), Task("each", "look at {item}", for_each="{many}")]
    asyncio.run(execute(plan, work, journal=journal, run_id="fan"))
    items = journal.load("fan").tasks["each"].items
    assert [items[index].result for index in sorted(items)] == ["look at 1", "look at 2"]


def test_an_abandoned_run_is_interrupted(journal: Journal) -> None:
    asyncio.run(execute(DIAMOND, fails_in_b, journal=journal, run_id="left"))
    change(journal, "UPDATE runs SET state = 'running', ended_s = NULL")
    change(journal, "UPDATE task_log SET state = 'started' WHERE task = 'd'")
    stored = journal.load("left")
    assert stored.summary.state == "interrupted"
    assert stored.tasks["d"].state == "interrupted"


def test_what_is_not_there(journal: Journal) -> None:
    assert journal.page() == ([], None)
    assert (journal.count(), journal.of_trace("0" * 32)) == (0, None)
    with pytest.raises(UnknownRunError, match="there is no run 'x'"):
        journal.load("x")
