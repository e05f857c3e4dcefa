"""The Python API on one screen: `plan` a request, `run` a request or a plan. Both have an asynchronous twin.

from agent_forge import plan, run, tool

planned = plan("Who is older, Ada Lovelace or Charles Babbage?")
result = run("Who is older, Manuel Antonio or Wilfred MacDonald?")
print(result.answer, result.tasks["s1"].result, result.trace_id)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from agent_forge.agents.choices import AnyModel, AnyPlanner, AnyTools, choose_model, choose_planner, choose_tools
from agent_forge.agents.models import ModelClient, Usage, use_recorder
from agent_forge.agents.planner import ModelPlanner, Planned, bind_tools
from agent_forge.agents.planner.interface import total
from agent_forge.agents.synthesis import Answer, Evidence, synthesise
from agent_forge.agents.tools import Toolbox
from agent_forge.agents.work import Worker
from agent_forge.errors import UsageError
from agent_forge.home import home as home_folder
from agent_forge.plans import Plan, PlanInvalid, Task, to_json
from agent_forge.runtime import Budget, Limits, RunResult, TaskResult, ToolRules, execute, resume
from agent_forge.settings import variable
from agent_forge.traces import Recorder, Span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent_forge.runtime.journal import Journal

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunUsage:
    """What a run used. Tokens are None where a model did not count them; 0 where no model was asked."""

    input_tokens: int | None
    output_tokens: int | None
    model_calls: int
    tool_calls: int


@dataclass(slots=True, repr=False)
class Result:
    """What came of a run: the answer, the plan, every task's state, times, usage and the trace id."""

    outcome: RunResult
    answer: str | None
    usage: RunUsage
    request: str | None = None
    planned: Planned | None = None
    observation: str | None = None
    answered_by: str | None = None
    evidence: dict[str, Evidence] = field(default_factory=dict)
    trace_id: str | None = None

    def __repr__(self) -> str:
        return f"Result({self.state!r}, answer={self.answer!r}, {self.outcome!r})"

    @property
    def run(self) -> str:
        """The name of the run, for `resume`."""
        return self.outcome.run

    @property
    def state(self) -> str:
        return self.outcome.state

    @property
    def ok(self) -> bool:
        return self.outcome.ok

    @property
    def plan(self) -> Plan | None:
        """The plan as it was at the end; None where a streamed one turned out invalid."""
        return self.outcome.plan

    @property
    def tasks(self) -> dict[str, TaskResult]:
        return self.outcome.tasks

    @property
    def wall_s(self) -> float:
        return self.outcome.wall_s

    @property
    def critical_path_s(self) -> float:
        return self.outcome.critical_path_s

    @property
    def error(self) -> str | None:
        return self.outcome.error

    def as_dict(self) -> dict[str, Any]:
        """The shape that `agent-forge run --json` prints."""
        usage = self.usage
        return {
            **self.outcome.as_dict(),
            "trace_id": self.trace_id,
            "request": self.request,
            "answer": self.answer,
            "planner": self.planned.planner if self.planned else None,
            "evidence": {name: {"source": e.source, "text": e.text} for name, e in self.evidence.items()},
            "usage": {
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "model_calls": usage.model_calls,
                "tool_calls": usage.tool_calls,
                "cost": self.outcome.usage.cost,
            },
        }


def plan(request: str, *, tools: AnyTools = None, model: AnyModel = None, planner: AnyPlanner = None) -> Planned:
    """Plans a request without running it.

    Raises PlanningFailed, ModelError, or UsageError where an event loop is running (use `aplan` there).

    >>> [task.goal for task in plan("Where was the director of film Alien born?").plan]
    ['director of film Alien', 'place of birth of {s1}']
    """
    return _outside_a_loop(aplan(request, tools=tools, model=model, planner=planner), "aplan")


async def aplan(request: str, *, tools: AnyTools = None, model: AnyModel = None, planner: AnyPlanner = None) -> Planned:
    """`plan` for programs that run in an event loop."""
    known = () if tools is None else tuple(choose_tools(tools))
    return await choose_planner(planner, model).plan(request, tools=known)


def run(request_or_plan: str | Plan | Planned | Iterable[Task] | None = None, **options: Any) -> Result:
    """Plans a request and carries it out, or carries out a plan; see `arun` for the options.

    Raises UsageError where an event loop is running (use `await arun(...)` there).
    """
    return _outside_a_loop(arun(request_or_plan, **options), "arun")


async def arun(
    request_or_plan: str | Plan | Planned | Iterable[Task] | None = None,
    *,
    tools: AnyTools = None,
    model: AnyModel = None,
    planner: AnyPlanner = None,
    concurrency: int | None = None,
    timeout_s: float | None = None,
    budget: Budget | None = None,
    on_failure: str = "skip",
    home: str | os.PathLike[str] | None = None,
    resume: str | None = None,
    record: bool = True,
    recorder: Recorder | None = None,
    **more: Any,
) -> Result:
    """Carries out a request or a plan, and answers from what its tasks found.

    - `tools`: a Toolbox, tools or functions, a module or file with them; None: the embedded search and calculator.
    - `model`: a ModelClient or `http://host:port/v1#name`; without one, the rules plan, read and compare.
    - `planner`: a Planner, or "rules", "local", "model".
    - `concurrency`, `timeout_s` (of a task), `budget`, `on_failure`, and `more`: as `agent_forge.execute` has them.
    - `home`: where the trace and the journal go; `record=False` keeps neither; `resume`: a run to go on with.

    A model's plan is carried out while it is being written, and written once more if it turns out invalid; finished
    work is kept. Failures of tasks are in the result. Raises before anything runs: UsageError, PlanInvalid, ToolError;
    and ModelError or PlanningFailed where no plan could be had.
    """
    box = choose_tools(tools)
    client = choose_model(model)
    session = _Session(box, client, request_or_plan, reads=tools is None or isinstance(request_or_plan, str))
    settings = {
        "concurrency": concurrency if concurrency is not None else _default_concurrency(),
        "limits": limits_of(box),
        "timeout_s": timeout_s,
        "budget": budget,
        "on_failure": on_failure,
        **more,
    }
    with _recording(home, record, recorder) as used, use_recorder(used):
        settings |= {"recorder": used, "journal": open_journal(home) if record else None}
        if resume is not None:
            return await session.again(resume, settings)
        return await session.carry_out(choose_planner(planner, model), settings)


