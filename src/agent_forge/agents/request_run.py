"""One run from request to answer: plan, carry out, repair a streamed plan, put the answer together."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from agent_forge.agents.actions import LOOK_UP, SEARCH
from agent_forge.agents.complexity import complexity
from agent_forge.agents.planner import ModelPlanner, Planner, Writing, bind_tools
from agent_forge.agents.planner.binding import bind_task
from agent_forge.agents.planner.interface import make_plan, total
from agent_forge.agents.result import Result, RunUsage
from agent_forge.agents.run_records import DEFAULT_AGENT
from agent_forge.agents.synthesis import Answer, synthesise
from agent_forge.agents.tools import Toolbox
from agent_forge.agents.work import Worker
from agent_forge.errors import UsageError
from agent_forge.inference import ModelClient, TokenUsage
from agent_forge.plans import Plan, PlanInvalid, Task
from agent_forge.runtime import Limits, RunResult, RunSettings, ToolRules, execute, new_run_id, resume
from agent_forge.traces import Recorder, Span

if TYPE_CHECKING:
    from agent_forge.agents.profiles import AgentProfile
    from agent_forge.agents.team import Team


def limits_of(box: Toolbox) -> Limits:
    """The tools' concurrency and rate limits for the executor. Timeouts and retries stay with the tools themselves."""
    rules = {
        tool.name: ToolRules(tool.concurrency, tool.rate, side_effects=tool.side_effects, memo=tool.cache)
        for tool in box
    }
    if SEARCH in rules:
        rules.setdefault(LOOK_UP, rules[SEARCH])  # a look-up searches
    return Limits(tools=rules)


