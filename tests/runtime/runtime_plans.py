"""Random plans and handlers on simulated time, shared by the tests of the runtime."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from agent_forge.plans import Plan, Task
from agent_forge.runtime import RunResult


def random_plan(seed: int, count: int = 30, parents: int = 3, tools: int = 0) -> Plan:
    rng = random.Random(seed)
    tasks = []
    for number in range(count):
        before = rng.sample(range(number), min(number, rng.randint(0, parents)))
        action = f"tool{rng.randrange(tools)}" if tools else None
        tasks.append(Task(f"t{number}", action=action, depends_on=[f"t{other}" for other in before]))
    rng.shuffle(tasks)
    return Plan(tasks)


def random_durations(plan: Plan, seed: int) -> dict[str, float]:
    rng = random.Random(seed)
    return {name: rng.choice([1.0, 2.0, 3.0, 10.0]) * rng.random() for name in plan.leaves}


class Lab:
    """A handler that takes simulated time and remembers what ran when."""

    def __init__(self, durations: Mapping[str, float], failing: frozenset[str] = frozenset()) -> None:
        self.durations = durations
        self.failing = failing
        self.running: set[str] = set()
        self.most_at_once = 0
        self.calls: list[str] = []
        self.ended: list[str] = []
        self.spans: dict[str, tuple[float, float]] = {}

    async def __call__(self, task: Task, inputs: dict[str, Any]) -> str:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.calls.append(task.id)
        self.running.add(task.id)
        self.most_at_once = max(self.most_at_once, len(self.running))
        try:
            await asyncio.sleep(self.durations.get(task.id, 1.0))
            if task.id in self.failing:
                raise ValueError(f"{task.id} fails")
            self.ended.append(task.id)
            return f"result of {task.id}"
        finally:
            self.running.discard(task.id)
            self.spans[task.id] = (began, loop.time())


def descendants(plan: Plan, names: set[str]) -> set[str]:
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        for other in plan.dependents[waiting.pop()]:
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


def level_makespan(plan: Plan, durations: Mapping[str, float]) -> float:
    return sum(max(durations[name] for name in level) for level in plan.levels())


def states(result: RunResult) -> dict[str, str]:
    """How each task ended."""
    return {name: task.state for name, task in result.tasks.items()}


def fresh_url(postgres: str) -> str:
    """The URL of a database without a journal."""
    import psycopg

    url = f"postgresql://postgres@/postgres?host={postgres}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS agent_forge_run_journal CASCADE")
    return url
