"""What is it worth to start tasks while the plan is still being written? On the shared gold plan graphs.

A planner writes one task every 0.5 s, in the order of the gold plan; tools take log-normal times (median 1 s, sigma 1).
The executor itself runs, on simulated time. Figures are the end-to-end time over that of the streamed run (1.00), the
mean over the plans of a set: "plan, then run" waits for the whole plan and runs it with the same executor, "plan, then
levels" level by level, "one by one" is one task after another with a planning step before each.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from collections.abc import AsyncIterator
from typing import Any

import _gold_plans

from agent_forge.plans import Plan, Task
from agent_forge.runtime import execute, run_simulated

PLANNING_S = 0.5
GOAL = 1.15


def tasks_of(gold: _gold_plans.GoldPlan) -> list[Task]:
    return [
        Task(f"n{index}", depends_on=[f"n{a}" for a, b in sorted(gold.edges) if b == index])
        for index in range(len(gold.nodes))
    ]


async def written(tasks: list[Task], planning_s: float) -> AsyncIterator[Task]:
    for task in tasks:
        await asyncio.sleep(planning_s)
        yield task


def times(tasks: list[Task], durations: dict[str, float], planning_s: float) -> dict[str, float]:
    async def handler(task: Task, inputs: dict[str, Any]) -> None:
        await asyncio.sleep(durations[task.id])

    plan = Plan(tasks)
    planning = planning_s * len(tasks)
    streamed = run_simulated(execute(written(tasks, planning_s), handler))
    whole = run_simulated(execute(plan, handler))
    assert streamed.state == whole.state == "done"
    return {
        "streamed": streamed.wall_s,
        "plan, then run": planning + whole.wall_s,
        "plan, then levels": planning + sum(max(durations[name] for name in level) for level in plan.levels()),
        "one by one": planning + sum(durations.values()),
    }


def measure(name: str, most: int, planning_s: float) -> dict[str, float] | None:
    """Mean ratios to the streamed run over the valid plans of a set with at least two tasks."""
    rows: list[dict[str, float]] = []
    for gold in _gold_plans.load(name):
        if len(gold.nodes) < 2:
            continue
        rng = random.Random(gold.id)
        tasks = tasks_of(gold)
        durations = {task.id: rng.lognormvariate(0.0, 1.0) for task in tasks}
        result = times(tasks, durations, planning_s)
        rows.append({key: value / result["streamed"] for key, value in result.items()})
        if len(rows) == most:
            break
    if not rows:
        return None
    return {key: statistics.mean(row[key] for row in rows) for key in rows[0]} | {"plans": len(rows)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 plans of each set instead of 300")
    parser.add_argument("--planning-s", type=float, default=PLANNING_S)
    options = parser.parse_args()
    names = ("plan, then run", "plan, then levels", "one by one")
    print(f"end-to-end time / streamed, {options.planning_s:g} s of planning per task, simulated time")
    print(f"{'set':28s}{'plans':>7s}" + "".join(f"{name:>19s}" for name in names))
    rows = []
    for name in _gold_plans.SETS:
        row = measure(name, 20 if options.quick else 300, options.planning_s)
        if row is not None:
            rows.append(row)
            print(f"{name:28s}{row['plans']:7.0f}" + "".join(f"{row[key]:19.2f}" for key in names), flush=True)
    means = {key: statistics.mean(row[key] for row in rows) for key in names}
    verdict = "met" if means["plan, then run"] >= GOAL else "missed"
    print(f"{'mean of the sets':35s}" + "".join(f"{means[key]:19.2f}" for key in names))
    print(f"goal: streamed at least {GOAL} x faster than plan, then run: {verdict}")


if __name__ == "__main__":
    main()
