"""The way of a task from its last input to its place in the queue.

References are resolved against real results, a `for_each` is spread over its list, an approval is asked for, and a call
that another task of the run has already made is not made again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from typing import Any

from agent_forge.plans import Plan, ReferenceUnresolved
from agent_forge.plans.task import Control
from agent_forge.runtime.agenda import Queue
from agent_forge.runtime.board import Board
from agent_forge.runtime.calls import call_key, elements, inputs_of, resolved
from agent_forge.runtime.crew import Crew
from agent_forge.runtime.flow import Flow
from agent_forge.runtime.job import OPEN_STATES, PARKED, PART, PENDING, READY, RUNNING, Fan, Job, JobOwner
from agent_forge.runtime.lifetime import Lifetime
from agent_forge.runtime.options import RunSettings, ranks_of
from agent_forge.runtime.result import TaskResult, error_text
from agent_forge.runtime.terms import TermsOf
from agent_forge.runtime.watch import Watch


class Preparation:
    """Makes the jobs of one run and queues them when they can be called."""

    def __init__(
        self, run: JobOwner, settings: RunSettings, crew: Crew, board: Board, life: Lifetime, watch: Watch | None
    ) -> None:
        self._run = run
        self._settings = settings
        self._crew = crew
        self._agenda = crew.agenda
        self._board = board
        self._life = life
        self._watch = watch
        self.flow = Flow(run, settings, self, board, life, watch)
        self.terms_of = TermsOf(crew.agenda.limits, settings.timeout_s, settings.retry, settings.memo).of
        self.queue = Queue(self._in_turn, crew.agenda.ordered)
        self.ranks: dict[str, float] = {}
        self.stored_items: Mapping[str, Mapping[int, TaskResult]] = {}  # elements that an earlier process finished
        self._leaders: dict[Any, Job] = {}  # the first of identical calls, by what they call
        self._unprepared: deque[Job] = deque()
        self._preparing = False

    def rank(self, plan: Plan) -> None:
        """Ranks the tasks of a plan by the work behind them, where that decides what starts first."""
        if self._agenda.ordered:
            self.ranks = ranks_of(plan, self._settings.durations or {})

    def job(self, name: str) -> Job:
        """The job of a task that has not ended, made now if there is none."""
        board = self._board
        job = board.places.get(name)
        if isinstance(job, Job):
            return job
        task = board.tasks[name]
        board.places[name] = job = Job(self._run, task, board.needs[name], self.terms_of(task))
        if self._agenda.gated:
            job.gate = self._agenda.gate(task.action)
        if self.ranks:
            job.rank = self.ranks.get(name, 1.0)
        elif board.parts and name in board.parts:
            job.item = PART
        return job

    def ready(self, name: str) -> None:
        """The last input of a task has come."""
        if self._agenda.unlimited:  # its turn comes in any case: what is to be worked out for it waits until then
            self._board.places[name] = None
            self._agenda.put_name(self.queue, name)
            return
        job = self.job(name)
        if self._is_plain(job):
            self._agenda.put(self.queue, job)
        else:
            self.prepare(job)

    def _in_turn(self, name: str) -> Job | None:
        """The job of a name in the queue; None if it cannot be called now, or has ended meanwhile."""
        board = self._board
        if board.places[name] is not None:
            return None
        task = board.tasks[name]
        board.places[name] = job = Job(self._run, task, board.needs[name], self.terms_of(task))
        if self._is_plain(job):
            job.state = READY
            return job
        self.prepare(job)
        return None

    def _is_plain(self, job: Job) -> bool:
        """Whether there is nothing to work out before the handler is called: so it is with most tasks."""
        task, terms, special = job.task, job.terms, self._board.special
        if task.args or "{" in task.goal or task.for_each is not None or terms.approval or terms.fault is not None:
            return False
        return not special or job.id not in special

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
                if each.state == PENDING and self._run.stopping is None:
                    self._prepare_now(each)
        finally:
            self._preparing = False

    def _prepare_now(self, job: Job) -> None:
        """Takes a pending job whose inputs are there to the queue, to a park, or to its end."""
        job.state = PARKED
        children, results = self._board.children, self._board.results
        if job.fan is None and job.id in self._board.special and self.flow.before(job):
            return
        if job.terms.fault is not None:
            self._run.settle(job, "failed", job.terms.fault)
        elif job.id in children:  # a group of a streamed plan: its children are its inputs
            self._run.done(job, {name: results[name] for name in children[job.id] if name in results})
        elif job.terms.approval and job.fan is None:
            job.wake = self._life.chore(self._ask(job)).cancel
        else:
            self._proceed(job)

    async def _ask(self, job: Job) -> None:
        """Asks for the approval of one task; only what depends on it waits."""
        if self._watch is not None:
            self._watch.asking(job)
        approve = self._settings.approve
        answer: Any = None
        state, why = "denied", "it was not approved"
        try:
            if approve is not None:
                answer = approve(job.task if job.task.for_each is not None else resolved(self._board, job))
                answer = await answer if isawaitable(answer) else answer
            if answer is None:
                state, why = "waiting", "it has side effects or needs an approval, and nobody was there to ask"
            elif isinstance(answer, Mapping):
                job.task = replace(job.task, args={**job.task.args, **answer})
        except Exception as error:
            answer = False
            state, why = "failed", f"the approval could not be asked for: {error_text(error)}"
        if job.state == PARKED:  # else it was stopped meanwhile
            job.wake = None
            if answer or isinstance(answer, Mapping):
                self._proceed(job)
            else:
                self._run.settle(job, state, why)
        self._crew.cover()

    def _proceed(self, job: Job) -> None:
        """Continues with a job that needs no approval, or has it."""
        board = self._board
        try:
            job.inputs = inputs_of(board, job)
            if job.task.for_each is not None and job.fan is None:
                self._fan_out(job)
                return
            if job.task.control is not None and self._controlled(job, job.task.control):
                return
            job.call = resolved(board, job)
        except ReferenceUnresolved as error:
            missing = error.reason == "no_result" and error.reference.head in board.tasks
            self._run.settle(job, "skipped" if missing else "failed", error_text(error), error)
            return
        if not self._joined(job):
            self._agenda.put(self.queue, job)

    def _controlled(self, job: Job, control: Control) -> bool:
        """Whether a job is not called itself: it is repeated, or others are carried out in its place."""
        if control.until is not None:
            self.flow.repeat(job)
        elif control.do:
            self.flow.expand(job)
        return control.until is not None or bool(control.do)

    # Identical calls are made once

    def _joined(self, job: Job) -> bool:
        """Whether the job was given to an identical call of this run, to share its result."""
        key = call_key(job)
        if key is None:
            return False
        leader = self._leaders.get(key)
        if leader is None:
            job.key = key
            self._leaders[key] = job
            return False
        if leader.state == "done":
            job.same_as = leader.id
            self._run.done(job, leader.result)
            return True
        job.state = PARKED
        if leader.followers is None:
            leader.followers = []
        leader.followers.append(job)
        return True

    def call_failed(self, job: Job) -> None:
        """A call did not succeed: whoever asks for the same later tries for itself."""
        self._leaders.pop(job.key, None)

    # `for_each`: one task carried out once for each element of a list result

    def _fan_out(self, job: Job) -> None:
        """Spreads a task over its list; elements that an earlier process finished are not called again."""
        source = self.flow.source(job)
        coming = None if source is None or source in self._board.results else self._board.places.get(source)
        before = coming.spread if isinstance(coming, Job) else None
        try:
            values = elements(
                self._board, job.task, self._settings.most_items, None if before is None else before.items
            )
        except ValueError as error:
            self._run.settle(job, "failed", str(error))
            return
        job.state = PARKED
        job.started = self._life.clock()
        job.spread = fan = Fan(job, values)
        job.wake = partial(self.stop_fan, fan)
        fan.source = source
        if self._watch is not None:
            self._watch.spread(job)
        stored = self.stored_items.get(job.id, {})
        for item in fan.items:
            outcome = stored.get(item.item)
            if outcome is not None:
                item.take_over(outcome)
                fan.left -= 1
        if not fan.left and before is None:
            self._end_fan(fan)
            return
        if before is not None:
            before.followers.append(fan)
        for item in fan.items:
            if before is not None:
                self._feed(fan, before.items[item.item])
            elif item.state == PENDING:
                self.prepare(item)
        self.flow.spread(fan)

    def _feed(self, fan: Fan, source: Job) -> None:
        """Gives a `for_each` the element that it has been waiting for, if that has come."""
        item = fan.items[source.item]
        # One that failed, but whose list goes on without it, counts when the list is there.
        assert source.fan is not None
        if fan.whole.state != PARKED or (source.state != "done" and source.fan.whole.state != "done"):
            return
        fan.values[item.item] = source.result
        if item.state == PENDING:
            self.prepare(item)
        elif not fan.left:  # all of it was there before this run
            self._end_fan(fan)

    def item_ended(self, fan: Fan, item: Job) -> None:
        """One element of a `for_each` task has ended."""
        fan.left -= 1
        whole = fan.whole
        if whole.state != PARKED:  # it was stopped before this element could end
            outcome = self._board.outcome(whole.id)
            if outcome is not None and outcome.items is not None:
                outcome.items[item.item] = item.outcome(self._life.origin)
        elif whole.task.until is not None:
            self.flow.round_ended(fan, item)
        elif item.state != "done" and self._settings.on_failure == "fail_fast":
            self.stop_fan(fan)
            self._run.settle(whole, item.state, f"{item.id}: {item.error}", item.exception)
        elif not fan.left:
            self._end_fan(fan)
        for follower in list(fan.followers):
            for each in [item] if whole.state == PARKED else fan.items:
                self._feed(follower, each)

    def _end_fan(self, fan: Fan) -> None:
        bad = [item for item in fan.items if item.state != "done"]
        if bad and (self._settings.on_failure != "continue" or len(bad) == len(fan.items)):
            why = f"{len(bad)} of {len(fan.items)} elements are not done; {bad[0].id}: {bad[0].error}"
            self._run.failed(fan.whole, bad[0].state, why, bad[0].exception)
        else:
            self._run.done(fan.whole, [item.result for item in fan.items])

    def stop_fan(self, fan: Fan) -> None:
        """Ends the elements that have not started and cancels those that run."""
        for item in fan.items:
            if item.state in OPEN_STATES and item.state != RUNNING:
                if item.wake is not None:
                    item.wake()
                item.state, item.error = "cancelled", "the task was stopped"
        for item in fan.items:
            self._life.stop(item)
