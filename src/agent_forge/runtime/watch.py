"""What a run leaves behind while it goes: the journal, the spans, and the events for onlookers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from agent_forge.errors import AgentForgeError
from agent_forge.plans import Plan, Task
from agent_forge.runtime.job import Job
from agent_forge.runtime.journal import RunLog
from agent_forge.runtime.lifetime import Lifetime
from agent_forge.runtime.options import OnEvent
from agent_forge.runtime.result import Event, RunResult, TaskResult, error_text

if TYPE_CHECKING:
    from agent_forge.traces import Recorder, Span


REAL_S = 25e-6  # about what a commit takes: the end of a handler that took longer is committed at once
_PLAIN = (str, int, bool, type(None))  # JSON, whatever the value


class ResultNotJSON(AgentForgeError):
    """A result that a journal cannot hold."""


class Watch:
    """Records what happens to the jobs of one run.

    `break_off` ends the run when the journal fails; `broken` is the error then.
    """

    def __init__(
        self,
        run: str,
        life: Lifetime,
        log: RunLog | None,
        recorder: Recorder | None,
        on_event: OnEvent | None,
        break_off: Callable[[BaseException], None],
    ) -> None:
        self.broken: AgentForgeError | None = None
        self._name = run
        self._life = life
        self._log = log
        self._recorder = recorder
        self._on_event = on_event
        self._break_off = break_off
        self._unsent: list[Event] = []
        self._spans: dict[str, tuple[str, str]] = {}  # trace and span of the tasks that were called
        self._span: Span | None = None  # of the run, under whatever span is current
        self._flush_due = False
        if log is not None:
            log.origin = life.origin
        if recorder is not None:
            self._span = recorder.start("run", "run", attributes={"run": run})
        self._emit("run_started")

    @property
    def trace_id(self) -> str | None:
        """The trace that the spans of this run are in."""
        return None if self._span is None else self._span.trace_id

    def run_ended(self, result: RunResult) -> None:
        """Closes the journal and the span of the run."""
        if self._log is not None:
            try:
                self._log.end(result)
            except AgentForgeError as error:
                result.state, result.error, result.exception = "failed", str(error), error
        if self._recorder is not None and self._span is not None:
            outputs = {"state": result.state, "tasks": result.counts()}
            self._recorder.end(self._span, outputs=outputs, error=result.error or None)
        self._emit("run_ended", state=result.state, error=result.error)
        self._send()

    def started(self, job: Job) -> None:
        """Before the handler is called, in its context: its span becomes current, a side effect is written down."""
        if self._recorder is not None:
            if job.span is None:
                self._open_span(job)
            self._recorder.enter(job.span)
        if self._log is not None and job.terms.side_effects:
            self._log.started(job)
            self._commit()
        if self._on_event is not None:
            self._emit("started", job.id)

    def _open_span(self, job: Job) -> None:
        assert self._recorder is not None
        call, spans, fan = job.call or job.task, self._spans, job.fan
        parent = self._span if job.within is None else job.within.span
        parent = parent if fan is None else fan.whole.span
        span = self._recorder.begin(call.action or call.id, "task", parent, call.args or None)
        span.attributes["task"] = call.id
        if call.goal:
            span.attributes["goal"] = call.goal
        for dep in job.deps:
            if dep in spans:
                span.links.append(spans[dep])
        job.span = span
        if fan is None:
            spans[job.id] = (span.trace_id, span.span_id)

    def suspended(self, job: Job) -> None:
        """A handler waits: everything finished so far is committed, since others can now see its effects."""
        if self._log is not None:
            if not job.terms.side_effects:
                self._log.started(job)
            if self._log.unsaved_ends:
                self._commit()
            else:
                self._commit_soon()

    def keep(self, job: Job, value: Any) -> Any:
        """The result as it will be after a resume; raises ResultNotJSON where a journal cannot hold it."""
        if self._log is None or isinstance(value, _PLAIN) or (isinstance(value, float) and isfinite(value)):
            return value
        try:
            return json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            fix = "Return plain JSON values, or run without a journal"
            raise ResultNotJSON(f"its result is not JSON: {error}", fix=fix) from error

    def ended(self, job: Job) -> None:
        """Before anyone else learns of it, the end of a job is written down."""
        if self._on_event is not None:
            self._emit("ended", job.id, job.state, job.error)
        log = self._log
        if log is not None and self.broken is None:
            full = log.ended(job)
            if full or (job.ended is not None and job.ended - job.began > REAL_S):
                self._commit()
            elif not self._flush_due:
                self._commit_soon()
        if self._recorder is not None:
            self._end_span(job)

    def _end_span(self, job: Job) -> None:
        recorder = self._recorder
        assert recorder is not None
        if job.span is None:
            if job.same_as is None:
                return
            self._open_span(job)
        span = job.span
        if job.same_as is not None:
            span.set(same_as=job.same_as)
        if job.usage is not None:
            span.set(tokens=job.usage.tokens, cost=job.usage.cost)
        if job.attempts > 1:
            span.set(attempts=job.attempts)
        if job.state == "done":
            span.outputs = job.result
            recorder.finish(span)
            return
        error: BaseException | str = job.exception or job.error or job.state
        try:
            str(error)
        except Exception:  # a tool's own exception may be broken too
            error = job.error or job.state
        recorder.end(span, outputs=job.result, error=error)

    def known(self, name: str, outcome: TaskResult) -> None:
        """A result was there before the run: it is stored like the others. Raises ResultNotJSON if it cannot be."""
        if self._log is not None:
            try:
                self._log.known(name, outcome)
            except (TypeError, ValueError, RecursionError) as error:
                raise ResultNotJSON(f"the known result is not JSON: {error}", where=f"task {name!r}") from error
            self._commit_soon()

    def spread(self, job: Job) -> None:
        """A `for_each` task begins: its elements' spans go under its own."""
        if self._recorder is not None:
            self._open_span(job)
        self._emit("started", job.id)

    def failing(self, job: Job, state: str) -> None:
        """A task has failed, and waits for its fallback: if the process dies, that much is known."""
        if self._log is not None and self.broken is None:
            self._log.noted(job, state)
            self._commit_soon()

    def withdrawn(self, job: Job) -> None:
        """A `for_each` that had begun is pending again: what its elements gave does not count."""
        if self._log is not None and self.broken is None and job.spread is not None:
            for item in job.spread.items:
                self._log.noted(item, "withdrawn")
            self._commit_soon()
        if self._recorder is not None and job.span is not None:
            self._recorder.end(job.span, error=job.error)

    def planned(self, task: Task) -> None:
        """A task came from a stream."""
        if self._log is not None:
            self._log.planned(task)
            self._commit_soon()
        self._emit("planned", task.id)

    def replanned(self, plan: Plan, new: Sequence[Task]) -> None:
        """The plan is whole, or was changed."""
        if self._log is not None:
            self._log.replanned(plan)
            self._commit_soon()
        for task in new:
            self._emit("planned", task.id)

    def retrying(self, job: Job, why: str) -> None:
        """An attempt failed and another will follow."""
        if job.span is not None:
            job.span.event("retry", job.span.start_ns, attempt=job.attempts, error=why)
        self._emit("retrying", job.id, error=why)

    def asking(self, job: Job) -> None:
        """A task waits for its approval."""
        self._emit("waiting_for_approval", job.id)

    def group_ended(self, name: str, state: str) -> None:
        """The last leaf of a group has ended."""
        self._emit("ended", name, state)

    def _emit(self, kind: str, task: str | None = None, state: str | None = None, error: str | None = None) -> None:
        """Sends an event; with a journal, once what it tells is on disk."""
        if self._on_event is None:
            return
        at_s = self._life.clock() - self._life.origin
        self._unsent.append(Event(kind, self._name, at_s, task, state, error))
        if self._log is None or self.broken is not None:
            self._send()
        else:
            self._commit_soon()

    def _send(self) -> None:
        on_event, events = self._on_event, self._unsent
        if on_event is None or not events:
            return
        self._unsent = []
        try:
            for event in events:
                on_event(event)
        except Exception as problem:  # an onlooker must not change what it looks at
            self._on_event = None
            self._life.warnings.append(f"on_event raised and was not called again: {error_text(problem)}")

    # The journal: ends of real work are committed at once, ends of very short tasks together at the end of the turn.

    def _commit(self) -> None:
        if self._log is None or self.broken is not None:
            return
        try:
            self._log.commit()
        except AgentForgeError as error:
            self.broken = error
            raise
        self._send()

    def _commit_soon(self) -> None:
        if self._log is not None and self._log.full:
            self._commit()
        elif not self._flush_due:
            self._flush_due = True
            self._life.loop.call_soon(self._commit_now)

    def _commit_now(self) -> None:
        self._flush_due = False
        try:
            self._commit()
        except AgentForgeError as error:
            self._break_off(error)
