"""Large plans: nothing recursive, nothing quadratic. Counts of work, not of seconds: the machine is shared."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from agent_forge.plans import (
    Plan,
    PlanLimits,
    Task,
    needless_edges,
    parse_plan,
    reduced,
    to_json,
    to_lines,
    to_mermaid,
    to_tree,
    to_xml,
    to_yaml,
)

COUNT = 8_000


SHAPES: dict[str, tuple[int, Callable[[int], Task]]] = {
    "chain": (COUNT, lambda i: Task(f"t{i}", depends_on=[f"t{i - 1}"] if i else [])),
    "backward chain": (COUNT, lambda i: Task(f"t{i}", depends_on=[f"t{i + 1}"] if i < COUNT - 1 else [])),
    "fan": (3, lambda i: Task(f"t{i}", depends_on=["t1", "t2"] if i == COUNT - 1 else ["t0"] if i else [])),
    "grid": (27, lambda i: Task(f"t{i}", depends_on=[f"t{i - k}" for k in (300, 301) if i >= k])),
    "references": (COUNT, lambda i: Task(f"t{i}", args={"x": f"{{t{i - 1}.rows[0]}}"} if i else {})),
    "groups": (1, lambda i: Task(f"t{i}", parent=f"t{i - i % 10}" if i % 10 else None)),
}


@pytest.mark.untraced
@pytest.mark.parametrize("shape", SHAPES)
def test_many_thousand_tasks(shape: str) -> None:
    longest, task = SHAPES[shape]
    tasks = [task(index) for index in range(COUNT)]
    plan = Plan(tasks)
    assert len(plan) == COUNT
    assert sum(map(len, plan.levels())) == len(plan.order()) == len(plan.leaves)
    path = plan.critical_path()
    assert len(path) == plan.critical_path_length() == len(plan.levels())
    assert len(path) == longest


@pytest.mark.untraced
def test_a_long_chain_needs_no_stack() -> None:
    tasks = [Task(f"t{i}", depends_on=[f"t{i - 1}", f"t{i - 2}"][: min(i, 2)]) for i in range(10_000)]
    limit = sys.getrecursionlimit()
    assert limit < 10_000
    plan = Plan(tasks)
    assert len(needless_edges(plan)) == 9_998
    assert len(reduced(plan).critical_path()) == 10_000
    assert to_tree(plan).count("\n") == 20_000
    assert to_mermaid(plan).count("-->") == 19_997


@pytest.mark.untraced
def test_a_large_plan_goes_through_every_format() -> None:
    plan = Plan([Task(f"task_{i}", f"step {i}", depends_on=[f"task_{i - 1}"] if i % 7 else []) for i in range(1500)])
    for write in (to_lines, to_xml, to_json, to_yaml):
        assert parse_plan(write(plan)) == plan
    big = Plan([Task(f"task_{i}") for i in range(12_000)])
    assert len(parse_plan(to_lines(big), limits=PlanLimits())) == 12_000
