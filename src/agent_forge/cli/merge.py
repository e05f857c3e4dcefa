"""`agent-forge merge`: merges models, from mergekit's configuration files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from agent_forge.cli._options import json_option, sources_of
from agent_forge.cli._output import echo, json_out, read_text
from agent_forge.cli._settings import read_settings, settings_options
from agent_forge.forge.merging.settings import MergeSettings


@click.command()
@click.argument("config")
@click.argument("out", required=False)
@click.option("--check", is_flag=True, help="Only check the configuration and the models' headers; write nothing.")
@settings_options(MergeSettings)
@click.option("--data", multiple=True, metavar="PATH",
              help="Text to judge the merge on (repeatable): a JSONL or text file, or a folder of them.")  # fmt: skip
@json_option
def command(config: str, out: str | None, check: bool, data: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Merge models as described in CONFIG, a mergekit YAML file ('-' for stdin), into the new folder OUT.

    Everything is checked before anything is written, and OUT appears complete or not at all. The same command
    continues a merge that was killed. With --data the merge is judged on held-out text, against its best input.
    """
    from agent_forge.forge.merging import parse_recipe, prepare, to_mapping
    from agent_forge.forge.merging.job import merge_models
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
    stages = [to_mapping(one) for one in (*recipe.stages, recipe)]
    settings = read_settings(MergeSettings, options, values={"recipe": stages, **sources_of(data)})
    with ProgressDisplay() as display:

        def progress(done: int, total: int, name: str) -> None:
            display.update("merge", done, total, unit="B", detail=name)

        report = merge_models([], Path(out), settings, beside=beside, where=config, progress=progress)
    if as_json:
        json_out(report.as_dict())
        return
    resumed = f", {report.resumed} of them by an earlier run" if report.resumed else ""
    echo(
        f"{report.method}: {report.tensors} tensors{resumed}, {report.parameters:,} parameters, "
        f"{report.bytes / 1e6:,.1f} MB in {report.seconds:.2f} s"
    )
    if report.gate is not None:
        gate = report.gate
        echo(f"{gate.metric}: {gate.before:.4f} → {gate.after:.4f} ± {gate.stderr or 0:.4f}: {gate.verdict}")
    echo(f"the model is in {report.out}")
