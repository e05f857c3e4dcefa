"""One run from request to answer: plan, carry out, repair a streamed plan, put the answer together."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agent_forge.agents.actions import LOOK_UP, SEARCH
from agent_forge.agents.planner import (
    ModelPlanner,
    Planned,
    PlanningFailed,
    PlanRefused,
    RulePlanner,
    RulesFirst,
    Writing,
    bind_tools,
    what_is_missing,
)
from agent_forge.agents.planner.interface import total
from agent_forge.agents.result import Result, RunUsage
from agent_forge.agents.synthesis import Answer, synthesise
from agent_forge.agents.tools import Toolbox
from agent_forge.agents.work import Worker
from agent_forge.errors import AgentForgeError, ModelError, PlanError, UsageError
from agent_forge.inference import ModelClient, TokenUsage
from agent_forge.plans import Plan, PlanInvalid, Task, resolve, to_xml
from agent_forge.runtime import Limits, RunResult, TaskResult, ToolRules, execute, new_run_id, resume
from agent_forge.traces import Recorder, Span

if TYPE_CHECKING:
    from agent_forge.agents.profiles import AgentProfile
    from agent_forge.agents.team import Team


def limits_of(box: Toolbox, *, approval: bool = False) -> Limits:
    """The tools' concurrency and rate limits for the executor. Timeouts and retries stay with the tools themselves.

    `approval`: tools with side effects wait for one.
    """
    rules = {
        tool.name: ToolRules(
            tool.concurrency,
            tool.rate,
            side_effects=tool.side_effects,
            memo=tool.cache,
            approval=approval and tool.side_effects,
        )
        for tool in box
    }
    if SEARCH in rules:
        rules.setdefault(LOOK_UP, rules[SEARCH])  # a look-up searches
    return Limits(tools=rules)


class RequestRun:
    """One call of `arun`. `work` is a request or a plan; `reads` as in `Worker`."""

    def __init__(self, box: Toolbox, client: ModelClient | None, work: Any, *, reads: bool, repairs: int = 2) -> None:
        self.box = box
        self.client = client
        self.work = work
        self.reads = reads
        self.request = work if isinstance(work, str) else work.request if isinstance(work, Planned) else None
        self.worker: Worker | Team = Worker(box, client, reads=reads)
        self.warnings: list[str] = []
        self._begun = False
        self._repairs = repairs if client is not None else 0  # how often a failed run may still be mended

    def use_team(self, profiles: Mapping[str, AgentProfile], home: str | os.PathLike[str] | None) -> None:
        """Lets a team of agents carry out the tasks."""
        from agent_forge.agents.team import Team, team_router

        assert isinstance(self.worker, Worker)
        self.worker = Team(team_router(profiles, home=home), profiles, self.worker)

    async def resume(self, run: str, settings: dict[str, Any]) -> Result:
        """Goes on with a journaled run, with the settings that it was started with unless they are given."""
        fixed = ("journal", "run_id", "on_failure")
        options = {name: value for name, value in settings.items() if value is not None and name not in fixed}
        options["mend"] = self._mend if self._repairs else None
        outcome = await resume(run, self.worker, journal=settings["journal"], **options)
        return await self._result(outcome, None, outcome.trace_id)

    async def carry_out(self, planner: Any, settings: dict[str, Any]) -> Result:
        import jsonschema  # noqa: F401  (tools check their arguments with it: 0.2 s, before the clock of the run starts)

        recorder: Recorder | None = settings["recorder"]
        name = (self.request or "plan")[:80]
        scope = recorder.span(name, "run", inputs={"request": self.request}) if recorder else nullcontext()
        with scope as span:
            outcome, planned = await self._execute(planner, settings)
            result = await self._result(outcome, planned, span.trace_id if span else None)
            if span is not None:
                span.outputs = {"answer": result.answer, "state": result.state}
                if not result.ok:  # nothing was raised, but whatever learns from traces must see the failure
                    span.status, span.error = "error", result.error
        return result

    async def _execute(self, planner: Any, settings: dict[str, Any]) -> tuple[RunResult, Planned | None]:
        if not isinstance(self.work, str):
            return await self._carry(self._given_plan(), settings), None
        if isinstance(planner, RulesFirst):
            read = planner.read(self.work, tuple(self.box))
            planner = RulePlanner() if read is not None else planner.other
        try:
            if isinstance(planner, ModelPlanner):
                return await self._execute_stream(planner, settings)
            planned = await self._plan(planner, settings["recorder"])
            return await self._carry(self._checked(planned.plan), settings), planned
        except (PlanningFailed, PlanRefused, ModelError) as error:
            if isinstance(planner, RulePlanner):
                raise
            planned = await self._by_rules(error, settings["recorder"])
        settings = {**settings, "run_id": new_run_id()} if self._begun else settings
        return await self._carry(planned.plan, settings), planned

    def _given_plan(self) -> Plan:
        """The plan that the caller gave, its words read and its calls checked."""
        plan = self.work.plan if isinstance(self.work, Planned) else self.work
        if plan is None:
            raise UsageError("there is nothing to run", fix="Pass a request, a plan, or resume=RUN")
        plan = plan if isinstance(plan, Plan) else Plan(plan)
        return self._checked(bind_tools(plan, tuple(self.box), reads=self.reads))

    def _checked(self, plan: Plan) -> Plan:
        """The plan, with tasks whose arguments are open left to the model. Raises PlanRefused where there is none."""
        plan = bind_tools(plan, tuple(self.box), reads=self.reads)
        model = self.client is not None
        missing = what_is_missing(plan, self.box, request=self.request, model=model)
        open_tasks = {each.task for each in missing if each.parameter is not None}
        if missing and (not model or self.request is None or len(open_tasks) < len({each.task for each in missing})):
            raise PlanRefused(missing, self.request, model)
        tasks = (replace(task, action=None, args={}) if task.id in open_tasks else task for task in plan)
        return Plan(tasks, version=plan.version) if missing else plan

    async def _by_rules(self, error: AgentForgeError, recorder: Recorder | None) -> Planned:
        """The rules' plan in place of one that could not be used. Raises the error where that one cannot be run either."""
        try:
            planned = await self._plan(RulePlanner(), recorder)
            checked = self._checked(planned.plan)
        except PlanError:
            raise error from None
        if isinstance(error, ModelError) and any(task.action is None for task in checked):
            raise error
        self.warnings.append(f"planned by rules, because the planner failed: {error}")
        return replace(planned, plan=checked)

    async def _carry(self, plan: Any, settings: dict[str, Any]) -> RunResult:
        self._begun = True
        return await execute(plan, self.worker, mend=self._mend if self._repairs else None, **settings)

    async def _mend(
        self, plan: Plan, failed: str, outcome: TaskResult, results: Mapping[str, Any]
    ) -> Sequence[Task] | None:
        """The model's tasks in place of all that has not begun, checked like a plan; None when it may not, or fails."""
        assert self.client is not None
        asked = self.request or to_xml(plan)  # a plan without a request: what stands in it was given
        faults: list[str] = []
        while self._repairs > 0:
            self._repairs -= 1
            try:
                tasks, usage = await ModelPlanner(self.client).mend(
                    asked, plan, failed, outcome.error or "", results, tools=tuple(self.box), faults=faults
                )
            except PlanInvalid as error:
                faults = [str(error)]
                continue
            self.worker.usages.append(usage)
            missing = what_is_missing(tasks, self.box, request=asked, model=True, results=results)
            if not missing:
                return tasks
            faults = [str(each) for each in missing]
        if faults:
            self.warnings.append(f"the plan was not mended after task {failed!r}: {'; '.join(faults[:3])}")
        return None

    async def _plan(self, planner: Any, recorder: Recorder | None) -> Planned:
        scope = recorder.span("plan", "plan", inputs={"request": self.work}) if recorder else nullcontext()
        with scope as span:
            planned: Planned = await planner.plan(self.work, tools=tuple(self.box))
            if span is not None:
                _describe(span, planned)
        return planned

    async def _execute_stream(
        self, planner: ModelPlanner, settings: dict[str, Any]
    ) -> tuple[RunResult, Planned | None]:
        """Runs the plan while it is being written. An invalid one is written again, and finished work is reused. There
        is no plan if the run ended before it was complete: out of time."""
        writing = planner.stream(self.work, tools=tuple(self.box))
        outcome = await self._carry(writing.__aiter__(), settings)
        if not outcome.faults:
            return outcome, writing.planned if writing.complete else None
        if outcome.exception is not None and not isinstance(outcome.exception, PlanInvalid):
            raise outcome.exception  # the stream ended for another reason, such as a dead endpoint
        planned = await _repaired(writing)
        # A result still holds if its task stands in the new plan unchanged.
        reused = {
            name: value
            for name, value in outcome.results.items()
            if name in planned.plan and planned.plan[name] == writing.written.get(name)
        }
        settings = {**settings, "run_id": new_run_id(), "known": reused}
        return await self._carry(planned.plan, settings), planned

    async def _result(self, outcome: RunResult, planned: Planned | None, trace: str | None) -> Result:
        answer: Answer | None = None
        outcome.warnings[:0] = [*self.warnings, *self.worker.warnings]
        if outcome.plan is not None:
            writer = self.client if self.request else None
            answer = await synthesise(self.request or "", outcome.plan, outcome.results, model=writer)
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
            [*self.worker.calls, *_waiting_calls(outcome)],
        )

    def _usage(self, planned: Planned | None, answer: Answer | None) -> RunUsage:
        usages = list(self.worker.usages)
        calls = len(usages)
        if planned is not None and planned.model is not None:
            usages.append(planned.usage)
            calls += planned.attempts if planned.template else 0
        if answer is not None and answer.by != "rules":
            usages.append(answer.usage)
            calls += 1
        tokens = total(usages) if usages else TokenUsage(0, 0)
        return RunUsage(tokens.input_tokens, tokens.output_tokens, calls, self.worker.tool_calls)


def _waiting_calls(outcome: RunResult) -> list[dict[str, Any]]:
    """The calls that wait for an approval, with the arguments that they would be made with."""
    waiting = [] if outcome.plan is None else [name for name, task in outcome.tasks.items() if task.state == "waiting"]
    calls = []
    for name in waiting:
        assert outcome.plan is not None
        task = outcome.plan[name]
        args = dict(task.args) if task.for_each else resolve(dict(task.args), outcome.results, ids=outcome.plan.tasks)
        calls.append({"task": name, "tool": task.action, "args": args, "state": "waiting"})
    return calls


async def _repaired(writing: Writing) -> Planned:
    """The next attempts, each read to its end before any of it runs. Raises PlanningFailed after the last."""
    while True:
        writing = writing.repair()
        try:
            async for _ in writing:
                pass
            return writing.planned
        except PlanInvalid:
            continue


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