class RequestRun:
    """One call of `arun`. `work` is a request or a plan; `reads` as in `Worker`."""

    def __init__(self, box: Toolbox, client: ModelClient | None, work: Any, *, reads: bool) -> None:
        self.box = box
        self.client = client
        self.work = work
        self.reads = reads
        self.request: str | None = work if isinstance(work, str) else None
        if isinstance(work, Plan) and work.provenance is not None:
            self.request = work.provenance.request
        self.worker: Worker | Team = Worker(box, client, reads=reads)

    def use_team(self, profiles: Mapping[str, AgentProfile], home: str | os.PathLike[str] | None) -> None:
        """Lets a team of agents carry out the tasks."""
        from agent_forge.agents.team import Team, team_router

        assert isinstance(self.worker, Worker)
        self.worker = Team(team_router(profiles, home=home), profiles, self.worker)

    async def resume(self, run: str, settings: dict[str, Any]) -> Result:
        """Goes on with a journaled run, with the settings that it was started with unless others are given."""
        fixed, default = ("journal", "run_id", "on_failure"), RunSettings()
        options = {
            name: value
            for name, value in settings.items()
            if name not in fixed and value is not None and value != getattr(default, name)
        }
        outcome = await resume(run, self.worker, journal=settings["journal"], **options)
        return await self._result(outcome, None, outcome.trace_id)

    async def carry_out(self, planner: Any, settings: dict[str, Any]) -> Result:
        import jsonschema  # noqa: F401  (tools check their arguments with it: 0.2 s, before the clock of the run starts)

        recorder: Recorder | None = settings["recorder"]
        name = (self.request or "plan")[:80]
        agent = DEFAULT_AGENT if isinstance(self.worker, Worker) else None  # a team's tasks name their own
        scope = recorder.span(name, "run", inputs={"request": self.request}, agent=agent) if recorder else nullcontext()
        with scope as span:
            outcome, planned = await self._execute(planner, settings)
            result = await self._result(outcome, planned, span.trace_id if span else None)
            if span is not None:
                span.outputs = {"answer": result.answer, "state": result.state}
                if not result.ok:  # nothing was raised, but whatever learns from traces must see the failure
                    span.status, span.error = "error", result.error
        return result

    async def _execute(self, planner: Any, settings: dict[str, Any]) -> tuple[RunResult, Plan | None]:
        if isinstance(self.work, str) and isinstance(planner, ModelPlanner):
            return await self._execute_stream(planner, settings)
        planned = await self._plan(planner, settings["recorder"]) if isinstance(self.work, str) else None
        plan = self.work if planned is None else planned
        if plan is None:
            raise UsageError("there is nothing to run", fix="Pass a request, a plan, or resume=RUN")
        if isinstance(plan, AsyncIterable):
            return await execute(self._bound(plan), self.worker, **settings), None
        plan = plan if isinstance(plan, Plan) else Plan(plan)
        bound = bind_tools(plan, tuple(self.box), reads=self.reads)
        return await execute(bound, self.worker, **settings), planned

    async def _bound(self, tasks: AsyncIterable[Task]) -> AsyncIterator[Task]:
        """The caller's tasks as they come, with what their words mean. Whatever is not a task the executor reports."""
        tools = tuple(self.box)
        try:
            async for task in tasks:
                yield bind_task(task, tools, reads=self.reads) if isinstance(task, Task) else task
        finally:
            if isinstance(tasks, AsyncGenerator):
                await tasks.aclose()

    async def _plan(self, planner: Planner, recorder: Recorder | None) -> Plan:
        scope = recorder.span("plan", "plan", inputs={"request": self.work}) if recorder else nullcontext()
        with scope as span:
            planned = await make_plan(planner, self.work, tuple(self.box))
            if span is not None:
                _describe(span, planned)
        return planned

    async def _execute_stream(self, planner: ModelPlanner, settings: dict[str, Any]) -> tuple[RunResult, Plan | None]:
        """Runs the plan while it is being written. An invalid one is written again, and finished work is reused. There
        is no plan if the run ended before it was complete: out of time."""
        writing = planner.stream(self.work, tools=tuple(self.box))
        outcome = await execute(writing.__aiter__(), self.worker, **settings)
        if not outcome.faults:
            return outcome, writing.planned if writing.complete else None
        if outcome.exception is not None and not isinstance(outcome.exception, PlanInvalid):
            raise outcome.exception  # the stream ended for another reason, such as a dead endpoint
        planned = await _repaired(writing)
        # A result still holds if its task stands in the new plan unchanged.
        reused = {
            name: value
            for name, value in outcome.results.items()
            if name in planned and planned[name] == writing.written.get(name)
        }
        settings = {**settings, "run_id": new_run_id(), "known": reused}
        return await execute(planned, self.worker, **settings), planned

    async def _result(self, outcome: RunResult, planned: Plan | None, trace: str | None) -> Result:
        answer: Answer | None = None
        if outcome.plan is not None:
            writer = self.client if self.request else None
            answer = await synthesise(self.request or "", outcome.plan, outcome.results, model=writer)
        return Result(
            outcome,
            answer.text if answer else None,
            self._usage(planned, answer, outcome.usage.cost),
            self.request,
            origin.provenance if (origin := planned or outcome.plan) else None,
            answer.observation if answer else None,
            answer.by if answer else None,
            dict(self.worker.evidence),
            trace or outcome.trace_id,
        )

    def _usage(self, planned: Plan | None, answer: Answer | None, spent: float | None) -> RunUsage:
        """`spent` is what the tasks reported: their model calls and whatever their tools cost."""
        usages = list(self.worker.usages)
        calls = len(usages)
        tools = max(0.0, (spent or 0.0) - sum(usage.cost or 0.0 for usage in usages))
        origin = planned.provenance if planned else None
        if origin is not None and origin.model is not None:
            usages.append(TokenUsage(origin.input_tokens, origin.output_tokens, origin.cost))
            calls += origin.attempts if origin.template else 0
        if answer is not None and answer.by != "rules":
            usages.append(answer.usage)
            calls += 1
        tokens = total(usages) if usages else TokenUsage(0, 0)
        cost = spent if not usages else None if tokens.cost is None else tokens.cost + tools
        return RunUsage(tokens.input_tokens, tokens.output_tokens, calls, self.worker.tool_calls, cost)


async def _repaired(writing: Writing) -> Plan:
    """The next attempts, each read to its end before any of it runs. Raises PlanningFailed after the last."""
    while True:
        writing = writing.repair()
        try:
            async for _ in writing:
                pass
            return writing.planned
        except PlanInvalid:
            continue


def _describe(span: Span, plan: Plan) -> None:
    origin = plan.provenance
    assert origin is not None  # see `make_plan`
    span.outputs = {"tasks": [task.as_dict() for task in plan]}
    span.set(
        planner=origin.planner,
        template=origin.template,
        model=origin.model,
        confidence=origin.confidence,
        steps=len(plan),
        reason=complexity(origin.request).reason,
        input_tokens=origin.input_tokens,
        output_tokens=origin.output_tokens,
        cost=origin.cost,
    )
