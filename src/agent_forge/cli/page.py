"""`agent-forge page`: one run as a single HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from agent_forge.cli._options import home_option, json_option, renamed
from agent_forge.cli._output import echo, json_out
from agent_forge.errors import MissingExtraError, UsageError


@click.command()
@click.argument("run")
@renamed("--out", former="--output", metavar="FILE", help="File to write, - for stdout [default: run-RUN.html].")
@home_option
@json_option
def command(run: str, out: str | None, home: str | None, as_json: bool) -> None:
    """Write RUN as one HTML file to share.

    It holds the plan as a graph, the timeline, the inputs and outputs of every task, and the run as JSON. It needs no
    server, network or script.
    """
    page = _page(run, home)
    if out == "-":
        click.echo(page, nl=False)
        return
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in run)
    path = Path(out or f"run-{name}.html")
    try:
        path.write_text(page, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path)) from error
    if as_json:
        json_out({"run": run, "path": str(path), "bytes": path.stat().st_size})
    else:
        echo(str(path))


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
