"""A team: the router assigns each task of a run to an agent, and the span of the task names the agent and the reason.

The spans of rewarded runs feed the trust table, and the trust table feeds the router: that is how routing learns.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from agent_forge.agents.actions import COMBINE, LOOK_UP, SEARCH
from agent_forge.agents.choices import choose_model
from agent_forge.agents.profiles import AgentProfile, builtin_profiles
from agent_forge.agents.routing import Router, facts_of
from agent_forge.agents.synthesis.answer import Evidence
from agent_forge.agents.work import Worker
from agent_forge.inference import TokenUsage
from agent_forge.plans import Task
from agent_forge.settings import trace_store
from agent_forge.traces import Store, current_span
from agent_forge.traces.trust import TrustTable

# The type of a task by its action; `task_type` in the meta of a task takes precedence.
TYPE_OF_ACTION = {
    LOOK_UP: "search",
    COMBINE: "compare",
    SEARCH: "search",
    "fetch": "search",
    "search_files": "search",
    "read_file": "search",
    "calculator": "calculate",
    "query_json": "analyse",
    "query_csv": "analyse",
    "python": "calculate",
    "reflection": "reflect",
    "plan": "plan",
}
WRITERS = ("writer", "content")  # of the rosters: they get what nobody else can do


def task_type(task: Task) -> str:
    """The type of work that a task is, for routing and trust.

    >>> task_type(Task("s1", "director of film Alien", action="look_up")), task_type(Task("s2", "write a poem"))
    ('search', 'answer')
    """
    return str(task.meta.get("task_type") or TYPE_OF_ACTION.get(task.action or "", "answer"))


def own_model(profile: AgentProfile) -> str | None:
    """The name of the model that an agent has of its own, as its spans carry it: trust is per agent and model."""
    client = choose_model(profile.model) if profile.model is not None else None
    return None if client is None else client.name


def team_router(
    profiles: Mapping[str, AgentProfile] | None = None, *, home: str | os.PathLike[str] | None = None
) -> Router:
    """A router over profiles, by default the bundled ones, whose trust comes from the rewards in the trace store."""
    agents = builtin_profiles() if profiles is None else profiles
    models = {name: own_model(profile) for name, profile in agents.items()}
    table = TrustTable()
    with Store.open(trace_store(home)) as store:
        table.observe_store(store)

    def trust(agent: str, category: str) -> float | None:
        able = [(name, models[name]) for name, profile in agents.items() if category in profile.task_types]
        return table.standing(able, category).get((agent, models[agent]))

    return Router(agents.values(), trust=trust, fallback=[name for name in WRITERS if name in agents])


class Team:
    """The handler of a run in which every task has an agent.

    A task waits while all agents that can do it are at capacity. A failure counts against the agent (after five in a
    row it gets no tasks for a minute); whether the task is retried is up to the executor.
    """

    def __init__(self, router: Router, profiles: Mapping[str, AgentProfile], worker: Worker) -> None:
        self.router = router
        self._worker = worker
        self._own = {name: worker.acting_as(profile) for name, profile in profiles.items()}
        self._models = {name: own_model(profile) for name, profile in profiles.items()}

    async def __call__(self, task: Task, inputs: dict[str, Any]) -> Any:
        kind = task_type(task)
        async with self.router.slot({**facts_of(task), "task_type": kind}) as assigned:
            span = current_span()
            if span is not None:
                span.agent, span.model, span.category = assigned.agent, self._models[assigned.agent], kind
                span.set(routing=assigned.explanation)
            return await self._own[assigned.agent](task, inputs)

    @property
    def evidence(self) -> dict[str, Evidence]:
        return self._worker.evidence

    @property
    def usages(self) -> list[TokenUsage]:
        return self._worker.usages

    @property
    def calls(self) -> list[dict[str, Any]]:
        return self._worker.calls

    @property
    def warnings(self) -> list[str]:
        return self._worker.warnings

    @property
    def tool_calls(self) -> int:
        return sum(worker.tool_calls for worker in self._own.values())
