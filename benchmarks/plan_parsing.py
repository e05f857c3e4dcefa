"""What does it cost to make, read and write plans? CPU µs per task, and the ratio to a plain reader of the same text.

The peers do less: graphlib sorts and finds cycles but checks nothing else, json/ElementTree/PyYAML return values, not
tasks, and one regular expression per line is what a parser without any tolerance would do.

    python benchmarks/plan_parsing.py [--quick]
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import time
from collections.abc import Callable
from graphlib import TopologicalSorter
from random import Random
from typing import Any
from xml.etree import ElementTree

import yaml

from agent_forge.plans import Plan, PlanLimits, Task, parse_plan, reduced, to_json, to_lines, to_xml, to_yaml

LINE = re.compile(r"Task (\d+): (.*) \| Dependencies: (.*)")
LIMITS = PlanLimits(text_bytes=1 << 30)


def tasks_of(count: int, seed: int = 0) -> list[Task]:
    """A random graph with up to three dependencies per task, none far back, as planners write them."""
    random = Random(seed)
    tasks = []
    for number in range(count):
        before = {number - random.randint(1, 20) for _ in range(random.randint(0, 3))}
        needs = [f"task_{each}" for each in sorted(before) if each >= 0]
        tasks.append(Task(f"task_{number}", f"Find the population of city {number}", depends_on=needs))
    return tasks


def cpu_us(work: Callable[[], Any], count: int, repeat: int) -> float:
    """The best of several runs, in CPU microseconds per task."""
    best = float("inf")
    for _ in range(repeat):
        gc.collect()
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best / count * 1e6


def sort_with_graphlib(tasks: list[Task]) -> list[str]:
    return list(TopologicalSorter({task.id: task.depends_on for task in tasks}).static_order())


def rows(count: int, repeat: int) -> list[tuple[str, float, str, float]]:
    """(what, µs per task, peer, µs per task) for one size."""
    tasks = tasks_of(count)
    plan = Plan(tasks)
    lines, xml, jsonl, yml = to_lines(plan), to_xml(plan), to_json(plan), to_yaml(plan)
    fast_yaml = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    measured: list[tuple[str, Callable[[], Any], str, Callable[[], Any]]] = [
        ("Plan(tasks)", lambda: Plan(tasks), "graphlib static_order", lambda: sort_with_graphlib(tasks)),
        (
            "levels + critical path",
            lambda: (plan.levels(), plan.critical_path()),
            "graphlib static_order",
            lambda: sort_with_graphlib(tasks),
        ),
        (
            "read lines",
            lambda: parse_plan(lines, limits=LIMITS),
            "one regex per line",
            lambda: [LINE.match(row) for row in lines.split("\n")],
        ),
        ("read graph", lambda: parse_plan(xml, limits=LIMITS), "ElementTree", lambda: ElementTree.fromstring(xml)),
        ("read JSON", lambda: parse_plan(jsonl, limits=LIMITS), "json.loads", lambda: json.loads(jsonl)),
        (
            "read YAML",
            lambda: parse_plan(yml, limits=LIMITS),
            "PyYAML safe load (C)",
            lambda: yaml.load(yml, Loader=fast_yaml),
        ),
        ("write lines", lambda: to_lines(plan), "to_json", lambda: to_json(plan)),
        ("transitive reduction", lambda: reduced(plan), "graphlib static_order", lambda: sort_with_graphlib(tasks)),
    ]
    return [
        (what, cpu_us(own, count, repeat), peer, cpu_us(other, count, repeat)) for what, own, peer, other in measured
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small plans only")
    sizes = [1_000] if parser.parse_args().quick else [1_000, 10_000, 100_000]
    print(f"{'tasks':>8}  {'what':<24}{'µs/task':>9}   {'peer':<24}{'µs/task':>9}  {'ratio':>7}")
    for count in sizes:
        for what, own, peer, other in rows(count, 5 if count <= 10_000 else 2):
            print(f"{count:>8,}  {what:<24}{own:>9.2f}   {peer:<24}{other:>9.2f}  {own / other:>6.1f}×")


if __name__ == "__main__":
    main()
