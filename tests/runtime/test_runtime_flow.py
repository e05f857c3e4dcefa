"""Control flow: every random plan ends as a sequential interpreter says, however often its process dies."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from runtime_flow_plans import Writer, handler, interpret

from agent_forge.plans import Plan, PlanStream, Task, parse_plan, to_json, to_lines, to_xml, to_yaml
from agent_forge.runtime import Journal, RunResult, ToolRules, execute, resume, run_simulated, start
from agent_forge.runtime.limits import Limits

HERE = Path(__file__).parent


def own_ends(plan: Plan, result: RunResult) -> dict[str, tuple[str, Any]]:
    """How the tasks ended that nothing else covers; one that was not carried out may be skipped or not needed."""
    covered = {other for task in plan for other in (*task.first_of, *task.fallback)}
    ends = {name: task for name, task in result.tasks.items() if name in plan and name not in covered}
    plain = {"done": "done", "failed": "failed"}
    return {name: (plain.get(task.state, "none"), task.result) for name, task in ends.items()}


def expected(plan: Plan) -> dict[str, tuple[str, Any]]:
    covered = {other for task in plan for other in (*task.first_of, *task.fallback)}
    return {name: end for name, end in interpret(list(plan), {}).items() if name not in covered}


@pytest.mark.parametrize("seeds", [range(30), range(30, 60)])
def test_a_random_plan_ends_as_the_interpreter_says(seeds: range) -> None:
    for seed in seeds:
        plan = Writer(seed).plan()
        settings: dict[str, Any] = {"concurrency": 2} if seed % 3 == 0 else {}
        result = run_simulated(execute(plan, handler, **settings))
        ends = expected(plan)
        assert own_ends(plan, result) == ends, seed
        assert (result.state == "done") == all(state != "failed" for state, _ in ends.values()), seed
        assert result.critical_path_s <= result.wall_s + 1e-9, seed


def test_a_random_plan_reads_back_from_every_format() -> None:
    for seed in range(30):
        plan = Writer(seed).plan()
        for write in (to_lines, to_xml, to_json, to_yaml):
            assert parse_plan(write(plan)) == plan, (seed, write.__name__)


def test_a_streamed_plan_ends_the_same() -> None:
    async def streamed(plan: Plan, pause_s: float) -> Any:
        stream = PlanStream()
        for line in to_lines(plan).splitlines(keepends=True):
            for task in stream.feed(line):
                yield task
            await asyncio.sleep(pause_s)

    for seed in range(20):
        tasks = list(Writer(seed).plan())
        # A fallback has to come after the task that names it.
        plan = Plan(sorted(tasks, key=lambda task: not task.fallback))
        # A slow stream is still being written when the first tasks in a `do` are done.
        result = run_simulated(execute(streamed(plan, 0.3 if seed % 2 else 8.0), handler))
        assert own_ends(plan, result) == expected(plan), seed
        assert not result.faults


def rows_of(file: Path) -> list[tuple[str, int, str]]:
    with closing(sqlite3.connect(file)) as database:
        return database.execute("SELECT task, item, state FROM task_log ORDER BY seq").fetchall()


def cut_journal(file: Path, seq: int) -> None:
    """Leaves the journal as a process would that died before it wrote this row."""
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("DELETE FROM task_log WHERE seq >= ?", (seq,))
        database.execute("UPDATE runs SET state = 'running', ended_s = NULL")


@pytest.mark.parametrize("seed", [8, 29, 36, 37])
def test_a_journal_cut_anywhere_gives_the_same_end(seed: int, tmp_path: Path) -> None:
    plan = Writer(seed).plan()
    whole = tmp_path / "whole"
    journal = Journal.open(whole)
    undisturbed = run_simulated(execute(plan, handler, journal=journal, run_id="r"))
    journal.close()
    rows = rows_of(whole / "runs.db")
    assert len(rows) > 5
    step = max(1, len(rows) // 16)  # every position of a short journal, many of a long one
    for cut in range(0, len(rows) + 1, step):
        home = tmp_path / f"cut{cut}"
        shutil.copytree(whole, home)
        cut_journal(home / "runs.db", cut)
        called: list[str] = []

        async def counted(task: Task, inputs: dict[str, Any], called: list[str] = called) -> Any:
            called.append(task.id)
            return await handler(task, inputs)

        journal = Journal.open(home)
        resumed = run_simulated(resume("r", counted, journal=journal))
        assert own_ends(plan, resumed) == own_ends(plan, undisturbed), cut
        assert resumed.state == undisturbed.state, cut
        assert journal.load("r").results.keys() >= {name for name in resumed.results if name in plan}
        journal.close()
        last = {(task, item): state for task, item, state in rows[:cut]}
        done = {task if item < 0 else f"{task}[{item}]" for (task, item), state in last.items() if state == "done"}
        assert not done & set(called), f"done before the cut at {cut}, and called again"


VICTIM = """
import asyncio, os, sys
sys.path.insert(0, {here!r})
from runtime_flow_plans import Writer, handler
from agent_forge.runtime import Journal, execute, resume
async def slow(task, inputs):
    await asyncio.sleep(0.01)
    if (count := len(done)) >= limit:
        os.kill(os.getpid(), 9)
    done.append(task.id)
    from runtime_flow_plans import operate
    return operate(task.action, dict(task.args))
