"""`agent-forge merge`: merges models, from mergekit's configuration files."""

from __future__ import annotations

from pathlib import Path

import click

from agent_forge.cli._options import json_option
from agent_forge.cli._output import echo, json_out, read_text


@click.command()
@click.argument("config")
@click.argument("out", required=False)
@click.option("--check", is_flag=True, help="Only check the configuration and the models' headers; write nothing.")
@click.option("--threads", type=click.IntRange(1, 256), help="Tensors to merge in parallel [default: one per core].")
@click.option("--shard-gb", type=click.FloatRange(min=0, min_open=True), default=5.0, show_default=True,
              help="Size limit of a weight file, in GB.")  # fmt: skip
@click.option("--fresh", is_flag=True, help="Start over instead of continuing a killed merge.")
@click.option("--no-sync", is_flag=True, help="Do not wait until the data is on disk.")
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
    """Merge models as described in CONFIG, a mergekit YAML file ('-' for stdin), into the new folder OUT.

    Everything is checked before anything is written, and OUT appears complete or not at all. The same command
    continues a merge that was killed.
    """
    from agent_forge.forge.merging import MergeSettings, merge, parse_recipe, prepare
    from agent_forge.terminal import ProgressDisplay

    recipe = parse_recipe(read_text(config), where=config)
    beside = None if config == "-" else Path(config).resolve().parent
    if check:
        layout = prepare(recipe, beside=beside).layout
        if as_json:
            json_out({"ok": True, "tensors": len(layout.outputs), "parameters": layout.parameters})
        else:
            echo(f"valid: {len(layout.outputs)} tensors, {layout.parameters:,} parameters")
        return
    if out is None:
        raise click.UsageError("OUT is missing (or add --check)")
    settings = MergeSettings(threads, shard_gb, resume=not fresh, sync=not no_sync)
    with ProgressDisplay() as display:

        def progress(done: int, total: int, name: str) -> None:
            display.update("merge", done, total, unit="B", detail=name)

        report = merge(recipe, out, settings, progress=progress, beside=beside)
    if as_json:
        json_out(report.document())
        return
    resumed = f", {report.resumed} of them by an earlier run" if report.resumed else ""
    echo(
        f"{report.method}: {report.tensors} tensors{resumed}, {report.parameters:,} parameters, "
        f"{report.bytes / 1e6:,.1f} MB in {report.seconds:.2f} s"
    )
    echo(f"the model is in {report.out}")
