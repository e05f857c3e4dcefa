"""Whether tasks make a plan together: ids, what depends on what, groups. Every fault is reported, not just one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

from agent_forge.plans import graph
from agent_forge.plans.checks import Vocabulary, field_faults, id_fault, references_of
from agent_forge.plans.faults import PlanFault, PlanLimits
from agent_forge.plans.groups import Groups
from agent_forge.plans.references import ITEM, LAST
from agent_forge.plans.task import Task

StatedEdges = dict[str, tuple[str, ...]]


class Collected(NamedTuple):
    """The tasks by id, the line each stands on where there are lines, and what is wrong with them one by one."""

    tasks: dict[str, Task]
    lines: dict[str, int]
    faults: list[PlanFault]


class Edges(NamedTuple):
    """What each task waits for, the tasks with control flow or `for_each`, and what is wrong."""

    stated: StatedEdges
    flow: list[str]
    faults: list[PlanFault]


class Names(Collection[str]):
    """The ids of several collections, without copying them."""

    def __init__(self, *collections: Collection[str], without: str | None = None) -> None:
        self._collections = collections
        self._without = without

    def __contains__(self, name: object) -> bool:
        return name != self._without and any(name in ids for ids in self._collections)

    def __iter__(self) -> Iterator[str]:
        return (name for ids in self._collections for name in ids if name != self._without)

    def __len__(self) -> int:
        return sum(map(len, self._collections))


def visible(tasks: Collection[str], outer: Collection[str], task: Task) -> Names:
    """The ids that the tasks in a `do` may refer to beside each other: those around it, and `item` or `last`."""
    own = (ITEM,) if task.for_each is not None else (LAST,) if task.until is not None else ()
    return Names(tasks, outer, own, without=task.id)


def collect(tasks: Iterable[Task], limits: PlanLimits, lines: Sequence[int] | None = None) -> Collected:
    """The tasks by id; of several with one id the first counts. Reads no further than the limit."""
    collected = Collected({}, {}, [])
    table, at, faults = collected
    for index, task in enumerate(islice(tasks, limits.tasks + 1)):
        line = lines[index] if lines else None
        if index == limits.tasks:
            faults.append(PlanFault("too_large", f"more than {limits.tasks} tasks", line=line))
            break
        what = id_fault(task.id, limits) if isinstance(task, Task) else f"{task!r:.60} is not a Task"
        if what is not None:
            faults.append(PlanFault("malformed", what, line=line))
        elif task.id in table:
            faults.append(PlanFault("duplicate_id", f"more than one task has the id {task.id!r}", task.id, line))
        else:
            table[task.id] = task
            if line is not None:
                at[task.id] = line
    return collected


def edges_between(
    tasks: Mapping[str, Task], limits: PlanLimits, unread: Collection[str] = (), outer: Collection[str] = ()
) -> Edges:
    """What each task waits for: stated and by reference, without what does not exist, which is reported. What is
    `outer` exists and is not waited for."""
    result = Edges({}, [], [])
    edges, flow, faults = result
    vocabulary = Vocabulary(Names(tasks, outer) if outer else tasks, unread)
    edge_count = reference_count = 0
    for name, task in tasks.items():
        plain = _plain(task)
        wrong = [] if plain else field_faults(task, limits)
        faults.extend(wrong)
        before = task.depends_on
        if not _all_exist(before, tasks) or (len(before) > 1 and len(set(before)) < len(before)):
            existing = tuple(dict.fromkeys(other for other in before if _all_exist((other,), tasks)))
            faults.extend(
                _unknown(name, other)
                for other in before
                if other not in existing and other not in unread and not _all_exist((other,), outer)
            )
            before = existing
        if not wrong and ("{" in task.goal or (not plain and _refers(task))):
            controlled = task.control is not None
            references, wrong = references_of(task, vocabulary)
            faults.extend(wrong)
            reference_count += len(references)
            before = tuple(dict.fromkeys([*before, *(reference.head for _, reference in references)]))
            if outer:
                before = tuple(other for other in before if other in tasks)
            if controlled:
                before = tuple(dict.fromkeys([*before, *(other for other in task.needs(tasks) if other in tasks)]))
            if controlled or task.for_each is not None:
                flow.append(name)
        edges[name] = before
        edge_count += len(before)
    faults.extend(_add_fallbacks(tasks, flow, edges))
    if edge_count > limits.edges or reference_count > limits.references:
        what = f"{edge_count} dependencies and {reference_count} references"
        faults.append(PlanFault("too_large", f"{what}; the limits are {limits.edges} and {limits.references}"))
    return result


def _add_fallbacks(tasks: Mapping[str, Task], flow: Iterable[str], edges: StatedEdges) -> list[PlanFault]:
    """A fallback waits for the task that it stands in for. Reports names in `fallback` and `first_of` that are wrong,
    and ids inside a `do` that are taken."""
    faults = []
    role: dict[str, str] = {}
    taken = set(tasks)
    for name in flow:
        task = tasks[name]
        for field, others in (("first_of", task.first_of), ("fallback", task.fallback)):
            for other in others:
                if other not in tasks:
                    what = f"task {name!r} names {other!r} in {field}, and there is no such task"
                    faults.append(PlanFault("unknown_dependency", what, name))
                elif other == name or other in role:
                    what = "itself" if other == name else f"{other!r}, which {role[other]!r} names already,"
                    faults.append(PlanFault("malformed", f"task {name!r} names {what} in {field}", name))
                else:
                    role[other] = name
                    if field == "fallback":
                        edges[other] = tuple(dict.fromkeys([*edges[other], name]))
        for part in task.parts():
            if part.id in taken:
                what = f"task {name!r} has a task {part.id!r} in its do, and there is another of that id"
                faults.append(PlanFault("duplicate_id", what, name))
            taken.add(part.id)
    return faults


def role_faults(
    tasks: Mapping[str, Task], flow: Iterable[str], edges: Mapping[str, Sequence[str]],
    dependents: Mapping[str, Sequence[str]],
) -> list[PlanFault]:  # fmt: skip
    """The tasks in `first_of` and `fallback` may be cancelled or never start, so nothing else can depend on them."""
    faults = []
    for name in flow:
        task = tasks[name]
        if task.first_of and set(edges.get(name, ())) != {other for other in task.first_of if other in tasks}:
            what = f"task {name!r} has first_of and waits for other tasks too, or names a group in it"
            faults.append(PlanFault("malformed", what, name))
        for other in (other for other in (*task.first_of, *task.fallback) if other in tasks):
            rest = [each for each in dependents.get(other, ()) if each != name and each not in tasks[other].fallback]
            if rest or other not in edges:
                what = f"which {rest[0]!r} depends on too" if rest else "which is a group"
                place = "fallback" if other in task.fallback else "first_of"
                faults.append(PlanFault("malformed", f"task {name!r} names {other!r} in its {place}, {what}", name))
    return faults


def waiting_edges(tasks: Mapping[str, Task], flow: Iterable[str], edges: StatedEdges) -> StatedEdges:
    """The edges, and what they imply: whatever waits for a task with fallbacks may have to wait for those too."""
    stands_in = {name: tasks[name].fallback for name in flow if tasks[name].fallback}
    if not stands_in:
        return edges
    return {
        name: tuple(
            dict.fromkeys(
                chain(before, *(stands_in.get(other, ()) for other in before if name not in tasks[other].fallback))
            )
        )
        for name, before in edges.items()
    }


def parent_faults(tasks: Mapping[str, Task], parents: Mapping[str, str]) -> list[PlanFault]:
    """Parents that are not there, and groups inside themselves."""
    faults = [
        PlanFault("unknown_dependency", f"task {name!r} has the parent {parent!r}, and there is no such task", name)
        for name, parent in parents.items()
        if parent not in tasks
    ]
    edges = {name: (parents[name],) if parents.get(name) in tasks else () for name in tasks}
    order = graph.topological(edges, graph.invert(edges))
    return faults + cycle_faults("groups contain each other", edges, order)


def edges_outside(
    tasks: Mapping[str, Task], groups: Groups, stated: StatedEdges
) -> tuple[StatedEdges, list[PlanFault]]:
    """Edges without those between a task and a group around it, which are reported: a group waits for its leaves."""
    faults = [
        PlanFault(
            "malformed", f"task {name!r} has children and {_flow_field(tasks[name])}; put it on the children", name
        )
        for name in groups.children
        if tasks[name].for_each is not None or tasks[name].control is not None
    ]
    edges: StatedEdges = {}
    for name, before in stated.items():
        leaf = name not in groups.children  # a leaf that waits for itself is a cycle like any other
        own = [other for other in before if not (leaf and other == name) and groups.related(name, other)]
        edges[name] = tuple(other for other in before if other not in own) if own else before
        for other in own:
            inner, outer = (name, other) if groups.depth[name] > groups.depth[other] else (other, name)
            what = f", but {inner!r} is part of {outer!r}: {name} → {other} → {name}" if inner != outer else ", itself"
            faults.append(PlanFault("cycle", f"task {name!r} depends on {other!r}{what}", name))
    return edges, faults


def cycle_faults(what: str, edges: Mapping[str, Sequence[str]], order: Sequence[str]) -> list[PlanFault]:
    """A fault for each knot that a topological order left out, with its path."""
    if len(order) == len(edges):
        return []
    return [PlanFault("cycle", f"{what}: {' → '.join(path)}", path[0]) for path in graph.cycles(edges, order)]


def _flow_field(task: Task) -> str:
    return next(name for name in ("for_each", "when", "until", "fallback", "first_of", "do") if getattr(task, name))


def _plain(task: Task) -> bool:
    """Nothing but a goal in ASCII and dependencies: the common case, which needs no closer look."""
    if task.args or task.meta or task.action is not None or task.parent is not None or task.control is not None:
        return False
    return type(task.goal) is str and task.goal.isascii() and task.for_each is None and task.limit is None


def _refers(task: Task) -> bool:
    return bool(task.args) or task.for_each is not None or task.control is not None


def _all_exist(names: Sequence[str], tasks: Collection[str]) -> bool:
    try:
        return all(map(tasks.__contains__, names))
    except TypeError:  # something that cannot even be looked up
        return False


def _unknown(name: str, other: object) -> PlanFault:
    if not isinstance(other, str):
        return PlanFault("malformed", f"task {name!r}: depends_on holds {other!r:.60}, which is not an id", name)
    return PlanFault("unknown_dependency", f"task {name!r} depends on {other!r}, and there is no such task", name)
