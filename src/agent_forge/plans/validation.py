"""Whether tasks make a plan together: ids, what depends on what, groups. Every fault is reported, not just one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from agent_forge.plans import graph
from agent_forge.plans.checks import Vocabulary, field_faults, id_fault, references_of
from agent_forge.plans.faults import PlanFault, PlanLimits
from agent_forge.plans.groups import Groups
from agent_forge.plans.task import Task

StatedEdges = dict[str, tuple[str, ...]]


class Collected(NamedTuple):
    """The tasks by id, the line each stands on where there are lines, and what is wrong with them one by one."""

    tasks: dict[str, Task]
    lines: dict[str, int]
    faults: list[PlanFault]


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
    tasks: Mapping[str, Task], limits: PlanLimits, unread: Collection[str] = ()
) -> tuple[StatedEdges, list[PlanFault]]:
    """What each task waits for: stated and by reference, without what does not exist, which is reported."""
    edges: StatedEdges = {}
    faults: list[PlanFault] = []
    vocabulary = Vocabulary(tasks, unread)
    edge_count = reference_count = 0
    for name, task in tasks.items():
        wrong = [] if _plain(task) else field_faults(task, limits)
        faults.extend(wrong)
        before = task.depends_on
        if not _all_exist(before, tasks) or (len(before) > 1 and len(set(before)) < len(before)):
            existing = tuple(dict.fromkeys(other for other in before if _all_exist((other,), tasks)))
            faults.extend(_unknown(name, other) for other in before if other not in existing and other not in unread)
            before = existing
        if not wrong and ("{" in task.goal or task.args or task.for_each is not None):
            references, wrong = references_of(task, vocabulary)
            faults.extend(wrong)
            reference_count += len(references)
            before = tuple(dict.fromkeys([*before, *(reference.head for _, reference in references)]))
        edges[name] = before
        edge_count += len(before)
    if edge_count > limits.edges or reference_count > limits.references:
        what = f"{edge_count} dependencies and {reference_count} references"
        faults.append(PlanFault("too_large", f"{what}; the limits are {limits.edges} and {limits.references}"))
    return edges, faults


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
        PlanFault("malformed", f"task {name!r} has children and for_each; put for_each on the children", name)
        for name in groups.children
        if tasks[name].for_each is not None
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


def _plain(task: Task) -> bool:
    """Nothing but a goal in ASCII and dependencies: the common case, which needs no closer look."""
    if task.args or task.meta or task.action is not None or task.parent is not None:
        return False
    return type(task.goal) is str and task.goal.isascii() and task.for_each is None and task.limit is None


def _all_exist(names: Sequence[str], tasks: Mapping[str, Task]) -> bool:
    try:
        return all(map(tasks.__contains__, names))
    except TypeError:  # something that cannot even be looked up
        return False


def _unknown(name: str, other: object) -> PlanFault:
    if not isinstance(other, str):
        return PlanFault("malformed", f"task {name!r}: depends_on holds {other!r:.60}, which is not an id", name)
    return PlanFault("unknown_dependency", f"task {name!r} depends on {other!r}, and there is no such task", name)
