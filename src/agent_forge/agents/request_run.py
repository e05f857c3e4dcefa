"""One run from request to answer: plan, carry out, repair a streamed plan once, put the answer together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agent_forge.agents.models import ModelClient, TokenUsage
from agent_forge.agents.planner import ModelPlanner, Planned, Writing, bind_tools
from agent_forge.agents.planner.interface import total
from agent_forge.agents.result import Result, RunUsage
from agent_forge.agents.synthesis import Answer, synthesise
from agent_forge.agents.tools import Toolbox
from agent_forge.agents.work import Worker
from agent_forge.errors import UsageError
from agent_forge.plans import Plan, PlanInvalid
from agent_forge.runtime import Limits, RunResult, ToolRules, execute, new_run_id, resume
from agent_forge.traces import Recorder, Span

if TYPE_CHECKING:
    from agent_forge.agents.profiles import AgentProfile
    from agent_forge.agents.team import Team


def limits_of(box: Toolbox) -> Limits:
    """The tools' own rules for the executor. Time limits and retries stay with the tools themselves."""
    return Limits(
        tools={
            tool.name: ToolRules(tool.concurrency, tool.rate, side_effects=tool.side_effects, memo=tool.cache)
            for tool in box
        }
    )


class RequestRun:
    """One call of `arun`."""

    def __init__(self, box: Toolbox, client: ModelClient | None, work: Any, *, reads: bool) -> None:
        self.box = box
        self.client = client
        self.work = work
        self.request = work if isinstance(work, str) else work.request if isinstance(work, Planned) else None
        self.worker: Worker | Team = Worker(box, client, reads=reads)

    def join(self, profiles: Mapping[str, AgentProfile], home: str | os.PathLike[str] | None) -> None:
        """Lets a team carry out the tasks."""
        from agent_forge.agents.team import Team, team_router

        assert isinstance(self.worker, Worker)
        self.worker = Team(team_router(profiles, home=home), profiles, self.worker)

    async def again(self, run: str, settings: dict[str, Any]) -> Result:
        kept = ("journal", "run_id", "on_failure")  # as the run was begun with
        given = {name: value for name, value in settings.items() if value is not None and name not in kept}
        outcome = await resume(run, self.worker, journal=settings["journal"], **given)
        return await self._result(outcome, None, outcome.trace_id)

    async def carry_out(self, planner: Any, settings: dict[str, Any]) -> Result:
        import jsonschema  # noqa: F401  (tools check their arguments with it: 0.2 s, before the clock of the run starts)

        recorder: Recorder | None = settings["recorder"]
        if recorder is None:
            return await self._planned_run(planner, settings, None)
        name = self.request or "plan"
        with recorder.span(name[:80], "run", inputs={"request": self.request}) as span:
            result = await self._planned_run(planner, settings, span)
            span.outputs = {"answer": result.answer, "state": result.state}
            if not result.ok:  # nothing was raised, and yet it did not work: what learns from traces must see that
                span.status, span.error = "error", result.error
        return result

    async def _planned_run(self, planner: Any, settings: dict[str, Any], span: Span | None) -> Result:
        trace = span.trace_id if span else None
        if not isinstance(self.work, str):
            return await self._result(await execute(self._given(), self.worker, **settings), None, trace)
        if isinstance(planner, ModelPlanner):
            outcome, planned = await self._streamed(planner, settings)
            return await self._result(outcome, planned, trace)
        planned = await self._planned(planner, settings["recorder"])
        return await self._result(await execute(planned.plan, self.worker, **settings), planned, trace)

    def _given(self) -> Plan:
        work = self.work.plan if isinstance(self.work, Planned) else self.work
        if work is None:
            raise UsageError("there is nothing to run", fix="give a request, a plan, or resume=RUN")
        return bind_tools(work if isinstance(work, Plan) else Plan(work), tuple(self.box))

    async def _planned(self, planner: Any, recorder: Recorder | None) -> Planned:
        if recorder is None:
            planned: Planned = await planner.plan(self.work, tools=tuple(self.box))
            return planned
        with recorder.span("plan", "plan", inputs={"request": self.work}) as span:
            planned = await planner.plan(self.work, tools=tuple(self.box))
            _describe(span, planned)
        return planned

    async def _streamed(self, planner: ModelPlanner, settings: dict[str, Any]) -> tuple[RunResult, Planned | None]:
        """Runs the plan as it is written; an invalid one is written again, and what is finished of it is kept. There is
        no plan where the run had to end before it was written: its time was up."""
        writing = planner.stream(self.work, tools=tuple(self.box))
        outcome = await execute(writing.__aiter__(), self.worker, **settings)
        if not outcome.faults:
            return outcome, writing.planned if writing.complete else None
        if outcome.exception is not None and not isinstance(outcome.exception, PlanInvalid):
            raise outcome.exception  # the stream broke off for another reason: the endpoint died
        planned = await _repaired(writing)
        known = {name: value for name, value in outcome.results.items() if _unchanged(name, planned.plan, writing)}
        return await execute(planned.plan, self.worker, **{**settings, "run_id": new_run_id(), "known": known}), planned

    async def _result(self, outcome: RunResult, planned: Planned | None, trace: str | None) -> Result:
        answer: Answer | None = None
        if outcome.plan is not None:
            answer = await synthesise(self.request or "", outcome.plan, outcome.results, model=self._writer())
        return Result(
            outcome,
            answer.text if answer else None,
            self._usage(planned, answer),
            self.request,
            planned,
            answer.observation if answer else None,
            answer.by if answer else None,
            dict(self.worker.evidence),
            trace or outcome.trace_id,
        )

    def _writer(self) -> ModelClient | None:
        return self.client if self.request else None

    def _usage(self, planned: Planned | None, answer: Answer | None) -> RunUsage:
        usages = list(self.worker.usages)
        calls = len(usages)
        if planned is not None and planned.model is not None:
            usages.append(planned.usage)
            calls += planned.attempts if planned.template else 0
        if answer is not None and answer.by != "rules":
            usages.append(answer.usage)
            calls += 1
        used = total(usages) if usages else TokenUsage(0, 0)
        return RunUsage(used.input_tokens, used.output_tokens, calls, self.worker.tool_calls)


async def _repaired(writing: Writing) -> Planned:
    """The next attempts, each read to its end before anything of it runs. Raises PlanningFailed after the last."""
    while True:
        writing = writing.repair()
        try:
            async for _ in writing:
                pass
            return writing.planned
        except PlanInvalid:
            continue


def _unchanged(name: str, plan: Plan, writing: Writing) -> bool:
    """Whether a task that is done stands in the new plan as it was, so that its result still holds."""
    return name in plan and plan[name] == writing.written.get(name)


def _describe(span: Span, planned: Planned) -> None:
    span.outputs = {"tasks": [task.as_dict() for task in planned.plan]}
    span.set(
        planner=planned.planner,
        template=planned.template,
        model=planned.model,
        steps=len(planned.plan),
        reason=planned.complexity.reason,
        input_tokens=planned.usage.input_tokens,
        output_tokens=planned.usage.output_tokens,
    )
