"""`agent-forge run`: a request or a plan file, carried out."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._app import home_option, json_option, json_out
from agent_forge.errors import UsageError

if TYPE_CHECKING:
    from agent_forge.agents.result import Result
    from agent_forge.runtime import Budget

_BUDGET = {"tokens": int, "calls": int, "cost": float, "seconds": float}


@click.command()
@click.argument("request", required=False)
@click.option("--plan", "plan_file", metavar="FILE", help="Carry out this plan, in any of the formats; - is stdin.")
@click.option("--tools", metavar="MODULE", help="A module or file with @tool functions. Without it, the embedded ones.")
@click.option("--resume", metavar="RUN", help="Go on with a run that was interrupted; nothing finished is repeated.")
@click.option("--list", "listed", is_flag=True, help="List the runs.")
@click.option(
    "--model", envvar="AGENT_FORGE_MODEL", metavar="M", help="http://host:port/v1#name, a folder, or smollm2."
)
@click.option("--planner", envvar="AGENT_FORGE_PLANNER", metavar="P", help="rules, local or model.")
@click.option(
    "--concurrency", envvar="AGENT_FORGE_CONCURRENCY", type=click.IntRange(min=1), metavar="N", help="Tasks at once."
)
@click.option("--timeout", "timeout_s", type=float, metavar="S", help="Seconds that one task may take.")
@click.option("--budget", multiple=True, metavar="KEY=N", help="tokens=, calls=, cost= or seconds=; may be repeated.")
@click.option(
    "--on-failure",
    type=click.Choice(["skip", "fail_fast", "continue"]),
    default="skip",
    help="What a failed task does to the others.",
)
@click.option("--team", is_flag=True, help="Give every task to an agent, by rules, measured trust and load.")
@home_option
@json_option
def command(request: str | None, plan_file: str | None, listed: bool, as_json: bool, **options: Any) -> int:
    """Plan REQUEST and carry it out, or carry out the plan in --plan FILE.

    Tasks that do not need each other run at once. The exit code is 0 when every task is done and 1 otherwise.
    """
    if listed:
        return _list(options["home"], as_json)
    if sum(given is not None for given in (request, plan_file, options["resume"])) != 1:
        raise click.UsageError("give a request, --plan FILE or --resume RUN, one of them")
    from agent_forge.agents.planner import PlanningFailed
    from agent_forge.plans import PlanInvalid

    try:
        return _show(_run(request, plan_file, as_json, options), as_json)
    except (PlanInvalid, PlanningFailed) as error:
        if not as_json:
            raise
        from agent_forge.cli.plan import errors_out

        return errors_out(error.errors, str(error))


def _run(request: str | None, plan_file: str | None, as_json: bool, options: dict[str, Any]) -> Result:
    from agent_forge.agents.api import run
    from agent_forge.cli._live import live_view
    from agent_forge.cli.plan import read_plan
    from agent_forge.runtime import new_run_id

    work = read_plan(plan_file) if plan_file is not None else request
    name = options["resume"] or new_run_id()
    settings = {
        **{key: value for key, value in options.items() if key != "budget"},
        "budget": _budget(options["budget"]),
        **({} if options["resume"] else {"run_id": name}),
    }
    try:
        with live_view(quiet=as_json) as on_event:
            return run(work, on_event=on_event, **settings)
    except KeyboardInterrupt:
        click.echo(_interrupted(name, options["home"]), err=True)
        raise


def _budget(pairs: tuple[str, ...]) -> Budget | None:
    from agent_forge.runtime import Budget

    found: dict[str, Any] = {}
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key not in _BUDGET:
            raise UsageError(f"--budget {pair}: there is no budget of {key!r}", fix=f"one of {', '.join(_BUDGET)}")
        try:
            found["wall_s" if key == "seconds" else key] = _BUDGET[key](value)
        except ValueError:
            raise UsageError(f"--budget {pair}: {value!r} is not a number") from None
    return Budget(**found) if found else None


def _interrupted(name: str, home: str | None) -> str:
    """What was saved of an interrupted run, and how to go on with it."""
    from agent_forge.errors import StoreError
    from agent_forge.runtime.journal import Journal

    try:
        journal = Journal.open(home)
        done = len(journal.load(name).results)
        journal.close()
    except StoreError:
        return "nothing had begun, so nothing was saved"
    where = "" if home in (None, os.environ.get("AGENT_FORGE_HOME")) else f" --home {shlex.quote(str(home))}"
    return f"{done} finished task{'s' if done != 1 else ''} saved; go on with: agent-forge run --resume {name}{where}"


def _show(result: Result, as_json: bool) -> int:
    if as_json:
        json_out(result.as_dict())
    else:
        _print(result)
    return 0 if result.ok else 1


def _print(result: Result) -> None:
    """The answer, or the results of a plan, on stdout; how it went on stderr."""
    if result.request is not None:
        click.echo(result.answer or "unknown")
    else:
        for name, task in result.tasks.items():
            click.echo(f"{name}: {task.result if task.ok else f'[{task.state}] {task.error}'}")
    for name, found in result.evidence.items():
        click.echo(f"  {name}: {result.tasks[name].result}  ({found.source})", err=True)
    for name, task in result.tasks.items():
        if not task.ok and result.request is not None:
            click.echo(f"  {name}: {task.state}: {task.error}", err=True)
    usage = result.usage
    tokens = (
        "tokens not counted" if usage.input_tokens is None else f"{usage.input_tokens}+{usage.output_tokens} tokens"
    )
    click.echo(
        f"{result.state} in {result.wall_s:.2f} s (critical path {result.critical_path_s:.2f} s), "
        f"{usage.tool_calls} tool calls, {usage.model_calls} model calls, {tokens}; "
        f"run {result.run}, trace {result.trace_id}",
        err=True,
    )


def _list(home: str | None, as_json: bool) -> int:
    from datetime import datetime

    from agent_forge.runtime.journal import Journal

    journal = Journal.open(home)
    runs = journal.runs()
    journal.close()
    if as_json:
        json_out({"runs": [run.as_dict() for run in runs]})
        return 0
    for run in runs:
        begun = datetime.fromtimestamp(run.created_s).isoformat(" ", "seconds")
        click.echo(f"{run.run}  {run.state:12} {begun}  {run.done}/{run.tasks if run.tasks is not None else '?'} tasks")
    return 0
