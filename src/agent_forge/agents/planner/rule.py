"""The rule-based planner: no model, the same plan every time."""

from __future__ import annotations

from collections.abc import Sequence

from agent_forge.agents.complexity import complexity
from agent_forge.agents.planner.interface import Planned, PlanningFailed
from agent_forge.agents.planner.rules import Step, ToolIndex, ToolSpec, read
from agent_forge.plans import Plan, Task

SEARCH = "search"
FUNCTIONS = {"look-up": SEARCH, "combine": "answer"}  # of the six functions of the graph format
_TEXT_OF = {SEARCH: "query", "answer": "text"}


class RulePlanner:
    """Reads comparison, bridge and aggregation questions and lists of instructions.

    >>> import asyncio
    >>> planned = asyncio.run(RulePlanner().plan("Where was the director of film Alien born?"))
    >>> [(task.id, task.goal, task.depends_on) for task in planned.plan]
    [('s1', 'director of film Alien', ()), ('s2', 'place of birth of {s1}', ('s1',))]
    """

    name = "rules"

    def __init__(self) -> None:
        self._indexed: tuple[tuple[ToolSpec, ...], ToolIndex] | None = None

    async def plan(self, request: str, *, tools: Sequence[ToolSpec] = ()) -> Planned:
        """Never fails on a request that has words; one that has none raises PlanningFailed."""
        return self.plan_now(request, tools=tools)

    def plan_now(self, request: str, *, tools: Sequence[ToolSpec] = ()) -> Planned:
        """The same without an event loop: nothing here waits."""
        if not any(char.isalnum() for char in request):
            raise PlanningFailed("the request has no words")
        draft = read(request, self._tools(tools))
        plan = Plan(_task(number, step) for number, step in enumerate(draft.steps, 1))
        return Planned(plan, request, self.name, complexity(request), shape=draft.shape)

    def _tools(self, tools: Sequence[ToolSpec]) -> ToolIndex | None:
        """The index of the tools other than search, kept while they stay the same: it reads every description."""
        others = tuple(tool for tool in tools if tool.name != SEARCH)
        if not others:
            return None
        if self._indexed is None or self._indexed[0] != others:
            self._indexed = (others, ToolIndex.of(others))
        return self._indexed[1]


def _task(number: int, step: Step) -> Task:
    """Look-ups search and combinations answer; the goal is the argument too, so that every format carries it."""
    action = step.action or FUNCTIONS.get(step.kind)
    args = step.args or ({_TEXT_OF[action]: step.goal} if action in _TEXT_OF else {})
    return Task(f"s{number}", step.goal, action, args, step.depends_on())
