"""Random plans with control flow, a handler for them, and a sequential interpreter that says how they must end.

The interpreter shares nothing with the package but the tasks: it finds references with one regular expression and hands
conditions to Python's own `eval`.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import zlib
from typing import Any

from agent_forge.plans import Plan, Task

REFERENCE = re.compile(r"\{(\w+)((?:\.\w+)*)\}")
ROUNDS = 4


def operate(action: str | None, args: dict[str, Any]) -> Any:
    """What a call gives: it depends on its arguments alone. Raises ValueError for one that fails."""
    seed = zlib.crc32(json.dumps([action, args], sort_keys=True).encode())
    if action == "broken":
        raise ValueError(f"broken {seed % 1000}")
    if action == "list":
        return [(seed >> shift) % 10 for shift in range(seed % 4)]
    if action == "count":
        return (args["last"] or 0) + 1
    return seed % 10


async def handler(task: Task, inputs: dict[str, Any]) -> Any:
    seed = zlib.crc32(f"{task.id} {task.args}".encode())
    await asyncio.sleep(0.5 + seed % 7)
    return operate(task.action, dict(task.args))


class Writer:
    """Writes one random plan."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0

    def plan(self) -> Plan:
        return Plan(self.tasks([], self.random.randint(3, 7), 0))

    def name(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def value(self, seen: list[str]) -> Any:
        """An argument: a number, or the result of a task."""
        return f"{{{self.random.choice(seen)}}}" if seen and self.random.random() < 0.7 else self.random.randint(0, 99)

    def condition(self, seen: list[str]) -> str:
        name = self.random.choice(seen)
        number = self.random.randint(0, 9)
        return self.random.choice(
            [
                f"{{{name}}} > {number}",
                f"{{{name}}} != {number} and not {{{name}}} == 3",
                f"{{{name}}} in [1, 2, {number}]",
            ]
        )

    def call(self, seen: list[str], **fields: Any) -> Task:
        action = "broken" if self.random.random() < 0.12 else "number"
        args = {"x": self.value(seen), "y": self.random.randint(0, 99)}
        return Task(self.name(), action=action, args=args, **fields)

    def tasks(self, numbers: list[str], count: int, depth: int) -> list[Task]:
        """Tasks that may use what is in `numbers`: ids of tasks whose results are numbers."""
        made: list[Task] = []
        seen = list(numbers)
        for _ in range(count):
            numbers_of = [self.plain, self.when, self.fallback, self.branch, self.race]
            kind = self.random.choice([*numbers_of, self.each, self.each, self.repeat, self.do])
            new = kind(seen, depth)
            made += new
            if kind in numbers_of:
                seen.append(new[-1].id)
        self.random.shuffle(made)
        return made

    def inner(self, seen: list[str], depth: int) -> list[Task]:
        return self.tasks(seen, self.random.randint(1, 2), depth + 1)

    def plain(self, seen: list[str], depth: int) -> list[Task]:
        return [self.call(seen)]

    def when(self, seen: list[str], depth: int) -> list[Task]:
        return [self.call(seen, when=self.condition(seen) if seen else None)]

    def fallback(self, seen: list[str], depth: int) -> list[Task]:
        others = [self.call(seen) for _ in range(self.random.randint(1, 2))]
        owner = Task(self.name(), action=self.random.choice(["broken", "number"]), args={"x": self.value(seen)},
                     fallback=[other.id for other in others])  # fmt: skip
        return [*others, owner]

    def branch(self, seen: list[str], depth: int) -> list[Task]:
        if not seen:
            return self.plain(seen, depth)
        condition = self.condition(seen)
        one, other = self.call(seen, when=condition), self.call(seen, when=f"not ({condition})")
        return [one, other, Task(self.name(), first_of=[one.id, other.id])]

    def race(self, seen: list[str], depth: int) -> list[Task]:
        """Whoever wins, the result is the same: which of two is faster may change with a resume."""
        value = self.value(seen)
        one = Task(self.name(), action="number", args={"x": value}, meta={"cache": False})
        two = Task(
            self.name(), action=self.random.choice(["number", "broken"]), args={"x": value}, meta={"cache": False}
        )
        return [one, two, Task(self.name(), first_of=[two.id, one.id])]

    def each(self, seen: list[str], depth: int) -> list[Task]:
        source = Task(self.name(), action="list", args={"x": self.value(seen), "y": self.random.randint(0, 99)})
        first = self.spread(source.id, seen, depth)
        return [source, first, self.spread(first.id, seen, depth)] if self.random.random() < 0.6 else [source, first]

    def spread(self, source: str, seen: list[str], depth: int) -> Task:
        if depth < 2 and self.random.random() < 0.5:
            inside = [Task(self.name(), action="number", args={"i": "{item}"}), *self.inner(seen, depth)]
            return Task(self.name(), for_each=f"{{{source}}}", do=inside)
        action = "number" if self.random.random() < 0.9 else "broken"
        return Task(self.name(), action=action, args={"i": "{item}", "x": self.value(seen)}, for_each=f"{{{source}}}")

    def repeat(self, seen: list[str], depth: int) -> list[Task]:
        name, rounds = self.name(), self.random.randint(1, ROUNDS + 1)
        if depth > 1 or self.random.random() < 0.5:
            return [Task(name, action="count", args={"last": "{last}"}, until=f"{{{name}}} >= {rounds}", limit=ROUNDS)]
        counter = Task(f"{name}_n", action="count", args={"last": f"{{last.{name}_n}}"})
        inside = [counter, *self.inner([*seen, counter.id], depth)]
        return [Task(name, until=f"{{{counter.id}}} >= {rounds}", limit=ROUNDS, do=inside)]

    def do(self, seen: list[str], depth: int) -> list[Task]:
        return [Task(self.name(), do=self.inner(seen, depth))] if depth < 2 else self.plain(seen, depth)


class Failed(Exception):
    """A task of the interpreter failed."""


def interpret(tasks: list[Task], env: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """How each task ends: ("done", result), ("failed", None), or ("none", None) for one that is not carried out."""
    ends: dict[str, tuple[str, Any]] = {}
    table = {task.id: task for task in tasks}
    stand_ins = {other for task in tasks for other in task.fallback}
    values = dict(env)

    def settle(name: str) -> None:
        task = table[name]
        text = json.dumps([task.as_dict(), task.first_of])
        needs = [*task.depends_on, *(head for head, _ in REFERENCE.findall(text)), *task.first_of]
        for need in dict.fromkeys(needs):
            if need in table and need != name and need not in ends:
                settle(need)
        if task.first_of:
            states = [ends[other] for other in task.first_of]
            end = next((end for end in states if end[0] == "done"), None)
            end = end or (("failed", None) if ("failed", None) in states else ("none", None))
        elif any(need in table and need != name and ends[need][0] != "done" for need in needs):
            end = ("none", None)
        else:
            end = attempt(task)
        ends[name] = end
        if end[0] == "done":
            values[name] = end[1]

    def attempt(task: Task) -> tuple[str, Any]:
        try:
            if task.when is not None and not holds(task.when, values):
                return "none", None
            return "done", carry_out(task, values)
        except (Failed, ValueError):
            for other in task.fallback:
                settle(other)
                if ends[other][0] == "done":
                    return ends[other]
            return "failed", None

    for name in table:
        if name not in ends and name not in stand_ins:
            settle(name)
    return ends


def carry_out(task: Task, values: dict[str, Any]) -> Any:
    if task.for_each is not None:
        outcomes = []
        for item in fill(task.for_each, values):
            outcomes.append(one(task, {**values, "item": item}))
        return outcomes
    if task.until is None:
        return one(task, values)
    last: Any = {part.id: None for part in task.do} or None
    for _ in range(task.limit or 0):
        last = one(task, {**values, "last": last})
        inner = {part.id: last.get(part.id) for part in task.do}
        if holds(task.until, {**values, task.id: last, **inner}):
            return last
    raise Failed(task.id)


def one(task: Task, values: dict[str, Any]) -> Any:
    if not task.do:
        return operate(task.action, fill(dict(task.args), values))
    ends = interpret(list(task.do), values)
    covered = {other for part in task.do for other in (*part.first_of, *part.fallback)}
    if any(end[0] == "failed" for name, end in ends.items() if name not in covered):
        raise Failed(task.id)
    return {name: end[1] for name, end in ends.items() if end[0] == "done" and name not in covered}


def fill(value: Any, values: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: fill(each, values) for key, each in value.items()}
    match = REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    found = values[match[1]]
    for step in match[2].split(".")[1:]:
        found = found[step]
    return found


def holds(text: str, values: dict[str, Any]) -> bool:
    return bool(eval(REFERENCE.sub(lambda match: f"({fill(match[0], values)!r})", text)))
