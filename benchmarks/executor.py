"""How close does a run come to the critical path? 100-task graphs with tools of 10-50 ms, 100-500 ms and uneven ones.

Each figure is the makespan divided by the critical path of the same graph (1 is the best any schedule can do), the mean
over the seeds, all engines in one run. "one chain" is the critical path alone, awaited task after task on the same
event loop: what timers and the load of the machine cost without any executor. With --peers, LangGraph and Dask run the
same graphs in a virtual environment of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from graphlib import TopologicalSorter
from typing import Any

import _peer_environment
from _random_graphs import Graph, random_graph

from agent_forge.plans import Plan, Task
from agent_forge.runtime import execute

CASES = {
    "uniform 10-50 ms": (0.01, 0.05, "uniform"),
    "tail 10-100 ms": (0.01, 0.05, "tail"),
    "uniform 100-500 ms": (0.1, 0.5, "uniform"),
    "tail 0.1-1 s": (0.1, 0.5, "tail"),
}
GOALS = {"uniform 10-50 ms": 1.04, "tail 10-100 ms": 1.04, "uniform 100-500 ms": 1.01, "tail 0.1-1 s": 1.01}


async def agent_forge(graph: Graph) -> None:
    async def handler(task: Task, inputs: dict[str, Any]) -> str:
        await asyncio.sleep(graph.durations[task.id])
        return task.id

    plan = Plan(Task(name, depends_on=before) for name, before in graph.needs.items())
    assert (await execute(plan, handler)).state == "done"


async def level_gather(graph: Graph) -> None:
    for level in graph.levels():
        await asyncio.gather(*(asyncio.sleep(graph.durations[name]) for name in level))


async def graphlib_wait(graph: Graph) -> None:
    sorter = TopologicalSorter(graph.needs)
    sorter.prepare()
    running: dict[asyncio.Task[None], str] = {}
    while sorter.is_active():
        for name in sorter.get_ready():
            running[asyncio.ensure_future(asyncio.sleep(graph.durations[name]))] = name
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            sorter.done(running.pop(task))


async def one_chain(graph: Graph) -> None:
    for name in graph.critical_chain():
        await asyncio.sleep(graph.durations[name])


ENGINES: dict[str, Callable[[Graph], Awaitable[None]]] = {
    "agent forge": agent_forge,
    "level gather": level_gather,
    "graphlib + wait": graphlib_wait,
    "one chain": one_chain,
}


async def measure(engine: Callable[[Graph], Awaitable[None]], graph: Graph) -> float:
    began = time.perf_counter()
    await engine(graph)
    return (time.perf_counter() - began) / graph.critical_path_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds of the fast cases only")
    parser.add_argument("--peers", action="store_true", help="LangGraph and Dask too")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    seeds = 2 if options.quick else options.seeds
    print(f"makespan / critical path, mean of {seeds} seeds (load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)")
    names = [*ENGINES, *(["langgraph", "dask"] if options.peers else [])]
    print(f"{'case':20s}" + "".join(f"{name:>17s}" for name in names) + f"{'goal':>8s}")
    for case, (low_s, high_s, spread) in list(CASES.items())[: 2 if options.quick else None]:
        graphs = [random_graph(seed, 100, low_s, high_s, spread) for seed in range(seeds)]
        figures: dict[str, list[float]] = {name: [] for name in ENGINES}
        for graph in graphs:
            for name, engine in ENGINES.items():
                figures[name].append(asyncio.run(measure(engine, graph)))
        for name in names[len(ENGINES) :]:
            ran = _peer_environment.run(name, graphs)
            figures[name] = [one["wall_s"] / graph.critical_path_s for one, graph in zip(ran, graphs, strict=True)]
        row = "".join(f"{statistics.mean(figures[name]):17.3f}" for name in names)
        print(f"{case:20s}{row}{GOALS[case]:8.2f}", flush=True)


if __name__ == "__main__":
    main()
