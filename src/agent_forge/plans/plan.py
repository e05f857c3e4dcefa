"""A plan: tasks, checked once, with what waits for what worked out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from agent_forge.errors import PlanError
from agent_forge.plans import graph
from agent_forge.plans.checks import field_faults, id_fault, references_of, shape
from agent_forge.plans.faults import PlanFault, PlanInvalid, PlanLimits, raise_for
from agent_forge.plans.groups import Groups, leaf_edges
from agent_forge.plans.task import Task

_LIMITS = PlanLimits()


class Plan:
    """An acyclic graph of tasks. It never changes: updates give a new plan with the next `version`.

    `tasks` maps ids to tasks in order. `dependencies` and `dependents` are over the *leaves*, the tasks that are run:
    stated dependencies and those implied by references, with groups expanded. Raises `PlanInvalid` with every fault.

    >>> plan = Plan([Task("a"), Task("b"), Task("c", "{a} or {b}?"), Task("d", depends_on=["c", "a"])])
    >>> plan.dependencies["c"], plan.levels(), plan.critical_path()
    (('a', 'b'), [['a', 'b'], ['c'], ['d']], ['a', 'c', 'd'])
    """

    __slots__ = ("_groups", "_order", "composites", "dependencies", "dependents", "leaves", "tasks", "version")

    tasks: dict[str, Task]
    dependencies: dict[str, tuple[str, ...]]
    dependents: dict[str, tuple[str, ...]]
    leaves: tuple[str, ...]
    composites: tuple[str, ...]
    version: int

    def __init__(
        self,
        tasks: Iterable[Task],
        *,
        limits: PlanLimits = _LIMITS,
        version: int = 1,
        lines: Sequence[int] | None = None,
    ) -> None:
        faults = self._build(tasks, limits, lines, ())
        raise_for(faults)
        self.version = version

    @classmethod
    def parsed(
        cls,
        tasks: Sequence[Task],
        lines: Sequence[int],
        faults: Sequence[PlanFault],
        limits: PlanLimits,
        unread: Collection[str] = (),
    ) -> Plan:
        """What a parser ends with: its own faults and those of the plan raised together.

        `unread` are the ids of tasks that were there but could not be read: nobody is blamed for depending on them.
        """
        plan = cls.__new__(cls)
        plan.version = 1
        own = plan._build(tasks, limits, lines, unread)
        if faults and not tasks:
            own = []  # an empty plan is then only the consequence
        raise_for(sorted([*faults, *own], key=lambda fault: fault.line or 0))
        return plan

    def _build(
        self, tasks: Iterable[Task], limits: PlanLimits, lines: Sequence[int] | None, unread: Collection[str]
    ) -> list[PlanFault]:
        self.tasks, faults = _collect(tasks, limits, lines)
        if not self.tasks:
            return faults or [PlanFault("empty_plan", "the plan has no task")]
        at = dict(zip((task.id for task in reversed(tasks)), reversed(lines))) if _sized(tasks) and lines else {}
        stated, wrong = _edges(self.tasks, limits, unread)
        faults.extend(wrong)
        faults.extend(self._group(stated, limits))
        if not faults or all(fault.code != "too_large" for fault in faults):
            faults.extend(self._connect())
        return [_located(fault, at) for fault in faults] if at else faults

    def _group(self, stated: dict[str, tuple[str, ...]], limits: PlanLimits) -> list[PlanFault]:
        """Set `leaves`, `composites` and `dependencies` from the edges between any tasks."""
        self._groups: Groups | None = None
        parents = {name: task.parent for name, task in self.tasks.items() if task.parent is not None}
        if not parents:
            self.leaves, self.composites, self.dependencies = tuple(self.tasks), (), stated
            return []
        faults = _parent_faults(self.tasks, parents)
        sound = {name: None if faults else task.parent for name, task in self.tasks.items()}
        groups = self._groups = Groups(sound)
        self.leaves = tuple(name for name in self.tasks if name not in groups.children)
        self.composites = tuple(name for name in self.tasks if name in groups.children)
        deepest = max(groups.depth.values())
        if deepest > limits.depth:
            what = f"groups are nested {deepest} deep, the limit is {limits.depth}"
            return [*faults, PlanFault("too_large", what)]
        faults.extend(_group_faults(self.tasks, groups))
        kept, wrong = _without_self_waits(groups, stated)
        faults.extend(wrong)
        edges = leaf_edges(groups, kept, limits.edges)
        if edges is None:
            return [*faults, PlanFault("too_large", f"more than {limits.edges} dependencies between tasks")]
        self.dependencies = edges
        return faults

    def _connect(self) -> list[PlanFault]:
        """Set `dependents` and the order; report cycles."""
        dependents = graph.invert(self.dependencies)
        self._order = graph.topological(self.dependencies, dependents)
        self.dependents = {name: tuple(after) for name, after in dependents.items()}
        if len(self._order) == len(self.dependencies):
            return []
        return [
            PlanFault("cycle", f"tasks wait for each other: {' → '.join(path)}", path[0])
            for path in graph.cycles(self.dependencies, self._order)
        ]

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks.values())

    def __getitem__(self, name: str) -> Task:
        return self.tasks[name]

    def __contains__(self, name: object) -> bool:
        return name in self.tasks

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self.tasks))

    def __repr__(self) -> str:
        names = ", ".join(islice(self.tasks, 5))
        return f"Plan({len(self)} tasks: {names}{', …' if len(self) > 5 else ''})"

    def order(self) -> list[str]:
        """The leaves in an order in which each follows what it waits for; ties in the order of the plan."""
        return list(self._order)

    def levels(self) -> list[list[str]]:
        """The leaves by level: those of level 0 wait for nothing, those of level n for something of level n - 1."""
        level = graph.level_of(self.dependencies, self._order)
        table: list[list[str]] = [[] for _ in range(max(level.values()) + 1)]
        for name in self.dependencies:
            table[level[name]].append(name)
        return table

    def ranks(self, durations: Mapping[str, float] | None = None) -> dict[str, float]:
        """How long from the start of each leaf to the end of all that waits for it: what to start first.

        >>> Plan([Task("a"), Task("b", depends_on=["a"])]).ranks({"a": 2, "b": 3})
        {'b': 3, 'a': 5}
        """
        return graph.ranks(self.dependents, self._order, self._checked(durations))

    def critical_path(self, durations: Mapping[str, float] | None = None) -> list[str]:
        """The leaves of a longest chain; every task takes 1 where no durations are given. Ties go to the earlier."""
        rank = self.ranks(durations)
        path: list[str] = []
        choice: Sequence[str] = [name for name in self.dependencies if not self.dependencies[name]]
        while choice:
            best = max(choice, key=rank.__getitem__)
            path.append(best)
            choice = self.dependents[best]
        return path

    def critical_path_length(self, durations: Mapping[str, float] | None = None) -> float:
        """How long the plan takes with no limit on what runs at once."""
        return max(self.ranks(durations).values())

    def parallelism(self, durations: Mapping[str, float] | None = None) -> float:
        """All work over the critical path: how many times faster than one after another it can get.

        >>> Plan([Task("a"), Task("b"), Task("c", depends_on=["a", "b"])]).parallelism()
        1.5
        """
        work = float(len(self.dependencies)) if durations is None else sum(durations[name] for name in self.leaves)
        longest = self.critical_path_length(durations)
        return work / longest if longest else 1.0

    def children(self, name: str) -> tuple[str, ...]:
        """The tasks directly under one, none for a leaf."""
        self.tasks[name]
        return tuple(self._groups.children.get(name, ())) if self._groups else ()

    def leaves_of(self, name: str) -> tuple[str, ...]:
        """The leaves under a task; a leaf is its own. A group is done when all of these are."""
        self.tasks[name]
        return tuple(self._groups.leaves(name)) if self._groups else (name,)

    def depth(self, name: str) -> int:
        """How many groups a task is inside of: 0 at the top."""
        self.tasks[name]
        return self._groups.depth[name] if self._groups else 0

    def _checked(self, durations: Mapping[str, float] | None) -> Mapping[str, float] | None:
        if durations is not None:
            for name in self.leaves:
                if name not in durations:
                    raise PlanError(
                        f"no duration is given for task {name!r}", fix="give one for every leaf of the plan"
                    )
                if not 0 <= durations[name] < float("inf"):
                    raise PlanError(
                        f"the duration of task {name!r} is {durations[name]!r}", fix="give seconds, 0 or more"
                    )
        return durations


def _sized(tasks: Iterable[Task]) -> bool:
    return isinstance(tasks, Sequence)


def _collect(
    tasks: Iterable[Task], limits: PlanLimits, lines: Sequence[int] | None
) -> tuple[dict[str, Task], list[PlanFault]]:
    """The tasks by id, and what is wrong with each alone. The first of several with one id is kept."""
    table: dict[str, Task] = {}
    faults: list[PlanFault] = []
    for index, task in enumerate(islice(tasks, limits.tasks + 1)):
        line = lines[index] if lines else None
        if index == limits.tasks:
            faults.append(PlanFault("too_large", f"more than {limits.tasks} tasks", line=line))
            break
        if not isinstance(task, Task):
            faults.append(PlanFault("malformed", f"a {type(task).__name__} is in the place of a Task", line=line))
        elif what := id_fault(task.id, limits):
            faults.append(PlanFault("malformed", what, task.id if isinstance(task.id, str) else None, line))
        elif task.id in table:
            faults.append(PlanFault("duplicate_id", f"more than one task has the id {task.id!r}", task.id, line))
        else:
            table[task.id] = task
    return table, faults


def _edges(
    tasks: Mapping[str, Task], limits: PlanLimits, unread: Collection[str]
) -> tuple[dict[str, tuple[str, ...]], list[PlanFault]]:
    """What each task waits for: stated and by reference, without what does not exist, which is reported."""
    edges: dict[str, tuple[str, ...]] = {}
    faults: list[PlanFault] = []
    shapes: set[str] | None = None
    edge_count = reference_count = 0
    for name, task in tasks.items():
        plain = type(task.goal) is str and task.goal.isascii() and not (task.args or task.meta)
        if not plain or task.action is not None or task.parent is not None or task.for_each or task.limit is not None:
            faults.extend(_field_fault(task, what) for what in field_faults(task, limits))
            if faults and faults[-1].task == name and faults[-1].code == "malformed":
                edges[name] = tuple(dict.fromkeys(other for other in task.depends_on if other in tasks))
                continue
        before = task.depends_on
        if len(before) > 1 and len(set(before)) < len(before):
            before = tuple(dict.fromkeys(before))
        if not all(map(tasks.__contains__, before)):
            faults.extend(_unknown(name, other) for other in before if other not in tasks and other not in unread)
            before = tuple(other for other in before if other in tasks)
        if task.args or task.for_each is not None or "{" in task.goal:
            shapes = set(map(shape, tasks)) if shapes is None else shapes
            found, wrong = references_of(task, tasks, shapes)
            faults.extend(fault for fault in wrong if fault.code != "unknown_dependency" or not unread)
            reference_count += len(found)
            before = tuple(dict.fromkeys([*before, *(reference.head for _, reference in found)]))
        edges[name] = before
        edge_count += len(before)
    if edge_count > limits.edges or reference_count > limits.references:
        what = f"{edge_count} dependencies and {reference_count} references"
        faults.append(PlanFault("too_large", f"{what}; the limits are {limits.edges} and {limits.references}"))
    return edges, faults


def _field_fault(task: Task, what: str) -> PlanFault:
    code = "too_large" if "nested deeper" in what else "malformed"
    return PlanFault(code, f"task {task.id!r}: {what}", task.id)


def _unknown(name: str, other: Any) -> PlanFault:
    return PlanFault("unknown_dependency", f"task {name!r} depends on {other!r}, and there is no such task", name)


def _parent_faults(tasks: Mapping[str, Task], parents: Mapping[str, str]) -> list[PlanFault]:
    """Parents that are not there, and groups inside themselves."""
    faults = [
        PlanFault("unknown_dependency", f"task {name!r} has the parent {parent!r}, and there is no such task", name)
        for name, parent in parents.items()
        if parent not in tasks
    ]
    edges = {name: (parents[name],) if parents.get(name) in tasks else () for name in tasks}
    order = graph.topological(edges, graph.invert(edges))
    if len(order) < len(edges):
        faults.extend(
            PlanFault("cycle", f"groups contain each other: {' → '.join(path)}", path[0])
            for path in graph.cycles(edges, order)
        )
    return faults


def _group_faults(tasks: Mapping[str, Task], groups: Groups) -> list[PlanFault]:
    return [
        PlanFault("malformed", f"task {name!r} has children and for_each; put for_each on the children", name)
        for name in groups.children
        if tasks[name].for_each is not None
    ]


def _without_self_waits(
    groups: Groups, stated: Mapping[str, tuple[str, ...]]
) -> tuple[dict[str, tuple[str, ...]], list[PlanFault]]:
    """Edges without those between a task and a group around it, which are reported: a group waits for its leaves."""
    kept: dict[str, tuple[str, ...]] = {}
    faults: list[PlanFault] = []
    for name, before in stated.items():
        around = set(groups.above(name)) - {name}
        kept[name] = before
        for other in before:
            if other in around or (other != name and name in groups.above(other)):
                inner, outer = (name, other) if other in around else (other, name)
                what = f"task {name!r} depends on {other!r}, but {inner!r} is part of {outer!r}"
                faults.append(PlanFault("cycle", f"{what}: {name} → {other} → {name}", name))
                kept[name] = tuple(each for each in kept[name] if each != other)
    return kept, faults


def _located(fault: PlanFault, at: Mapping[str, int]) -> PlanFault:
    if fault.line is not None or fault.task not in at:
        return fault
    return PlanFault(fault.code, fault.message, fault.task, at[fault.task])


__all__ = ["Plan", "PlanInvalid"]
