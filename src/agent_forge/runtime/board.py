"""Where each task of a run stands: pending, queued, under way, or at its end. Plain data, no event loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from agent_forge.errors import PlanError
from agent_forge.plans import Plan, Task, replan
from agent_forge.plans.changes import renamed
from agent_forge.runtime.job import Job
from agent_forge.runtime.result import FINE, TaskResult, Times, done_between

# A group ends in the first of these states that one of its leaves ended in.
_GRAVEST = ("failed", "timed_out", "in_doubt", "denied", "waiting", "cancelled", "not_started", "skipped", *FINE)
Place = Job | Times | TaskResult | None


class Board:
    """The tasks of one run and their results.

    A plan of 100,000 tasks is to cost each of them what one of 1,000 does. What decides that is
    memory: objects that are made late and dropped early stay in the processor's cache, and the
    garbage collector has nothing to walk through. So a task is only a name until it is called, and
    only its result and two numbers after that.
    """

    def __init__(self, origin: float) -> None:
        self.plan: Plan | None = None
        self.tasks: Mapping[str, Task] = {}
        self.needs: Mapping[str, tuple[str, ...]] = {}  # of the leaves: the tasks that are called
        self.dependents: Mapping[str, Sequence[str]] = {}
        self.missing: dict[str, int] = {}  # inputs that have not come, where not all of a task's are missing
        # No entry: pending. None: its name is queued. A job: it is under way. Otherwise it has ended.
        self.places: dict[str, Place] = {}
        self.closed = 0  # tasks that have ended
        self.undone = 0  # those of them that are not "done"
        self.growing = False  # tasks may still come
        self.results: dict[str, Any] = {}
        self.children: dict[str, list[str]] = {}  # of the groups of a streamed plan
        self.composites: Composites | None = None  # of a plan that is whole
        self.special: set[str] = set()  # tasks with control flow, and groups of a streamed plan
        self.covered: set[str] = set()  # tasks whose end only counts for another: in its first_of, fallback or do
        self.parts: dict[str, Task] = {}  # those of them that are in a `do`
        self.followed = False  # somebody is to be told when a task ends
        self._origin = origin

    def adopt(self, plan: Plan) -> None:
        """The plan that holds from now on."""
        self.plan, self.tasks, self.needs, self.dependents = plan, plan.tasks, plan.dependencies, plan.dependents
        self.composites = Composites(plan, self.results, self.places) if plan.composites else None
        self.followed = self.followed or self.composites is not None

    @property
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
            return done_between(place, self._origin, self.results[name])
        return place if isinstance(place, TaskResult) else None

    def outcomes(self) -> dict[str, TaskResult]:
        """How the tasks that have ended did."""
        outcomes = ((name, self.outcome(name)) for name in self.places)
        return {name: outcome for name, outcome in outcomes if outcome is not None}

    def under_way(self) -> list[str]:
        """The tasks that are neither pending nor at their end."""
        return [name for name, place in self.places.items() if place is None or isinstance(place, Job)]

    def change(self, plan: Plan, lets_pass: Callable[[TaskResult], bool]) -> list[Task]:
        """Replaces the part of the plan that has not started; returns the tasks that are new.

        `lets_pass` says whether what depends on a task that ended so may go on. Raises PlanError, and
        changes nothing, if the plan lacks or alters a task that runs or ran; one that was skipped may
        go or change.
        """
        outcomes = {name: outcome for name, outcome in self.outcomes().items() if name not in self.parts}
        begun = [name for name in self.under_way() if name not in self.parts]
        for name in [*begun, *(name for name in outcomes if outcomes[name].state != "skipped")]:
            if name not in plan.dependencies:
                raise PlanError(f"the new plan lacks task {name!r}, which has started", fix="Keep what has started")
            if self._is_changed(plan, name):
                what = f"the new plan changes task {name!r}, which has started"
                raise PlanError(what, fix="Give the new task a new id")
        for name in [name for name in outcomes if name not in plan.dependencies or self._is_changed(plan, name)]:
            del self.places[name], outcomes[name]  # skipped before, and not the same task now
            self.closed -= 1
            self.undone -= 1
        new = [task for name, task in plan.tasks.items() if name not in self.tasks]
        inside = {name: (self.needs[name], self.dependents[name]) for name in self.parts}
        self.adopt(plan)
        self.missing = {name: left for name, left in self.missing.items() if name in inside} | {
            name: sum(1 for dep in deps if dep not in outcomes or not lets_pass(outcomes[dep]))
            for name, deps in plan.dependencies.items()
        }
        for name, (needs, dependents) in inside.items():
            self.add_part(self.parts[name], needs, dependents)
        return new

    def add_part(self, task: Task, needs: tuple[str, ...], dependents: Sequence[str]) -> None:
        """A task in the `do` of another joins the run."""
        if self.plan is not None and self.tasks is self.plan.tasks:  # the plan itself never changes
            self.tasks, self.needs = dict(self.tasks), dict(self.needs)
            self.dependents = dict(self.dependents)
        self.parts[task.id] = task
        for table, value in ((self.tasks, task), (self.needs, needs), (self.dependents, dependents)):
            assert isinstance(table, dict)
            table[task.id] = value

    def _is_changed(self, plan: Plan, name: str) -> bool:
        return plan.tasks[name] != self.tasks[name] or set(plan.dependencies[name]) != set(self.needs[name])


def mended(board: Board, failed: str, failing: Collection[str], tasks: Sequence[Task]) -> Plan:
    """The plan with `tasks` in place of all that has not begun. Raises PlanError.

    What has begun stays as it is, whatever `tasks` say of it, except for what is `failing`: a task of such an id is new
    work under a new id.
    """
    plan = board.plan
    assert plan is not None
    ended = [name for name, outcome in board.outcomes().items() if outcome.state != "skipped"]
    begun = {*board.under_way(), *ended} - board.parts.keys()
    again = [task.id for task in tasks if task.id in failing and task != plan.tasks[task.id]]
    names = {name: next(other for n in count(2) if (other := f"{name}_{n}") not in plan) for name in again}
    new = [renamed(task, names) for task in tasks if task.id not in begun or task.id in names]
    if not new:
        raise PlanError("there is no new task", fix="Do the work in another way")
    changed = replan(plan, new, begun=begun)
    if changed.dependents.get(failed):
        raise PlanError(f"the new tasks wait for {failed!r}, which failed", fix="Do its work in another way")
    return changed


class Composites:
    """The groups of a plan: never called themselves, and done when their leaves are.

    Counts down the children of each; the result of a finished group is its children's results by id.
    """

    def __init__(self, plan: Plan, results: dict[str, Any], places: Mapping[str, Place]) -> None:
        self._plan = plan
        self._places = places
        self._results = results  # of the run; those of groups are added
        self._left = {name: len(plan.children(name)) for name in plan.composites}

    def leaf_ended(self, leaf: str) -> Iterator[tuple[str, str]]:
        """A leaf has ended: the groups that end with it, innermost first, each with its state."""
        name = self._plan.tasks[leaf].parent
        while name is not None:
            self._left[name] -= 1
            if self._left[name]:
                return
            results, children = self._results, self._plan.children(name)
            if all(child in results or self._is_needless(child) for child in children):
                results[name] = {child: results[child] for child in children if child in results}
            yield name, "done" if name in results else "failed"
            name = self._plan.tasks[name].parent

    def _is_needless(self, name: str) -> bool:
        place = self._places.get(name)
        return isinstance(place, TaskResult) and place.state == "not_needed"

    def outcome(self, name: str, leaves: Mapping[str, TaskResult]) -> TaskResult:
        """How a group ended, from how its leaves did."""
        below = [leaves[leaf] for leaf in self._plan.leaves_of(name)]
        state = min((leaf.state for leaf in below), key=_GRAVEST.index)
        starts = [leaf.started_s for leaf in below if leaf.started_s is not None]
        ends = [leaf.ended_s for leaf in below if leaf.ended_s is not None]
        return TaskResult(
            state,
            self._results.get(name),
            next((leaf.error for leaf in below if leaf.state == state), None),
            min(starts, default=None),
            max(ends, default=None),
            reused=all(leaf.reused for leaf in below),
        )
