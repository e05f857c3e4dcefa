"""The Python API: `plan` a request, `run` a request or a plan. Both have an asynchronous version.

from agent_forge import plan, run, tool

print(plan("Who is older, Ada Lovelace or Charles Babbage?").levels())
result = run("Who is older, Manuel Antonio or Wilfred MacDonald?")
print(result.answer, result.tasks["s1"].result, result.trace_id)
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Iterable, Mapping
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agent_forge.agents.agent import allowed_tools
from agent_forge.agents.approval import AnyApproval, approver
from agent_forge.agents.choices import (
    AnyModel,
    AnyPlanner,
    AnyTools,
    Strategy,
    choose_model,
    choose_planner,
    choose_tools,
)
from agent_forge.agents.elsewhere import AnyWorkers, elsewhere, workers_at
from agent_forge.agents.front import blocking, checked_names, signature_of
from agent_forge.agents.planner.interface import make_plan
from agent_forge.agents.policies import assign, strategy_by_flag
from agent_forge.agents.profiles import AgentProfile, choose_profile, roster
from agent_forge.agents.request_run import RequestRun
from agent_forge.agents.result import Result, RunUsage
from agent_forge.agents.run_records import journal_of, notes_of, recording, stored_notes
from agent_forge.agents.tool_limits import limits_of
from agent_forge.errors import UsageError
from agent_forge.inference import use_recorder
from agent_forge.plans import Plan, Task
from agent_forge.runtime import Budget, Limits, Retry, new_run_id
from agent_forge.runtime.options import Mend, OnEvent, Update
from agent_forge.settings import trace_store, variable
from agent_forge.traces import Recorder

if TYPE_CHECKING:
    from agent_forge.agents.tools import Toolbox
    from agent_forge.agents.tools.cache import ResultCache

__all__ = ["Result", "RunUsage", "aplan", "arun", "plan", "run"]


@checked_names
async def aplan(request: str, *, tools: AnyTools = None, model: AnyModel = None, planner: AnyPlanner = None) -> Plan:
    """Plans a request without running it; `plan.provenance` says who planned it and what that cost.

    The parameters are those of `arun`. Raises PlanningFailed or ModelError.
    """
    if not isinstance(request, str):
        raise UsageError(f"a request is text, got {request!r}")
    chosen = () if tools is None else tuple(choose_tools(tools))
    return await make_plan(choose_planner(planner, model, bundled=tools is None), request, chosen)


@signature_of(aplan)
def plan(*args: Any, **options: Any) -> Plan:
    """Plans a request without running it; `plan.provenance` says who planned it and what that cost.

    Raises PlanningFailed or ModelError. It also works where an event loop runs (Jupyter), which it blocks meanwhile.

    >>> steps = plan("Where was the director of film Alien born?")
    >>> [task.goal for task in steps], steps.provenance.planner
    (['director of film Alien', 'place of birth of {s1}'], 'rules')
    """
    return blocking(aplan(*args, **options))


@checked_names
async def arun(
    request_or_plan: str | Plan | Iterable[Task] | AsyncIterable[Task] | None = None,
    *,
    tools: AnyTools = None,
    model: AnyModel = None,
    planner: AnyPlanner = None,
    strategy: Strategy = "auto",
    agent: AgentProfile | str | os.PathLike[str] | None = None,
    team: bool | str | Mapping[str, AgentProfile] = False,
    cache: bool = False,
    home: str | os.PathLike[str] | None = None,
    resume: str | None = None,
    record: bool = True,
    concurrency: int | None = None,
    timeout_s: float | None = None,
    budget: Budget | None = None,
    on_failure: str = "skip",
    limits: Limits | None = None,
    retry: Retry | None = None,
    run_id: str | None = None,
    recorder: Recorder | None = None,
    mask: str | None = None,
    sample: float | None = None,
    approve: AnyApproval = "ask",
    repairs: int = 2,
    settle: Mapping[str, tuple[str, Any]] | None = None,
    unit: str | None = None,
    rollout: str | None = None,
    on_event: OnEvent | None = None,
    update: Update | None = None,
    mend: Mend | None = None,
    known: Mapping[str, Any] | None = None,
    durations: Mapping[str, float] | None = None,
    workers: AnyWorkers = None,
    memo: bool = True,
    order: str = "critical_path",
    stream_idle_s: float = 300.0,
    grace_s: float = 5.0,
    most_items: int = 10_000,
    most_rounds: int = 100,
    most_parts: int = 100_000,
    seed: int | None = None,
) -> Result:
    """Carries out a request in words, a Plan, tasks, or an asynchronous iterable of tasks, as `execute` does.

    - `tools`: a Toolbox, tools or functions, or a module or file of tools; by default bundled search and calculator.
    - `model`: a ModelClient or `http://host:port/v1#name`; `planner`: a Planner, "rules", "forged", "model", "local".
    - `strategy`: "graph" runs a plan in parallel, "react" an agent with one call per turn, "auto" decides.
    - `agent`: the profile that acts, a bundled name or a YAML file; `team`: tasks go to agents, of a roster by name.
    - `approve`: tools with side effects wait for it: "ask" (which may end a run as "waiting"), "all", "none", or a
      mapping by task or a function that answers True, False, or the arguments to change. `repairs`: how often a model
      may mend the plan after a failure; a tool's own `fallback` comes first.
    - `resume`: a run to go on with; `settle`: what became of its tasks in doubt: ("done", RESULT), ("retry", None)…
    - `unit`: whom this is for; `rollout`, or the latest active one, then decides who does it (docs/rollout.md).
    - `home`: the folder for trace and journal; `record=False` writes neither; `mask`, `sample`: see `Recorder`;
      `limits` replaces the tools' own; `cache` keeps results of `pure` tools; `workers`: docs/scale.md.
    A model's plan that is invalid or gives a value that nobody gave is written once more, then the rules plan. Raises
    UsageError, PlanInvalid, PlanRefused, ToolError, ModelError or PlanningFailed; the result reports failed tasks.
    """
    return await _carry_out(**locals())


async def _carry_out(*, workers: AnyWorkers, **given: Any) -> Result:
    async with workers_at(workers) as ready:
        return await _with_workers(workers=ready, **given)


# To add a parameter: a line in the signature of `arun`, which `run` follows by itself, and one here; a field of
# `RunSettings` needs only the former.
async def _with_workers(
    request_or_plan: str | Plan | Iterable[Task] | AsyncIterable[Task] | None,
    *,
    tools: AnyTools,
    model: AnyModel,
    planner: AnyPlanner,
    strategy: Strategy,
    agent: AgentProfile | str | os.PathLike[str] | None,
    team: bool | str | Mapping[str, AgentProfile],
    cache: bool,
    home: str | os.PathLike[str] | None,
    resume: str | None,
    record: bool,
    recorder: Recorder | None,
    mask: str | None,
    sample: float | None,
    approve: AnyApproval,
    repairs: int,
    settle: Mapping[str, tuple[str, Any]] | None,
    **settings: Any,
) -> Result:
    if resume is not None:
        notes = stored_notes(home, record, resume, needs_model=model is None)
        tools = tools if tools is not None else notes.get("tools")
        model = model if model is not None else notes.get("model")
        agent = agent if agent is not None else notes.get("agent")
        request_or_plan = notes.get("request")
    unit, rollout, workers = (settings.pop(name) for name in ("unit", "rollout", "workers"))
    assignment, planner, strategy, model = assign(unit, rollout, home, planner, strategy, model)
    profile = choose_profile(agent)
    box = elsewhere(allowed_tools(profile, None if tools is None else choose_tools(tools)), tools, workers)
    box, results = _with_results(box, home) if cache else (box, None)
    reads = tools is None or isinstance(request_or_plan, str)
    client = choose_model(model if model is not None else profile.model)
    if strategy == "auto" and agent is None:
        by_flag = strategy_by_flag(home, unit, client is not None) if planner is None else None
        strategy = by_flag or _strategy_for(box, approve)
    chosen = choose_planner(planner, client, strategy, bundled=tools is None)
    if strategy == "react":
        profile, repairs = replace(profile, limits=replace(profile.limits, calls=1)), 0  # it mends its own work
    request_run = RequestRun(
        box, client, request_or_plan, reads=reads, repairs=repairs, profile=profile, approve=approve
    ).served_by(assignment)
    _fill_in(settings, box, approve)
    if team:
        profiles = roster("default" if team is True else team) if isinstance(team, (bool, str)) else team
        request_run.use_team(profiles, home)
    recorded = recording(home, record, recorder, mask, sample)
    done = nullcontext() if results is None else closing(results)
    with recorded as active, use_recorder(active), journal_of(home, record) as journal, done:
        settings |= {"recorder": active, "journal": journal}
        if resume is not None:
            result = await request_run.resume(resume, settings | {"settle": settle})
        else:
            if record:
                settings["notes"] = notes_of(settings["run_id"], request_run.request, tools, model, agent)
            result = await request_run.carry_out(chosen, settings)
    result.warnings.extend(results.warnings if results is not None else ())
    result.recorded = recorder if recorder is not None else trace_store(home)
    return result


def _strategy_for(box: Toolbox, approve: AnyApproval) -> Strategy:
    """A plan that waits for an approval survives a restart, an agent's turn does not."""
    return "graph" if approve == "ask" and any(tool.side_effects for tool in box) else "auto"


