"""What people see of a plan."""

from __future__ import annotations

import re

from plan_strategies import random_plan

from agent_forge.plans import Plan, Task, expand, to_mermaid, to_tree

PLAN = Plan(
    [Task("s1", "Find A"), Task("s2", "Find B"), Task("s3", "Compare\nthem " + "x" * 80, depends_on=["s1", "s2"])]
)


def test_the_tree_shows_levels_and_what_each_task_waits_for() -> None:
    assert to_tree(PLAN).splitlines() == [
        "3 tasks in 2 levels, critical path: s1 → s3",
        "├─ level 1",
        "│  ├─ s1  Find A",
        "│  └─ s2  Find B",
        "└─ level 2",
        "   └─ s3  Compare them " + "x" * 56 + "…  ← s1, s2",
    ]


def test_the_tree_shows_groups() -> None:
    plan = expand(PLAN, "s1", [Task("a", "Look"), Task("b", action="search", depends_on=["a"])])
    assert to_tree(plan).splitlines() == [
        "4 tasks in 1 group in 3 levels, critical path: a → b → s3",
        "├─ s1  Find A",
        "│  ├─ a  Look",
        "│  └─ b  search  ← a",
        "├─ s2  Find B",
        "└─ s3  Compare them " + "x" * 56 + "…  ← b, s2",
    ]


def test_mermaid_draws_leaves_groups_and_edges() -> None:
    plan = expand(PLAN, "s1", [Task("a", 'say "hi" <b> #1'), Task("b", depends_on=["a"])])
    assert to_mermaid(plan).splitlines()[:6] == [
        "flowchart TD",
        '  subgraph n0["s1: Find A"]',
        '    n1["a: say #quot;hi#quot; #lt;b#gt; #35;1"]',
        '    n2["b"]',
        "  end",
        '  n3["s2: Find B"]',
    ]
    assert "  n1 --> n2" in to_mermaid(plan)


def test_mermaid_lines_are_well_formed_for_any_plan() -> None:
    row = re.compile(r' *(?:flowchart TD|(?:subgraph )?n\d+\["[^"\n]*"\]|end|n\d+ --> n\d+)')
    for seed in range(200):
        plan = random_plan(seed)
        rows = to_mermaid(plan).split("\n")
        assert all(row.fullmatch(each) for each in rows)
        assert sum("-->" in each and '["' not in each for each in rows) == sum(map(len, plan.dependencies.values()))
        assert to_tree(plan).count("\n") >= len(plan)
