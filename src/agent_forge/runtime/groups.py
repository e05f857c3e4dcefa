"""Composites: tasks that are never called themselves and are done when their leaves are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agent_forge.plans import Plan
from agent_forge.runtime.result import TaskResult

# A group ends in the first of these states that one of its leaves ended in.
_GRAVEST = ("failed", "timed_out", "in_doubt", "denied", "cancelled", "not_started", "skipped", "done")


class Composites:
    """Counts down the children of each group; the result of a finished group is its children's results by id."""

    def __init__(self, plan: Plan, results: dict[str, Any]) -> None:
        self._plan = plan
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
            if all(child in results for child in children):
                results[name] = {child: results[child] for child in children}
            yield name, "done" if name in results else "failed"
            name = self._plan.tasks[name].parent

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
