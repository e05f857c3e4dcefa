"""Where each task of a run stands, and its way from pending to the queue."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, cast

from agent_forge.plans import Plan, Task
from agent_forge.runtime.groups import Groups
from agent_forge.runtime.job import OPEN_STATES, PENDING, READY, Job
from agent_forge.runtime.lifetime import Lifetime
from agent_forge.runtime.options import Options, duration_of
from agent_forge.runtime.prepare import prepare
from agent_forge.runtime.result import TaskResult, Times, done_between

if TYPE_CHECKING:
    from agent_forge.runtime.agenda import Agenda
    from agent_forge.runtime.crew import Crew
    from agent_forge.runtime.run import Run

Place = Job | Times | TaskResult | None


class Places(Lifetime):
    """The part of a run that knows its tasks.

    A plan of 100,000 tasks is to cost each of them what one of 1,000 does. What decides that is memory: objects that
    are made late and dropped early stay in the processor's cache, and the garbage collector has nothing to walk
    through. So a task is only a name until it is called, and only its result and two numbers after that.
    """

    def __init__(self, name: str, agenda: Agenda, crew: Crew, options: Options) -> None:
        super().__init__(options.grace_s)
        self.name = name
        self.agenda = agenda
        self.crew = crew
        self.options = options
        self.queue = agenda.queue(cast("Run", self))
        self.context: Context = copy_context()
        self.plan: Plan | None = None
        self.tasks: Mapping[str, Task] = {}
        self.needs: Mapping[str, tuple[str, ...]] = {}  # of the leaves: the tasks that are called
        self.dependents: Mapping[str, Sequence[str]] = {}
        self.missing: dict[str, int] = {}  # inputs that have not come, where not all of a task's are missing
        # One that is not here is pending. None: its name is in the queue. A job: it is under way. Else it has ended.
        self.places: dict[str, Place] = {}
        self.closed = 0  # tasks that have ended
        self.undone = 0  # those of them that are not "done"
        self.results: dict[str, Any] = {}
        self.children: dict[str, list[str]] = {}  # of the groups of a streamed plan
        self.ranks: dict[str, float] = {}
        self.groups: Groups | None = None
        self._unprepared: deque[Job] = deque()
        self._preparing = False
        self.origin = self.clock()

    @abstractmethod
    def settle(self, job: Job, state: str, why: str, error: BaseException | None = None) -> None:
        """Ends a task that is not done."""

    def adopt(self, plan: Plan) -> None:
        """The plan that holds from now on."""
        self.plan, self.tasks, self.needs, self.dependents = plan, plan.tasks, plan.dependencies, plan.dependents
        self.groups = Groups(cast("Run", self), plan) if plan.composites else None
        if self.agenda.ordered:
            given = self.options.durations or {}
            found = {name: duration_of(plan.tasks[name], given) for name in plan.leaves}
            known = [value for value in found.values() if value]
            usual = sum(known) / len(known) if known else 1.0
            self.ranks = plan.ranks({name: value or usual for name, value in found.items()})

    # Asking

    def is_open(self) -> bool:
        """Whether a task has not ended, or more may come."""
        return self.growing or self.closed < len(self.needs)

    def is_pending(self, name: str) -> bool:
        """Whether a task waits for an input."""
        return name not in self.places

    def outcome(self, name: str) -> TaskResult | None:
        """How a task ended, if it has."""
        place = self.places.get(name)
        if type(place) is tuple:
            return done_between(place, self.origin, self.results[name])
        return place if isinstance(place, TaskResult) else None

    def outcomes(self) -> dict[str, TaskResult]:
        """How the tasks that have ended did."""
        found = ((name, self.outcome(name)) for name in self.places)
        return {name: outcome for name, outcome in found if outcome is not None}

    def under_way(self) -> list[str]:
        """The tasks that are neither pending nor at their end."""
        return [name for name, place in self.places.items() if place is None or isinstance(place, Job)]

    # From pending to ready

    def job(self, name: str) -> Job:
        """The job of a task that has not ended, made now if there is none."""
        job = self.places.get(name)
        if isinstance(job, Job):
            return job
        task = self.tasks[name]
        self.places[name] = job = Job(cast("Run", self), task, self.needs[name], self.options.terms.of(task))
        if self.agenda.gated:
            job.gate = self.agenda.gate(task.action)
        if self.ranks:
            job.rank = self.ranks.get(name, 1.0)
        return job

    def make_ready(self, name: str) -> None:
        """The last input of a task has come."""
        if self.agenda.unlimited:  # its turn comes in any case: what is to be worked out for it waits until then
            self.places[name] = None
            self.agenda.put_name(self.queue, name)
            return
        job = self.job(name)
        if self._is_plain(job):
            self.agenda.put(self.queue, job)
        else:
            self.prepare(job)

    def in_turn(self, name: str) -> Job | None:
        """The job of a name in the queue; None if it cannot be called now, or has ended meanwhile."""
        if self.places[name] is not None:
            return None
        task = self.tasks[name]
        self.places[name] = job = Job(cast("Run", self), task, self.needs[name], self.options.terms.of(task))
        if self._is_plain(job):
            job.state = READY
            return job
        self.prepare(job)
        return None

    def _is_plain(self, job: Job) -> bool:
        """Whether there is nothing to work out before the handler is called: so it is with most tasks."""
        task = job.task
        terms = job.terms
        if task.args or "{" in task.goal or task.for_each is not None or terms.approval or terms.fault is not None:
            return False
        return not self.children or job.id not in self.children

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
                    prepare(cast("Run", self), each)
        finally:
            self._preparing = False

    def enqueue(self, job: Job) -> None:
        """Queues a job from outside of a worker."""
        if job.state in OPEN_STATES and self.stopping is None:
            job.wake = None
            self.agenda.put(self.queue, job)
            self.crew.cover()
