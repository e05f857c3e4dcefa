"""Where handlers run: on the event loop, in threads, or in processes, behind one small interface.

async with Processes(4) as workers:
    result = await execute(plan, crunch, workers=workers)
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from inspect import isawaitable
from typing import Any, Protocol

from agent_forge.errors import AgentForgeError, UsageError
from agent_forge.plans import Task

LAST_S = 5.0  # for a killed worker to end
Function = Callable[[Task, dict[str, Any]], Any]


class WorkerDied(AgentForgeError):
    """A worker process ended while it was carrying out a task."""


class RemoteError(AgentForgeError):
    """The handler raised in a worker process. `kind` is the name of its exception, `trace` the traceback there."""

    def __init__(self, kind: str, message: str, trace: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind
        self.trace = trace


class Workers(Protocol):
    """Something that carries out the handler of a task."""

    async def call(self, handler: Function, task: Task, inputs: dict[str, Any]) -> Any:
        """The handler's result."""

    async def close(self) -> None:
        """Ends the workers."""


class Inline:
    """Handlers run on the event loop: what `execute` does by itself."""

    async def call(self, handler: Function, task: Task, inputs: dict[str, Any]) -> Any:
        """Calls the handler and awaits what it returns."""
        value = handler(task, inputs)
        return await value if isawaitable(value) else value

    async def close(self) -> None:
        """There is nothing to end."""


class _Thread:
    """A thread that takes one piece of work after another; a daemon, so that a stuck one cannot hold up the exit."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="agent-forge-worker", daemon=True).start()

    def _serve(self) -> None:
        while (work := self.inbox.get()) is not None:
            work()


class Threads:
    """Plain functions in threads, for handlers that block. At most `count` at once.

    A thread cannot be killed: a call that is cancelled or timed out continues in the background, its result is
    discarded, and another thread takes its place.
    """

    def __init__(self, count: int = 8) -> None:
        if count < 1:
            raise UsageError(f"Threads: count must be at least 1, got {count}")
        self._places = asyncio.Semaphore(count)
        self._idle: list[_Thread] = []

    async def call(self, handler: Function, task: Task, inputs: dict[str, Any]) -> Any:
        """The handler's result, from a thread that sees the context of this task."""
        async with self._places:
            thread = self._idle.pop() if self._idle else _Thread()
            loop, context = asyncio.get_running_loop(), contextvars.copy_context()
            answer: asyncio.Future[Any] = loop.create_future()

            def work() -> None:
                value, error = None, None
                try:
                    value = context.run(handler, task, inputs)
                except BaseException as raised:  # it belongs to the task, whatever it is
                    error = RuntimeError("StopIteration") if isinstance(raised, StopIteration) else raised
                with suppress(RuntimeError):  # the event loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(_answer, answer, value, error)

            thread.inbox.put(work)
            try:
                value = await answer
            except asyncio.CancelledError:
                thread.inbox.put(None)
                raise
            except BaseException:
                self._idle.append(thread)
                raise
            self._idle.append(thread)
            if isawaitable(value):
                getattr(value, "close", lambda: None)()
                raise UsageError("the handler is asynchronous", fix="Threads and processes take plain functions")
            return value

    async def close(self) -> None:
        """Lets the idle threads end."""
        while self._idle:
            self._idle.pop().inbox.put(None)

    async def __aenter__(self) -> Threads:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class Processes:
    """Plain functions in worker processes, for handlers that keep a core busy. At most `count` at once.

    The function is passed by reference (module and name), tasks, inputs and results as JSON: nothing is pickled. A
    call that is cancelled or timed out is killed. A process that dies fails its task with `WorkerDied`, and a new one
    takes its place.
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = count or os.cpu_count() or 1
        if self.count < 1:
            raise UsageError(f"Processes: count must be at least 1, got {count}")
        self._places = asyncio.Semaphore(self.count)
        self._idle: list[asyncio.subprocess.Process] = []

    async def call(self, handler: Function, task: Task, inputs: dict[str, Any]) -> Any:
        """The handler's result, from a process. Raises WorkerDied, RemoteError, or (nothing was sent) UsageError."""
        request = _frame(request_of(handler, task, inputs))
        async with self._places:
            process = self._idle.pop() if self._idle else await _start()
            try:
                answer = await _exchange(process, request)
            except (asyncio.IncompleteReadError, ConnectionError, OSError):
                await _kill(process)
                raise WorkerDied(
                    f"the worker process ended with code {process.returncode}", where=f"task {task.id!r}"
                ) from None
            except BaseException:
                await _kill(process)
                raise
            self._idle.append(process)
        if "error" in answer:
            raise RemoteError(*answer["error"])
        return answer["result"]

    async def close(self) -> None:
        """Ends the worker processes."""
        while self._idle:
            await _kill(self._idle.pop())

    async def __aenter__(self) -> Processes:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


def reference(handler: Function) -> dict[str, str]:
    """How another process finds a function. Raises UsageError for one that it could not import.

    >>> import textwrap
    >>> reference(textwrap.dedent)
    {'module': 'textwrap', 'name': 'dedent'}
    """
    module, name = getattr(handler, "__module__", None), getattr(handler, "__qualname__", "<unnamed>")
    if module is None or "<" in name:
        raise UsageError(
            f"the handler {name} cannot be named to another process",
            fix="Use a function defined at the top of a module",
        )
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        if file is None:
            raise UsageError(
                f"the handler {name} was typed in, so another process cannot import it", fix="Put it in a file"
            )
        return {"module": module, "name": name, "file": os.path.abspath(file)}  # noqa: PTH100
    return {"module": module, "name": name}


def _answer(answer: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)


def request_of(handler: Function, task: Task, inputs: dict[str, Any]) -> bytes:
    """A call as `process_worker` reads it. Raises UsageError for what cannot be sent."""
    document = {"function": reference(handler), "task": task.as_dict(), "inputs": inputs}
    try:
        return json.dumps(document).encode()
    except (TypeError, ValueError) as error:
        raise UsageError(f"what is sent to a worker process must be JSON: {error}") from error


def _frame(body: bytes) -> bytes:
    return len(body).to_bytes(8, "big") + body


async def _start() -> asyncio.subprocess.Process:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "agent_forge.runtime.process_worker",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
        start_new_session=True,  # so that what a handler starts ends with it
    )


async def _exchange(process: asyncio.subprocess.Process, request: bytes) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(request)
    await process.stdin.drain()
    size = int.from_bytes(await process.stdout.readexactly(8), "big")
    answer: dict[str, Any] = json.loads(await process.stdout.readexactly(size))
    return answer


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Ends a worker and the processes that its handler started."""
    with suppress(ProcessLookupError):
        if hasattr(os, "killpg") and process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    if process.stdin is not None:
        process.stdin.close()
    with suppress(asyncio.TimeoutError):  # a grandchild that left the session may hold the output open forever
        await asyncio.wait_for(_end_of(process), LAST_S)


async def _end_of(process: asyncio.subprocess.Process) -> None:
    while process.stdout is not None and await process.stdout.read(65536):
        pass  # asyncio sees the end of a process only after the end of its output
    await process.wait()
