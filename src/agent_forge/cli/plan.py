"""`agent-forge plan`: a request, or a plan that is already written, as a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._app import decoded, json_option, json_out, require_bytes

if TYPE_CHECKING:
    from agent_forge.agents.planner import Planned
    from agent_forge.plans import Plan, PlanFault

FORMATS = ("tree", "lines", "xml", "json", "yaml", "mermaid")


@click.command()
@click.argument("request", required=False)
@click.option("--text", metavar="FILE", help="Read a plan instead of making one, in any of the formats; - is stdin.")
@click.option("--format", "shown", type=click.Choice(FORMATS), default="tree", help="How to print the plan.")
@click.option("--tools", metavar="MODULE", help="A module or file with @tool functions that the plan may call.")
@click.option(
    "--model", envvar="AGENT_FORGE_MODEL", metavar="M", help="http://host:port/v1#name, a folder, or smollm2."
)
@click.option("--planner", envvar="AGENT_FORGE_PLANNER", metavar="P", help="rules, local or model.")
@json_option
def command(
    request: str | None,
    text: str | None,
    shown: str,
    tools: str | None,
    model: str | None,
    planner: str | None,
    as_json: bool,
) -> int:
    """Show REQUEST as a graph of tasks, without running it.

    --json prints the tasks with their dependencies, the levels and the critical path. A plan that cannot be used ends
    with exit code 1 and, with --json, with all its errors.
    """
    from agent_forge.agents.planner import PlanningFailed
    from agent_forge.plans import PlanInvalid

    if (request is None) == (text is None):
        raise click.UsageError("give a request or --text FILE, one of them")
    try:
        if text is not None:
            return _print(read_plan(text), None, shown, as_json)
        from agent_forge.agents.api import plan as make_plan

        planned = make_plan(request or "", tools=tools, model=model, planner=planner)
        return _print(planned.plan, planned, shown, as_json)
    except (PlanInvalid, PlanningFailed) as error:
        if not as_json:
            raise
        return errors_out(error.errors, str(error))


def read_plan(path: str) -> Plan:
    """The plan in a file, '-' for stdin. Raises PlanInvalid, and UsageError where there is no such file."""
    from agent_forge.plans import PlanFault, PlanInvalid, parse_plan

    content = require_bytes(path)
    try:
        text = decoded(content)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise PlanInvalid([PlanFault("malformed", "the text is not UTF-8", line=line)]) from None
    return parse_plan(text)


def errors_out(faults: list[PlanFault], what: str) -> int:
    """Prints the faults of a plan as JSON; the exit code."""
    known = [fault.as_dict() for fault in faults] or [{"code": "malformed", "message": what, "task": None}]
    json_out({"errors": known})
    return 1


def document(plan: Plan, planned: Planned | None) -> dict[str, Any]:
    """What --json prints."""
    tasks = [{**task.as_dict(), "depends_on": _needs(plan, task.id)} for task in plan]
    found: dict[str, Any] = {"tasks": tasks, "levels": plan.levels(), "critical_path": plan.critical_path()}
    found["parallelism"] = plan.parallelism()
    if planned is not None:
        found |= _origin(planned)
    return found


def _needs(plan: Plan, name: str) -> list[str]:
    """What a task waits for, stated or through a reference; for a group, what it states."""
    return list(plan.dependencies.get(name, plan[name].depends_on))


def _origin(planned: Planned) -> dict[str, Any]:
    decided = planned.complexity
    return {
        "request": planned.request,
        "planner": planned.planner,
        "model": planned.model,
        "template": planned.template,
        "attempts": planned.attempts,
        "usage": {"input_tokens": planned.usage.input_tokens, "output_tokens": planned.usage.output_tokens},
        "complexity": {
            "graph": decided.graph,
            "steps": decided.steps,
            "features": dict(decided.features),
            "reason": decided.reason,
        },
    }


def _print(plan: Plan, planned: Planned | None, shown: str, as_json: bool) -> int:
    from agent_forge import plans

    if as_json:
        json_out(document(plan, planned))
        return 0
    writers = {
        "tree": plans.to_tree,
        "lines": plans.to_lines,
        "xml": plans.to_xml,
        "json": plans.to_json,
        "yaml": plans.to_yaml,
        "mermaid": plans.to_mermaid,
    }
    click.echo(writers[shown](plan).rstrip("\n"))
    if planned is not None:
        by = f"{planned.planner} ({planned.model})" if planned.model else planned.planner
        click.echo(f"planned by {by}: {planned.complexity.reason}", err=True)
    return 0
