"""One plan being carried out: what waits for what, and what the end of one task means for the others.

A task goes from pending to ready (its last input came), running, and one of the ends in `result.TASK_STATES`. It may be
parked on the way: for an approval, an identical call, its elements, the next attempt, or the budget. Everything here
happens on one event loop, so nothing is locked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agent_forge.errors import AgentForgeError
from agent_forge.plans import Plan, PlanFault, Task
from agent_forge.runtime.budget import CURRENT, WAIT
from agent_forge.runtime.groups import Groups
from agent_forge.runtime.job import OPEN_STATES, PARKED, PENDING, READY, RUNNING, STOP, TIMEOUT, Flight, Job
from agent_forge.runtime.lifetime import Lifetime
from agent_forge.runtime.options import Options, duration_of
from agent_forge.runtime.prepare import prepare
from agent_forge.runtime.result import ENDED, FAILURES, TaskResult, Usage, error_text
from agent_forge.runtime.update import change

if TYPE_CHECKING:
    from agent_forge.runtime.agenda import Agenda
    from agent_forge.runtime.crew import Crew
    from agent_forge.runtime.journal import StoredRun


class Run(Lifetime):
    """The state machine of one run."""

    def __init__(self, name: str, agenda: Agenda, crew: Crew, options: Options) -> None:
        super().__init__(options.grace_s)
        self.name = name
        self.agenda = agenda
        self.crew = crew
        self.options = options
        self.handler = options.handler
        self.watch = options.watch
        self.ledger = options.ledger
        self.queue = agenda.queue()
        self.context: Context = copy_context()
        self.plan: Plan | None = None
        self.tasks: Mapping[str, Task] = {}
        self.needs: Mapping[str, tuple[str, ...]] = {}  # of the leaves: the tasks that are called
        self.dependents: Mapping[str, Sequence[str]] = {}
        # A task is pending while it is in neither of the next two. Jobs are made late and dropped early, so that a
        # plan of 100,000 tasks needs little more memory than its results.
        self.jobs: dict[str, Job] = {}
        self.outcomes: dict[str, TaskResult] = {}
        self.missing: dict[str, int] = {}  # inputs that have not come
        self.results: dict[str, Any] = {}
        self.spans: dict[str, tuple[str, str]] = {}  # trace and span of the tasks that were called
        self.children: dict[str, list[str]] = {}  # of the groups of a streamed plan
        self.ranks: dict[str, float] = {}
        self.groups: Groups | None = None
        self.usage = Usage()
        self.faults: list[PlanFault] = []
        self.leaders: dict[Any, Job] = {}  # the first of identical calls, by what they call
        self._unprepared: deque[Job] = deque()
        self._preparing = False
        self.known_items: Mapping[str, Mapping[int, TaskResult]] = {}  # elements that an earlier process finished
        self.origin = self.clock()

    # Filling the run

    def load(self, plan: Plan, known: Mapping[str, TaskResult]) -> None:
        """Takes over a whole plan; the tasks in `known` have ended already."""
        self.adopt(plan)
        self.missing = {name: len(deps) for name, deps in plan.dependencies.items()}
        reused = [name for name in known if name in plan.dependencies]
        for name in reused:
            self.take_over(name, known[name])
        for name in reused:
            self.pass_on(name, self.outcomes[name])
        if not self.stopping:
            for name, deps in plan.dependencies.items():
                if not deps and name not in self.outcomes and name not in self.jobs:
                    self.make_ready(name)
        self.check_end()

    def adopt(self, plan: Plan) -> None:
        """The plan that holds from now on."""
        self.plan, self.tasks, self.needs, self.dependents = plan, plan.tasks, plan.dependencies, plan.dependents
        self.groups = Groups(self, plan) if plan.composites else None
        if self.agenda.ordered:
            given = self.options.durations or {}
            found = {name: duration_of(plan.tasks[name], given) for name in plan.leaves}
            known = [value for value in found.values() if value]
            usual = sum(known) / len(known) if known else 1.0
            self.ranks = plan.ranks({name: value or usual for name, value in found.items()})

    def take_over(self, name: str, outcome: TaskResult) -> None:
        """A task that has ended before this run: its result is known, or it is in doubt."""
        if self.watch is not None and not outcome.reused:
            self.watch.known(name, outcome)
        self.outcomes[name] = replace(outcome, reused=True)
        if outcome.state == "done":
            self.results[name] = outcome.result
        if self.groups is not None:
            self.groups.ended(name)

    def recall(self, stored: StoredRun) -> None:
        """Takes over what an earlier process of this run used and finished in part."""
        self.known_items = stored.items
        self.usage = stored.usage
        if self.ledger is not None:
            self.ledger.used.add(stored.usage.tokens, stored.usage.cost, stored.usage.calls)

    # From pending to running

    def is_pending(self, name: str) -> bool:
        """Whether a task waits for an input."""
        return name not in self.outcomes and name not in self.jobs

    def job(self, name: str) -> Job:
        """The job of a task, made now if it was pending."""
        job = self.jobs.get(name)
        if job is None:
            task = self.tasks[name]
            job = self.jobs[name] = Job(self, task, self.needs[name], self.options.terms(task))
            if self.agenda.gated:
                job.gate = self.agenda.gate(task.action)
            if self.ranks:
                job.rank = self.ranks.get(name, 1.0)
        return job

    def make_ready(self, name: str) -> None:
        """The last input of a task has come."""
        job = self.job(name)
        if job.plain and name not in self.children:
            self.agenda.put(self.queue, job)
        else:
            self.prepare(job)

    def prepare(self, job: Job) -> None:
        """Works out what a job is to call. It may end at once and make others ready: a loop, so that a long chain of
        such tasks needs no deep stack."""
        self._unprepared.append(job)
        if self._preparing:
            return
        self._preparing = True
        try:
            while self._unprepared:
                each = self._unprepared.popleft()
                if each.state == PENDING and self.stopping is None:
                    prepare(self, each)
        finally:
            self._preparing = False

    def enqueue(self, job: Job) -> None:
        """Queues a job from outside of a worker."""
        if job.state in OPEN_STATES and self.stopping is None:
            job.wake = None
            self.agenda.put(self.queue, job)
            self.crew.cover()

    def admit(self, job: Job) -> bool:
        """Whether the budget lets the job start; if not, the job is parked or ended."""
        if self.ledger is None:
            return True
        wall_s = self.options.wall_s
        answer = self.ledger.admit(job, None if wall_s is None else wall_s - (self.clock() - self.origin))
        if answer == WAIT:
            job.state = PARKED
        elif answer is not None:
            self.error = self.error or answer
            self.settle(job, "not_started", answer)
        return answer is None

    def begin(self, job: Job, context: Context) -> Any:
        """Calls the handler: what it gives is a coroutine (or, from a plain function, the result)."""
        job.state = RUNNING
        job.attempts += 1
        self.usage.calls += 1
        job.began = self.clock()
        if job.started is None:
            job.started = job.began
        if self.watch is not None:
            self.watch.started(job, context)
        context.run(CURRENT.set, job)
        inputs = job.inputs
        if inputs is None:
            results = self.results
            inputs = {name: results[name] for name in job.deps if name in results}
        return context.run(self.handler, job.call or job.task, inputs)

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
            job.flight = None
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
        if self._land(job) == TIMEOUT:
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
            self._failed(job, "failed", error_text(error), error)
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
        job.ended = self.clock()
        if self.watch is not None:
            self._guarded(self.watch.ended, job)
        if job.followers is not None:
            self._share(job)
        if job.fan is not None:
            job.fan.ended(job)
            self.check_end()
            return
        name = job.id
        self.results[name] = value
        self._close(job)
        if self.stopping is None:
            missing = self.missing
            for other in self.dependents.get(name, ()):
                left = missing[other] = missing[other] - 1
                if not left and other not in self.outcomes:
                    self.make_ready(other)
        self.check_end()

    def settle(self, job: Job, state: str, why: str, error: BaseException | None = None) -> None:
        """Ends a task that is not done, and does with the others what the failure policy says."""
        if self.end_one(job, state, why, error):
            self.pass_on(job.id, self.outcomes[job.id])
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
        self._close(job)
        return True

    def _close(self, job: Job) -> None:
        name = job.id
        self.outcomes[name] = job.outcome(self.origin)
        del self.jobs[name]
        if self.groups is not None:
            self.groups.ended(name)

    def lets_pass(self, outcome: TaskResult) -> bool:
        """Whether those that wait for a task that ended so may go on."""
        return outcome.state == "done" or (self.options.on_failure == "continue" and outcome.state != "not_started")

    def place(self, name: str) -> None:
        """Puts a task that came while the run was under way where it belongs."""
        if not self.is_pending(name):
            return
        for dep in self.needs[name]:
            outcome = self.outcomes.get(dep)
            if outcome is not None and not self.lets_pass(outcome):
                self.settle(self.job(name), "skipped", f"it needs {dep!r}, which {ENDED[outcome.state]}")
                return
        if not self.missing[name]:
            self.make_ready(name)

    def pass_on(self, name: str, outcome: TaskResult) -> None:
        """What the end of a task means for those that wait for it."""
        if self.stopping is not None:
            return
        if self.lets_pass(outcome):
            for other in self.dependents.get(name, ()):
                self.missing[other] -= 1
                if not self.missing[other] and self.is_pending(other):
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

    def is_open(self) -> bool:
        """Whether a task has not ended, or more may come."""
        return self.growing or len(self.outcomes) < len(self.needs)

    # The end of the run

    def stop(self, state: str, why: str) -> None:
        """Ends the run early: what runs is cancelled, what has not started will not start."""
        if self.stopping is not None or self.ended.done():
            return
        self.stopping, self.error = state, why
        self.growing = False
        self.agenda.drop(self.queue)
        unstarted = "not_started" if state == "timed_out" else "cancelled"
        for job in list(self.jobs.values()):
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
        if name in self.outcomes:
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


def _limit_text(job: Job) -> str:
    return f"no result within its limit of {job.terms.timeout_s:g} s"
