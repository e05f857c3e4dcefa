"""The Python API: `plan` a request, `run` a request or a plan. Both have an asynchronous version.

from agent_forge import plan, run, tool

planned = plan("Who is older, Ada Lovelace or Charles Babbage?")
result = run("Who is older, Manuel Antonio or Wilfred MacDonald?")
print(result.answer, result.tasks["s1"].result, result.trace_id)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from agent_forge.agents.approval import AnyApproval, approver
from agent_forge.agents.choices import AnyModel, AnyPlanner, AnyTools, choose_model, choose_planner, choose_tools
from agent_forge.agents.planner import Planned
from agent_forge.agents.profiles import AgentProfile, builtin_profiles
from agent_forge.agents.request_run import RequestRun, limits_of
from agent_forge.agents.result import Result, RunUsage
from agent_forge.agents.run_records import journal_of, notes_of, recording, stored_notes
from agent_forge.errors import UsageError
from agent_forge.inference import use_recorder
from agent_forge.plans import Plan, Task
from agent_forge.runtime import Budget, new_run_id
from agent_forge.settings import variable
from agent_forge.traces import Recorder

__all__ = ["Result", "RunUsage", "aplan", "arun", "plan", "run"]

T = TypeVar("T")


def plan(request: str, *, tools: AnyTools = None, model: AnyModel = None, planner: AnyPlanner = None) -> Planned:
    """Plans a request without running it.

    Raises PlanningFailed, ModelError, or UsageError if an event loop is running (use `aplan` there).

    >>> [task.goal for task in plan("Where was the director of film Alien born?").plan]
    ['director of film Alien', 'place of birth of {s1}']
    """
    return _outside_a_loop(aplan(request, tools=tools, model=model, planner=planner), "aplan")


async def aplan(request: str, *, tools: AnyTools = None, model: AnyModel = None, planner: AnyPlanner = None) -> Planned:
    """`plan` for programs with an event loop."""
    chosen = () if tools is None else tuple(choose_tools(tools))
    return await choose_planner(planner, model, bundled=tools is None).plan(request, tools=chosen)


def run(request_or_plan: str | Plan | Planned | Iterable[Task] | None = None, **options: Any) -> Result:
    """Plans a request and carries it out, or carries out a plan; see `arun` for the options.

    Raises UsageError if an event loop is running (use `await arun(...)` there).
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
    team: bool | Mapping[str, AgentProfile] = False,
    approve: AnyApproval = "ask",
    repairs: int = 2,
    settle: Mapping[str, tuple[str, Any]] | None = None,
    **more: Any,
) -> Result:
    """Carries out a request or a plan, and answers from the results of its tasks.

    - `tools`: a Toolbox, tools or functions, or a module or file of tools; by default bundled search and calculator.
    - `model`: a ModelClient or `http://host:port/v1#name`; without one, rules plan, read and compare.
    - `planner`: a Planner, or "rules", "local", "model".
    - `concurrency`, `timeout_s` (per task), `budget`, `on_failure` and `more`: as in `agent_forge.execute`.
    - `team`: assign every task to an agent by rules, measured trust and load: True for the built-in profiles, or yours.
    - `approve`: tools with side effects wait for it. "ask" ends the run as "waiting" where nobody can be asked, "all" and
      "none" decide at once; a mapping by task or a function answers True, False, or the arguments to change.
    - `repairs`: how often a model may mend the plan after a failure. A tool's own `fallback` is called before that.
    - `settle`: for `resume`, what became of tasks in doubt: ("done", RESULT), ("retry", None) or ("failed", None).
    - `home`: the folder for trace and journal; `record=False` writes neither; `resume`: the name of a run to continue.

    A model's plan is carried out while it is being written; if it turns out invalid, or calls a tool with a value that
    nobody gave, it is written once more, finished work is reused, and after that the rules plan. The result reports
    failed tasks. Raises UsageError, PlanInvalid, PlanRefused or ToolError before anything runs, and ModelError or
    PlanningFailed if there is no plan.
    """
    if resume is not None:
        notes = stored_notes(home, record, resume)
        tools = tools if tools is not None else notes.get("tools")
        model = model if model is not None else notes.get("model")
        request_or_plan = notes.get("request")
    box = choose_tools(tools)
    reads = tools is None or isinstance(request_or_plan, str)
    request_run = RequestRun(box, choose_model(model), request_or_plan, reads=reads, repairs=repairs)
    default = os.environ.get(variable("concurrency"))
    settings = {
        "concurrency": concurrency if concurrency is not None else int(default) if default else None,
        "limits": limits_of(box, approval=approve != "all"),
        "approve": approver(approve),
        "timeout_s": timeout_s,
        "budget": budget,
        "on_failure": on_failure,
        "run_id": new_run_id(),
        **more,
    }
    if team:
        request_run.use_team(builtin_profiles() if team is True else team, home)
    with recording(home, record, recorder) as active, use_recorder(active), journal_of(home, record) as journal:
        settings |= {"recorder": active, "journal": journal}
        if resume is not None:
            return await request_run.resume(resume, settings | {"settle": settle})
        if record:
            settings["notes"] = notes_of(settings["run_id"], request_run.request, tools, model)
        return await request_run.carry_out(choose_planner(planner, model, bundled=tools is None), settings)


def _outside_a_loop(work: Coroutine[Any, Any, T], name: str) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise UsageError("an event loop is running, and this call would block it", fix=f"Use `await {name}(...)`")
