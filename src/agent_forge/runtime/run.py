"""One plan being carried out: what waits for what, and what the end of one task means for the others.

A task goes from pending to ready (its last input came), running, and one of the ends in
`result.TASK_STATES`. It may be parked on the way: for an approval, an identical call, its elements,
the next attempt, or the budget. Everything here happens on one event loop, so nothing is locked.

A run is composed of a `Board` (where each task stands), a `Preparation` (from the last input to the
queue), a `Lifetime` (what is still going on), a `Watch` (journal, spans and events) and, shared with
other runs, a `Crew` (workers, slots, budget). This module ties them together.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from types import CoroutineType
from typing import Any

from agent_forge.errors import AgentForgeError, ToolTimeout, UsageError
from agent_forge.plans import Plan, PlanFault
from agent_forge.runtime.board import Board, mended
from agent_forge.runtime.budget import WAIT
from agent_forge.runtime.crew import Crew
from agent_forge.runtime.job import CURRENT, OPEN_STATES, PARKED, PENDING, READY, RUNNING, Job
from agent_forge.runtime.journal import RunLog
from agent_forge.runtime.lifetime import STOP, TIMEOUT, Lifetime
from agent_forge.runtime.options import Handler, RunSettings
from agent_forge.runtime.prepare import Preparation
from agent_forge.runtime.result import ENDED, FAILURES, FINE, TaskResult, Usage, error_text
from agent_forge.runtime.stored import StoredRun
from agent_forge.runtime.watch import Watch

FALLS_BACK = ("failed", "timed_out")  # ends after which a task's fallbacks are tried


class Run:
    """The state machine of one run."""

    def __init__(self, name: str, handler: Handler, settings: RunSettings, crew: Crew, log: RunLog | None) -> None:
        self.name = name
        self.settings = settings
        self.crew = crew
        self.agenda = crew.agenda
        self.ledger = crew.ledger
        self.context = copy_context()
        self.life = Lifetime(self, settings.grace_s)
        self.clock, self.origin = self.life.clock, self.life.origin
        self.board = Board(self.origin)
        self.watch: Watch | None = None
        if log is not None or settings.recorder is not None or settings.on_event is not None:
            self.watch = Watch(name, self.life, log, settings.recorder, settings.on_event, self.break_off)
        self.usage = Usage()
        self.faults: list[PlanFault] = []
        self.stopping: str | None = None  # the state the run will end in, once it must end early
        self.error: str | None = None
        self.exception: BaseException | None = None
        self.whole = asyncio.Event()  # no more tasks come from a stream
        self._mending = asyncio.Lock()
        self._failing: dict[str, TaskResult] = {}  # tasks that failed, until it is known whether that is mended
        self.preparation = Preparation(self, settings, crew, self.board, self.life, self.watch)
        self.flow = self.preparation.flow
        self._handler = handler if settings.workers is None else partial(settings.workers.call, handler)
        self._rng = random.Random(settings.seed)
        self._limited = not self.agenda.unlimited or self.ledger is not None  # a slot or a budget to be given back

    # Filling the run

    def load(self, plan: Plan, known: Mapping[str, TaskResult]) -> None:
        """Takes over a whole plan; the tasks in `known` have ended already."""
        board = self.board
        self.whole.set()
        self.preparation.rank(plan)
        board.adopt(plan)
        if plan.flow:
            self.flow.register(plan.tasks, plan.flow)
        self.adopt({name: known[name] for name in known if name in plan.dependencies})
        if not self.stopping:
            for name in [name for name, deps in plan.dependencies.items() if not deps]:
                if name not in board.places:
                    self.preparation.ready(name)
        self.check_end()

    def adopt(self, known: Mapping[str, TaskResult]) -> None:
        """Takes over the ends of some tasks of the board, then does with the others what follows from them."""
        board = self.board
        failed = [name for name in known if known[name].state in FALLS_BACK and board.tasks[name].fallback]
        ended = {name: outcome for name, outcome in known.items() if name not in failed}
        for name, outcome in ended.items():
            self.take_over(name, outcome)
        for name, outcome in ended.items():
            self.pass_on(name, outcome)
        for name in ended if board.followed else ():
            if board.tasks[name].first_of and name in board.results:
                self.flow.lose(name)
            self.flow.ended(name)
        for name in failed:
            job = self.preparation.job(name)
            job.attempts = known[name].attempts
            self.settle(job, known[name].state, known[name].error or "")

    def take_over(self, name: str, outcome: TaskResult) -> None:
        """A task that has ended before this run: its result is there, or it is in doubt."""
        board = self.board
        if self.watch is not None and not outcome.reused:
            self.watch.known(name, outcome)
        board.places[name] = replace(outcome, reused=True)
        if outcome.state == "done":
            board.results[name] = outcome.result
        else:
            board.undone += outcome.state not in FINE and name not in board.covered
        board.closed += 1
        self._leaf_ended(name)

    def recall(self, stored: StoredRun) -> None:
        """Takes over what an earlier process of this run used and finished in part."""
        self.preparation.stored_items = stored.items
        self.flow.stored_parts = stored.ended
        self.usage = usage = stored.usage
        if self.ledger is not None:
            self.ledger.used.add(usage.tokens, usage.cost, usage.calls)

    def change(self, plan: Plan) -> None:
        """Carries on with `plan`. Raises PlanError, and changes nothing, if it touches a task that has started."""
        new = self.board.change(plan, self.lets_pass)
        self.preparation.rank(plan)
        self.flow.register(plan.tasks, plan.flow)
        if self.board.composites is not None:
            for name in self.board.outcomes():
                self._leaf_ended(name)
        if self.watch is not None:
            self.watch.replanned(plan, new)
        for name in plan.dependencies:
            self.place(name)

    def place(self, name: str) -> None:
        """Puts a task that came while the run was under way where it belongs."""
        board = self.board
        if not board.is_pending(name):
            return
        if board.tasks[name].first_of:
            for dep in [dep for dep in board.needs[name] if board.outcome(dep) is not None]:
                self.flow.ended(dep)
            return
        for dep in board.needs[name]:
            outcome = board.outcome(dep)
            if outcome is not None and not self.lets_pass(outcome):
                state = "not_needed" if outcome.state == "not_needed" else "skipped"
                self.settle(self.preparation.job(name), state, f"it needs {dep!r}, which {ENDED[outcome.state]}")
                return
        if not board.missing.get(name, len(board.needs[name])):
            self.preparation.ready(name)

    # From ready to running

    def put(self, job: Job) -> None:
        """Queues a job from inside a worker."""
        self.agenda.put(self.preparation.queue, job)

    def admit(self, job: Job) -> bool:
        """Whether the budget lets the job start; if not, the job is parked or ended."""
        ledger = self.ledger
        if ledger is None:
            return True
        wall_s = ledger.budget.wall_s
        answer = ledger.admit(job, None if wall_s is None else wall_s - (self.clock() - self.origin))
        if answer == WAIT:
            job.state = PARKED
        elif answer is not None:
            self.error = self.error or answer
            self.settle(job, "not_started", answer)
        return answer is None

    def call(self, job: Job) -> Any:
        """Calls the handler, inside of its own context, and runs it to its end or to its first wait.

        Returns its result; where it waits, what it waits for, and `job.waiting` is the handler.
        """
        job.state = RUNNING
        job.attempts += 1
        self.usage.calls += 1
        CURRENT.set(job)
        inputs = job.inputs
        if inputs is None:
            inputs, results = {}, self.board.results
            for name in job.deps:
                if name in results:
                    inputs[name] = results[name]
        job.began = self.clock()
        first = job.started is None
        if first:
            job.started = job.began
        if self.watch is not None:
            self.watch.started(job)
            job.began = self.clock()  # what the watch took is not the handler's
            if first:
                job.started = job.began
        value = self._handler(job.call or job.task, inputs)
        if type(value) is not CoroutineType:
            if not isawaitable(value):
                return value
            value = value if isinstance(value, Coroutine) else _awaiting(value)
        try:
            awaited = value.send(None)
        except StopIteration as stop:
            return stop.value
        job.waiting = value
        return awaited

    def suspended(self, job: Job, worker: asyncio.Task[None]) -> None:
        """The handler waits for something: from here on it can be timed out and cancelled."""
        self.life.take_off(job, worker)
        if self.watch is not None:
            self._guarded(self.watch.suspended, job)
        if self.stopping is not None and job.flight is not None:
            job.flight.stop(STOP)

    def abandoned(self, job: Job, worker: asyncio.Task[None]) -> None:
        """The handler ignored its cancellation: the run goes on without it."""
        self.crew.abandon(worker)
        self.raised(job, asyncio.CancelledError())
        self.crew.cover()
        self.check_end()

    def spend(self, job: Job, tokens: int | None, cost: float | None, unpriced: str | None = None) -> None:
        """Counts what a handler reports; see `budget.spend`."""
        if job.usage is None:
            job.usage = Usage()
        job.usage.add(tokens, cost)
        self.usage.add(tokens, cost)
        if self.ledger is not None:
            self.ledger.used.add(tokens, cost)
            if unpriced is not None and self.ledger.budget.cost is not None:
                raise UsageError(
                    f"the cost of {unpriced} is not known, so the budget on cost cannot be kept",
                    fix="Give its price in the setting `prices`, or limit tokens instead",
                )

    # From running to the end

    def _land(self, job: Job) -> str | None:
        """Takes the job out of flight and gives its slots back; the reason why it was stopped, if it was."""
        reason = self.life.land(job)
        self.agenda.release(job)
        if self.ledger is not None:
            for other in self.ledger.land(job):
                if other.state == PARKED:
                    other.run.put(other)
        return reason

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
        if self.settings.update is None or job.fan is not None:
            self.done(job, value)
        else:
            self.life.chore(self._update_then(job, TaskResult("done", value), lambda: self.done(job, value)))

    def raised(self, job: Job, error: BaseException) -> None:
        """The handler raised, or was stopped."""
        reason = self._land(job)
        if reason == TIMEOUT:
            self._failed(job, "timed_out", _limit_text(job), error)
        elif reason == STOP:
            self.settle(job, job.ends_as or "cancelled", self.error or "it was asked to stop", error)
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
            delay_s = retry.delay_s(job.attempts, self._rng)
            job.wake = self.life.loop.call_later(delay_s, self._retry_now, job).cancel
        else:
            self.failed(job, state, why, error)

    def failed(self, job: Job, state: str, why: str, error: BaseException | None = None) -> None:
        """A task failed for good: the caller may mend the rest of the plan, or change it, before that takes effect."""
        settings = self.settings
        outcome = TaskResult(state, error=why, exception=error)
        if job.spread is not None:
            self.flow.withdraw(job.spread)
        if self.stopping is not None or job.fan is not None or job.id in self.board.covered or job.task.fallback:
            self.settle(job, state, why, error)
        elif settings.mend is not None and state in ("failed", "timed_out"):
            self.life.chore(self._mend(job, outcome))
        elif settings.update is not None:
            self.life.chore(self._update_then(job, outcome, lambda: self.settle(job, state, why, error)))
        else:
            self.settle(job, state, why, error)

    async def _mend(self, job: Job, outcome: TaskResult) -> None:
        """Lets the caller replace what has not begun; a failure that is handled so does not fail the run."""
        board, mend = self.board, self.settings.mend
        job.state = PARKED
        self._failing[job.id] = outcome
        try:
            async with self._mending:  # one at a time: each sees the plan that the one before has left
                await self.whole.wait()
                if board.plan is not None and mend is not None and job.id in self._failing:
                    tasks = await mend(board.plan, job.id, outcome, dict(board.results))
                    if tasks and job.state == PARKED:
                        self.change(mended(board, job.id, list(self._failing), tasks))
                        for name in [name for name in self._failing if not board.dependents.get(name)]:
                            failure = self._failing.pop(name)
                            why = f"task {name!r} {ENDED[failure.state]} and was replaced: {failure.error}"
                            self.life.warnings.append(why)
        except Exception as error:
            self.life.warnings.append(f"the plan could not be mended after task {job.id!r}: {error_text(error)}")
        finally:
            state = outcome.state if self._failing.pop(job.id, None) is not None else "replaced"
            if job.state == PARKED:
                self.settle(job, state, outcome.error or "", outcome.exception)
                self.crew.cover()

    def _retry_now(self, job: Job) -> None:
        if job.state in OPEN_STATES and self.stopping is None:
            job.wake = None
            self.put(job)
            self.crew.cover()

    async def _update_then(self, job: Job, outcome: TaskResult, settle: Callable[[], None]) -> None:
        """Lets the caller change the unstarted rest of the plan before the end of a task takes effect."""
        update, plan = self.settings.update, self.board.plan
        job.state = PARKED
        try:
            if update is not None and plan is not None:
                changed = await update(plan, job.id, outcome)
                if changed is not None and changed is not plan:
                    self.change(changed)
        except Exception as error:
            self.life.warnings.append(f"the update after task {job.id!r} was refused: {error_text(error)}")
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
            self._guarded(self.watch.ended, job)
        if job.followers is not None:
            self._share(job)
        if job.fan is not None:
            self.preparation.item_ended(job.fan, job)
            self.check_end()
            return
        name, board = job.id, self.board
        places = board.places
        board.results[name] = value
        if job.attempts == 1 and job.usage is None and job.same_as is None and job.spread is None:
            places[name] = (job.began, ended)
        else:
            places[name] = job.outcome(self.origin)
        self._closed(name)
        if self.stopping is None:
            missing, needs = board.missing, board.needs
            for other in board.dependents.get(name, ()):
                left = missing[other] if other in missing else len(needs[other])
                if left > 1:
                    missing[other] = left - 1
                elif other not in places:
                    self.preparation.ready(other)
        if board.closed >= len(board.needs):
            self.check_end()

    def settle(self, job: Job, state: str, why: str, error: BaseException | None = None) -> None:
        """Ends a task that is not done, and does with the others what the failure policy says."""
        if job.fan is None and self.stopping is None:
            if job.spread is not None:
                self.flow.withdraw(job.spread)
            if state in FALLS_BACK and job.task.fallback:
                self._unshare(job, state, why)
                if self.flow.fall_back(job, state, why, error):
                    return
        self._end_one(job, state, why, error)
        if job.fan is None:
            self.pass_on(job.id, job.outcome(self.origin))
        self.check_end()

    def _end_one(self, job: Job, state: str, why: str, error: BaseException | None = None) -> None:
        """Ends one task, or one element of a `for_each`, that is not done."""
        job.state, job.error, job.exception = state, why, error
        job.ended = None if job.started is None else self.clock()
        if self.watch is not None:
            self._guarded(self.watch.ended, job)
        if job.key is not None:
            self.preparation.call_failed(job)
        if job.followers is not None:
            self._share(job)
        if job.fan is not None:
            self.preparation.item_ended(job.fan, job)
            return
        self.board.places[job.id] = job.outcome(self.origin)
        self.board.undone += state not in FINE and job.id not in self.board.covered
        self._closed(job.id)

    def _closed(self, name: str) -> None:
        """A task has ended, and with it perhaps the groups around it."""
        self.board.closed += 1
        if self.board.followed:
            self._leaf_ended(name)
            self.flow.ended(name)

    def _leaf_ended(self, name: str) -> None:
        if self.board.composites is not None and name not in self.board.parts:
            for group, state in self.board.composites.leaf_ended(name):
                if self.watch is not None:
                    self.watch.group_ended(group, state)

    def lets_pass(self, outcome: TaskResult) -> bool:
        """Whether those that wait for a task that ended so may go on."""
        if outcome.state == "done":
            return True
        return self.settings.on_failure == "continue" and outcome.state not in ("not_started", "not_needed")

    def pass_on(self, name: str, outcome: TaskResult) -> None:
        """What the end of a task means for those that wait for it."""
        board = self.board
        if self.stopping is not None:
            return
        if self.lets_pass(outcome):
            for other in board.dependents.get(name, ()):
                board.missing[other] = board.missing.get(other, len(board.needs[other])) - 1
                if board.missing[other] <= 0 and board.is_pending(other):
                    self.preparation.ready(other)
        elif self.settings.on_failure == "fail_fast" and outcome.state in FAILURES and name not in board.covered:
            self.stop("failed", f"task {name!r} {ENDED[outcome.state]}: {outcome.error}")
        else:  # skips exactly its descendants
            state = outcome.state if outcome.state in ("not_started", "not_needed") else "skipped"
            why = f"it needs {name!r}, which {ENDED[outcome.state]}"
            waiting = list(board.dependents.get(name, ()))
            while waiting:
                other = waiting.pop()
                if board.is_pending(other) and other in board.tasks and not board.tasks[other].first_of:
                    self._end_one(self.preparation.job(other), state, why)
                    waiting.extend(board.dependents.get(other, ()))

    def _unshare(self, job: Job, state: str, why: str) -> None:
        """A call has failed whose task may still be done: whoever asked for the same call has no part in that."""
        job.state, job.error = state, why
        if job.key is not None:
            self.preparation.call_failed(job)
            job.key = None
        if job.followers is not None:
            self._share(job)

    def _share(self, job: Job) -> None:
        """Gives the end of a call to the tasks that asked for the same one."""
        followers, job.followers = job.followers or [], None
        for other in followers:
            if other.state != PARKED:
                continue
            if job.state == "cancelled" and self.stopping is None:
                other.state = PENDING
                self.preparation.prepare(other)
                continue
            other.same_as = job.id
            if job.state == "done":
                self.done(other, job.result)
            else:
                self.settle(other, job.state, f"the identical call of {job.id!r} {ENDED[job.state]}: {job.error}")

    # The end of the run

    def stop(self, state: str, why: str) -> None:
        """Ends the run early: what runs is cancelled, what has not started will not start."""
        board = self.board
        if self.stopping is not None or self.life.ended.done():
            return
        self.stopping, self.error = state, why
        board.growing = False
        self.agenda.drop(self.preparation.queue)
        unstarted = "not_started" if state == "timed_out" else "cancelled"
        for job in [self.preparation.job(name) for name in board.under_way()]:
            if job.state in (PENDING, READY, PARKED):
                if job.wake is not None:
                    job.wake()
                # One that was tried before counts as cancelled.
                self._end_one(job, "cancelled" if job.started is not None else unstarted, why)
        for name in board.needs:
            if board.is_pending(name):
                self._end_one(self.preparation.job(name), unstarted, why)
        for job in list(self.life.flying):
            self.life.stop(job)
        self.life.stop_chores()
        self.check_end()

    def cancel_task(self, name: str, why: str = "it was asked to stop") -> None:
        """Cancels one task; the others go on as the failure policy says."""
        self.flow.drop(name, "cancelled", why)
        self.crew.cover()

    def break_off(self, error: BaseException) -> None:
        """Ends the run because what carries it broke: the journal, or the executor itself."""
        self.exception = self.exception or error
        try:
            self.stop("failed", error_text(error))
        except Exception as worse:  # then there is no telling how each task ended; raising beats waiting forever
            if not self.life.ended.done():
                self.life.ended.set_exception(worse)

    def check_end(self) -> None:
        """Ends the run when nothing of it is left."""
        if not (self.life.is_busy or self.board.is_open or self.life.ended.done()):
            self.life.finish()

    def _guarded(self, note: Callable[[Job], None], job: Job) -> None:
        try:
            note(job)
        except AgentForgeError as error:
            self.break_off(error)


async def _awaiting(value: Any) -> Any:
    return await value


def _limit_text(job: Job) -> str:
    return f"no result within its limit of {job.terms.timeout_s:g} s"
