"""The rule-based planner: no model, and the same plan every time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agent_forge.agents.actions import SEARCH
from agent_forge.agents.complexity import complexity
from agent_forge.agents.planner.interface import Planner, PlanningFailed, check_request
from agent_forge.agents.planner.rules import read
from agent_forge.agents.planner.tools import ToolIndex, ToolSpec
from agent_forge.plans import Plan, Provenance

MOST_STEPS = 1000
QUESTIONS = ("comparison", "aggregation", "bridge", "look-up")  # shapes that the rules answer by themselves


class RulePlanner:
    """Plans comparison, bridge and aggregation questions, and lists of instructions.

    >>> import asyncio
    >>> plan = asyncio.run(RulePlanner().plan("Where was the director of film Alien born?"))
    >>> [(task.goal, task.action, task.args) for task in plan][1]
    ('place of birth of {s1}', 'look_up', {'relation': 'place of birth', 'entity': '{s1}'})
    """

    name = "rules"

    def __init__(self) -> None:
        self._indexed: tuple[tuple[ToolSpec, ...], ToolIndex] | None = None

    async def plan(self, request: str, *, tools: Sequence[ToolSpec] = ()) -> Plan:
        """Raises PlanningFailed for a request without words, and for one that is too long."""
        # In a thread, so that the longest request (a quarter of a second) does not block an event loop. It ends by
        # itself: every pattern takes time linear in the request (tests/scenarios/test_13_patterns.py).
        return await asyncio.to_thread(self.plan_now, request, tools=tools)

    def plan_now(self, request: str, *, tools: Sequence[ToolSpec] = ()) -> Plan:
        """`plan` without an event loop: nothing here waits."""
        check_request(request)
        decision = complexity(request)
        if decision.steps > MOST_STEPS:
            raise PlanningFailed(f"the request has {decision.steps:,} steps, the limit is {MOST_STEPS:,}")
        searches = not tools or any(tool.name == SEARCH for tool in tools)
        draft = read(request, self._index(tools), searches=searches)
        return draft.plan().with_provenance(Provenance(request, self.name, shape=draft.shape))

    def _index(self, tools: Sequence[ToolSpec]) -> ToolIndex | None:
        """The index of all tools but `search`, reused while they stay the same: building it reads every description."""
        others = tuple(tool for tool in tools if tool.name != SEARCH)
        if not others:
            return None
        if self._indexed is None or self._indexed[0] != others:
            self._indexed = (others, ToolIndex.of(others))
        return self._indexed[1]


class RulesFirst:
    """The rules where they read the whole question, another planner for all else: a model cannot spoil what they do."""

    def __init__(self, other: Planner) -> None:
        self.other = other
        self.name = other.name

    def read(self, request: str, tools: Sequence[ToolSpec]) -> Plan | None:
        """The plan of the rules, None if they do not read the request as a question that they know."""
        try:
            plan = RulePlanner().plan_now(request, tools=tools)
        except PlanningFailed:
            return None
        shape = plan.provenance.shape if plan.provenance is not None else None
        return plan if shape in QUESTIONS and all(task.action != SEARCH for task in plan) else None

    async def plan(self, request: str, *, tools: Sequence[ToolSpec] = ()) -> Plan:
        return self.read(request, tools) or await self.other.plan(request, tools=tools)
