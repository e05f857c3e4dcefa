from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from runtime_plans import Lab, random_durations, random_plan

from agent_forge.plans import Task
from agent_forge.runtime import (
    BatchRouter,
    Budget,
    Journal,
    Limits,
    RunResult,
    ToolRules,
    execute_many,
    run_simulated,
    spend,
)


def test_results_come_in_the_order_of_the_plans() -> None:
    plans = [[Task("only", meta={"n": n})] for n in range(8)]

    async def handler(task: Task, inputs: dict[str, Any]) -> int:
        await asyncio.sleep(8 - task.meta["n"])
        return task.meta["n"]

    results = run_simulated(execute_many(plans, handler))
    assert [result.tasks["only"].result for result in results] == list(range(8))


def test_limits_hold_for_all_plans_together() -> None:
    lab = Lab({})
    running = most = 0

    async def handler(task: Task, inputs: dict[str, Any]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1

    plans = [[Task(f"t{n}", action="x") for n in range(5)] for _ in range(4)]
    results = run_simulated(execute_many(plans, handler, concurrency=3))
    assert most == 3
    assert all(result.ok for result in results)
    most = 0
    run_simulated(execute_many(plans, handler, limits=Limits(tools={"x": ToolRules(concurrency=2)})))
    assert most == 2
    assert not lab.running


def finish_times(results: list[RunResult]) -> list[float]:
    return [max(task.ended_s or 0.0 for task in result.tasks.values()) for result in results]


@pytest.mark.parametrize("settings", [{"concurrency": 2}, {"limits": Limits(tools={"x": ToolRules(concurrency=2)})}])
def test_a_large_plan_does_not_keep_small_ones_waiting(settings: dict[str, Any]) -> None:
    large = [Task(f"t{n}", action="x") for n in range(100)]
    small = [[Task("a", action="x"), Task("b", action="x", depends_on=["a"])] for _ in range(3)]
    results = run_simulated(execute_many([large, *small], Lab({}), **settings))
    ends = finish_times(results)
    assert all(end <= 8 for end in ends[1:]), ends
    assert ends[0] == pytest.approx(53)


def test_slot_time_counts_not_the_number_of_tasks() -> None:
    long_tasks = [Task(f"long{n}") for n in range(20)]
    short_tasks = [Task(f"short{n}") for n in range(100)]
    lab = Lab({**{task.id: 10.0 for task in long_tasks}, **{task.id: 1.0 for task in short_tasks}})
    results = run_simulated(execute_many([long_tasks, short_tasks], lab, concurrency=2))
    # 100 s of short work and 200 s of long work on 2 slots: fair is one slot each, so the short plan ends near 100 s.
    assert finish_times(results)[1] <= 130


def test_one_bad_plan_does_not_disturb_the_others() -> None:
    plans: list[Any] = [
        [Task("a")],
        [Task("a", depends_on=["a"])],
        [Task("bad"), Task("b", depends_on=["bad"])],
        [Task("c")],
    ]
    results = run_simulated(execute_many(plans, Lab({}, frozenset({"bad"})), on_failure="fail_fast", run_id="batch"))
    assert [result.state for result in results] == ["done", "failed", "failed", "done"]
    assert results[1].faults[0].code == "cycle"
    assert [result.run for result in results] == [f"batch-{n}" for n in range(4)]


def test_the_budget_is_shared() -> None:
    async def handler(task: Task, inputs: dict[str, Any]) -> None:
        await asyncio.sleep(1)
        spend(tokens=60)

    plans = [[Task(f"t{n}", meta={"est_tokens": 60}) for n in range(3)] for _ in range(3)]
    results = run_simulated(execute_many(plans, handler, budget=Budget(tokens=240)))
    assert sum(result.usage.tokens or 0 for result in results) == 240
    assert sum(result.counts().get("done", 0) for result in results) == 4


def test_many_random_plans_all_end() -> None:
    plans = [random_plan(seed, 12) for seed in range(20)]
    durations = {name: value for plan in plans for name, value in random_durations(plan, 1).items()}
    results = run_simulated(execute_many(plans, Lab(durations), concurrency=5))
    assert all(result.state == "done" for result in results)


def test_a_router_takes_plans_as_they_come(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)

    async def scenario() -> None:
        lab = Lab({"x": 100.0})
        async with BatchRouter(concurrency=2, journal=journal) as router:
            first = router.start([Task("a"), Task("b", depends_on=["a"])], lab, run_id="one")
            await asyncio.sleep(0.5)
            second = await router.execute([Task("c")], lab)
            assert second.ok
            assert (await first.result()).ok
            left = router.start([Task("x")], lab)
            await asyncio.sleep(1)
        assert (await left.result()).state == "cancelled"
        assert not lab.running

    run_simulated(scenario())
    assert {each.state for each in journal.runs()} == {"done", "cancelled"}
    journal.close()
