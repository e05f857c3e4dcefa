"""Phases run side by side as far as memory holds them, and never wait for ever."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from test_pipeline_session import pipeline_file

from agent_forge.forge import room as rooms
from agent_forge.forge import session as sessions
from agent_forge.forge.events import Bus, PhaseEvent
from agent_forge.forge.pipeline import read_pipeline
from agent_forge.forge.registry import Registry
from agent_forge.forge.room import Room, free_memory
from agent_forge.forge.session import ForgeSession
from agent_forge.runtime.workers import Threads


def most_at_once(free: int | None, needs: list[int], stay: random.Random) -> tuple[int, int]:
    """The most memory in use at once, and the most that were inside."""
    room, most, count = Room(free), 0, 0

    async def one(need: int) -> None:
        nonlocal most, count
        async with room.taken(need):
            most, count = max(most, room.used), max(count, room.inside)
            await asyncio.sleep(stay.random() / 1000)

    async def everyone() -> None:
        await asyncio.wait_for(asyncio.gather(*map(one, needs)), 30)

    asyncio.run(everyone())
    assert (room.used, room.inside) == (0, 0)
    return most, count


@pytest.mark.parametrize("seed", range(5))
def test_no_more_is_in_use_than_there_is_but_for_one_that_never_fits(seed):
    rng = random.Random(seed)
    needs = [rng.randrange(0, 40) for _ in range(30)]
    most, count = most_at_once(50, needs, rng)
    assert 25 < most <= 50
    assert count > 1
    assert most_at_once(50, [90, *needs], rng)[0] == 90  # alone
    assert most_at_once(None, needs, rng) == (sum(needs), 30)  # nothing is known: all at once


def test_an_interrupted_one_gives_its_share_back():
    async def broken() -> int:
        room = Room(10)
        inside = asyncio.ensure_future(_stay(room, 10))
        waiting = asyncio.ensure_future(_stay(room, 5))
        await asyncio.sleep(0.01)
        waiting.cancel()
        inside.cancel()
        await asyncio.gather(inside, waiting, return_exceptions=True)
        async with room.taken(10):
            return room.used

    assert asyncio.run(broken()) == 10


async def _stay(room: Room, need: int) -> None:
    async with room.taken(need):
        await asyncio.sleep(60)


@pytest.mark.parametrize(("free", "together"), [(23, 1), (24, 2), (None, 2)])
def test_tracks_run_together_where_memory_allows(tmp_path, monkeypatch, free, together):
    """The toys' cards have a metric `number`: 10 bytes stand for what the base took."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(rooms, "PEAKS", ("number",))
    monkeypatch.setattr(sessions, "free_memory", lambda: free)
    tracks = {
        "left": {"after": ["base"], "config": {"slow_s": 0.3, "number": 2}},
        "right": {"after": ["base"], "config": {"slow_s": 0.3}},
    }
    path = pipeline_file(tmp_path, {"base": {"config": {"number": 10}}, **tracks}, parallel=2)
    events: list[PhaseEvent] = []
    session = ForgeSession(read_pipeline(path), Registry(tmp_path / "home"), bus=Bus(events.append), workers=Threads(2))
    report = session.run()
    assert report.state == "completed"
    running = most = 0
    for event in events:
        running += {"started": 1, "finished": -1}.get(event.kind, 0)
        most = max(most, running)
    assert most == together


def test_free_memory_is_asked_of_the_gpu_and_else_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine = free_memory()
    assert machine is not None
    assert machine > 2**20
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\n[ "$2" = 1 ] && echo 2048 || exit 6\n')
    tool.chmod(0o755)
    assert free_memory() != 2**31  # there is no GPU 0 here: the machine's
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert free_memory() == 2**31
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert free_memory() != 2**31
