"""Plans for people: a Mermaid diagram and a tree for the terminal."""

from __future__ import annotations

import re

from agent_forge.plans.plan import Plan
from agent_forge.plans.task import Task

_WIDTH = 70


def to_mermaid(plan: Plan) -> str:
    """The plan as a Mermaid flow chart; groups and the tasks in a `do` are subgraphs, arrows join the leaves.

    >>> print(to_mermaid(Plan([Task("s1", "Find it"), Task("s2", "Use {s1}")])))
    flowchart TD
      n0["s1: Find it"]
      n1["s2: Use {s1}"]
      n0 --> n1
    """
    tasks = {**plan.tasks, **{part.id: part for name in plan.flow for part in plan[name].parts()}}
    number = {name: f"n{index}" for index, name in enumerate(tasks)}
    rows = ["flowchart TD"]
    waiting: list[tuple[str | None, int]] = [(name, 1) for name in reversed(plan.tasks) if plan[name].parent is None]
    while waiting:
        name, depth = waiting.pop()
        if name is None:
            rows.append("  " * depth + "end")
            continue
        children = plan.children(name) if name in plan else ()
        children = children or tuple(part.id for part in tasks[name].do)
        shape = f'{number[name]}["{_label(tasks[name])}"]'
        rows.append("  " * depth + (f"subgraph {shape}" if children else shape))
        if children:
            waiting.append((None, depth))
            waiting.extend((child, depth + 1) for child in reversed(children))
    edges = dict(plan.dependencies)
    for task in (task for task in tasks.values() if task.do):
        inside = {part.id for part in task.do}
        edges.update((part.id, tuple(name for name in part.needs(inside) if name in inside)) for part in task.do)
    stands_in = {other: task.id for task in tasks.values() for other in task.fallback}
    for after, needs in edges.items():
        rows += [f"  {number[before]} --> {number[after]}" for before in needs if stands_in.get(after) != before]
        if after in stands_in:
            rows.append(f"  {number[stands_in[after]]} -. if it fails .-> {number[after]}")
    return "\n".join(rows)


def to_tree(plan: Plan) -> str:
    """The plan as a tree: by level, or by group where there are groups; what each task waits for stands behind it.

    >>> print(to_tree(Plan([Task("s1", "Find it"), Task("s2", "Use it", depends_on=["s1"])])))
    2 tasks in 2 levels, critical path: s1 → s2
    ├─ level 1
    │  └─ s1  Find it
    └─ level 2
       └─ s2  Use it  ← s1
    """
    levels = plan.levels()
    path = plan.critical_path()
    shown = " → ".join(path if len(path) <= 12 else [*path[:6], "…", *path[-5:]])
    counts = [(len(plan.leaves), "task"), (len(plan.composites), "group"), (len(levels), "level")]
    counted = " in ".join(f"{count} {noun}{'s' * (count > 1)}" for count, noun in counts if count)
    rows = [f"{counted}, critical path: {shown}"]
    if plan.composites:
        roots = [task.id for task in plan if task.parent is None]
        rows.extend(_branches(plan, roots))
    else:
        for index, level in enumerate(levels):
            last = index == len(levels) - 1
            rows.append(f"{'└─' if last else '├─'} level {index + 1}")
            rows.extend(_branches(plan, level, "   " if last else "│  "))
    return "\n".join(rows)


def _branches(plan: Plan, names: list[str], indent: str = "") -> list[str]:
    rows = []
    waiting = [(name, indent, index == 0) for index, name in enumerate(reversed(names))]
    while waiting:
        name, before, last = waiting.pop()
        rows.append(f"{before}{'└─' if last else '├─'} {_row(plan, name)}")
        below = before + ("   " if last else "│  ")
        waiting.extend((child, below, index == 0) for index, child in enumerate(reversed(plan.children(name))))
    return rows


def _row(plan: Plan, name: str) -> str:
    task = plan[name]
    needs = plan.dependencies.get(name, task.depends_on)
    arrow = f"  ← {', '.join(needs[:8])}{', …' if len(needs) > 8 else ''}" if needs else ""
    flow = "".join(f"  [{field} {_short(text)}]" for field, text in _flow(task))
    return f"{name}  {_short(task.goal or task.action or '')}{flow}{arrow}".rstrip()


def _flow(task: Task) -> list[tuple[str, str]]:
    """The control flow of a task, for people."""
    fields = {
        "when": task.when,
        "for each": task.for_each,
        "until": task.until,
        "fallback": ", ".join(task.fallback),
        "first of": ", ".join(task.first_of),
        "do": ", ".join(part.id for part in task.do),
    }
    return [(field, text) for field, text in fields.items() if text]


def _short(text: str) -> str:
    text = " ".join(part for part in re.split(r"[\s\x00-\x1f\x7f-\x9f]+", text) if part)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _label(task: Task) -> str:
    goal = _short(task.goal or task.action or "")
    text = f"{task.id}: {goal}" if goal else task.id
    text += "".join(f" ({field} {_short(value)})" for field, value in _flow(task) if field not in ("fallback", "do"))
    for mark, code in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;"), ("`", "#96;")):
        text = text.replace(mark, code)
    return text
