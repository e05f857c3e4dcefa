"""LangGraph and Dask on the graphs of executor.py. Runs in a virtual environment of its own: no Agent Forge in it.

Reads {"engine": name, "graphs": [{"needs", "durations"}], "work": "sleep" | "none"} from the standard input and writes
[{"wall_s", "cpu_s"}] to the standard output.
"""

from __future__ import annotations

import asyncio
import json
import operator
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any, TypedDict


def langgraph_runner(graph: dict[str, Any]) -> Callable[[], None]:
    from langgraph.graph import END, START, StateGraph

    class State(TypedDict):
        done: Annotated[list[str], operator.add]

    builder = StateGraph(State)
    needs, durations = graph["needs"], graph["durations"]
    for name in needs:

        async def node(state: State, name: str = name) -> dict[str, list[str]]:
            if durations[name]:
                await asyncio.sleep(durations[name])
            return {"done": [name]}

        builder.add_node(name, node)
    used = {other for before in needs.values() for other in before}
    for name, before in needs.items():
        builder.add_edge(before if len(before) > 1 else before[0] if before else START, name)
        if name not in used:
            builder.add_edge(name, END)
    compiled = builder.compile()

    def run() -> None:
        final = asyncio.run(compiled.ainvoke({"done": []}, {"recursion_limit": 100_000}))
        assert len(final["done"]) == len(needs)

    return run


def dask_runner(graph: dict[str, Any]) -> Callable[[], None]:
    client = dask_client()

    def work(duration: float, *inputs: Any) -> int:
        if duration:
            time.sleep(duration)
        return 1

    def run() -> None:
        futures: dict[str, Any] = {}
        for name, before in graph["needs"].items():
            inputs = [futures[other] for other in before]
            futures[name] = client.submit(work, graph["durations"][name], *inputs, pure=False)
        assert sum(client.gather(list(futures.values()))) == len(futures)

    return run


_CLIENT: Any = None


def dask_client() -> Any:
    global _CLIENT
    if _CLIENT is None:
        from distributed import Client

        _CLIENT = Client(processes=False, n_workers=1, threads_per_worker=64, dashboard_address=None)
    return _CLIENT


ENGINES = {"langgraph": langgraph_runner, "dask": dask_runner}


def main() -> None:
    request = json.load(sys.stdin)
    results = []
    for graph in request["graphs"]:
        run = ENGINES[request["engine"]](graph)
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        results.append({"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu})
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
