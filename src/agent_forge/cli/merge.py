"""`agent-forge merge`: one model of several, by mergekit's configuration files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from agent_forge.cli._app import json_option, json_out, require_file


@click.command()
@click.argument("config")
@click.argument("out", required=False)
@click.option("--check", is_flag=True, help="Only read the configuration and the models' headers; write nothing.")
@click.option("--threads", type=click.IntRange(1, 256), help="Tensors that are merged at once [default: one a core].")
@click.option("--shard-gb", type=click.FloatRange(min=0, min_open=True), default=5.0, show_default=True)
@click.option("--fresh", is_flag=True, help="Do not go on with what a killed run has left.")
@click.option("--no-sync", is_flag=True, help="Leave it to the system when the bytes reach the disk.")
@json_option
def command(
    config: str,
    out: str | None,
    check: bool,
    threads: int | None,
    shard_gb: float,
    fresh: bool,
    no_sync: bool,
    as_json: bool,
) -> None:
    """Merge models as CONFIG says, a mergekit YAML file ('-' for stdin), into the new folder OUT.

    Everything is checked before anything is written; OUT appears complete or not at all; a merge that was killed goes
    on where it was when it is called again.
    """
    from agent_forge.forge.merging import MergeSettings, merge, parse_recipe, prepare

    recipe = parse_recipe(require_file(config), where=config)
    beside = None if config == "-" else Path(config).resolve().parent
    if check or out is None:
        if not check:
            raise click.UsageError("OUT is missing (or give --check)")
        layout = prepare(recipe, beside=beside).layout
        found = {"ok": True, "tensors": len(layout.outputs), "parameters": layout.parameters}
        if as_json:
            json_out(found)
        else:
            click.echo(f"sound: {len(layout.outputs)} tensors, {layout.parameters:,} parameters")
        return
    with _bar(quiet=as_json) as progress:
        settings = MergeSettings(threads, shard_gb, resume=not fresh, sync=not no_sync)
        report = merge(recipe, out, settings, progress=progress, beside=beside)
    if as_json:
        json_out(report.document())
        return
    went_on = f", {report.resumed} of them by an earlier run" if report.resumed else ""
    click.echo(
        f"{report.method}: {report.tensors} tensors{went_on}, {report.parameters:,} parameters, "
        f"{report.bytes / 1e6:,.1f} MB in {report.seconds:.2f} s"
    )
    click.echo(f"the model is in {report.out}")


@contextmanager
def _bar(quiet: bool) -> Iterator[Callable[[int, int, str], None] | None]:
    """A progress bar with rate and time left on a terminal; elsewhere, a line at every tenth."""
    if not sys.stderr.isatty():
        yield None if quiet else _tenths()
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")
        yield lambda done, total, name: bar.update(task, completed=done, total=total, description=name)


def _tenths() -> Callable[[int, int, str], None]:
    told = 0

    def progress(done: int, total: int, name: str) -> None:
        nonlocal told
        if done * 10 // max(total, 1) > told:
            told = done * 10 // max(total, 1)
            click.echo(f"{told * 10:3d} %  {done / 1e6:,.0f} of {total / 1e6:,.0f} MB", err=True)

    return progress
