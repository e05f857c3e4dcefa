"""A plan: tasks, checked once, and what waits for what."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import islice

from agent_forge.errors import PlanError
from agent_forge.plans import graph
from agent_forge.plans.faults import PlanFault, PlanLimits, raise_for
from agent_forge.plans.groups import Groups, leaf_edges
from agent_forge.plans.provenance import Provenance
from agent_forge.plans.task import Task
from agent_forge.plans.validation import (
    Collected,
    collect,
    cycle_faults,
    edges_between,
    edges_outside,
    parent_faults,
    role_faults,
    visible,
    waiting_edges,
)

_LIMITS = PlanLimits()


class Plan:
    """An acyclic graph of tasks. It never changes: updates return a new plan with the next `version`. `provenance` says
    which planner made it, if one did.

    `tasks` maps ids to tasks in order. `dependencies` and `dependents` are over the *leaves*, the tasks that are run:
    stated dependencies and those implied by references, with groups expanded. Raises `PlanInvalid` with every fault.

    >>> plan = Plan([Task("a"), Task("b"), Task("c", "{a} or {b}?"), Task("d", depends_on=["c", "a"])])
    >>> plan.dependencies["c"], plan.levels(), plan.critical_path()
    (('a', 'b'), [['a', 'b'], ['c'], ['d']], ['a', 'c', 'd'])
    """

    __slots__ = (
        "_groups", "_order", "composites", "dependencies", "dependents", "flow", "leaves", "provenance", "tasks",
        "version",
    )  # fmt: skip

    tasks: dict[str, Task]
    dependencies: dict[str, tuple[str, ...]]
    dependents: dict[str, tuple[str, ...]]
    leaves: tuple[str, ...]
    composites: tuple[str, ...]
    flow: tuple[str, ...]  # the tasks with control flow or `for_each`
    version: int
    provenance: Provenance | None

    def __init__(
        self,
        tasks: Iterable[Task],
        *,
        limits: PlanLimits = _LIMITS,
        version: int = 1,
        provenance: Provenance | None = None,
        outer: Collection[str] = (),
    ) -> None:
        """`outer` are ids of tasks around a sub-plan, which its tasks may refer to and do not wait for."""
        raise_for(self._build(collect(tasks, limits), limits, outer=outer))
        self.version = version
        self.provenance = provenance

    @classmethod
    def parsed(
        cls,
        tasks: Sequence[Task],
        lines: Sequence[int],
        faults: Sequence[PlanFault],
        limits: PlanLimits,
        unread: Collection[str] = (),
    ) -> Plan:
        """What a parser ends with: its own faults and those of the plan raised together, by line.

        `unread` are the ids of tasks that were there but could not be read: nobody is blamed for depending on them.
        """
        plan = cls.__new__(cls)
        plan.version, plan.provenance = 1, None
        collected = collect(tasks, limits, lines)
        own = plan._build(collected, limits, unread) if tasks or not faults else []
        lines_of = collected.lines
        located = [
            replace(fault, line=lines_of[fault.task]) if fault.line is None and fault.task in lines_of else fault
            for fault in own
        ]
        raise_for(sorted([*faults, *located], key=lambda fault: fault.line or 0))
        return plan

    def _build(
        self, collected: Collected, limits: PlanLimits, unread: Collection[str] = (), outer: Collection[str] = ()
    ) -> list[PlanFault]:
        self.tasks, faults = collected.tasks, collected.faults
        if not self.tasks:
            return faults or [PlanFault("empty_plan", "the plan has no task")]
        stated, flow, wrong = edges_between(self.tasks, limits, unread, outer)
        self.flow = tuple(flow)
        faults = [*faults, *wrong, *self._group(stated, limits)]
        if not any(fault.code == "too_large" for fault in faults):
            faults.extend(self._connect())
        if flow:
            faults.extend(self._check_parts(limits, outer))
        return faults

    def _check_parts(self, limits: PlanLimits, outer: Collection[str]) -> list[PlanFault]:
        """What is wrong with the tasks inside `do`."""
        faults: list[PlanFault] = []
        size = len(self.tasks)
        for task in [self.tasks[name] for name in self.flow if self.tasks[name].do]:
            size += len(task.do)
            if limits.depth < 1 or size > limits.tasks:
                what = "do is nested too deeply" if limits.depth < 1 else f"more than {limits.tasks} tasks"
                return [*faults, PlanFault("too_large", f"task {task.id!r}: {what}", task.id)]
            inside = Plan.__new__(Plan)
            deeper = replace(limits, depth=limits.depth - 1)
            wrong = inside._build(collect(task.do, limits), deeper, outer=visible(self.tasks, outer, task))
            faults += [PlanFault(fault.code, f"in task {task.id!r}: {fault.message}", task.id) for fault in wrong]
        return faults

    def _group(self, stated: dict[str, tuple[str, ...]], limits: PlanLimits) -> list[PlanFault]:
        """Set `leaves`, `composites` and `dependencies` from the edges between any tasks."""
        self._groups: Groups | None = None
        self.leaves, self.composites, self.dependencies = tuple(self.tasks), (), stated
        parents = {name: task.parent for name, task in self.tasks.items() if isinstance(task.parent, str)}
        if not parents:
            return []
        if faults := parent_faults(self.tasks, parents):
            return faults
        groups = self._groups = Groups({name: parents.get(name) for name in self.tasks})
        deepest = max(groups.depth.values())
        if deepest > limits.depth:
            return [PlanFault("too_large", f"groups are nested {deepest} deep, the limit is {limits.depth}")]
        self.leaves = tuple(name for name in self.tasks if name not in groups.children)
        self.composites = tuple(name for name in self.tasks if name in groups.children)
        stated, faults = edges_outside(self.tasks, groups, stated)
        edges = leaf_edges(groups, stated, limits.edges)
        if edges is None:
            return [*faults, PlanFault("too_large", f"more than {limits.edges} dependencies between leaves")]
        self.dependencies = edges
        return faults

    def _connect(self) -> list[PlanFault]:
        """Set `dependents` and the order; report cycles."""
        dependents = graph.invert(self.dependencies)
        self._order = graph.topological(self.dependencies, dependents)
        self.dependents = {name: tuple(after) for name, after in dependents.items()}
        if len(self._order) < len(self.dependencies):
            return cycle_faults("tasks wait for each other", self.dependencies, self._order)
        if not self.flow:
            return []
        waiting = waiting_edges(self.tasks, self.flow, self.dependencies)
        order = self._order if waiting is self.dependencies else graph.topological(waiting, graph.invert(waiting))
        faults = cycle_faults("tasks wait for each other's fallbacks", waiting, order)
        return faults + role_faults(self.tasks, self.flow, self.dependencies, self.dependents)

    def with_provenance(self, provenance: Provenance) -> Plan:
        """The same plan, with where it comes from. Plans that differ only in this are equal."""
        plan = copy(self)
        plan.provenance = provenance
        return plan

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
        """The leaves of a longest chain; without durations every task takes 1. Ties go to the earlier."""
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
                        f"there is no duration for task {name!r}", fix="Give one for every leaf of the plan"
                    )
                if not 0 <= durations[name] < float("inf"):
                    raise PlanError(
                        f"the duration of task {name!r} is {durations[name]!r}", fix="Use seconds, 0 or more"
                    )
        return durations
