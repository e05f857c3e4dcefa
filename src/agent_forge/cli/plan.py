"""`agent-forge plan`: a request, or a plan that is already written, as a graph."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._options import json_option, model_option, planner_option, renamed, request_argument, tools_option
from agent_forge.cli._output import decode, echo, json_out, read_bytes

if TYPE_CHECKING:
    from agent_forge.agents.planner import Missing
    from agent_forge.plans import Plan, PlanFault, Provenance

DRAWINGS = ("tree", "mermaid")
FORMATS = ("tree", "lines", "xml", "json", "yaml", "mermaid")


@click.command()
@request_argument
@renamed("--plan", "plan_file", former="--text", metavar="FILE",
         help="Plan to read, in any of the formats, instead of making one; - for stdin.")  # fmt: skip
@click.option("--rows", "rows_file", metavar="FILE",
              help='JSON Lines of {"id", "request", "tools"} with function schemas; - for stdin.')  # fmt: skip
@click.option("--format", "format_", type=click.Choice(FORMATS), default="tree", help="Output format.")
@tools_option
@model_option
@planner_option
@json_option
def command(
    request: str | None,
    plan_file: str | None,
    rows_file: str | None,
    format_: str,
    tools: str | None,
    model: str | None,
    planner: str | None,
    as_json: bool,
) -> int:
    """Show REQUEST as a graph of tasks, without running it.

    --json prints the tasks with their dependencies, the levels and the critical path. An invalid plan exits with 1;
    with --json, it prints all errors of the plan.
    """
    from agent_forge.agents.planner import PlanningFailed
    from agent_forge.plans import PlanInvalid

    if [request, plan_file, rows_file].count(None) != 2:
        raise click.UsageError("give a request, --plan FILE or --rows FILE")
    if rows_file is not None:
        return _plan_rows(rows_file, model, planner)
    try:
        if plan_file is not None:
            written = read_plan(plan_file)
            return _print(written, format_, as_json, _missing(written, tools, model) if tools else [])
        from agent_forge.agents.api import plan as make_plan

        planned = make_plan(request or "", tools=tools, model=model, planner=planner)
        return _print(planned, format_, as_json, _missing(planned, tools, model))
    except (PlanInvalid, PlanningFailed) as error:
        if not as_json:
            raise
        return print_faults(error.errors, str(error))


def _plan_rows(path: str, model: str | None, planner: str | None) -> int:
    """Writes a line for every row: {"id", "calls": [{"tool", "args"}]}, "missing" or "none" where it refuses."""
    import asyncio
    import json

    from agent_forge.agents.choices import choose_planner
    from agent_forge.agents.planner.batch import plan_row, read_rows

    chosen = choose_planner(planner, model)

    async def write() -> None:
        for row in read_rows(decode(read_bytes(path)).splitlines()):
            echo(json.dumps(await plan_row(chosen, row), ensure_ascii=False))

    asyncio.run(write())
    return 0


def _missing(plan: Plan, tools: str | None, model: str | None) -> list[Missing]:
    """What keeps the plan from being run with these tools."""
    from agent_forge.agents.choices import choose_tools
    from agent_forge.agents.planner import bind_tools, what_is_missing
    from agent_forge.agents.planner.forged import doubt

    box = choose_tools(tools)
    request = None if plan.provenance is None else plan.provenance.request
    bound = bind_tools(plan, tuple(box))
    missing = what_is_missing(bound, box, request=request, model=model is not None)
    return missing if (unsure := doubt(plan)) is None else [unsure, *missing]


def read_plan(path: str) -> Plan:
    """The plan in a file, '-' for stdin. Raises PlanInvalid, and UsageError where the file cannot be read."""
    from agent_forge.plans import PlanFault, PlanInvalid, parse_plan

    content = read_bytes(path)
    try:
        text = decode(content)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise PlanInvalid([PlanFault("malformed", "the text is not UTF-8", line=line)]) from None
    return parse_plan(text)


def print_faults(faults: list[PlanFault], summary: str) -> int:
    """Prints the faults of a plan as JSON and returns the exit code."""
    rows = [fault.as_dict() for fault in faults] or [{"code": "malformed", "message": summary, "task": None}]
    json_out({"errors": rows})
    return 1


def document(plan: Plan, missing: Sequence[Missing] = ()) -> dict[str, Any]:
    """What --json prints; `missing` is what keeps the plan from being run. A task depends on what it states or refers
    to; a group, on what it states."""
    tasks = [
        {**task.as_dict(), "depends_on": list(plan.dependencies.get(task.id, plan[task.id].depends_on))}
        for task in plan
    ]
    graph = {"levels": plan.levels(), "critical_path": plan.critical_path(), "parallelism": plan.parallelism()}
    open_ = {"missing": [each.as_dict() for each in missing]}
    return {"tasks": tasks, **graph, **open_, **({} if plan.provenance is None else _origin(plan.provenance))}


def calls_of(plan: Plan) -> list[str]:
    """The calls of tools in a plan, a line each: `s1: read_csv(path="sales.csv")`."""
    from agent_forge.plans.calls import write_call

    calls = {name: plan[name] for name in plan.leaves if plan[name].action not in (None, "look_up", "combine")}
    return [f"{name}: {write_call(str(task.action), dict(task.args)) or task.action}" for name, task in calls.items()]


def _origin(provenance: Provenance) -> dict[str, Any]:
    from agent_forge.agents.complexity import complexity

    estimate = complexity(provenance.request)
    return {
        "request": provenance.request,
        "planner": provenance.planner,
        "model": provenance.model,
        "confidence": provenance.confidence,
        "template": provenance.template,
        "attempts": provenance.attempts,
        "usage": {
            "input_tokens": provenance.input_tokens,
            "output_tokens": provenance.output_tokens,
            "cost": provenance.cost,
        },
        "complexity": {
            "graph": estimate.graph,
            "steps": estimate.steps,
            "features": dict(estimate.features),
            "reason": estimate.reason,
        },
    }


def _print(plan: Plan, format_: str, as_json: bool, missing: Sequence[Missing]) -> int:
    from agent_forge import plans

    if as_json:
        json_out(document(plan, missing))
        return 0
    writers = {
        "tree": plans.to_tree,
        "lines": plans.to_lines,
        "xml": plans.to_xml,
        "json": plans.to_json,
        "yaml": plans.to_yaml,
        "mermaid": plans.to_mermaid,
    }
    text = writers[format_](plan).rstrip("\n")
    if format_ in DRAWINGS or sys.stdout.isatty():
        echo(text)
    else:
        click.echo(text)  # to be read back, every character
    if format_ == "tree":
        for line in calls_of(plan):
            echo(f"  {line}")
    for each in missing:
        echo(f"open: {each}", err=format_ != "tree")
    if plan.provenance is not None:
        from agent_forge.agents.complexity import complexity

        origin = plan.provenance
        planner = f"{origin.planner} ({origin.model})" if origin.model else origin.planner
        decision = f": {complexity(origin.request).reason}" if origin.planner == "model" else ""
        echo(f"planned by {planner}{decision}", err=True)
    return 0
