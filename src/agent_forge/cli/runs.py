"""`agent-forge runs`: the runs in the journal."""

from __future__ import annotations

import click

from agent_forge.cli._options import home_option, json_option
from agent_forge.cli._output import echo, json_out


@click.group()
def command() -> None:
    """List the runs in the journal."""


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
        echo(f"{run.run}  {run.state:12} {started}  {run.done}/{total} tasks")
    return 0
