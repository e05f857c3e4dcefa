"""Changing a plan while it is carried out: what has not begun is replaced.

A change is a transaction. It returns a new plan with the next version and leaves the old one as it was, or it raises
(`ChangeRefused`, or `PlanInvalid` when the new tasks do not make a plan) and there is no new plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from agent_forge.errors import PlanError
from agent_forge.plans.plan import Plan
from agent_forge.plans.references import ITEM, LAST, rename_heads
from agent_forge.plans.task import Control, Task


class ChangeRefused(PlanError):
    """A change that was not made. `reason` is `unknown` (there is no such task) or `taken` (it has begun)."""

    def __init__(self, reason: str, what: str, fix: str | None = None) -> None:
        super().__init__(what, fix=fix)
        self.reason = reason

    def __reduce__(self) -> tuple[type[ChangeRefused], tuple[str, str, str | None]]:
        return type(self), (self.reason, self.what, self.fix)


def replan(plan: Plan, tasks: Iterable[Task], *, begun: Collection[str]) -> Plan:
    """The begun tasks as they are, and new tasks in the place of all others: a partial replan that keeps work.

    New tasks may use the ids of tasks that are dropped, and may depend on begun ones. A group stays while any leaf
    under it has begun.

    >>> plan = Plan([Task("a"), Task("b", depends_on=["a"])])
    >>> replan(plan, [Task("c", depends_on=["a"])], begun={"a"}).order()
    ['a', 'c']
    """
    new = list(tasks)
    for name in begun:
        if name not in plan:
            raise ChangeRefused("unknown", f"there is no task {name!r}")
    old = [task for task in plan if any(leaf in begun for leaf in plan.leaves_of(task.id))]
    clashes = {task.id for task in old} & {task.id for task in new}
    if clashes:
        raise ChangeRefused("taken", f"task {min(clashes)!r} has begun and cannot be replaced")
    return Plan([*old, *new], version=plan.version + 1, provenance=plan.provenance)


def renamed(task: Task, names: Mapping[str, str]) -> Task:
    """The task with other ids in place of some, in its own id, its dependencies and its references.

    >>> renamed(Task("b", "use {a.x}", args={"q": ["{a}", "{{a}}"]}, depends_on=["a"]), {"a": "c"})
    Task(id='b', goal='use {c.x}', action=None, args={'q': ['{c}', '{{a}}']}, depends_on=('c',), parent=None, \
for_each=None, limit=None, meta={}, control=None)
    """
    # `item` and `last` belong to the innermost task that has them.
    own = {ITEM} if task.for_each is not None else {LAST} if task.until is not None else set()
    inner = {old: new for old, new in names.items() if old not in own}

    def other(value: Any, names: Mapping[str, str] = inner) -> Any:
        if isinstance(value, str):
            return rename_heads(value, names)
        if isinstance(value, Mapping):
            return {key: other(each) for key, each in value.items()}
        return [other(each) for each in value] if isinstance(value, (list, tuple)) else value

    control = task.control
    if control is not None:
        control = Control(
            other(control.when, names),
            other(control.until),
            tuple(names.get(name, name) for name in control.fallback),
            tuple(names.get(name, name) for name in control.first_of),
            tuple(renamed(part, inner) for part in control.do),
        )

    return replace(
        task,
        id=names.get(task.id, task.id),
        goal=other(task.goal),
        args=other(task.args),
        depends_on=tuple(names.get(name, name) for name in task.depends_on),
        parent=names.get(task.parent, task.parent) if task.parent is not None else None,
        for_each=other(task.for_each, names),
        control=control,
    )
