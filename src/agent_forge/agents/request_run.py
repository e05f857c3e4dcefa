"""One run from request to answer: plan, carry out, repair a streamed plan, put the answer together."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agent_forge.agents.approval import AnyApproval
from agent_forge.agents.complexity import complexity
from agent_forge.agents.planner import (
    DefaultPlanner,
    ForgedPlanner,
    ModelPlanner,
    Planner,
    PlanningFailed,
    PlanRefused,
    RulePlanner,
    RulesFirst,
    Writing,
    bind_tools,
    what_is_missing,
)
from agent_forge.agents.planner.binding import bind_task
from agent_forge.agents.planner.checking import Checker
from agent_forge.agents.planner.forged import function_of
from agent_forge.agents.planner.interface import make_plan, total
from agent_forge.agents.planner.retrieval import shown_tools
from agent_forge.agents.profiles import DEFAULT, AgentProfile
from agent_forge.agents.result import Result, RunUsage
from agent_forge.agents.synthesis import Answer, synthesise
from agent_forge.agents.tools import Toolbox
from agent_forge.agents.turns import keep_schemas, outermost
from agent_forge.agents.work import Worker
from agent_forge.errors import AgentForgeError, ModelError, PlanError, UsageError
from agent_forge.inference import ModelClient, TokenUsage
from agent_forge.inference.client import digest_of
from agent_forge.plans import Plan, PlanInvalid, Task, resolve, to_xml
from agent_forge.runtime import RunResult, RunSettings, TaskResult, execute, new_run_id, resume
from agent_forge.traces import Recorder, Span

if TYPE_CHECKING:
    from agent_forge.agents.team import Team
    from agent_forge.rollout import Assignment


class RequestRun:
    """One call of `arun`. `work` is a request or a plan; `reads`, `profile` and `approve` as in `Worker`."""

    def __init__(
        self,
        box: Toolbox,
        client: ModelClient | None,
        work: Any,
        *,
        reads: bool,
        repairs: int = 2,
        profile: AgentProfile = DEFAULT,
        approve: AnyApproval = "ask",
    ) -> None:
        self.box = box
        self.client = client
        self.work = work
        self.reads = reads
        self.request: str | None = work if isinstance(work, str) else None
        if isinstance(work, Plan) and work.provenance is not None:
            self.request = work.provenance.request
        self.profile = profile
        self.assignment: Assignment | None = None
        self.worker: Worker | Team = Worker(box, client, profile=profile, reads=reads, approve=approve)
        self.warnings: list[str] = []
        self._begun = False
        self._recorded: list[Any] = []  # the tasks of the plan that a span of its own holds
        self._repairs = repairs if client is not None else 0  # how often a failed run may still be mended

    def served_by(self, assignment: Assignment | None) -> RequestRun:
        """Records who was chosen to do it, where a rollout says so. Returns the run."""
        self.assignment = assignment
        return self

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
            if name not in fixed and value is not None and value != getattr(default, name, None)
        }
        options.setdefault("mend", self._mend if self._repairs else None)
        outcome = await resume(run, self.worker, journal=settings["journal"], **options)
        return await self._result(outcome, None, outcome.trace_id)

    async def carry_out(self, planner: Any, settings: dict[str, Any]) -> Result:
        import jsonschema  # noqa: F401  (tools check their arguments with it: 0.2 s, before the clock of the run starts)

        recorder: Recorder | None = settings["recorder"]
        name = (self.request or "plan")[:80]
        acting = self.profile.name if isinstance(self.worker, Worker) else None  # a team's tasks name their own
        inputs = {"request": self.request}
        scope = recorder.span(name, "run", inputs=inputs, agent=acting) if recorder else nullcontext()
        with scope as span, outermost(span):
            if recorder is not None and self.assignment is not None:
                from agent_forge.rollout import expose

                expose(recorder, self.assignment)
            if span is not None and span.policy is None:
                span.policy = getattr(self.client, "policy", None)
            outcome, planned = await self._execute(planner, settings)
            result = await self._result(outcome, planned, span.trace_id if span else None)
            if span is not None:
                span.outputs = {"answer": result.answer, "state": result.state}
                self._keep_plan(span, outcome)
                if not result.ok:  # nothing was raised, but whatever learns from traces must see the failure
                    span.status, span.error = "error", result.error
        return result

    def _keep_plan(self, span: Span, outcome: RunResult) -> None:
        """What a training row needs beside the request: the tools, those nearest to the request and those that were
        used, and the plan that ran where no span of its own holds it (`agent_forge.learning.traces`)."""
        if self.request is None or outcome.plan is None:
            return
        used = {task.action for task in outcome.plan}
        near = {tool.name for tool in shown_tools(self.request, tuple(self.box))}
        functions = [function_of(tool) for tool in self.box if tool.name in near | used]
        if functions:
            digest = digest_of(functions)
            keep_schemas(span, functions, digest)
            span.attributes["tools_digest"] = digest
        tasks = [task.as_dict() for task in outcome.plan]
        if tasks != self._recorded:
            span.outputs["tasks"] = tasks

    async def _execute(self, planner: Any, settings: dict[str, Any]) -> tuple[RunResult, Plan | None]:
        if isinstance(self.work, AsyncIterable):
            return await self._carry(self._bound(self.work), settings), None
        if not isinstance(self.work, str):
            return await self._carry(self._given_plan(), settings), None
        if isinstance(planner, RulesFirst):
            read = planner.read(self.work, tuple(self.box))
            planner = RulePlanner() if read is not None else planner.other
        try:
            if isinstance(planner, ModelPlanner):
                return await self._execute_stream(planner, settings)
            planned = await self._plan(planner, settings["recorder"])
            forged = planner.forged if isinstance(planner, DefaultPlanner) else planner
            if isinstance(forged, ForgedPlanner):
                forged.refuse_unsure(planned)
            return await self._carry(self._checked(planned), settings), planned
        except (PlanningFailed, PlanRefused, ModelError) as error:
            if isinstance(planner, RulePlanner):
                raise
            planned = await self._by_rules(error, settings["recorder"])
        settings = {**settings, "run_id": new_run_id()} if self._begun else settings
        return await self._carry(planned, settings), planned

    def _given_plan(self) -> Plan:
        """The plan that the caller gave, its words read and its calls checked."""
        plan = self.work
        if plan is None:
            raise UsageError("there is nothing to run", fix="Pass a request, a plan, or resume=RUN")
        if not isinstance(plan, Iterable):
            raise UsageError(f"a request is text, and a plan is a list of tasks; got {plan!r}")
        return self._checked(plan if isinstance(plan, Plan) else Plan(plan))

    def _checked(self, plan: Plan) -> Plan:
        """The plan with its words read, and tasks whose arguments are open left to the model. Raises PlanRefused where
        there is none."""
        plan = bind_tools(plan, tuple(self.box), reads=self.reads)
        model = self.client is not None
        # A plan that was changed after it was made has values that the one who changed it gave.
        request = self.request if plan.provenance is not None and plan.version == 1 else None
        missing = what_is_missing(plan, self.box, request=request, model=model)
        open_tasks = {each.task for each in missing if each.parameter is not None}
        if missing and (not model or request is None or len(open_tasks) < len({each.task for each in missing})):
            raise PlanRefused(missing, request, model)
        if not missing:
            return plan
        tasks = (_left_open(task, open_tasks) for task in plan)
        left = Plan(tasks, version=plan.version)
        return left if plan.provenance is None else left.with_provenance(plan.provenance)

    async def _by_rules(self, error: AgentForgeError, recorder: Recorder | None) -> Plan:
        """The rules' plan in place of one that could not be used. Raises the error where it cannot be run either."""
        try:
            checked = self._checked(await self._plan(RulePlanner(), recorder))
        except PlanError:
            raise error from None
        if isinstance(error, ModelError) and any(task.action is None for task in checked):
            raise error
        self.warnings.append(f"planned by rules, because the planner failed: {error}")
        return checked

    async def _carry(self, plan: Any, settings: dict[str, Any]) -> RunResult:
        self._begun = True
        mend = settings.get("mend") or (self._mend if self._repairs else None)
        return await execute(plan, self.worker, **{**settings, "mend": mend})

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

    async def _bound(self, tasks: AsyncIterable[Task]) -> AsyncIterator[Task]:
        """The caller's tasks as they come, with what their words mean. Whatever is not a task the executor reports."""
        tools, checker = tuple(self.box), Checker(self.box, model=self.client is not None)
        try:
            async for task in tasks:
                bound = bind_task(task, tools, reads=self.reads) if isinstance(task, Task) else task
                if isinstance(bound, Task) and not bound.meta.get("group") and (missing := checker.of_task(bound)):
                    raise PlanRefused(missing, model=self.client is not None)
                yield bound
        finally:
            if isinstance(tasks, AsyncGenerator):
                await tasks.aclose()

    async def _plan(self, planner: Planner, recorder: Recorder | None) -> Plan:
        scope = recorder.span("plan", "plan", inputs={"request": self.work}) if recorder else nullcontext()
        with scope as span:
            planned = await make_plan(planner, self.work, tuple(self.box))
            if span is not None:
                _describe(span, planned)
                self._recorded = span.outputs["tasks"]
        return planned

    async def _execute_stream(self, planner: ModelPlanner, settings: dict[str, Any]) -> tuple[RunResult, Plan | None]:
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
            if name in planned and planned[name] == writing.written.get(name)
        }
        settings = {**settings, "run_id": new_run_id(), "known": reused}
        return await self._carry(planned, settings), planned

    async def _result(self, outcome: RunResult, planned: Plan | None, trace: str | None) -> Result:
        answer: Answer | None = None
        outcome.warnings[:0] = [*self.warnings, *self.worker.warnings]
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
            [*self.worker.calls, *_waiting_calls(outcome)],
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


def _left_open(task: Task, names: Collection[str | None]) -> Task:
    """The task without its call, if it is among those that a model is to carry out; so with the tasks in its `do`."""
    if task.control is not None and task.do:
        parts = tuple(_left_open(part, names) for part in task.do)
        return replace(task, control=replace(task.control, do=parts))
    return replace(task, action=None, args={}) if task.id in names else task


def _waiting_calls(outcome: RunResult) -> list[dict[str, Any]]:
    """The calls that wait for an approval, with the arguments that they would be made with."""
    waiting = [] if outcome.plan is None else [name for name, task in outcome.tasks.items() if task.state == "waiting"]
    calls = []
    for name in waiting:
        assert outcome.plan is not None
        task = outcome.parts.get(name) or outcome.plan[name]
        args = dict(task.args)
        if task.for_each is None:
            args = resolve(args, outcome.results, ids=outcome.plan.tasks)
        calls.append({"task": name, "tool": task.action, "args": args, "state": "waiting"})
    return calls


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
