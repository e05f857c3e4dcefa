"""Plans people and models really drew: AsyncHow (steps, edges, durations, optimal time) and WorFBench graphs."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from agent_forge.plans import Plan, Task, parse_plan, reduced, to_json, to_lines, to_xml, to_yaml

GRAPHS = Path(__file__).parents[2].parent / "shared" / "data" / "plan_graph"
WRITERS = {"lines": to_lines, "xml": to_xml, "json": to_json, "yaml": to_yaml}


def read(name: str) -> str:
    path = GRAPHS / name
    if not path.exists():
        pytest.skip(f"shared/data/plan_graph/{name} is absent")
    return gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()


def asynchow_plan(row: dict[str, Any]) -> Plan:
    before: dict[str, list[str]] = {}
    for first, then in row["edges"]:
        before.setdefault(f"task_{then}", []).append(f"task_{first}")
    ids = [f"task_{number}" for number in range(1, len(row["steps"]) + 1)]
    return Plan(
        [Task(name, goal, depends_on=before.get(name, ())) for name, goal in zip(ids, row["steps"], strict=True)]
    )


def test_the_critical_path_of_asynchow_is_its_optimal_time() -> None:
    rows = [json.loads(line) for line in read("asynchow/asynchow.jsonl.gz").splitlines()]
    right = 0
    for row in rows:
        plan = asynchow_plan(row)
        times = []
        for end in (0, 1):
            durations = {f"task_{step}": span[end] for step, span in row["durations_s_minmax"].items()}
            times.append(plan.critical_path_length(durations))
            assert sum(durations[name] for name in plan.critical_path(durations)) == pytest.approx(times[end])
        right += times == pytest.approx(row["optimal_time_s_minmax"], rel=0.01)
    assert len(rows) == 970
    assert right == 970


@pytest.mark.parametrize("format", WRITERS)
def test_real_plans_survive_every_format_and_lose_only_needless_edges(format: str) -> None:
    rows = [json.loads(line) for line in read("asynchow/asynchow.jsonl.gz").splitlines()][::5]
    for row in rows:
        plan = asynchow_plan(row)
        assert parse_plan(WRITERS[format](plan)) == plan
        shorter = reduced(plan)
        assert shorter.levels() == plan.levels()
        assert sum(map(len, shorter.dependencies.values())) <= sum(map(len, plan.dependencies.values()))


def worfbench_graphs() -> list[tuple[dict[str, str], list[tuple[str, str]]]]:
    graphs = []
    for name in ("wikihow", "lumos", "toolalpaca", "alfworld", "toolbench", "intercodesql"):
        for row in json.loads(read(f"worfbench/{name}.json.gz")):
            text = row["conversations"][-1]["content"]
            nodes = dict(re.findall(r"^(\d+)[:.]\s*(.*)$", text, re.MULTILINE))
            edges = re.findall(r"\((\w+),\s*(\w+)\)", text[text.rfind("Edge") :])
            graphs.append((nodes, [edge for edge in edges if "START" not in edge and "END" not in edge]))
    return graphs


def test_every_worfbench_graph_is_a_plan_and_keeps_its_order() -> None:
    graphs = worfbench_graphs()
    for nodes, edges in graphs:
        plan = Plan([Task(name, goal, depends_on=[a for a, b in edges if b == name]) for name, goal in nodes.items()])
        assert parse_plan(to_lines(plan)) == parse_plan(to_xml(plan)) == plan
        position = {name: index for index, name in enumerate(plan.order())}
        assert all(position[a] < position[b] for a, b in edges)
    assert len(graphs) == 1028
