"""Tools that answer from given facts, and plans carried out with them: the result of a plan without the world."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agent_forge.plans import Plan, ReferenceUnresolved, resolve

_MOST = 10**30
Tools = Mapping[str, Callable[..., Any]]


class SimulationFailed(ValueError):
    """A task whose call cannot be answered."""


def simulate(plan: Plan, tools: Tools) -> dict[str, Any]:
    """The results of all tasks by id, each task called with the results it refers to. Raises SimulationFailed.

    >>> from agent_forge.plans import Task
    >>> plan = Plan([Task("a", action="one"), Task("b", action="add", args={"x": "{a}", "y": 2})])
    >>> simulate(plan, {"one": lambda: 1, "add": lambda x, y: x + y})
    {'a': 1, 'b': 3}
    """
    results: dict[str, Any] = {}
    ids = frozenset(plan.tasks)
    for name in plan.order():
        task = plan[name]
        tool = tools.get(task.action or "")
        if tool is None:
            raise SimulationFailed(f"task {name}: there is no tool {task.action!r}")
        try:
            results[name] = tool(**resolve(task.args, results, ids=ids))
        except (TypeError, ValueError, KeyError, ReferenceUnresolved) as error:
            raise SimulationFailed(f"task {name}: {task.action} fails: {error}") from None
    return results


def lookup(facts: Mapping[str, Any], parameter: str) -> Callable[..., Any]:
    """A tool with one argument that looks it up.

    >>> lookup({"Oslo": 7}, "city")(city="Oslo")
    7
    """

    def look(**args: Any) -> Any:
        if set(args) != {parameter} or not isinstance(args[parameter], str) or args[parameter] not in facts:
            raise ValueError(f"nothing is known for {args}")
        return facts[args[parameter]]

    return look


def on_numbers(operation: Callable[[int, int], int]) -> Callable[..., int]:
    """A tool with two numbers `a` and `b`."""

    def work(a: Any, b: Any) -> int:
        for value in (a, b):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
                raise ValueError(f"{value!r} is not a whole number")
            if abs(value) > _MOST:  # squaring it again and again would fill the memory
                raise ValueError("the numbers get too large")
        return operation(int(a), int(b))

    return work
