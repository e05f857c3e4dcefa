"""`for_each`: one task carried out once for each element of a list result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent_forge.plans import Task, resolve
from agent_forge.runtime.job import OPEN_STATES, PARKED, PENDING, RUNNING, Job, Terms
from agent_forge.runtime.result import TaskResult

if TYPE_CHECKING:
    from agent_forge.runtime.run import Run


class Fan:
    """A `for_each` task on its way: one job for each element. Its result is the list of theirs, in order."""

    def __init__(self, run: Run, whole: Job, values: list[Any]) -> None:
        self.run = run
        self.whole = whole
        self.values = values
        terms = whole.terms
        self._terms = Terms(terms.timeout_s, terms.retry, terms.side_effects, terms.memo)
        self.items = [self._item(index) for index in range(len(values))]
        self._left = len(self.items)

    def _item(self, index: int) -> Job:
        whole, task = self.whole, self.whole.task
        part = Task(
            f"{task.id}[{index}]", task.goal, task.action, task.args, task.depends_on, task.parent, meta=task.meta
        )
        job = Job(self.run, part, whole.deps, self._terms)
        job.fan, job.item = self, index
        job.rank, job.gate = whole.rank, whole.gate
        return job

    def start(self) -> None:
        """Makes every element ready, but those that an earlier process has finished."""
        known = self.run.known_items.get(self.whole.id, {})
        for job in self.items:
            outcome = known.get(job.item)
            if outcome is not None:
                job.state, job.result, job.error = outcome.state, outcome.result, outcome.error
                job.attempts, job.usage, job.reused = outcome.attempts, outcome.usage, True
                self._left -= 1
        if not self._left:
            self._end()
            return
        for job in self.items:
            if job.state == PENDING:
                self.run.prepare(job)

    def ended(self, job: Job) -> None:
        """One element has ended."""
        self._left -= 1
        whole = self.whole
        if whole.state != PARKED:  # it was stopped before this element could end
            outcome = self.run.outcome(whole.id)
            if outcome is not None and outcome.items is not None:
                outcome.items[job.item] = job.outcome(self.run.origin)
            return
        if job.state != "done" and self.run.options.on_failure == "fail_fast":
            self.stop()
            self.run.settle(whole, job.state, f"{job.id}: {job.error}", job.exception)
        elif not self._left:
            self._end()

    def _end(self) -> None:
        bad = [job for job in self.items if job.state != "done"]
        if bad and (self.run.options.on_failure != "continue" or len(bad) == len(self.items)):
            why = f"{len(bad)} of {len(self.items)} elements are not done; {bad[0].id}: {bad[0].error}"
            self.run.settle(self.whole, bad[0].state, why, bad[0].exception)
        else:
            self.run.done(self.whole, [job.result for job in self.items])

    def stop(self) -> None:
        """Ends the elements that have not started and cancels those that run."""
        for job in self.items:
            if job.state in OPEN_STATES and job.state != RUNNING:
                if job.wake is not None:
                    job.wake()
                job.state, job.error = "cancelled", "the task was stopped"
        self.run.stop_flights(self.items)

    def outcomes(self, origin: float) -> list[TaskResult]:
        """How each element ended."""
        return [job.outcome(origin) for job in self.items]


def fan_out(run: Run, job: Job) -> None:
    """Spreads a task over its list; a list that is too long, or no list at all, fails the task."""
    values = resolve(job.task.for_each, run.results, ids=run.tasks)
    if not isinstance(values, (list, tuple)):
        run.settle(job, "failed", f"for_each {job.task.for_each} is of type {type(values).__name__}, not a list")
        return
    most = run.options.most_items if job.task.limit is None else job.task.limit
    if len(values) > most:
        run.settle(job, "failed", f"for_each {job.task.for_each} has {len(values)} elements, the limit is {most}")
        return
    job.state = PARKED
    job.started = run.clock()
    job.spread = fan = Fan(run, job, list(values))
    job.wake = fan.stop
    if run.watch is not None:
        run.watch.spread(job)
    fan.start()
