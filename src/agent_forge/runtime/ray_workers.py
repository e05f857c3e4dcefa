"""Handlers on a Ray cluster: Ray places and runs the calls, our journal remembers what they returned. Needs ray."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from agent_forge.errors import MissingExtraError, UsageError
from agent_forge.plans import Task
from agent_forge.runtime.process_worker import carry_out
from agent_forge.runtime.workers import Function, RemoteError, WorkerDied, request_of

LOCAL = "ray://local"
RESOURCES = {"cpus": "num_cpus", "gpus": "num_gpus", "memory": "memory"}  # in a task's meta, and as Ray calls them


class Ray:
    """Plain functions as Ray tasks: on a cluster of this machine (`ray://local`), on the one that is already running
    here (`ray://auto`), or on the one whose client server is at an address (`ray://host:10001`).

    As with `Processes`, functions travel by reference, tasks and results as JSON: this package and the handler's module
    must be installed on the nodes. A task whose meta has `resources: {cpus: 2, gpus: 1, memory: BYTES}` runs where
    they are free; by default it takes one CPU. Ray does not repeat a call whose worker died: it fails with
    `WorkerDied`, and the run's own `retry` decides. A cancelled call is killed.
    """

    def __init__(self, address: str = LOCAL, cpus: int | None = None) -> None:
        """`cpus`: how many a local cluster has; by default, those of this machine."""
        if not address.startswith("ray://") or address == "ray://":
            fix = "Write ray://local, ray://auto or ray://host:port"
            raise UsageError(f"{address!r} is not the address of a Ray cluster", fix=fix)
        try:
            ray: Any = import_module("ray")
        except ImportError as error:
            raise MissingExtraError("running on Ray", "ray") from error
        self._ray, self._functions = ray, dict[tuple[tuple[str, Any], ...], Any]()
        if ray.is_initialized():
            raise UsageError("this process is connected to a Ray cluster already", fix="Use one `Ray` at a time")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # silences a warning about the next version
        paths = {"env_vars": {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}}
        quiet: dict[str, Any] = {"logging_level": "error", "log_to_driver": False}
        if address == LOCAL:
            ray.init(address="local", num_cpus=cpus, include_dashboard=False, runtime_env=paths, **quiet)
        else:
            ray.init(address="auto" if address == "ray://auto" else address, **quiet)

    async def call(self, handler: Function, task: Task, inputs: dict[str, Any]) -> Any:
        """The handler's result. Raises WorkerDied, RemoteError, or (nothing was sent) UsageError."""
        body = request_of(handler, task, inputs)
        reference = self._function(task).remote(body)
        try:
            answer: dict[str, Any] = json.loads(await reference)
        except asyncio.CancelledError:
            self._ray.cancel(reference, force=True)
            raise
        except self._ray.exceptions.RayError as error:
            why = str(error).strip().splitlines()[0]
            raise WorkerDied(f"the Ray worker ended: {why}", where=f"task {task.id!r}") from error
        if "error" in answer:
            raise RemoteError(*answer["error"])
        return answer["result"]

    def _function(self, task: Task) -> Any:
        """What carries out calls with the resources of this task."""
        wanted = task.meta.get("resources") or {}
        if not isinstance(wanted, Mapping) or not wanted.keys() <= RESOURCES.keys():
            fix = f"Known are {', '.join(RESOURCES)}"
            raise UsageError(f"its resources cannot be read: {wanted!r}", where=f"task {task.id!r}", fix=fix)
        key = tuple(sorted(wanted.items()))
        if key not in self._functions:
            options = {RESOURCES[name]: amount for name, amount in wanted.items()}
            self._functions[key] = self._ray.remote(carry_out).options(max_retries=0, **options)
        return self._functions[key]

    async def close(self) -> None:
        """Leaves the cluster, and ends it if it is local."""
        self._ray.shutdown()

    async def __aenter__(self) -> Ray:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