def _fill_in(settings: dict[str, Any], box: Toolbox, approve: AnyApproval) -> None:
    """What the executor is told where the caller left it open."""
    if settings["concurrency"] is None and (default := os.environ.get(variable("concurrency"))):
        settings["concurrency"] = int(default)
    settings["limits"] = settings["limits"] or limits_of(box, approval=approve != "all")
    settings["run_id"] = settings["run_id"] or new_run_id()
    settings |= {"approve": approver(approve), "known": settings["known"] or {}}


def _with_results(box: Toolbox, home: str | os.PathLike[str] | None) -> tuple[Toolbox, ResultCache]:
    """The tools with a cache of results."""
    from agent_forge.agents.tools.cache import ResultCache  # only for those who want one

    results = ResultCache(home)
    return results.wrap(box), results


@signature_of(arun)
def run(*args: Any, **options: Any) -> Result:
    """Plans a request and carries it out, or carries out a plan, and answers from the results of its tasks.

    The parameters are those of `arun`, which explains them. It also works where an event loop runs (Jupyter), which it
    blocks meanwhile: an asynchronous program calls `await arun(...)`.

    >>> run("Who is older, Manuel Antonio or Wilfred MacDonald?", record=False).answer
    'Manuel Antonio'
    """
    return blocking(arun(*args, **options))


if TYPE_CHECKING:  # a type checker that accepted these would report the comments as unused
    run("", modle=3)  # type: ignore[call-arg]
    plan("", tools=3)  # type: ignore[arg-type]