def limits_of(box: Toolbox) -> Limits:
    """The tools' own rules for the executor. Time limits and retries stay with the tools themselves."""
    return Limits(
        tools={
            tool.name: ToolRules(tool.concurrency, tool.rate, side_effects=tool.side_effects, memo=tool.cache)
            for tool in box
        }
    )


def open_journal(home: str | os.PathLike[str] | None = None) -> Journal:
    """The journal of the runs under the home folder."""
    from agent_forge.runtime.journal import Journal

    return Journal(home_folder(home) / "runs.db")


class _Session:
    """One call of `arun`."""

    def __init__(self, box: Toolbox, client: ModelClient | None, work: Any, *, reads: bool) -> None:
        self.box = box
        self.client = client
        self.work = work
        self.request = work if isinstance(work, str) else work.request if isinstance(work, Planned) else None
        self.worker = Worker(box, client, reads=reads)

    async def again(self, run: str, settings: dict[str, Any]) -> Result:
        given = {name: value for name, value in settings.items() if value is not None and name != "journal"}
        outcome = await resume(run, self.worker, journal=settings["journal"], **given)
        return await self._result(outcome, None, outcome.trace_id)

    async def carry_out(self, planner: Any, settings: dict[str, Any]) -> Result:
        recorder: Recorder | None = settings["recorder"]
        if recorder is None:
            return await self._planned_run(planner, settings, None)
        name = self.request or "plan"
        with recorder.span(name[:80], "agent", inputs={"request": self.request}) as span:
            result = await self._planned_run(planner, settings, span)
            span.outputs = {"answer": result.answer, "state": result.state}
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

    async def _streamed(self, planner: ModelPlanner, settings: dict[str, Any]) -> tuple[RunResult, Planned]:
        """Runs the plan as it is written; an invalid one is written again and the finished tasks are kept."""
        writing = planner.stream(self.work, tools=tuple(self.box))
        known: dict[str, Any] = {}
        while True:
            outcome = await execute(aiter_of(writing), self.worker, **{**settings, "known": known})
            if not outcome.faults:
                return outcome, writing.planned
            _reraise(outcome)
            writing = writing.repair()
            done, old = outcome.results, outcome.plan
            again = await _whole(writing)
            known = {task.id: done[task.id] for task in again if _same_task(task, old, done)}
            settings = {**settings, "run_id": None}
            outcome = await execute(again, self.worker, **{**settings, "known": known})
            return outcome, writing.planned

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
        used = total(usages) if usages else Usage(0, 0)
        return RunUsage(used.input_tokens, used.output_tokens, calls, self.worker.tool_calls)


def aiter_of(writing: Any) -> Any:
    return writing.__aiter__()


async def _whole(writing: Any) -> Plan:
    """A repaired plan is read to its end before it runs: the second attempt is the last."""
    while True:
        try:
            async for _ in writing:
                pass
            plan: Plan = writing.planned.plan
            return plan
        except PlanInvalid:
            writing.repair()


def _same_task(task: Task, old: Plan | None, done: dict[str, Any]) -> bool:
    """Whether a finished task stands in the new plan unchanged, so that its result still holds."""
    return task.id in done and (old is None or (task.id in old and replace(old[task.id]) == task))


def _reraise(outcome: RunResult) -> None:
    """A stream that broke off for another reason than the plan's own faults (the endpoint died) is that error."""
    error = outcome.exception
    if error is not None and not isinstance(error, PlanInvalid):
        raise error


def _describe(span: Span, planned: Planned) -> None:
    span.outputs = {"plan": to_json(planned.plan)}
    span.set(
        planner=planned.planner,
        template=planned.template,
        model=planned.model,
        steps=len(planned.plan),
        reason=planned.complexity.reason,
        input_tokens=planned.usage.input_tokens,
        output_tokens=planned.usage.output_tokens,
    )


@contextmanager
def _recording(home: str | os.PathLike[str] | None, record: bool, given: Recorder | None) -> Iterator[Recorder | None]:
    """The caller's recorder, left open; or one of our own, closed (and so on disk) at the end; or none."""
    if given is not None or not record:
        yield given
        return
    own = Recorder(os.environ.get(variable("store")) or home_folder(home))
    try:
        yield own
    finally:
        own.close()
        own.store.close()


def _default_concurrency() -> int | None:
    text = os.environ.get(variable("concurrency"))
    return int(text) if text else None


def _outside_a_loop(work: Coroutine[Any, Any, T], name: str) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise UsageError("an event loop is running here, so this call would block it", fix=f"use `await {name}(...)`")
