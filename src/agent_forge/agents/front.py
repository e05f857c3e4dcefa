"""What makes a coroutine function a front door: helpful errors for misspelt parameters, and a version that blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import copy_context
from functools import wraps
from inspect import signature
from threading import Thread
from typing import Any, ParamSpec, TypeVar

from agent_forge.errors import UsageError

P = ParamSpec("P")
T = TypeVar("T")


def checked_names(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The function, with a UsageError that suggests the nearest parameter for one that does not exist."""
    names = list(signature(function).parameters)

    @wraps(function)
    async def call(*args: P.args, **options: P.kwargs) -> T:
        for name in options:
            if name not in names:
                from agent_forge.config import nearest

                close = nearest(name, names)
                fix = f"Did you mean {close!r}?" if close else f"Use one of {', '.join(names[1:])}"
                raise UsageError(f"there is no parameter {name!r}", fix=fix)
        return await function(*args, **options)

    return call


def signature_of(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Gives a blocking function the parameters of an asynchronous one, for type checkers, editors and `help`."""

    def decorate(blocking_function: Callable[..., T]) -> Callable[P, T]:
        setattr(blocking_function, "__signature__", signature(function))  # noqa: B010  (mypy knows no such attribute)
        return blocking_function

    return decorate


def blocking(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, from anywhere. Where an event loop runs, as in Jupyter, another one does the work in a
    thread of its own, with the caller's context variables; Ctrl-C cancels it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()
    result: Future[T] = Future()

    async def main() -> T:
        if not started.set_running_or_notify_cancel():  # interrupted before it began
            work.close()
            raise asyncio.CancelledError
        task = asyncio.ensure_future(work)
        started.set_result((asyncio.get_running_loop(), task))
        return await task

    def target() -> None:
        try:
            result.set_result(asyncio.run(main()))
        except BaseException as error:  # whatever it is, it belongs to the caller
            result.set_exception(error)

    thread = Thread(target=copy_context().run, args=(target,), name="agent-forge-run", daemon=True)
    try:
        thread.start()  # in here as well: the work may be under way before this returns
        return result.result()
    except KeyboardInterrupt:
        if not started.cancel():
            loop, task = started.result()
            if not result.done():
                loop.call_soon_threadsafe(task.cancel)
        raise
    finally:
        if thread.is_alive():
            thread.join()
