"""Changing a plan while it is carried out: expand a task into parts, insert new work, replace what has not begun.

Each change is a transaction. It returns a new plan with the next version and leaves the old one as it was, or it raises
(`ChangeRefused`, or `PlanInvalid` when the new tasks do not make a plan) and there is no new plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent_forge.errors import PlanError
from agent_forge.plans.plan import Plan
from agent_forge.plans.references import ITEM, LAST, rename_heads
from agent_forge.plans.task import Control, Task


class ChangeRefused(PlanError):
    """A change that was not made. `reason` is one of `depth`, `tasks`, `parts`, `calls`, `changes` (a budget), or
    `unknown`, `expanded`, `unfinished`, `begun`, `taken`."""

    def __init__(self, reason: str, what: str, fix: str | None = None) -> None:
        super().__init__(what, fix=fix)
        self.reason = reason

    def __reduce__(self) -> tuple[type[ChangeRefused], tuple[str, str, str | None]]:
        return type(self), (self.reason, self.what, self.fix)


@dataclass(slots=True)
class ChangeBudget:
    """How far a plan may grow by itself. Call `reserve` *before* asking the model, so that nothing is paid for that
    could not be used."""

    depth: int = 5  # of groups: a tree, not the length of a path
    tasks: int = 1000  # in the whole plan
    parts: int = 20  # of one expansion or insertion
    calls: int = 50  # of the model
    changes: int = 100  # of the plan
    calls_used: int = 0

    def reserve(self, plan: Plan, name: str) -> None:
        """Book one model call to expand a task, if the plan may still grow there; raises `ChangeRefused`.

        >>> ChangeBudget(calls=0).reserve(Plan([Task("a")]), "a")
        Traceback (most recent call last):
        ...
        agent_forge.plans.changes.ChangeRefused: all 0 model calls for changing the plan are used
        """
        _expandable(plan, name)
        self.check(plan, [], plan.depth(name) + 1)
        if self.calls_used >= self.calls:
            raise ChangeRefused("calls", f"all {self.calls} model calls for changing the plan are used")
        if len(plan) >= self.tasks:
            raise ChangeRefused("tasks", f"the plan has {len(plan)} tasks, the limit is {self.tasks}")
        self.calls_used += 1

    def check(self, plan: Plan, new: Sequence[Task], depth: int) -> None:
        """Raise `ChangeRefused` when a plan with these new tasks, `depth` groups deep, exceeds the budget."""
        if depth > self.depth:
            raise ChangeRefused("depth", f"the new tasks would be {depth} groups deep, the limit is {self.depth}")
        if len(new) > self.parts:
            raise ChangeRefused("parts", f"{len(new)} new tasks at once, the limit is {self.parts}")
        if len(plan) + len(new) > self.tasks:
            what = f"{len(new)} new tasks beside {len(plan)} exceed the limit of {self.tasks}"
            raise ChangeRefused("tasks", what)
        if plan.version > self.changes:
            raise ChangeRefused(
                "changes", f"the plan was changed {plan.version - 1} times, the limit is {self.changes}"
            )


def expand(plan: Plan, name: str, parts: Iterable[Task], budget: ChangeBudget | None = None) -> Plan:
    """A leaf made into a group of parts, which stand after it in the plan.

    Parts without a parent get the task as theirs. They wait for each other only where they say so; what the task
    waited for holds back the first of them, and what waited for it waits for the last.

    >>> plan = Plan([Task("a"), Task("b", depends_on=["a"])])
    >>> expand(plan, "a", [Task("a1"), Task("a2", depends_on=["a1"])]).dependencies
    {'a1': (), 'a2': ('a1',), 'b': ('a2',)}
    """
    _expandable(plan, name)
    new = [part if part.parent is not None else replace(part, parent=name) for part in parts]
    if not new:
        raise ChangeRefused("parts", f"there are no parts for task {name!r}")
    own = {part.id for part in new}
    for part in new:
        if part.parent != name and part.parent not in own:
            raise ChangeRefused("unknown", f"part {part.id!r} has the parent {part.parent!r}, which is not {name!r}")
    _refuse_taken(plan, new)
    tasks: list[Task] = []
    for task in plan:
        tasks.append(task)
        if task.id == name:
            tasks.extend(new)
    return _changed(plan, tasks, new, budget)


def insert(
    plan: Plan,
    after: str,
    tasks: Iterable[Task],
    *,
    finished: Collection[str],
    started: Collection[str] = (),
    budget: ChangeBudget | None = None,
) -> Plan:
    """New work put between a finished task and those of its successors that have not begun.

    New tasks that wait for none of the new ones and do not name `after` are made to wait for it; each unbegun
    successor is made to wait for the last of the new tasks. Refused when `after` is not finished, or when it has
    successors and all of them have begun: the new work could not come before them.

    >>> plan = Plan([Task("look"), Task("report", depends_on=["look"])])
    >>> insert(plan, "look", [Task("dig")], finished={"look"}).dependencies
    {'look': (), 'report': ('look', 'dig'), 'dig': ('look',)}
    """
    new = list(tasks)
    if after not in plan:
        raise ChangeRefused("unknown", f"there is no task {after!r}")
    undone = [leaf for leaf in plan.leaves_of(after) if leaf not in finished]
    if undone:
        raise ChangeRefused("unfinished", f"task {after!r} is not finished")
    if not new:
        raise ChangeRefused("parts", f"there are no tasks to put after {after!r}")
    _refuse_taken(plan, new)
    begun = {*finished, *started}
    waiting = {other for leaf in plan.leaves_of(after) for other in plan.dependents[leaf]}
    open_ones = waiting - begun
    if waiting and not open_ones:
        raise ChangeRefused("begun", f"everything that waits for {after!r} has begun")
    own = {task.id for task in new}
    first = [task if own & set(task.needs(own)) else _also(task, [after]) for task in new]
    last = [task.id for task in new if not any(task.id in other.needs(own) for other in new)]
    old = [_also(task, last) if task.id in open_ones else task for task in plan]
    return _changed(plan, [*old, *first], new, budget)


def replan(plan: Plan, tasks: Iterable[Task], *, begun: Collection[str], budget: ChangeBudget | None = None) -> Plan:
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
    if budget is not None and len(old) + len(new) > budget.tasks:
        raise ChangeRefused("tasks", f"{len(old) + len(new)} tasks exceed the limit of {budget.tasks}")
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


def _expandable(plan: Plan, name: str) -> None:
    if name not in plan:
        raise ChangeRefused("unknown", f"there is no task {name!r}")
    if plan.children(name):
        raise ChangeRefused("expanded", f"task {name!r} is already expanded")


def _refuse_taken(plan: Plan, new: Sequence[Task]) -> None:
    clashes = [task.id for task in new if task.id in plan]
    if clashes:
        raise ChangeRefused("taken", f"the plan already has a task {clashes[0]!r}", fix="Give new tasks new ids")


def _changed(plan: Plan, tasks: Sequence[Task], new: Sequence[Task], budget: ChangeBudget | None) -> Plan:
    changed = Plan(tasks, version=plan.version + 1, provenance=plan.provenance)
    if budget is not None:
        budget.check(plan, new, max(changed.depth(task.id) for task in new))
    return changed


def _also(task: Task, before: Sequence[str]) -> Task:
    added = [name for name in before if name not in task.depends_on]
    return replace(task, depends_on=(*task.depends_on, *added)) if added else task