journal = Journal.open(sys.argv[1])
done, limit = [], int(sys.argv[2])
plan = Writer(29).plan()
if journal.runs():
    asyncio.run(resume("r", slow, journal=journal))
else:
    asyncio.run(execute(plan, slow, journal=journal, run_id="r"))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL on this system")
def test_kill_9_and_resume(tmp_path: Path) -> None:
    plan = Writer(29).plan()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    code = None
    for life in range(40):
        command = [sys.executable, "-c", VICTIM.format(here=str(HERE)), str(tmp_path), "12"]
        code = subprocess.run(command, env=environment, check=False, capture_output=True, timeout=120).returncode
        if code == 0:
            break
        assert code == -signal.SIGKILL, life
    assert code == 0
    assert life > 0, "it was never killed"
    journal = Journal.open(tmp_path)
    ends = expected(plan)
    results = {name: value for name, value in journal.load("r").results.items() if name in ends}
    assert results == {name: value for name, (state, value) in ends.items() if state == "done"}
    journal.close()


# What single features promise


def run(*tasks: Task, **settings: Any) -> RunResult:
    return run_simulated(execute(Plan(tasks), timed, **settings))


async def timed(task: Task, inputs: dict[str, Any]) -> Any:
    """Sleeps for `s` seconds, then fails if told so; gives its arguments."""
    await asyncio.sleep(task.args.get("s", 1))
    if task.args.get("fails"):
        raise ValueError("told to fail")
    return task.args.get("value", dict(task.args))


def states(result: RunResult) -> dict[str, str]:
    return {name: task.state for name, task in result.tasks.items()}


def test_two_for_each_in_a_row_have_no_barrier() -> None:
    durations = [1.0, *[0.1] * 9]  # one slow element first, then fast ones
    back = durations[::-1]
    values = [{"s": first, "then": second} for first, second in zip(durations, back, strict=True)]
    result = run(
        Task("list", args={"s": 0.01, "value": values}),
        Task("one", args={"s": "{item.s}", "value": "{item}"}, for_each="{list}"),
        Task("two", args={"s": "{item.then}"}, for_each="{one}"),
    )
    ideal = 0.01 + max(first + second for first, second in zip(durations, back, strict=True))
    assert result.ok
    assert result.wall_s <= 1.05 * ideal
    assert result.critical_path_s <= result.wall_s + 1e-9


def test_a_for_each_with_side_effects_waits_for_the_whole_list() -> None:
    values = [{"s": 1, "fails": False}, {"s": 5, "fails": True}]
    plan = [
        Task("list", args={"value": values}),
        Task("one", args={"s": "{item.s}", "fails": "{item.fails}"}, for_each="{list}"),
        Task("two", "send", action="send", args={"x": "{item}"}, for_each="{one}"),
    ]
    limits = Limits(tools={"send": ToolRules(side_effects=True)})
    result = run(*plan, limits=limits)
    assert states(result) == {"list": "done", "one": "failed", "two": "skipped"}
    assert result.usage.calls == 3  # nothing was sent


def test_a_source_that_fails_takes_back_what_had_begun() -> None:
    values = [{"s": 1, "fails": False}, {"s": 5, "fails": True}]
    plan = [
        Task("list", args={"value": values}),
        Task("one", args={"s": "{item.s}", "fails": "{item.fails}"}, for_each="{list}", fallback=["instead"]),
        Task("instead", args={"value": [7, 8, 9]}),
        Task("two", args={"value": "{item}"}, for_each="{one}"),
    ]
    result = run(*plan)
    assert result.ok
    assert result.tasks["two"].result == [7, 8, 9]


