"""One function over many jobs, on workers: what evaluation, evolution, forge phases and rewards share.

with Jobs("ray://local") as jobs:
    scores = jobs.map(judge, [{"model": path} for path in paths], resources={"gpus": 1})
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from agent_forge.errors import UsageError
from agent_forge.plans import Task
from agent_forge.runtime.workers import Function, Processes, WorkerDied, Workers

ATTEMPTS = 3  # of a job whose worker dies
AT_ONCE = 1_000  # jobs that wait at the workers
Place = Workers | str | int | None
T = TypeVar("T")


def open_workers(place: Place) -> Workers | None:
    """Workers by name: 4 or "processes:4", "processes" (one per core), "ray://…"; None for none (or 0). Those that are
    workers already are returned as they are. Raises UsageError, MissingExtraError."""
    if place is None or place == 0:
        return None
    if isinstance(place, int):
        return Processes(place)
    if not isinstance(place, str):
        return place
    kind, _, count = place.partition(":")
    if kind == "ray":
        from agent_forge.runtime.ray_workers import Ray

        return Ray(place)
    if kind == "processes" and (not count or count.isdecimal()):
        return Processes(int(count) if count else None)
    fix = "Write processes, processes:4, ray://local or ray://host:port"
    raise UsageError(f"there are no workers {place!r}", fix=fix)


async def call_again(workers: Workers, function: Function, task: Task, attempts: int = ATTEMPTS) -> Any:
    """The function's result. If its worker dies, another one begins it again. Raises what `Workers.call` does."""
    for _ in range(attempts - 1):
        with suppress(WorkerDied):
            return await workers.call(function, task, {})
    return await workers.call(function, task, {})


class Jobs:
    """Workers for code that blocks. Without a place, jobs run in this process, one after the other.

    The function is called as `function(task, {})` with the job in `task.args`. As everywhere, it travels to the workers
    by reference, jobs and results as JSON.
    """

    def __init__(self, place: Place = None) -> None:
        """Raises UsageError, MissingExtraError."""
        self._workers, self._own = open_workers(place), place is None or isinstance(place, str | int)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether other processes do the jobs."""
        return self._workers is not None

    def map(
        self,
        function: Function,
        jobs: Sequence[Mapping[str, Any]],
        *,
        resources: Mapping[str, float] | None = None,
        on_result: Callable[[int, Any], object] = lambda index, result: None,
    ) -> list[Any]:
        """The results, in the order of the jobs; `on_result` is told each as it comes.

        A job whose worker dies is begun again by another. The first error ends the rest and is raised: what the
        function raised here, else RemoteError, or WorkerDied for a job that ended three workers.
        """
        meta = {"resources": dict(resources)} if resources else {}
        tasks = [Task(f"job-{index}", args=dict(job), meta=meta) for index, job in enumerate(jobs)]
        results: list[Any] = [None] * len(tasks)
        workers = self._workers
        if workers is None:
            for index, task in enumerate(tasks):
                results[index] = function(task, {})
                on_result(index, results[index])
            return results

        async def go() -> None:
            places = asyncio.Semaphore(AT_ONCE)

            async def one(index: int, task: Task) -> None:
                async with places:
                    results[index] = await call_again(workers, function, task)
                on_result(index, results[index])

            calls = [asyncio.ensure_future(one(index, task)) for index, task in enumerate(tasks)]
            try:
                await asyncio.gather(*calls)
            finally:
                for call in calls:
                    call.cancel()
                await asyncio.gather(*calls, return_exceptions=True)

        self._wait_for(go())
        return results

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Worker processes belong to one event loop: it lives in a thread, so that loops of the caller may run too."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="agent-forge-jobs", daemon=True).start()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Ends the workers, unless they were given."""
        if self._workers is not None and self._own:
            self._wait_for(self._workers.close())
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._loop = self._workers = None

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
