"""Control flow: what `when`, `until`, `fallback`, `first_of`, `do` and two `for_each` in a row mean for a run.

A task with `do` is not called. Its tasks join the run as ordinary ones, under ids such as `s3[2].a`, are journaled like
any other, and their results by id, without those in a `first_of` or `fallback`, are its result. Plans without control
flow reach nothing here.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from agent_forge.plans import Plan, PlanInvalid, ReferenceUnresolved, Task, find_references, whole_reference
from agent_forge.plans.changes import renamed
from agent_forge.plans.conditions import ConditionError, condition
from agent_forge.plans.validation import Names
from agent_forge.runtime.board import Board
from agent_forge.runtime.job import PARKED, PART, RUNNING, Fan, Job, JobOwner
from agent_forge.runtime.lifetime import Lifetime
from agent_forge.runtime.options import RunSettings
from agent_forge.runtime.result import ENDED, FAILURES, FINE, TaskResult, error_text
from agent_forge.runtime.watch import Watch

if TYPE_CHECKING:
    from agent_forge.runtime.prepare import Preparation


@dataclass(eq=False, slots=True)
class Expansion:
    """A task, element or round whose `do` is under way."""

    job: Job
    names: dict[str, str]  # its tasks: the ids in the plan, and those in the run
    left: int
    stopped: bool = False


@dataclass(slots=True)
class Failing:
    """A task that failed and waits for its fallback."""

    job: Job
    state: str
    why: str
    error: BaseException | None


class Flow:
    """The control flow of one run."""

    def __init__(
        self, run: JobOwner, settings: RunSettings, preparation: Preparation, board: Board, life: Lifetime,
        watch: Watch | None,
    ) -> None:  # fmt: skip
        self._run = run
        self._settings = settings
        self._preparation = preparation
        self._board = board
        self._life = life
        self._watch = watch
        self._owners: dict[str, str] = {}  # of the tasks in a `first_of` or `fallback`: the task that names them
        self._inside: dict[str, Expansion] = {}  # of the tasks in a `do`
        self._sources: dict[str, str] = {}  # of a `for_each` over the elements of another: that other
        self._waiting: dict[str, list[str]] = {}  # what such a `for_each` waits for, and which they are
        self._failing: dict[str, Failing] = {}
        self._released: set[str] = set()  # fallbacks that may start
        self.stored_parts: Mapping[str, TaskResult] = {}  # what an earlier process finished

    def register(self, tasks: Mapping[str, Task], names: Iterable[str]) -> None:
        """Takes note of the tasks with control flow or `for_each` among `tasks`."""
        board = self._board
        for name in names:
            task = tasks[name]
            if task.control is not None:
                board.special.add(name)
            for other in (*task.first_of, *task.fallback):
                self._owners[other] = name
                if other not in board.covered:
                    board.covered.add(other)
                    end = board.outcome(other)  # in a plan that is still being written it may have ended before
                    board.undone -= end is not None and end.state not in FINE
            board.special.update(task.fallback)
            if task.for_each is not None:
                self._link(task, tasks)
        if board.covered or self._waiting:
            board.followed = True

    def stands_in_for(self, name: str) -> str | None:
        """The task that names this one as its fallback."""
        owner = self._owners.get(name)
        return owner if owner is not None and name in self._board.tasks[owner].fallback else None

    def _link(self, task: Task, tasks: Mapping[str, Task]) -> None:
        """Whether a `for_each` can begin with the first elements of another: it is spread over just these, and uses
        their list for nothing else."""
        source = whole_reference(task.for_each or "")
        if source is None or source.path or source.head not in tasks or tasks[source.head].for_each is None:
            return
        used = find_references([task.goal, task.args, task.when, [part.as_dict() for part in task.do]])
        if all(reference.head != source.head for reference in used):
            self._sources[task.id] = source.head
            for need in task.needs(tasks):
                self._waiting.setdefault(need, []).append(task.id)

    # Before a task is called

    def before(self, job: Job) -> bool:
        """Whether the control flow has settled a job whose inputs are there."""
        task, name = job.task, job.id
        inside = self._inside.get(name)
        if inside is not None:
            job.within, job.item = inside.job, PART
        owner = self.stands_in_for(name)
        if owner is not None and owner not in self._failing:
            self._run.settle(job, "not_needed", f"task {owner!r} did not fail")
        elif task.first_of:
            self._decide(job)
        elif task.when is None:
            return False
        else:
            try:
                if condition(task.when).holds(self._board.results):
                    return False
                self._run.settle(job, "not_needed", f"its condition is false: {task.when}")
            except (ConditionError, ReferenceUnresolved) as error:
                self._run.failed(job, "failed", error_text(error), error)
        return True

    def _decide(self, job: Job) -> None:
        """Ends a `first_of`: with the result of the one that is done, or because none can be any more."""
        board = self._board
        ends = {name: board.outcome(name) for name in job.task.first_of}
        winner = next((name for name, end in ends.items() if end is not None and end.state == "done"), None)
        if winner is not None:
            job.same_as = winner
            self._run.done(job, board.results[winner])
            self.lose(job.id)
            return
        bad = {name: end for name, end in ends.items() if end is not None and end.state != "not_needed"}
        if not bad:
            self._run.settle(job, "not_needed", "none of its tasks was needed")
            return
        name, end = next(((name, end) for name, end in bad.items() if end.state in FAILURES), next(iter(bad.items())))
        why = f"none of its tasks is done; {name!r} {ENDED[end.state]}: {end.error}"
        self._run.failed(job, end.state, why, end.exception)

    def lose(self, name: str) -> None:
        """Drops the tasks of a `first_of` that have not ended when it is done."""
        for other in self._board.tasks[name].first_of:
            if other in self._board.tasks:
                self.drop(other, "not_needed", f"another of {name!r} was faster")

    def drop(self, name: str, state: str, why: str) -> None:
        """Ends a task in that state, or stops it so that it will."""
        if self._board.outcome(name) is not None or self._run.stopping is not None:
            return
        job = self._preparation.job(name)
        if job.state == RUNNING:
            job.ends_as = state
            self._life.stop(job)
            return
        if job.wake is not None:
            job.wake()
        self._run.settle(job, state, why)

    # After a task has ended

    def ended(self, name: str) -> None:
        """What the end of a task means for those that have it in their `first_of`, `fallback` or `do`."""
        board = self._board
        if self._run.stopping is not None:
            return
        owner = self._owners.get(name)
        if owner is not None and owner in self._failing:
            self._go_on(self._failing[owner])
        elif owner is not None and owner in board.tasks and board.is_pending(owner):
            others = board.tasks[owner].first_of
            if others and (name in board.results or all(board.outcome(other) is not None for other in others)):
                self._preparation.prepare(self._preparation.job(owner))
        inside = self._inside.get(name)
        if inside is not None:
            inside.left -= 1
            outcome = board.outcome(name)
            if inside.left and self._settings.on_failure == "fail_fast" and outcome is not None and owner is None:
                if outcome.state in FAILURES:
                    self._stop_parts(inside)
                    self._close(inside)
            elif not inside.left and not inside.stopped:
                self._close(inside)
        for follower in self._waiting.get(name, ()):
            self.follow(follower)

    # `fallback`

    def fall_back(self, job: Job, state: str, why: str, error: BaseException | None) -> bool:
        """Whether a task that has failed is parked until one of its fallbacks has ended, or is done already."""
        if job.id not in self._failing:
            self._failing[job.id] = Failing(job, state, why, error)
            job.error = why
            if self._watch is not None:
                self._watch.failing(job, state)
        return self._fall_back(job)

    def came(self, name: str | None = None) -> None:
        """A task of a plan that is being written has come, or (None) no more will: that may be what a failed task has
        been waiting for."""
        for failing in list(self._failing.values()):
            if name is None or name in failing.job.task.fallback:
                self._go_on(failing)

    def _go_on(self, failing: Failing) -> None:
        if not self._fall_back(failing.job):
            self._run.settle(failing.job, failing.state, failing.why, failing.error)

    def _fall_back(self, job: Job) -> bool:
        board = self._board
        for name in job.task.fallback:
            outcome = board.outcome(name)
            if name not in board.needs and board.growing:  # it may still come
                job.state = PARKED
                return True
            if name not in board.needs or (outcome is not None and outcome.state != "done"):
                continue
            if outcome is not None:
                del self._failing[job.id]
                job.error, job.wake, job.same_as = None, None, name
                self._run.done(job, outcome.result)
                return True
            job.state = PARKED
            job.wake = partial(self.drop, name, "cancelled", f"task {job.id!r} was stopped")
            if name not in self._released:
                self._released.add(name)
                board.missing[name] = board.missing.get(name, len(board.needs[name])) - 1
                if board.missing[name] <= 0 and board.is_pending(name):
                    self._preparation.ready(name)
            return True
        return False

    # `do`

    def expand(self, job: Job) -> None:
        """Brings the tasks in the `do` of a task, element or round into the run."""
        board, prefix, fan = self._board, job.id, job.fan
        names = {part.id: f"{prefix}.{part.id}" for part in job.task.do}
        scope = dict(names)
        if fan is not None:  # `{item}` and `{last}` become references to what stands in the results under this id
            scope[fan.name] = prefix
            board.results[prefix] = fan.values[job.item]
        try:
            if len(board.parts) + len(names) > self._settings.most_parts:
                raise ValueError(f"the run would have more than {self._settings.most_parts} tasks in its `do`s")
            if taken := next((name for name in names.values() if name in board.tasks), None):
                raise ValueError(f"the id {taken!r} of a task in its do is taken")
            parts = [renamed(part, scope) for part in job.task.do]
            plan = Plan(parts, outer=Names(board.tasks, board.results))
        except (ValueError, PlanInvalid) as error:
            self._run.settle(job, "failed", str(error), error)
            return
        job.state, job.started = PARKED, self._life.clock()
        expansion = Expansion(job, names, len(names))
        job.wake = partial(self._stop_parts, expansion)
        if self._watch is not None:
            self._watch.spread(job)
        ranks = plan.ranks() if self._preparation.ranks else {}
        for part in plan:
            # A round repeats the calls of the one before, so none is shared.
            task = part if job.terms.memo else replace(part, meta={**part.meta, "cache": False})
            around = [need for need in part.needs(board.tasks) if need in board.tasks and need not in plan]
            board.add_part(task, (*plan.dependencies[part.id], *around), plan.dependents[part.id])
            board.missing[part.id] = len(plan.dependencies[part.id])
            self._inside[part.id] = expansion
            if ranks:
                self._preparation.ranks[part.id] = job.rank + ranks[part.id]
        board.special.update(plan.tasks)
        board.covered.update(plan.tasks)
        self.register(board.tasks, plan.flow)
        board.followed = True
        self._run.adopt({name: self.stored_parts[name] for name in plan.tasks if name in self.stored_parts})
        for name in plan.tasks:
            if not board.missing[name] and board.is_pending(name) and not expansion.stopped:
                self._preparation.ready(name)

    def _stop_parts(self, expansion: Expansion) -> None:
        expansion.stopped = True
        for name in expansion.names.values():
            self.drop(name, "cancelled", f"task {expansion.job.id!r} was stopped")

    def _close(self, expansion: Expansion) -> None:
        """Ends a task, element or round whose `do` has ended."""
        job, board = expansion.job, self._board
        if job.state != PARKED:
            return
        ends = {name: board.outcome(name) for name in expansion.names.values() if name not in self._owners}
        bad = {name: end for name, end in ends.items() if end is not None and end.state not in FINE}
        if bad and (self._settings.on_failure != "continue" or len(bad) == len(ends)):
            causes = (item for item in bad.items() if item[1].state not in ("skipped", "cancelled"))
            name, end = next(causes, next(iter(bad.items())))
            why = f"{name}: {end.error}"
            if job.fan is None:
                self._run.failed(job, end.state, why, end.exception)
            else:
                self._run.settle(job, end.state, why, end.exception)
            return
        results = board.results
        own = {short: name for short, name in expansion.names.items() if name not in self._owners}
        self._run.done(job, {short: results[name] for short, name in own.items() if name in results})

    # `until`

    def repeat(self, job: Job) -> None:
        """Begins the first round of a task with `until`."""
        job.state, job.started = PARKED, self._life.clock()
        job.spread = fan = Fan(job, [])
        job.wake = partial(self._preparation.stop_fan, fan)
        if self._watch is not None:
            self._watch.spread(job)
        self._next_round(fan)

    def _next_round(self, fan: Fan) -> None:
        """Begins a round; those that an earlier process finished are not repeated."""
        whole = fan.whole
        limit = whole.task.limit or self._settings.most_rounds
        stored = self._preparation.stored_items.get(whole.id, {})
        while len(fan.items) < limit:
            first = {part.id: None for part in whole.task.do} or None
            item = fan.add(fan.items[-1].result if fan.items else first)
            outcome = stored.get(item.item)
            if outcome is None:
                self._preparation.prepare(item)
                return
            item.take_over(outcome)
            fan.left -= 1
            if self._is_last(fan, item):
                return
        self._run.failed(whole, "failed", f"its condition does not hold after {limit} rounds: {whole.task.until}")

    def round_ended(self, fan: Fan, item: Job) -> None:
        """Ends the task, or begins the next round."""
        if not self._is_last(fan, item):
            self._next_round(fan)

    def _is_last(self, fan: Fan, item: Job) -> bool:
        """Whether the task has ended with this round, well or not."""
        whole, task = fan.whole, fan.whole.task
        if item.state != "done":
            self._run.failed(whole, item.state, f"{item.id}: {item.error}", item.exception)
            return True
        own: dict[str, Any] = {part.id: item.result.get(part.id) for part in task.do}
        try:
            if not condition(task.until or "").holds(ChainMap({task.id: item.result, **own}, self._board.results)):
                return False
        except (ConditionError, ReferenceUnresolved) as error:
            self._run.failed(whole, "failed", error_text(error), error)
        else:
            self._run.done(whole, item.result)
        return True

    # A `for_each` over the elements of another

    def source(self, job: Job) -> str | None:
        """The `for_each` whose elements this one is spread over."""
        return self._sources.get(job.id)

    def follow(self, name: str) -> None:
        """Begins a `for_each` whose source is still under way, when everything else that it needs is there.

        Not one with side effects or an approval: nothing that cannot be undone happens before the list is complete.
        """
        board = self._board
        source = board.places.get(self._sources[name])
        if not isinstance(source, Job) or source.spread is None or source.state != PARKED:
            return
        if not board.is_pending(name) or any(
            need not in board.results for need in board.needs[name] if need != source.id
        ):
            return
        terms = self._preparation.terms_of(board.tasks[name])
        if not (terms.side_effects or terms.approval):
            self._preparation.prepare(self._preparation.job(name))

    def spread(self, fan: Fan) -> None:
        """A `for_each` has been spread: those over its elements may begin."""
        for name in self._waiting.get(fan.whole.id, ()):
            self.follow(name)

    def withdraw(self, fan: Fan) -> None:
        """The list that others have begun to be spread over will not come, or not as it was: they are pending again."""
        for follower in fan.followers:
            whole = follower.whole
            if whole.state == PARKED:
                self.withdraw(follower)
                self._preparation.stop_fan(follower)
                whole.state, whole.error = "withdrawn", f"{fan.whole.id!r} has failed"
                del self._board.places[whole.id]
                if self._watch is not None:
                    self._watch.withdrawn(whole)
        fan.followers.clear()