def test_first_of_cancels_the_losers() -> None:
    result = run(
        Task("slow", do=[Task("s1", args={"s": 50}), Task("s2", depends_on=["s1"])]),
        Task("fast", args={"s": 2, "value": "fast"}),
        Task("first", first_of=["slow", "fast"]),
        Task("use", args={"value": "{first}"}),
    )
    assert result.ok
    assert result.tasks["use"].result == "fast"
    assert result.wall_s == 3
    assert states(result)["slow"] == "not_needed"


def test_first_of_fails_when_none_is_done() -> None:
    result = run(Task("a", args={"fails": 1}), Task("b", args={"fails": 2}), Task("j", first_of=["a", "b"]))
    assert result.state == "failed"
    assert "none of its tasks is done" in (result.error or "")


@pytest.mark.parametrize("policy", ["skip", "fail_fast", "continue"])
def test_a_fallback_saves_the_run_under_every_policy(policy: str) -> None:
    result = run(
        Task("a", args={"fails": True}, fallback=["b", "c"]),
        Task("b", args={"fails": 1}),
        Task("c", args={"value": 5}),
        Task("d", args={"value": "{a}"}),
        Task("e", do=[Task("e1", args={"fails": 3})], fallback=["f"]),
        Task("f", args={"value": 6}),
        on_failure=policy,
    )
    assert (result.state, result.error) == ("done", None)
    assert result.tasks["a"].result == result.tasks["d"].result == 5
    assert result.tasks["a"].same_as == "c"
    assert result.tasks["e"].result == 6


def test_loops_end() -> None:
    never = Task("n", args={"s": 1}, until="{n.s} > 1", limit=7)
    result = run(never)
    assert result.state == "failed"
    assert "after 7 rounds" in (result.error or "")
    assert result.usage.calls == 7
    unlimited = Task("n", until="{x.s} > 1", do=[Task("x", args={"s": 1})])
    result = run(unlimited, most_rounds=5)
    assert result.usage.calls == 5
    result = run(unlimited, most_parts=3)
    assert result.state == "failed"
    assert "more than 3 tasks" in (result.error or "")


def test_a_condition_that_cannot_be_evaluated_fails_its_task() -> None:
    result = run(Task("a", args={"value": "text"}), Task("b", when="{a} < 3"), Task("c", "{b}"))
    assert states(result) == {"a": "done", "b": "failed", "c": "skipped"}
    assert "'<' not supported" in (result.tasks["b"].error or "")


def test_stopping_a_run_ends_every_part() -> None:
    plan = [
        Task("list", args={"value": [1, 2]}),
        Task("each", for_each="{list}", do=[Task("x", args={"s": 100}), Task("y", depends_on=["x"])]),
        Task("loop", until="{loop} == 1", args={"s": 100}),
        Task("a", args={"fails": True}, fallback=["b"]),
        Task("b", args={"s": 100}),
    ]

    async def cancelled() -> RunResult:
        running = start(Plan(plan), timed)
        await asyncio.sleep(5)
        running.cancel()
        return await running.result()

    result = run_simulated(cancelled())
    assert result.state == "cancelled"
    assert result.wall_s == 5
    assert all(task.state in ("done", "cancelled") for task in result.tasks.values())


def test_an_inner_side_effect_in_doubt_can_be_settled(tmp_path: Path) -> None:
    plan = Plan(
        [
            Task("list", args={"value": [1, 2]}),
            Task("each", for_each="{list}", do=[Task("send", action="send", args={"x": "{item}"})]),
        ]
    )
    limits = Limits(tools={"send": ToolRules(side_effects=True)})
    journal = Journal.open(tmp_path)
    run_simulated(execute(plan, timed, journal=journal, run_id="r", limits=limits))
    journal.close()
    cut_journal(tmp_path / "runs.db", rows_of(tmp_path / "runs.db").index(("each[1].send", -2, "done")))
    journal = Journal.open(tmp_path)
    stored = journal.load("r")
    assert stored.in_doubt == ["each[1].send"]
    doubtful = run_simulated(resume("r", timed, journal=journal, limits=limits))
    assert doubtful.tasks["each"].state == "in_doubt"
    settled = {"each[1].send": ("done", "sent")}
    result = run_simulated(resume("r", timed, journal=journal, limits=limits, settle=settled))
    assert result.tasks["each"].result == [{"send": {"x": 1}}, {"send": "sent"}]
    summary = journal.summary("r")
    assert (summary.tasks, summary.done) == (2, 2)  # parts are not counted beside the tasks of the plan
    assert json.loads(json.dumps(result.as_dict()))["state"] == "done"
    journal.close()
