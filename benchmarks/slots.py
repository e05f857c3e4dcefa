"""Eight slots for a hundred tasks: how close to the lower bound, critical path first or first come, first served?

The executor itself runs, on simulated time, so the figures are exact and do not depend on the machine. Each is the
makespan over max(critical path, work / slots), the mean of the seeds. "estimates" plans with durations that are wrong
by up to a factor of two, "unknown" with none at all (the length of the path in tasks decides), "levels" waits for each
level to end, with the slots filled inside it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from typing import Any

from _random_graphs import Graph, random_graph

from agent_forge.plans import Plan, Task
from agent_forge.runtime import execute, run_simulated

GOAL = 1.03


def makespan(graph: Graph, slots: int, order: str, durations: dict[str, float] | None) -> float:
    async def handler(task: Task, inputs: dict[str, Any]) -> None:
        await asyncio.sleep(graph.durations[task.id])

    plan = Plan(Task(name, depends_on=before) for name, before in graph.needs.items())
    result = run_simulated(execute(plan, handler, concurrency=slots, order=order, durations=durations))
    assert result.state == "done"
    return result.wall_s


def levels(graph: Graph, slots: int) -> float:
    total = 0.0
    for level in graph.levels():
        free = [0.0] * slots
        for name in level:
            first = min(range(slots), key=free.__getitem__)
            free[first] += graph.durations[name]
        total += max(free)
    return total


def ratios(graph: Graph, slots: int, seed: int) -> dict[str, float]:
    rng = random.Random(seed)
    guessed = {name: value * 2 ** rng.uniform(-1, 1) for name, value in graph.durations.items()}
    bound = max(graph.critical_path_s, graph.work_s / slots)
    makespans = {
        "critical path": makespan(graph, slots, "critical_path", graph.durations),
        "estimates": makespan(graph, slots, "critical_path", guessed),
        "unknown": makespan(graph, slots, "critical_path", None),
        "fifo": makespan(graph, slots, "fifo", None),
        "levels": levels(graph, slots),
    }
    return {name: value / bound for name, value in makespans.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 seeds instead of 100")
    seeds = range(10 if parser.parse_args().quick else 100)
    print(f"makespan / max(critical path, work / slots), mean of {len(seeds)} graphs of 100 tasks, simulated time")
    names = ("critical path", "estimates", "unknown", "fifo", "levels")
    print(f"{'':20s}" + "".join(f"{name:>15s}" for name in names))
    for spread in ("uniform", "tail"):
        for slots in (4, 8, 16):
            rows = [ratios(random_graph(seed, 100, 0.1, 0.5, spread), slots, seed) for seed in seeds]
            means = {name: statistics.mean(row[name] for row in rows) for name in names}
            verdict = f"   goal {GOAL}: {'met' if means['critical path'] <= GOAL else 'missed'}" if slots == 8 else ""
            print(f"{spread:8s} {slots:2d} slots    " + "".join(f"{means[name]:15.3f}" for name in names) + verdict)


if __name__ == "__main__":
    main()
