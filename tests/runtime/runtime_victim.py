"""A run of 200 tasks that is killed again and again; every call of the handler is written to a log of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from runtime_plans import random_plan

from agent_forge.plans import Plan, Task
from agent_forge.runtime import Event, Journal, RunResult, execute, resume

EFFECTS = 10  # every tenth task has side effects


def victim_plan() -> Plan:
    plan = random_plan(11, 200)
    return Plan(
        Task(task.id, depends_on=task.depends_on, meta={"side_effects": True} if number % EFFECTS == 0 else {})
        for number, task in enumerate(plan)
    )


async def handler(task: Task, inputs: dict[str, Any]) -> int:
    note(f"start {task.id}")  # writing to a file takes longer than a commit: even without a wait this is real work
    if int(task.id[1:]) % 3:
        await asyncio.sleep(0.002)
    return (sum(inputs.values()) * 31 + int(task.id[1:])) % 1_000_003


def note(line: str) -> None:
    with open(os.environ["VICTIM_LOG"], "a") as file:
        file.write(line + "\n")


def on_event(event: Event) -> None:
    """Events come after the commit, so what is noted here is on disk."""
    if event.kind == "ended" and event.state == "done":
        note(f"done {event.task}")


async def go(home: str) -> RunResult:
    journal = Journal.open(home)
    settings: dict[str, Any] = {"concurrency": 4, "on_event": on_event, "on_failure": "skip"}
    known = {}
    if journal.runs():
        stored = journal.load("r")
        # A person has looked: what is in doubt is settled with the value it has.
        known = dict.fromkeys(stored.in_doubt)
        for name in known:
            note(f"doubt {name}")
        if known:
            values = await execute(victim_plan(), quiet)
            known = {name: values.results[name] for name in known}
        return await resume("r", handler, journal=journal, known=known, **settings)
    return await execute(victim_plan(), handler, journal=journal, run_id="r", **settings)


async def quiet(task: Task, inputs: dict[str, Any]) -> int:
    return (sum(inputs.values()) * 31 + int(task.id[1:])) % 1_000_003


def live(home: str) -> None:
    """One life: it ends by itself when the run does."""
    note("begin")
    result = asyncio.run(go(home))
    note(f"end {result.state}")


def main() -> None:
    """Has everything imported and gives life to a child for each line it reads, so that many can be killed quickly."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            live(line.strip())
            os._exit(0)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
