"""Handlers on a real Ray cluster of this machine. It takes seconds to start, so there is one test with one cluster."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from agent_forge.errors import MissingExtraError, UsageError
from agent_forge.plans import Task
from agent_forge.runtime import Inline, Journal, Processes, Retry, execute, resume
from agent_forge.runtime.ray_workers import Ray


def record(task: Task, inputs: dict[str, Any]) -> Any:
    return [task.id, [[name, value] for name, value in sorted(inputs.items())]]


def dies_once(task: Task, inputs: dict[str, Any]) -> int:
    """Its process dies in the middle, the first time."""
    mark = Path(task.args["mark"])
    if not mark.exists():
        mark.touch()
        os._exit(9)
    return 42


def hangs(task: Task, inputs: dict[str, Any]) -> None:
    if task.id != "quick":
        time.sleep(600)


def raises(task: Task, inputs: dict[str, Any]) -> None:
    raise LookupError("on purpose")


GRAPH = [Task(f"t{n}", depends_on=[f"t{n // 2}"] if n > 1 else []) for n in range(1, 16)]


def test_a_ray_cluster_is_a_place_for_tasks(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: the extra `ray` brings it")

    async def all_of_it() -> None:
        here = await execute(GRAPH, record, workers=Inline())
        async with Processes(1) as processes:
            local = await execute(GRAPH, record, workers=processes)
        async with Ray(cpus=2) as ray:
            journal = Journal.open(tmp_path)
            there = await execute(GRAPH, record, workers=ray, journal=journal, run_id="r")
            assert there.results == local.results == here.results
            again = await resume("r", raises, workers=ray, journal=journal)
            assert again.results == there.results, "what the journal has is not called again"

            task = Task("d", args={"mark": str(tmp_path / "mark")})
            once = await execute([task], dies_once, workers=ray)
            assert (once.state, once.tasks["d"].state) == ("failed", "failed")
            assert "the Ray worker ended" in str(once.tasks["d"].error)
            (tmp_path / "mark").unlink()
            twice = await execute([task], dies_once, workers=ray, retry=Retry(2, first_s=0.01))
            assert (twice.results, twice.tasks["d"].attempts) == ({"d": 42}, 2)

            late = await execute([Task("slow")], hangs, workers=ray, timeout_s=1.0)
            assert late.tasks["slow"].state == "timed_out"
            ended = await execute([Task("quick", meta={"resources": {"cpus": 2}})], hangs, workers=ray)
            assert ended.state == "done", "the one that timed out has given both CPUs back"
            wrong = await execute([Task("x", meta={"resources": {"cores": 1}})], hangs, workers=ray)
            assert "Known are cpus, gpus, memory" in str(wrong.tasks["x"].error)
            said = (await execute([Task("e")], raises, workers=ray)).tasks["e"].error
            assert said == "LookupError: on purpose"
            with pytest.raises(UsageError, match="one `Ray` at a time"):
                Ray()

    asyncio.run(all_of_it())


def test_addresses_and_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("local", "ray://", "http://x"):
        with pytest.raises(UsageError, match="is not the address of a Ray cluster"):
            Ray(wrong)
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"\[ray\]"):
        Ray()
