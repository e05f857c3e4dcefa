"""One function over many jobs: the same results wherever they run, in order, and no job is lost with its worker."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from agent_forge.errors import UsageError
from agent_forge.plans import Task
from agent_forge.runtime import Inline, WorkerDied
from agent_forge.runtime.jobs import Jobs, open_workers
from agent_forge.runtime.workers import RemoteError


def square(task: Task, inputs: dict[str, Any]) -> int:
    """The square, and a mark for every call; jobs with `dies` end their process that often, in the middle."""
    mark = Path(task.args["folder"]) / str(task.args["n"])
    calls = mark.stat().st_size if mark.exists() else 0
    with open(mark, "a") as file:
        file.write("x")
    if calls < task.args.get("dies", 0):
        os._exit(9)
    if task.args["n"] < 0:
        raise ValueError("below zero")
    return int(task.args["n"]) ** 2


def jobs_for(folder: Path, numbers: list[int], **more: Any) -> list[dict[str, Any]]:
    folder.mkdir(exist_ok=True)
    return [{"n": n, "folder": str(folder), **more} for n in numbers]


@pytest.mark.parametrize("place", [None, 0, "processes:2", Inline()], ids=["here", "zero", "processes", "workers"])
def test_results_are_in_order_wherever_they_come_from(place: Any, tmp_path: Path) -> None:
    told: dict[int, int] = {}
    with Jobs(place) as jobs:
        assert jobs.elsewhere == (place not in (None, 0))
        assert jobs.map(square, []) == []
        for numbers in ([3, 1, 2], list(range(20))):  # the workers serve again
            told.clear()
            there = jobs.map(square, jobs_for(tmp_path / "a", numbers), on_result=told.__setitem__)
            assert there == [n * n for n in numbers]
            assert told == dict(enumerate(there))


def test_a_job_whose_worker_dies_is_done_by_another(tmp_path: Path) -> None:
    with Jobs("processes:2") as jobs:
        work = [*jobs_for(tmp_path / "a", [5], dies=1), *jobs_for(tmp_path / "a", [6, 7])]
        assert jobs.map(square, work) == [25, 36, 49]
        assert {n: (tmp_path / "a" / str(n)).stat().st_size for n in (5, 6, 7)} == {5: 2, 6: 1, 7: 1}
        with pytest.raises(WorkerDied):
            jobs.map(square, jobs_for(tmp_path / "b", [5], dies=99))
        assert (tmp_path / "b" / "5").stat().st_size == 3, "it is not repeated for ever"
        with pytest.raises(RemoteError, match="ValueError: below zero"):
            jobs.map(square, jobs_for(tmp_path / "c", [-1, 2]))
        assert (tmp_path / "c" / "-1").stat().st_size == 1, "an error is no reason to try again"
        assert jobs.map(square, jobs_for(tmp_path / "d", [4])) == [16], "and the workers are as they were"
    with pytest.raises(ValueError, match="below zero"), Jobs() as here:
        here.map(square, jobs_for(tmp_path / "e", [-1]))


def test_it_blocks_where_an_event_loop_runs_and_leaves_given_workers_open(tmp_path: Path) -> None:
    class Given(Inline):
        closed = False

        async def close(self) -> None:
            self.closed = True

    given = Given()

    async def inside() -> list[Any]:
        with Jobs(given) as jobs:
            return jobs.map(square, jobs_for(tmp_path / "a", [2]))

    assert asyncio.run(inside()) == [4]
    assert not given.closed
    for wrong in ("threads", "processes:x", ""):
        with pytest.raises(UsageError, match="there are no workers"):
            open_workers(wrong)
    assert not [thread for thread in threading.enumerate() if thread.name == "agent-forge-jobs" and not thread.daemon]
