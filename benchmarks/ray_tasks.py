"""What does our executor, with its journal, cost on a Ray cluster, beside plain Ray and Dask?

    python benchmarks/ray_tasks.py [--quick] [--tasks 10000] [--ms 50] [--workers 1,2,4]

TASKS independent tasks that each sleep for MS milliseconds, on a local cluster with 1, 2 and 4 CPUs: plain Ray
(`ray.get` of all), our executor on the same cluster with results in a journal, and Dask (LocalCluster, one thread per
process) where it is installed. Before that, the cost of tasks that do nothing. The ideal is TASKS × MS / workers. The
goal: ours at most 1.3 times plain Ray's makespan. Needs ray; distributed is optional.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from typing import Any

from agent_forge.plans import Task
from agent_forge.runtime import Journal, execute

GOAL = 1.3


def nap(task: Task, inputs: dict[str, Any]) -> int:
    time.sleep(float(task.args["seconds"]))
    return 1


def nap_alone(seconds: float) -> int:
    time.sleep(seconds)
    return 1


def ours(ray: Any, tasks: int, seconds: float, workers: int) -> float:
    plan = [Task(f"t{n}", args={"seconds": seconds}) for n in range(tasks)]

    async def run() -> float:
        with tempfile.TemporaryDirectory() as home:
            journal = Journal.open(home)
            begun = time.perf_counter()
            # As many calls are under way as keep every worker busy while an answer travels.
            result = await execute(plan, nap, workers=ray, journal=journal, concurrency=8 * workers)
            took = time.perf_counter() - begun
            assert sum(result.results.values()) == tasks
            journal.close()
            return took

    return asyncio.run(run())


def plain(tasks: int, seconds: float) -> float:
    import ray

    remote = ray.remote(nap_alone)
    begun = time.perf_counter()
    assert sum(ray.get([remote.remote(seconds) for _ in range(tasks)])) == tasks
    return time.perf_counter() - begun


def dask(tasks: int, seconds: float, workers: int) -> float | None:
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        return None
    cluster = LocalCluster(workers, threads_per_worker=1, processes=True, dashboard_address=None)
    with cluster, Client(cluster) as client:
        client.gather(client.map(nap_alone, [0.0] * workers, pure=False))
        begun = time.perf_counter()
        assert sum(client.gather(client.map(nap_alone, [seconds] * tasks, pure=False))) == tasks
        return time.perf_counter() - begun


def measure(tasks: int, ms: float, workers: int) -> None:
    from agent_forge.runtime.ray_workers import Ray

    begun = time.perf_counter()
    cluster = Ray(cpus=workers)
    started = time.perf_counter() - begun
    plain(4 * workers, 0.0)  # the workers are there now
    ours(cluster, 4 * workers, 0.0, workers)
    few = min(tasks, 500)
    idle = {"plain Ray": plain(few, 0.0), "ours": ours(cluster, few, 0.0, workers)}
    made = {"plain Ray": plain(tasks, ms / 1000), "ours": ours(cluster, tasks, ms / 1000, workers)}
    asyncio.run(cluster.close())
    if (other := dask(tasks, ms / 1000, workers)) is not None:
        made["Dask"] = other
    ideal = tasks * ms / 1000 / workers
    ratio = made["ours"] / made["plain Ray"]
    empty = ", ".join(f"{name} {took / few * 1000:.2f} ms" for name, took in idle.items())
    print(f"{workers} workers (started in {started:.1f} s): a task that does nothing: {empty}")
    for name, took in made.items():
        met = "" if name != "ours" else f", {ratio:.2f} x plain Ray{' met' if ratio <= GOAL else ' missed'}"
        print(f"  {tasks:,} tasks of {ms:g} ms: {name:10}{took:8.1f} s, {took / ideal:.2f} x ideal{met}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="200 tasks on 2 workers")
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--ms", type=float, default=50.0)
    parser.add_argument("--workers", default="1,2,4")
    arguments = parser.parse_args()
    try:
        import ray  # noqa: F401
    except ImportError:
        sys.exit("ray is not installed: the extra `ray` brings it") if not arguments.quick else print("skipped: no ray")
        return
    tasks, counts = (200, "2") if arguments.quick else (arguments.tasks, arguments.workers)
    for count in map(int, counts.split(",")):
        measure(tasks, arguments.ms, count)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
