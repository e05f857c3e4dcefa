"""One agent run of the server, in its own thread and event loop, so that its tools cannot block the server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from agent_forge.errors import AgentForgeError
from agent_forge.refusal import Refusal

if TYPE_CHECKING:
    from agent_forge.plans import Task
    from agent_forge.runtime import Event

MOST_EVENTS = 20_000  # per run

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
        self._questions: dict[str, Future[Any]] = {}
        self._asked: dict[str, Task] = {}
        self._busy: set[str] = set()  # tasks that are being carried out
        self._paused = False
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._work: asyncio.Task[Any] | None = None
        self._cancelled = False
        self._outcome: tuple[str, str | None] = ("failed", None)

    # In the run's own thread

    def execute(self, work: Any, options: Mapping[str, Any]) -> None:
        """Runs to the end; whatever happens, `finish` then reports how it ended."""
        try:
            asyncio.run(self._run(work, options))
        except AgentForgeError as error:
            self._outcome = "failed", str(error)
        except asyncio.CancelledError:
            self._outcome = "cancelled", "the run was cancelled"
        except Exception as error:  # a tool module may raise anything; clients must learn of it
            self._outcome = "failed", f"{type(error).__name__}: {error}"

    def finish(self) -> None:
        """Reports how it ended."""
        self.state, self.error = self._outcome
        self._tell(self, {"kind": "finished", "run": self.name, "state": self.state, "error": self.error})

    async def _run(self, work: Any, options: Mapping[str, Any]) -> None:
        from agent_forge.agents.api import arun

        with self._lock:
            self._loop, self._work = asyncio.get_running_loop(), asyncio.current_task()
        if self._cancelled:
            raise asyncio.CancelledError
        approve = options.get("approve")
        asked = {**options, "approve": self._ask if approve in (None, "ask") else approve}
        result = await arun(work, on_event=self._on_event, **asked)
        self.result, self._outcome = result.as_dict(), (result.state, result.error)

    def _on_event(self, event: Event) -> None:
        if event.task is not None:
            (self._busy.add if event.kind in ("started", "retrying") else self._busy.discard)(event.task)
        fields = {"kind": event.kind, "run": event.run, "at_s": event.at_s}
        more = {"task": event.task, "state": event.state, "error": event.error}
        self._tell(self, {**fields, **{name: value for name, value in more.items() if value is not None}})

    async def _ask(self, task: Task) -> Any:
        with self._lock:
            question = self._questions.setdefault(task.id, Future())
            self._asked[task.id] = task
            if self._paused and not question.done():
                question.set_result(None)
        try:
            return await asyncio.wrap_future(question)
        finally:
            with self._lock:
                self._questions.pop(task.id, None)
                self._asked.pop(task.id, None)

    # From the server

    def remember(self, event: dict[str, Any]) -> None:
        """Stores an event for clients that connect later."""
        if len(self.events) < MOST_EVENTS or event["kind"] == "finished":
            self.events.append(event)

    @property
    def ended(self) -> bool:
        return self.state != "running"

    @property
    def waiting_for_approval(self) -> list[str]:
        """The tasks that wait for approval."""
        with self._lock:
            return list(self._questions)

    @property
    def asked(self) -> list[Task]:
        """The same as tasks, their arguments worked out."""
        with self._lock:
            return list(self._asked.values())

    def decide(self, task: str, answer: Any) -> None:
        """Approves (True, or other arguments) or rejects a task. Raises Refusal (409)."""
        with self._lock:
            question = self._questions.get(task)
            if question is None or question.done():
                raise Refusal(409, f"task {task!r} does not wait for approval", code="not_waiting", param="task")
            question.set_result(answer)

    def answer(self, task: str, answer: Any) -> None:
        """Answers before the question is asked."""
        with self._lock:
            self._questions.setdefault(task, Future()).set_result(answer)

    def pause(self) -> bool:
        """Lets a run that only waits for approvals end as waiting; False if it does other work too."""
        with self._lock:
            if not self._questions or self._busy:
                return False
            self._paused = True
            for question in self._questions.values():
                if not question.done():
                    question.set_result(None)
            return True

    def cancel(self) -> None:
        """Stops the run; `agent-forge run --resume` can continue it."""
        with self._lock:
            self._cancelled = True
            if self._loop is not None and self._work is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._work.cancel)
