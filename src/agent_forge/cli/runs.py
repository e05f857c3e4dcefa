"""`agent-forge runs`: the runs in the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agent_forge.cli._options import home_option, json_option, model_option, tools_option
from agent_forge.cli._output import call_again, echo, json_out

if TYPE_CHECKING:
    from agent_forge.runtime.stored import StoredRun


@click.group()
def command() -> None:
    """List, show, approve and cancel the runs in the journal."""


@command.command()
@home_option
@json_option
def ls(home: str | None, as_json: bool) -> int:
    """List the runs, newest first."""
    return print_runs(home, as_json)


def print_runs(home: str | None, as_json: bool) -> int:
    from datetime import datetime

    from agent_forge.runtime.journal import Journal

    journal = Journal.open(home)
    runs = journal.runs()
    journal.close()
    if as_json:
        json_out({"runs": [run.as_dict() for run in runs]})
        return 0
    for run in runs:
        started = datetime.fromtimestamp(run.created_s).isoformat(" ", "seconds")
        total = "?" if run.tasks is None else run.tasks
        request = str(run.notes.get("request") or "")
        shown = request if len(request) <= 60 else f"{request[:59]}…"
        echo(f"{run.run}  {run.state:12} {started}  {run.done}/{total} tasks  {shown}".rstrip())
    if not runs:
        echo("there are no runs yet: `agent-forge run REQUEST` makes one", err=True)
    return 0


@command.command()
@click.argument("run")
@home_option
@json_option
def show(run: str, home: str | None, as_json: bool) -> int:
    """Show RUN: its tasks, their calls and results, and what waits for a decision."""
    from agent_forge.runtime.journal import Journal

    journal = Journal.open(home)
    try:
        stored = journal.load(run)
    finally:
        journal.close()
    if as_json:
        plan = {} if stored.plan is None else stored.plan.tasks
        document = stored.as_dict() | {"request": stored.summary.notes.get("request"), "in_doubt": stored.in_doubt}
        for name in document["tasks"].keys() & plan.keys():
            document["tasks"][name].update(action=plan[name].action, args=dict(plan[name].args))
        json_out(document)
    else:
        _print_run(stored, home)
    return 0


def _print_run(stored: StoredRun, home: str | None) -> None:
    from agent_forge.agents.approval import question

    line = stored.summary
    echo(f"{line.run}  {line.state}{f': {line.error}' if line.error else ''}")
    if request := line.notes.get("request"):
        echo(f"request: {request}")
    for name, task in stored.tasks.items():
        planned = stored.planned(name)
        what = "" if planned is None else question(planned)
        end = f" → {task.result}" if task.state == "done" else f": {task.error}" if task.error else ""
        echo(f"  {name}  {task.state:9} {what}{end}")
    for name in stored.in_doubt:
        echo(f"settle with: {call_again('run', '--resume', line.run, '--settle', f'{name}=done:VALUE', home=home)}")
    if line.state == "waiting":
        for name in (name for name, task in stored.tasks.items() if task.state == "waiting"):
            echo(f"approve with: {call_again('runs', 'approve', line.run, name, home=home)}")


@command.command()
@click.argument("run")
@click.argument("tasks", nargs=-1, required=True)
@click.option("--reject", is_flag=True, help="Reject the tasks instead.")
@click.option("--args", "changes", metavar="JSON", help="Arguments to change, as a JSON object.")
@tools_option
@model_option
@home_option
@json_option
def approve(
    run: str,
    tasks: tuple[str, ...],
    reject: bool,
    changes: str | None,
    tools: str | None,
    model: str | None,
    home: str | None,
    as_json: bool,
) -> int:
    """Approve TASKS of RUN, which waits, and go on with it. What ran before is not run again.

    Tasks that are not named keep waiting. A run of a server that is up is approved there.
    """
    from agent_forge.agents.api import run as resume_run
    from agent_forge.cli.running import changed_arguments, report, task_display
    from agent_forge.errors import UsageError
    from agent_forge.runtime.journal import Journal

    if reject and changes is not None:
        raise click.UsageError("give either --reject or --args")
    journal = Journal.open(home)
    try:
        stored = journal.load(run)
    finally:
        journal.close()
    unknown = [task for task in tasks if task not in stored.tasks or stored.tasks[task].state == "done"]
    if unknown:
        fix = call_again("runs", "show", run, home=home)
        raise UsageError(f"task {unknown[0]!r} of run {run!r} does not wait for an approval", fix=f"See {fix}")
    answer = not reject if changes is None else changed_arguments(changes)
    with task_display(quiet=as_json) as on_event:
        decisions = dict.fromkeys(tasks, answer)
        result = resume_run(resume=run, approve=decisions, tools=tools, model=model, home=home, on_event=on_event)
    return report(result, home, as_json)


@command.command()
@click.argument("run")
@home_option
@json_option
def cancel(run: str, home: str | None, as_json: bool) -> int:
    """Cancel RUN, which waits or was interrupted: it is not to be continued."""
    from agent_forge.errors import UsageError
    from agent_forge.runtime.journal import Journal

    journal = Journal.open(home)
    try:
        state = journal.summary(run).state
        if state not in ("waiting", "interrupted"):
            raise UsageError(f"run {run!r} is {state}", fix="Stop a running one with Ctrl-C or POST …/cancel")
        journal.cancel(run)
    finally:
        journal.close()
    if as_json:
        json_out({"run": run, "state": "cancelled"})
    else:
        echo(f"{run}  cancelled")
    return 0
