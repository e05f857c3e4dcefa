"""One agent run of the server, in a thread and an event loop of its own: whatever its tools do, the server answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from agent_forge.errors import AgentForgeError
from agent_forge.server.answers import Refused

if TYPE_CHECKING:
    from agent_forge.plans import Task
    from agent_forge.runtime import Event

MOST_EVENTS = 20_000  # kept of one run

Tell = Callable[["ActiveRun", dict[str, Any]], None]


class ActiveRun:
    """A run from its start until the server forgets it."""

    def __init__(self, name: str, request: str | None, tell: Tell) -> None:
        self.name = name
        self.request = request
        self.state = "running"
        self.events: list[dict[str, Any]] = []
        self.result: dict[str, Any] | None = None  # as `agent-forge run --json` prints it
        self.error: str | None = None
        self._tell = tell
        self._questions: dict[str, Future[bool]] = {}
        self._turn = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: asyncio.Task[Any] | None = None
        self._cancelled = False
        self._outcome: tuple[str, str | None] = ("failed", None)

    # In the run's own thread

    def carry_out(self, work: Any, options: Mapping[str, Any]) -> None:
        """Runs to the end; whatever happens, `finish` then says how it ended."""
        try:
            asyncio.run(self._run(work, options))
        except AgentForgeError as error:
            self._outcome = "failed", str(error)
        except asyncio.CancelledError:
            self._outcome = "cancelled", "it was asked to stop"
        except Exception as error:  # a tool module may do anything; those who wait must be told
            self._outcome = "failed", f"{type(error).__name__}: {error}"

    def finish(self) -> None:
        """Tells how it ended."""
        self.state, self.error = self._outcome
        self._tell(self, {"kind": "finished", "run": self.name, "state": self.state, "error": self.error})

    async def _run(self, work: Any, options: Mapping[str, Any]) -> None:
        from agent_forge.agents.api import arun

        with self._turn:
            self._loop, self._work = asyncio.get_running_loop(), asyncio.current_task()
        if self._cancelled:
            raise asyncio.CancelledError
        result = await arun(work, run_id=self.name, approve=self._ask, on_event=self._note, **options)
        self.result, self._outcome = result.as_dict(), (result.state, result.error)

    def _note(self, event: Event) -> None:
        fields = {"kind": event.kind, "run": event.run, "at_s": event.at_s}
        more = {"task": event.task, "state": event.state, "error": event.error}
        self._tell(self, {**fields, **{name: value for name, value in more.items() if value is not None}})

    async def _ask(self, task: Task) -> bool:
        with self._turn:
            question = self._questions.setdefault(task.id, Future())
        try:
            return await asyncio.wrap_future(question)
        finally:
            with self._turn:
                self._questions.pop(task.id, None)

    # From the server

    def keep(self, event: dict[str, Any]) -> None:
        """Remembers an event for those who come later."""
        if len(self.events) < MOST_EVENTS or event["kind"] == "finished":
            self.events.append(event)

    @property
    def ended(self) -> bool:
        return self.state != "running"

    @property
    def waiting_for_approval(self) -> list[str]:
        """The tasks that wait for a decision."""
        with self._turn:
            return list(self._questions)

    def decide(self, task: str, approved: bool) -> None:
        """Answers the question of a task. Raises Refused (404, 409)."""
        with self._turn:
            question = self._questions.get(task)
            if question is None or question.done():
                raise Refused(409, f"task {task!r} does not wait for an approval", code="not_waiting", param="task")
            question.set_result(approved)

    def cancel(self) -> None:
        """Stops the run; what is finished is kept, and `agent-forge run --resume` can go on with it."""
        with self._turn:
            self._cancelled = True
            if self._loop is not None and self._work is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._work.cancel)
