"""What a run leaves a trace of while it goes: the journal, the spans, and the events for whoever looks on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from agent_forge.errors import AgentForgeError, StoreError
from agent_forge.plans import Plan, Task
from agent_forge.runtime.options import OnEvent
from agent_forge.runtime.result import Event, RunResult, TaskResult, error_text

if TYPE_CHECKING:
    from agent_forge.runtime.job import Job
    from agent_forge.runtime.journal import RunLog
    from agent_forge.runtime.run import Run
    from agent_forge.traces import Recorder, Span


REAL_S = 25e-6  # a handler that took longer than a commit does is committed at once
_PLAIN = (str, int, bool, type(None))  # JSON, whatever the value


def _tellable(error: BaseException | None) -> BaseException | None:
    """The exception, unless it cannot even say what it is."""
    try:
        str(error)
    except Exception:
        return None
    return error


class ResultNotJSON(AgentForgeError):
    """A result that a journal cannot keep."""


class Watch:
    """Notes what happens to the jobs of one run. `broken` is the error that ended the journal, if one did."""

    def __init__(self, log: RunLog | None, recorder: Recorder | None, on_event: OnEvent | None) -> None:
        self.broken: StoreError | None = None
        self.span: Span | None = None
        self._log = log
        self._recorder = recorder
        self._on_event = on_event
        self._unsent: list[Event] = []
        self._run: Run | None = None
        self._flush_due = False

    @property
    def trace_id(self) -> str | None:
        """The trace that the spans of this run are in."""
        return None if self.span is None else self.span.trace_id

    def run_started(self, run: Run) -> None:
        """Opens the span of the run, under whatever span is current."""
        self._run = run
        if self._recorder is not None:
            self.span = self._recorder.start("run", "run", attributes={"run": run.name})
        self._emit("run_started")

    def run_ended(self, result: RunResult) -> None:
        """Closes the journal and the span of the run."""
        if self._log is not None:
            try:
                self._log.end(result)
            except StoreError as error:
                result.state, result.error, result.exception = "failed", str(error), error
        if self._recorder is not None and self.span is not None:
            self._recorder.end(
                self.span, outputs={"state": result.state, "tasks": result.counts()}, error=result.error or None
            )
        self._emit("run_ended", state=result.state, error=result.error)
        self._send()

    def started(self, job: Job) -> None:
        """Before the handler is called, in its context: its span is made current, a side effect is written down."""
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
        call, spans, fan = job.call or job.task, job.run.spans, job.fan
        above = self.span if fan is None else fan.whole.span
        span = self._recorder.begin(call.action or call.id, "task", above, call.args or None)
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
        """The result as it will be after a resume; raises ResultNotJSON where a journal cannot keep it."""
        if self._log is None or isinstance(value, _PLAIN) or (isinstance(value, float) and isfinite(value)):
            return value
        try:
            return json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise ResultNotJSON(
                f"its result is not JSON: {error}",
                where=f"task {job.id!r}",
                fix="return plain JSON values, or run without a journal",
            ) from error

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
        recorder, span = self._recorder, job.span
        assert recorder is not None
        if span is None:
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
        else:
            recorder.end(span, outputs=job.result, error=_tellable(job.exception) or job.error or job.state)

    def known(self, name: str, outcome: TaskResult) -> None:
        """A result was there before the run: it is kept like the others. Raises ResultNotJSON where it cannot be."""
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

    def planned(self, task: Task) -> None:
        """A task came from a stream."""
        if self._log is not None:
            self._log.planned(task)
            self._commit_soon()
        self._emit("planned", task.id)

    def replanned(self, plan: Plan, new: Sequence[Task]) -> None:
        """The plan is whole, or was changed."""
        if self._log is not None:
            self._log.plan(plan)
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
        """Sends an event; with a journal, when what it tells is on disk."""
        run = self._run
        if self._on_event is None or run is None:
            return
        self._unsent.append(Event(kind, run.name, run.clock() - run.origin, task, state, error))
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
            if self._run is not None:
                self._run.warnings.append(f"on_event raised and was not called again: {error_text(problem)}")

    # The journal: ends of real work are committed at once, ends of very short tasks together at the end of the tick.

    def _commit(self) -> None:
        if self._log is None or self.broken is not None:
            return
        try:
            self._log.commit()
        except StoreError as error:
            self.broken = error
            raise
        self._send()

    def _commit_soon(self) -> None:
        if self._log is not None and self._log.full:
            self._commit()
        elif not self._flush_due and self._run is not None:
            self._flush_due = True
            self._run.loop.call_soon(self._commit_now)

    def _commit_now(self) -> None:
        self._flush_due = False
        try:
            self._commit()
        except StoreError as error:
            if self._run is not None:
                self._run.break_off(error)
