"""Why an edge of a plan is there, and which edges it could do without."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from agent_forge.plans import graph
from agent_forge.plans.checks import Vocabulary, references_of
from agent_forge.plans.plan import Plan


@dataclass(frozen=True, slots=True)
class Reason:
    """Why `after` waits for `before`: the task that says so, the task it names, where, and with which text.

    For leaves in groups `says` and `names` may be groups around them.
    """

    kind: Literal["reference", "stated"]
    says: str
    names: str
    place: str
    text: str

    def __str__(self) -> str:
        if self.kind == "stated":
            return f"{self.says} states that it depends on {self.names}"
        return f"{self.says} uses {self.text} in its {self.place}"


def why(plan: Plan, before: str, after: str) -> list[Reason]:
    """The reasons for which `after` waits for `before` directly; none when there is no such edge.

    >>> from agent_forge.plans import Task
    >>> plan = Plan([Task("s1"), Task("s2", args={"q": "age of {s1.name}"}, depends_on=["s1"])])
    >>> [str(reason) for reason in why(plan, "s1", "s2")]
    ['s2 uses {s1.name} in its args.q', 's2 states that it depends on s1']
    """
    if after not in plan or before not in plan:
        return []
    if after in plan.dependencies and before in plan.dependencies and before not in plan.dependencies[after]:
        return []
    reasons = []
    named = set(_around(plan, before))
    vocabulary = Vocabulary(plan.tasks)
    for says in _around(plan, after):
        if says in named:
            break  # a group around both: what it waits for lies outside
        task = plan[says]
        for place, reference in references_of(task, vocabulary)[0]:
            if reference.head in named:
                reasons.append(Reason("reference", says, reference.head, place, str(reference)))
        reasons.extend(
            Reason("stated", says, other, "depends_on", other) for other in task.depends_on if other in named
        )
    return reasons


def needless_edges(plan: Plan) -> set[tuple[str, str]]:
    """The edges (before, after) between leaves that another path makes redundant."""
    level = graph.level_of(plan.dependencies, plan.order())
    return graph.needless(plan.dependencies, level, plan.ranks())


def reduced(plan: Plan) -> Plan:
    """The plan without the stated dependencies that change nothing: those another path, or a reference, implies.

    What runs before what stays exactly the same (transitive reduction), and so does every reference. Dependencies of
    and on groups stay.

    >>> from agent_forge.plans import Task
    >>> plan = Plan([Task("a"), Task("b", depends_on=["a"]), Task("c", depends_on=["a", "b"])])
    >>> reduced(plan)["c"].depends_on
    ('b',)
    """
    removable = needless_edges(plan)
    vocabulary = Vocabulary(plan.tasks)
    tasks = []
    for task in plan:
        referred = {reference.head for _, reference in references_of(task, vocabulary)[0]}
        needed = tuple(
            other
            for other in dict.fromkeys(task.depends_on)
            if other not in referred and (other, task.id) not in removable
        )
        tasks.append(task if needed == task.depends_on else replace(task, depends_on=needed))
    return Plan(tasks, version=plan.version, provenance=plan.provenance)


def _around(plan: Plan, name: str) -> list[str]:
    """The task and the groups it is in, innermost first."""
    path = [name]
    while (parent := plan[path[-1]].parent) is not None:
        path.append(parent)
    return path
