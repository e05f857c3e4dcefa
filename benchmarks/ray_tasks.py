"""What does our executor, with its journal, cost on a Ray cluster, beside plain Ray and Dask?

    python benchmarks/ray_tasks.py [--quick] [--tasks 10000] [--ms 50] [--evaluations 100] [--workers 1,2,4]

TASKS independent tasks that each sleep for MS milliseconds, on a local cluster with 1, 2 and 4 CPUs: plain Ray
(`ray.get` of all), our executor on the same cluster with results in a journal, and Dask (LocalCluster, one thread per
process) where it is installed. Before that, the cost of tasks that do nothing. The ideal is TASKS × MS / workers. The
goal: ours at most 1.3 times plain Ray's makespan. Then EVALUATIONS of tiny models (ten of them in turn, each loaded and
asked 40 questions), by `Jobs.map`, plain Ray and Dask, with the control in this process, one after the other; scores
must be equal. Needs ray; distributed, and torch for the evaluations, are optional.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
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
    cluster = LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None)
    with cluster, Client(cluster) as client:
        client.gather(client.map(nap_alone, [0.0] * workers, pure=False))
        begun = time.perf_counter()
        assert sum(client.gather(client.map(nap_alone, [seconds] * tasks, pure=False))) == tasks
        return time.perf_counter() - begun


def evaluate_alone(job: dict[str, Any]) -> dict[str, Any]:
    from agent_forge.forge.evaluation.suite import evaluate_job

    return evaluate_job(Task("job", args=job), {})


def evaluation_jobs(folder: Path, count: int) -> list[dict[str, Any]]:
    """Ten tiny models with different weights, and questions that mean nothing."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from agent_forge.forge.checkpoint import digest_of
    from agent_forge.forge.training import train_tokenizer

    words = [f"word{n}" for n in range(50)]
    tokenizer = train_tokenizer([" ".join(words)] * 20, vocab_size=320)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    for number in range(10):
        torch.manual_seed(number)
        LlamaForCausalLM(LlamaConfig(vocab_size=320, **sizes)).save_pretrained(folder / str(number))
        tokenizer.save_pretrained(folder / str(number))
    rows = [
        {"question": " ".join(words[n : n + 8]), "choices": [words[n], words[n + 1]], "answer": n % 2}
        for n in range(40)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    models = [{"model": str(folder / str(n)), "digest": digest_of(folder / str(n))} for n in range(10)]
    same = {"data": str(folder / "rows.jsonl"), "task": "arc_easy", "most": None, "begin": None}
    return [{**models[n % 10], **same} for n in range(count)]


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    result = work()
    return time.perf_counter() - begun, result


def measure_evaluations(jobs: list[dict[str, Any]], workers: int) -> None:
    import ray

    from agent_forge.runtime.jobs import Jobs
    from agent_forge.runtime.ray_workers import Ray

    cluster = Ray(cpus=workers)
    remote, first = ray.remote(evaluate_alone), jobs[:workers]
    ray.get([remote.remote(job) for job in first])  # torch is imported in every worker now
    made: dict[str, tuple[float, Any]] = {}
    with Jobs(cluster) as pool:
        from agent_forge.forge.evaluation.suite import evaluate_job

        pool.map(evaluate_job, first)
        made["plain Ray"] = timed(lambda: ray.get([remote.remote(job) for job in jobs]))
        made["ours"] = timed(lambda: pool.map(evaluate_job, jobs))
    asyncio.run(cluster.close())
    try:
        from distributed import Client, LocalCluster

        with LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None) as local:
            with Client(local) as client:
                client.gather(client.map(evaluate_alone, first, pure=False))
                made["Dask"] = timed(lambda: client.gather(client.map(evaluate_alone, jobs, pure=False)))
    except ImportError:
        print("Dask is not installed")
    made["here"] = timed(lambda: [evaluate_alone(job) for job in jobs])
    for name, (took, scores) in made.items():
        assert [list(score["points"]) for score in scores] == [list(score["points"]) for score in made["here"][1]]
        ratio = took / made["plain Ray"][0]
        print(
            f"  {len(jobs)} evaluations, {workers} workers: {name:10}{took:8.1f} s, {ratio:.2f} x plain Ray", flush=True
        )


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
    parser.add_argument("--evaluations", type=int, default=100)
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
    evaluations = 0 if arguments.quick else arguments.evaluations
    if evaluations:
        with tempfile.TemporaryDirectory() as folder:
            jobs = evaluation_jobs(Path(folder), evaluations)
            for count in map(int, counts.split(",")):
                measure_evaluations(jobs, count)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
