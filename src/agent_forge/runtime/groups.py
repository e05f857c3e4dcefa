"""Composites: tasks that are never called themselves and are done when their leaves are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agent_forge.plans import Plan
from agent_forge.runtime.result import TaskResult

if TYPE_CHECKING:
    from agent_forge.runtime.run import Run

# Of several ends under one group, the first of these is the group's.
_GRAVEST = ("failed", "timed_out", "in_doubt", "denied", "cancelled", "not_started", "skipped", "done")


class Groups:
    """Counts down the children of each group; a finished group's result is its children's results by id."""

    def __init__(self, run: Run, plan: Plan) -> None:
        self._run = run
        self._plan = plan
        self._left = {name: len(plan.children(name)) for name in plan.composites}

    def ended(self, leaf: str) -> None:
        """A leaf has ended, and with it perhaps the groups around it."""
        name = self._plan.tasks[leaf].parent
        while name is not None:
            self._left[name] -= 1
            if self._left[name]:
                return
            results = self._run.results
            children = self._plan.children(name)
            if all(child in results for child in children):
                results[name] = {child: results[child] for child in children}
            if self._run.watch is not None:
                self._run.watch.group_ended(name, "done" if name in results else "failed")
            name = self._plan.tasks[name].parent

    def outcomes(self, leaves: Mapping[str, TaskResult]) -> dict[str, TaskResult]:
        """How each group ended, from how its leaves did."""
        return {name: self._outcome(name, leaves) for name in self._plan.composites}

    def _outcome(self, name: str, leaves: Mapping[str, TaskResult]) -> TaskResult:
        below = [leaves[leaf] for leaf in self._plan.leaves_of(name)]
        state = min((each.state for each in below), key=_GRAVEST.index)
        starts = [each.started_s for each in below if each.started_s is not None]
        ends = [each.ended_s for each in below if each.ended_s is not None]
        return TaskResult(
            state,
            self._run.results.get(name),
            next((each.error for each in below if each.state == state), None),
            min(starts, default=None),
            max(ends, default=None),
            reused=all(each.reused for each in below),
        )
