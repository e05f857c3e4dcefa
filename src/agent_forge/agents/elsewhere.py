"""Tools that workers call: threads and processes of this machine, or a Ray cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from agent_forge.agents.choices import choose_tools
from agent_forge.agents.tools import Tool, Toolbox
from agent_forge.errors import UsageError
from agent_forge.plans import Task
from agent_forge.runtime import Workers
from agent_forge.runtime.jobs import Jobs, Place, open_workers

__all__ = ["AnyWorkers", "Jobs", "Place", "call_tool", "elsewhere", "workers_at"]

AnyWorkers = Workers | str | None


@asynccontextmanager
async def workers_at(place: AnyWorkers) -> AsyncIterator[Workers | None]:
    """Workers for the block: those given, or new ones: "processes", "processes:4", "ray://…". Raises UsageError."""
    workers = open_workers(place)
    try:
        yield workers
    finally:
        if workers is not None and isinstance(place, str):
            await workers.close()


def elsewhere(box: Toolbox, source: Any, workers: Workers | None) -> Toolbox:
    """The same tools, called by workers, who load them from where they come from: `source`, a module or a file, or
    None for the bundled ones. Without workers, as they are. Raises UsageError for tools that have no such
    name."""
    if workers is None:
        return box
    if source is not None and not isinstance(source, (str, os.PathLike)):
        fix = "Put them into a module or a file and name it, or run without workers"
        raise UsageError("workers in other processes cannot be given tools as Python objects", fix=fix)
    named = None if source is None else os.fspath(source)
    if named is not None and Path(named).exists():
        named = str(Path(named).absolute())

    def moved(tool: Tool) -> Tool:
        async def function(**arguments: Any) -> Any:
            call = Task("call", action=tool.name, meta={"source": named, "arguments": arguments})
            return await workers.call(call_tool, call, {})

        return replace(tool, function=function, shapes={})  # the worker's copy converts its arguments

    return Toolbox(map(moved, box))


def call_tool(task: Task, inputs: dict[str, Any]) -> Any:
    """In the worker: calls the tool, once and without a time limit, which are the caller's business."""
    tool = _tools(task.meta["source"]).get(str(task.action))
    return asyncio.run(replace(tool, retries=0, timeout_s=None).call(task.meta["arguments"]))


@cache
def _tools(source: str | None) -> Toolbox:
    box = choose_tools(source)
    if source is None:
        from agent_forge.agents.tools import builtin_tools

        return Toolbox([*box, *(tool for tool in builtin_tools() if tool.name not in box)])
    return box
