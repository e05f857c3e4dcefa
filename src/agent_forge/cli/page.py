"""`agent-forge page`: one run as a single HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from agent_forge.cli._app import home_option, json_option, json_out
from agent_forge.errors import MissingExtraError, UsageError


@click.command()
@click.argument("run")
@click.option("--output", metavar="FILE", help="Where it goes; - is stdout. Without it, run-NAME.html here.")
@home_option
@json_option
def command(run: str, output: str | None, home: str | None, as_json: bool) -> None:
    """Write RUN as one HTML file to send to a colleague.

    It holds the plan as a graph, the time line, every task's inputs and outputs, and the run as JSON. It needs no
    server, no network and no script.
    """
    page = _page(run, home)
    if output == "-":
        click.echo(page, nl=False)
        return
    kept = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in run)
    path = Path(output or f"run-{kept}.html")
    try:
        path.write_text(page, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path)) from error
    if as_json:
        json_out({"run": run, "path": str(path), "bytes": path.stat().st_size})
    else:
        click.echo(str(path))


def _page(run: str, home: str | None) -> str:
    try:
        from agent_forge.server.pages.run import run_document, single_page
    except ImportError as error:
        raise MissingExtraError("drawing a page", "server") from error
    from agent_forge.runtime import Journal
    from agent_forge.settings import trace_store
    from agent_forge.traces import Store

    journal = Journal.open(home)
    with Store.open(trace_store(home)) as store:
        return single_page(run_document(journal, store, run, None))
