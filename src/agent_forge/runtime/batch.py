"""Many plans at once under shared limits, fair between them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agent_forge.plans import PlanInvalid
from agent_forge.runtime.crew import Crew
from agent_forge.runtime.executor import AnyPlan, Running, launch, new_run_id
from agent_forge.runtime.options import Handler, RunSettings
from agent_forge.runtime.result import RunResult

if TYPE_CHECKING:
    from agent_forge.traces import Recorder


class BatchRouter:
    """Runs plans as they arrive, all under one set of limits and one budget.

    When slots are short, the plan that has had the least slot time so far goes first, so a large plan does not keep a
    small one waiting. The settings are those of `execute`; `wall_s` of the budget applies to each plan separately.
    """

    def __init__(self, **settings: Any) -> None:
        self.settings = RunSettings(**settings)
        self._crew = Crew(self.settings, shared=True)

    def start(
        self, plan: AnyPlan, handler: Handler, *, run_id: str | None = None, recorder: Recorder | None = None
    ) -> Running:
        """Starts a plan beside those that run; `recorder`: for this plan, instead of that in the settings."""
        recorder = recorder or self.settings.recorder
        return launch(plan, handler, replace(self.settings, run_id=run_id, recorder=recorder), self._crew)

    async def execute(self, plan: AnyPlan, handler: Handler, *, run_id: str | None = None) -> RunResult:
        """Carries out a plan beside those that run."""
        return await self.start(plan, handler, run_id=run_id).result()

    async def close(self) -> None:
        """Stops what still runs and waits until nothing does."""
        for run in self._crew.runs:
            run.stop("cancelled", "the router was closed")
        await self._crew.close()

    async def __aenter__(self) -> BatchRouter:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


async def execute_many(plans: Iterable[AnyPlan], handler: Handler, **settings: Any) -> list[RunResult]:
    """Carries out many plans together; the results are in the order of the plans.

    Limits and budget are shared, and slots are given out fairly between the plans. A plan that is not valid, fails, or
    runs out of budget has its own typed result and does not disturb the others. With `run_id`, the runs are named
    `RUN_ID-0`, `RUN_ID-1`, and so on.
    """
    name = settings.pop("run_id", None) or new_run_id()
    async with BatchRouter(**settings) as router:
        started: list[Running | RunResult] = []
        for number, plan in enumerate(plans):
            run_id = f"{name}-{number}"
            try:
                started.append(router.start(plan, handler, run_id=run_id))
            except PlanInvalid as invalid:
                started.append(RunResult(run_id, "failed", {}, 0.0, error=str(invalid), faults=invalid.errors))
        ended = await asyncio.gather(*(each.result() for each in started if isinstance(each, Running)))
        results = iter(ended)
        return [each if isinstance(each, RunResult) else next(results) for each in started]
