"""What does the executor itself cost? CPU time of tasks that do nothing, and how it grows with the size of the plan.

Random graphs (0 to 3 parents), median over repetitions, all in one run. "event loop" is the CPU time of the thread that
carries out the plan, "process" that of all threads until everything is on disk (the trace store writes in a thread of
its own). The peers are the ways people write this by hand; with --peers, LangGraph and Dask too.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from graphlib import TopologicalSorter
from typing import Any

import _peer_environment
from _random_graphs import Graph, random_graph

from agent_forge import arun, tool
from agent_forge.plans import Plan, Task
from agent_forge.runtime import Journal, execute
from agent_forge.traces import Recorder, Store

GOALS = {"bare": 10.0, "journal + spans": 40.0, "public run() with a @tool, process": 60.0}
GROWTH = 1.3


async def nothing(task: Any = None, inputs: Any = None) -> None:
    return None


async def await_loop(graph: Graph) -> None:
    for _ in graph.needs:
        await nothing()


async def level_gather(levels: list[list[str]]) -> None:
    for level in levels:
        await asyncio.gather(*(nothing() for _ in level))


async def graphlib_wait(graph: Graph) -> None:
    sorter = TopologicalSorter(graph.needs)
    sorter.prepare()
    running: dict[asyncio.Task[None], str] = {}
    while sorter.is_active():
        for name in sorter.get_ready():
            running[asyncio.ensure_future(nothing())] = name
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            sorter.done(running.pop(task))


async def task_awaits_parents(graph: Graph) -> None:
    tasks: dict[str, asyncio.Task[None]] = {}

    async def one(before: list[str]) -> None:
        for other in before:
            await tasks[other]
        await nothing()

    for name, before in graph.needs.items():
        tasks[name] = asyncio.ensure_future(one(before))
    await asyncio.wait(tasks.values())


PEERS: dict[str, Callable[[Graph], Awaitable[None]]] = {
    "await in a loop (no graph)": await_loop,
    "graphlib + wait": graphlib_wait,
    "task awaits its parents": task_awaits_parents,
}


def timed(work: Callable[[], Awaitable[Any]], after: Callable[[], None] = lambda: None) -> tuple[float, float]:
    """CPU seconds of the event loop's thread and of the process, `after` counted in the second."""
    gc.collect()

    async def run() -> tuple[float, float]:
        process, thread = time.process_time(), time.thread_time()
        await work()
        spent = time.thread_time() - thread
        after()
        return spent, time.process_time() - process

    return asyncio.run(run())


def ours(plan: Plan, journal: bool, spans: bool) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as home:
        log = Journal.open(home) if journal else None
        recorder = Recorder(Store.open(home)) if spans else None
        spent = timed(
            lambda: execute(plan, nothing, journal=log, recorder=recorder),
            recorder.flush if recorder else lambda: None,
        )
        if recorder is not None:
            recorder.close()
        if log is not None:
            log.close()
        return spent


@tool(name="nothing")
def idle() -> None:
    """Does nothing."""


def public(plan: Plan) -> tuple[float, float]:
    """`run` as a user calls it: with a tool, which runs in a thread, and with journal and spans."""
    with tempfile.TemporaryDirectory() as home:
        return timed(lambda: arun(plan, tools=[idle], home=home))


def show(name: str, figures: list[tuple[float, float]], count: int, bare_us: float | None) -> float:
    loop_us, process_us = (1e6 * statistics.median(values) / count for values in zip(*figures, strict=True))
    least = 1e6 * min(value for value, _ in figures) / count
    ratio = f"{loop_us / bare_us:8.2f} x" if bare_us else " " * 10
    print(f"  {name:28s}{loop_us:11.2f}{least:9.2f}{process_us:10.2f}{ratio}", flush=True)
    return loop_us


def measure(count: int, repeats: int, peers: bool) -> float:
    graph = random_graph(7, count, 0.0, 0.0)
    plan = Plan(Task(name, depends_on=before) for name, before in graph.needs.items())
    print(f"{count} tasks: CPU µs per task event loop    least   process   to bare")
    bare = show("agent forge, bare", [ours(plan, False, False) for _ in range(repeats)], count, None)
    for name, journal, spans in (
        ("agent forge, journal", True, False),
        ("agent forge, spans", False, True),
        ("agent forge, journal + spans", True, True),
    ):
        show(name, [ours(plan, journal, spans) for _ in range(repeats)], count, bare)
    calls = Plan(Task(name, action="nothing", depends_on=before) for name, before in graph.needs.items())
    show("public run() with a @tool", [public(calls) for _ in range(min(repeats, 5))], count, bare)
    levels = graph.levels()
    show("level gather", [timed(lambda: level_gather(levels)) for _ in range(repeats)], count, bare)
    for name, peer in PEERS.items():
        show(name, [timed(lambda peer=peer: peer(graph)) for _ in range(repeats)], count, bare)
    if peers and count <= 1000:
        for name in ("langgraph", "dask"):
            cpu_s = _peer_environment.run(name, [graph])[0]["cpu_s"]
            show(name, [(cpu_s, cpu_s)], count, bare)
    return bare


def growth(repeats: int) -> None:
    """Graphs of 1,000 and 100,000 tasks in turn, so that the load of the machine is the same for both.

    Beside ours, two hand-written ways that only start tasks: what more objects cost in the machine's caches.
    """
    graphs = {count: random_graph(3, count, 0.0, 0.0) for count in (1000, 100_000)}
    levels = {count: graph.levels() for count, graph in graphs.items()}
    plans = {c: Plan(Task(name, depends_on=b) for name, b in graph.needs.items()) for c, graph in graphs.items()}
    engines: dict[str, Callable[[int], float]] = {
        "agent forge, bare": lambda count: ours(plans[count], False, False)[0],
        "level gather": lambda count: timed(lambda: level_gather(levels[count]))[0],
        "task awaits its parents": lambda count: timed(lambda: task_awaits_parents(graphs[count]))[0],
    }
    print("growth: CPU µs per task            1,000   100,000   ratio")
    for name, engine in engines.items():
        costs: dict[int, list[float]] = {count: [] for count in graphs}
        for _ in range(repeats):
            for count in graphs:
                runs = 20 if count == 1000 else 1
                costs[count].append(1e6 * sum(engine(count) for _ in range(runs)) / runs / count)
        small, large = (statistics.median(values) for values in costs.values())
        goal = f" (goal {GROWTH}: {'met' if large / small <= GROWTH else 'missed'})" if name.startswith("agent") else ""
        print(f"  {name:28s}{small:11.2f}{large:10.2f}{large / small:8.2f}{goal}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1,000 tasks only, fewer repetitions")
    parser.add_argument("--peers", action="store_true", help="LangGraph and Dask too (1,000 tasks)")
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; goals: {GOALS}")
    for count in (1000,) if options.quick else (1000, 10_000):
        measure(count, 5 if options.quick else 15, options.peers)
    if not options.quick:
        growth(3)


if __name__ == "__main__":
    main()
