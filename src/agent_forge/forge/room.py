"""How many phases run in parallel: as many as the pipeline allows and memory holds."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from agent_forge.forge.checkpoint import Checkpoint

SPARE = 1.25  # a process takes more than its tensors: the GPU's context, fragmentation
PEAKS = ("training_peak_memory_bytes", "peak_memory_bytes")  # of the tensors on a GPU; of the process on a CPU


class Room:
    """Memory to share: whoever needs more than is left waits, unless nobody else holds any.

    >>> async def both():
    ...     room = Room(free=10)
    ...     async with room.taken(6), room.taken(4):
    ...         return room.used
    >>> asyncio.run(both())
    10
    """

    def __init__(self, free: int | None) -> None:
        self.free, self.used, self.inside = free, 0, 0
        self.changed = asyncio.Condition()

    @asynccontextmanager
    async def taken(self, need: int) -> AsyncIterator[None]:
        async with self.changed:
            await self.changed.wait_for(lambda: not self.inside or self.free is None or self.used + need <= self.free)
            self.used, self.inside = self.used + need, self.inside + 1
        try:
            yield
        finally:
            async with self.changed:
                self.used, self.inside = self.used - need, self.inside - 1
                self.changed.notify_all()


def need(inputs: Iterable[Checkpoint]) -> int:
    """The memory to work on these models, estimated by what making the largest took, by its card; 0 if unknown."""
    peaks = [
        next((card.metrics[name].value for name in PEAKS if name in card.metrics), 0.0)
        for card in (item.card for item in inputs)
    ]
    return int(SPARE * max(peaks, default=0.0))


def free_memory() -> int | None:
    """Free bytes of the GPU that phases run on, or of the machine without one; None if unknown."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    tool = shutil.which("nvidia-smi")
    if tool and gpu not in ("", "-1"):
        query = [tool, "-i", gpu, "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
        answer = subprocess.run(query, capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.strip().isdigit():
            return int(answer.stdout) * 2**20
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
