"""One plan being carried out: what waits for what, and what the end of one task means for the others.

A task goes from pending to ready (its last input came), running, and one of the ends in `result.TASK_STATES`. It may be
parked on the way: for an approval, an identical call, its elements, the next attempt, or the budget. Everything here
happens on one event loop, so nothing is locked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import replace
from inspect import isawaitable
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from agent_forge.errors import AgentForgeError, ToolTimeout
from agent_forge.plans import Plan, PlanFault
from agent_forge.runtime.budget import CURRENT, WAIT
from agent_forge.runtime.job import PARKED, PENDING, READY, RUNNING, STOP, TIMEOUT, Flight, Job
from agent_forge.runtime.options import Options
from agent_forge.runtime.places import Places
from agent_forge.runtime.result import ENDED, FAILURES, TaskResult, Usage, error_text
from agent_forge.runtime.update import change

if TYPE_CHECKING:
    from agent_forge.runtime.agenda import Agenda
    from agent_forge.runtime.crew import Crew
    from agent_forge.runtime.journal import StoredRun


class Run(Places):
    """The state machine of one run."""

    def __init__(self, name: str, agenda: Agenda, crew: Crew, options: Options) -> None:
        super().__init__(name, agenda, crew, options)
        self.handler = options.handler
        self.watch = options.watch
        self.ledger = options.ledger
        self.spans: dict[str, tuple[str, str]] = {}  # trace and span of the tasks that were called
        self.usage = Usage()
        self.faults: list[PlanFault] = []
        self.leaders: dict[Any, Job] = {}  # the first of identical calls, by what they call
        self.known_items: Mapping[str, Mapping[int, TaskResult]] = {}  # elements that an earlier process finished
        self._limited = not agenda.unlimited or options.ledger is not None  # a slot or a budget is to be given back

    # Filling the run

    def load(self, plan: Plan, known: Mapping[str, TaskResult]) -> None:
        """Takes over a whole plan; the tasks in `known` have ended already."""
        self.adopt(plan)
        reused = [name for name in known if name in plan.dependencies]
        for name in reused:
            self.take_over(name, known[name])
        for name in reused:
            self.pass_on(name, known[name])
        if not self.stopping:
            for name in [name for name, deps in plan.dependencies.items() if not deps]:
                if name not in self.places:
                    self.make_ready(name)
        self.check_end()

    def take_over(self, name: str, outcome: TaskResult) -> None:
        """A task that has ended before this run: its result is known, or it is in doubt."""
        if self.watch is not None and not outcome.reused:
            self.watch.known(name, outcome)
        self.places[name] = replace(outcome, reused=True)
        self.closed += 1
        if outcome.state == "done":
            self.results[name] = outcome.result
        else:
            self.undone += 1
        if self.groups is not None:
            self.groups.ended(name)

    def recall(self, stored: StoredRun) -> None:
        """Takes over what an earlier process of this run used and finished in part."""
        self.known_items = stored.items
        self.usage = stored.usage
        if self.ledger is not None:
            self.ledger.used.add(stored.usage.tokens, stored.usage.cost, stored.usage.calls)

    # From ready to running

    def admit(self, job: Job) -> bool:
        """Whether the budget lets the job start; if not, the job is parked or ended."""
        ledger, wall_s = self.ledger, self.options.wall_s
        if ledger is None:
            return True
        answer = ledger.admit(job, None if wall_s is None else wall_s - (self.clock() - self.origin))
        if answer == WAIT:
            job.state = PARKED
        elif answer is not None:
            self.error = self.error or answer
            self.settle(job, "not_started", answer)
        return answer is None

    def call(self, job: Job) -> Any:
        """Calls the handler, inside of its own context, and runs it to its end or to its first wait.

        Gives its result; where it waits, what it waits for, and `job.waiting` is the handler.
        """
        job.state = RUNNING
        job.attempts += 1
        self.usage.calls += 1
        CURRENT.set(job)
        inputs = job.inputs
        if inputs is None:
            inputs, results = {}, self.results
            for name in job.deps:
                if name in results:
                    inputs[name] = results[name]
        job.began = self.clock()
        if job.started is None:
            job.started = job.began
        if self.watch is not None:
            self.watch.started(job)
        made = self.handler(job.call or job.task, inputs)
        if type(made) is not CoroutineType:
            if not isawaitable(made):
                return made
            made = made if isinstance(made, Coroutine) else _awaiting(made)
        try:
            awaited = made.send(None)
        except StopIteration as stop:
            return stop.value
        job.waiting = made
        return awaited

    def suspended(self, job: Job, worker: asyncio.Task[None]) -> None:
        """The handler waits for something: from here on it can be timed out and cancelled."""
        job.flight = flight = Flight(worker)
        self.flying.add(job)
        if self.watch is not None:
            self._guarded(self.watch.suspended, job)
        if self.stopping is not None:
            flight.stop(STOP)
        elif job.terms.timeout_s is not None:
            flight.timer = self.loop.call_at(job.began + job.terms.timeout_s, self._time_out, job, flight)

    def _time_out(self, job: Job, flight: Flight) -> None:
        if job.flight is flight:
            flight.stop(TIMEOUT)
            flight.timer = self.loop.call_later(self.options.grace_s, self._abandon, job, flight)

    def _abandon(self, job: Job, flight: Flight) -> None:
        """The handler swallowed its cancellation. It cannot be killed, so the run goes on without it and says so."""
        if job.flight is flight:
            self.crew.abandon(flight.worker)
            self.warnings.append(f"task {job.id!r} ignored its cancellation and was left running")
            self.raised(job, asyncio.CancelledError())
            self.crew.cover()
            self.check_end()

    # From running to the end

    def _land(self, job: Job) -> str | None:
        """Takes the job out of flight and gives its slots back; says why it was stopped, if it was."""
        flight = job.flight
        if flight is not None:
            job.flight = job.waiting = None
            self.flying.discard(job)
            if flight.timer is not None:
                flight.timer.cancel()
        self.agenda.release(job)
        if self.ledger is not None:
            for other in self.ledger.land(job):
                if other.state == PARKED:
                    other.run.agenda.put(other.run.queue, other)
        return None if flight is None else flight.reason

    def returned(self, job: Job, value: Any) -> None:
        """The handler gave a result."""
        if (self._limited or job.flight is not None) and self._land(job) == TIMEOUT:
            self._failed(job, "timed_out", _limit_text(job), None)
            return
        if self.watch is not None:
            try:
                value = self.watch.keep(job, value)
            except AgentForgeError as error:
                self.settle(job, "failed", str(error), error)
                return
        if self.options.update is None or job.fan is not None:
            self.done(job, value)
        else:
            self.chore(self._update_then(job, TaskResult("done", value), lambda: self.done(job, value)))

    def raised(self, job: Job, error: BaseException) -> None:
        """The handler raised, or was stopped."""
        reason = self._land(job)
        if reason == TIMEOUT:
            self._failed(job, "timed_out", _limit_text(job), error)
        elif reason == STOP:
            self.settle(job, "cancelled", self.error or "it was asked to stop", error)
        elif isinstance(error, asyncio.CancelledError):
            self.settle(job, "cancelled", "its handler was cancelled from outside of the run", error)
        else:
            self._failed(job, "timed_out" if isinstance(error, ToolTimeout) else "failed", error_text(error), error)
        if self.watch is not None and self.watch.broken is not None:
            self.break_off(self.watch.broken)

    def _failed(self, job: Job, state: str, why: str, error: BaseException | None) -> None:
        retry = job.terms.retry
        may = self.stopping is None and job.attempts < retry.attempts
        if may and (state == "timed_out" or isinstance(error, retry.on)):
            job.state = PARKED
            if self.watch is not None:
                self.watch.retrying(job, why)
            job.wake = self.loop.call_later(retry.delay_s(job.attempts, self.options.rng), self.enqueue, job).cancel
        elif self.options.update is None or self.stopping is not None or job.fan is not None:
            self.settle(job, state, why, error)
        else:
            outcome = TaskResult(state, error=why, exception=error)
            self.chore(self._update_then(job, outcome, lambda: self.settle(job, state, why, error)))

    async def _update_then(self, job: Job, outcome: TaskResult, settle: Callable[[], None]) -> None:
        """Lets the caller change the unstarted rest of the plan before the end of a task takes effect."""
        update, plan = self.options.update, self.plan
        job.state = PARKED
        try:
            if update is not None and plan is not None:
                changed = await update(plan, job.id, outcome)
                if changed is not None and changed is not plan:
                    change(self, changed)
        except Exception as error:
            self.warnings.append(f"the update after task {job.id!r} was refused: {error_text(error)}")
        finally:
            if job.state == PARKED:
                settle()
                self.crew.cover()

    def done(self, job: Job, value: Any) -> None:
        """A result is there: it goes to the journal first, then to whoever waits for it."""
        job.state = "done"
        job.result = value
        job.ended = ended = self.clock()
        if self.watch is not None:
            try:
                self.watch.ended(job)
            except AgentForgeError as problem:
                self.break_off(problem)
        if job.followers is not None:
            self._share(job)
        if job.fan is not None:
            job.fan.ended(job)
            self.check_end()
            return
        name, places = job.id, self.places
        self.results[name] = value
        if job.attempts == 1 and job.usage is None and job.same_as is None and job.spread is None:
            places[name] = (job.began, ended)
        else:
            places[name] = job.outcome(self.origin)
        self.closed += 1
        if self.groups is not None:
            self.groups.ended(name)
        if self.stopping is None:
            missing = self.missing
            for other in self.dependents.get(name, ()):
                left = missing[other] if other in missing else len(self.needs[other])
                if left > 1:
                    missing[other] = left - 1
                elif other not in places:
                    self.make_ready(other)
        if self.closed >= len(self.needs):
            self.check_end()

    def settle(self, job: Job, state: str, why: str, error: BaseException | None = None) -> None:
        """Ends a task that is not done, and does with the others what the failure policy says."""
        if self.end_one(job, state, why, error):
            self.pass_on(job.id, job.outcome(self.origin))
        self.check_end()

    def end_one(self, job: Job, state: str, why: str, error: BaseException | None = None) -> bool:
        """Ends one task; whether it was a task of the plan, not one element of a `for_each`."""
        job.state, job.error, job.exception = state, why, error
        job.ended = None if job.started is None else self.clock()
        if self.watch is not None:
            self._guarded(self.watch.ended, job)
        if job.key is not None:
            self.leaders.pop(job.key, None)  # whoever asks for the same later tries for itself
        if job.followers is not None:
            self._share(job)
        if job.fan is not None:
            job.fan.ended(job)
            return False
        self.places[job.id] = job.outcome(self.origin)
        self.closed += 1
        self.undone += 1
        if self.groups is not None:
            self.groups.ended(job.id)
        return True

    def lets_pass(self, outcome: TaskResult) -> bool:
        """Whether those that wait for a task that ended so may go on."""
        return outcome.state == "done" or (self.options.on_failure == "continue" and outcome.state != "not_started")

    def place(self, name: str) -> None:
        """Puts a task that came while the run was under way where it belongs."""
        if not self.is_pending(name):
            return
        for dep in self.needs[name]:
            outcome = self.outcome(dep)
            if outcome is not None and not self.lets_pass(outcome):
                self.settle(self.job(name), "skipped", f"it needs {dep!r}, which {ENDED[outcome.state]}")
                return
        if not self.missing.get(name, len(self.needs[name])):
            self.make_ready(name)

    def pass_on(self, name: str, outcome: TaskResult) -> None:
        """What the end of a task means for those that wait for it."""
        if self.stopping is not None:
            return
        if self.lets_pass(outcome):
            for other in self.dependents.get(name, ()):
                self.missing[other] = self.missing.get(other, len(self.needs[other])) - 1
                if self.missing[other] <= 0 and self.is_pending(other):
                    self.make_ready(other)
        elif self.options.on_failure == "fail_fast" and outcome.state in FAILURES:
            self.stop("failed", f"task {name!r} {ENDED[outcome.state]}: {outcome.error}")
        else:
            self._skip_after(name, outcome)

    def _skip_after(self, name: str, outcome: TaskResult) -> None:
        """Skips exactly the descendants of a task that did not end well."""
        state = "not_started" if outcome.state == "not_started" else "skipped"
        why = f"it needs {name!r}, which {ENDED[outcome.state]}"
        waiting = list(self.dependents.get(name, ()))
        while waiting:
            other = waiting.pop()
            if self.is_pending(other) and other in self.tasks:
                self.end_one(self.job(other), state, why)
                waiting.extend(self.dependents.get(other, ()))

    def _share(self, job: Job) -> None:
        """Gives the end of a call to the tasks that asked for the same one."""
        followers, job.followers = job.followers or [], None
        for other in followers:
            if other.state != PARKED:
                continue
            if job.state == "cancelled" and self.stopping is None:
                other.state = PENDING
                self.prepare(other)
                continue
            other.same_as = job.id
            if job.state == "done":
                self.done(other, job.result)
            else:
                self.settle(other, job.state, f"the identical call of {job.id!r} {ENDED[job.state]}: {job.error}")

    def spend(self, job: Job, tokens: int | None, cost: float | None) -> None:
        """Counts what a handler reports."""
        if job.usage is None:
            job.usage = Usage()
        job.usage.add(tokens, cost)
        self.usage.add(tokens, cost)
        if self.ledger is not None:
            self.ledger.used.add(tokens, cost)

    # The end of the run

    def stop(self, state: str, why: str) -> None:
        """Ends the run early: what runs is cancelled, what has not started will not start."""
        if self.stopping is not None or self.ended.done():
            return
        self.stopping, self.error = state, why
        self.growing = False
        self.agenda.drop(self.queue)
        unstarted = "not_started" if state == "timed_out" else "cancelled"
        for job in [self.job(name) for name in self.under_way()]:
            self._stop_job(job, unstarted, why)
        for name in self.needs:
            if self.is_pending(name):
                self.end_one(self.job(name), unstarted, why)
        for job in list(self.flying):
            self._stop_flight(job)
        self.stop_chores()
        self.check_end()

    def _stop_job(self, job: Job, unstarted: str, why: str) -> None:
        """Ends a job that is not running; one that was tried before counts as cancelled."""
        if job.state in (PENDING, READY, PARKED):
            if job.wake is not None:
                job.wake()
            self.end_one(job, "cancelled" if job.started is not None else unstarted, why)

    def cancel_task(self, name: str, why: str = "it was asked to stop") -> None:
        """Cancels one task; the others go on as the failure policy says."""
        if self.outcome(name) is not None:
            return
        job = self.job(name)
        if job.state == RUNNING:
            self._stop_flight(job)
        else:
            if job.wake is not None:
                job.wake()
            self.settle(job, "cancelled", why)
        self.crew.cover()

    def _stop_flight(self, job: Job) -> None:
        flight = job.flight
        if flight is not None:
            flight.stop(STOP)
            self.after(self.options.grace_s, self._abandon, job, flight)

    def stop_flights(self, jobs: Collection[Job]) -> None:
        """Cancels the handlers of these jobs."""
        for job in jobs:
            self._stop_flight(job)

    def _guarded(self, note: Callable[[Job], None], job: Job) -> None:
        try:
            note(job)
        except AgentForgeError as error:
            self.break_off(error)


async def _awaiting(made: Any) -> Any:
    return await made


def _limit_text(job: Job) -> str:
    return f"no result within its limit of {job.terms.timeout_s:g} s"
