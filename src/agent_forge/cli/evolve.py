"""`agent-forge evolve`: evolves merge recipes until one beats every parent, or reports that none does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from agent_forge.cli._options import json_option
from agent_forge.cli._output import cell, json_out
from agent_forge.cli._settings import read_settings, set_option, settings_options
from agent_forge.errors import UsageError
from agent_forge.forge.evolution.settings import Evolve


@click.command()
@click.argument("config", type=click.Path())
@click.argument("out", type=click.Path())
@settings_options(Evolve)
@set_option
@json_option
def command(config: str, out: str, sets: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Evolve merges of the parents named in CONFIG, and judge the champion on held-out data.

    \b
        parents: [models/reasoning, models/memory]     # Hugging Face folders
        base: models/base                              # the model they were tuned from
        data:                                          # rows with text, with question and answer, or with choices
          stories: {path: stories.jsonl}
          problems: {path: problems.jsonl}
        search: {generations: 10, evaluations: 60}
        seed: 0

    The same command continues a run that was stopped or killed. The champion is in OUT/champion, its recipe in
    OUT/champion.yaml; with the verdict "no gain" the best parent is the better model.
    """
    if not Path(config).is_file():
        raise UsageError("there is no such file", where=config)
    settings = read_settings(Evolve, options, config, sets=sets)
    from agent_forge.forge import evolve
    from agent_forge.forge.events import Bus, jsonl_sink
    from agent_forge.forge.phases.worker import locked, quiet
    from agent_forge.terminal import ProgressDisplay

    folder = Path(out)
    quiet()
    with locked(folder), ProgressDisplay() as display:
        (folder / "events.jsonl").unlink(missing_ok=True)  # a continued run reports all of its generations again
        bus = Bus(jsonl_sink(folder / "events.jsonl"))

        def tell(**fields: Any) -> None:
            bus.tell("progress", "evolve", **fields)
            detail = (
                f"champion {fields['champion']:.4f}, mean {fields['mean']:.4f}, diversity {fields['diversity']:.2f}, "
                f"{fields['evaluations']} recipes"
            )
            display.update("generation", fields["step"], settings.search.generations, detail=detail)

        display.update("open models and data")
        document = evolve(folder, settings, tell=tell).as_dict()
    if as_json:
        json_out(document)
    else:
        _show(document, folder)


def _show(document: dict[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from agent_forge.forge.evolution.report import sparkline

    held_out, champion = document["held_out"], document["champion"]
    table = Table(title=f"{document['verdict']}: {document['evaluations']} recipes", title_justify="left")
    for column in ("model", "fitness, selection", "fitness, held out"):
        table.add_column(column)
    for row in (*document["parents"], document["uniform_average"]):
        table.add_row(cell(row["name"]), _figure(row["fitness"]), _figure(row["held_out"]))
    table.add_row("champion", _figure(champion["fitness"]), _figure(held_out["champion"]))
    console = Console()
    console.print(table)
    difference, worst = held_out["champion"] - held_out["best_parent"], held_out["worst_task"]
    console.print(
        f"champion − {cell(held_out['best_parent_name'])}: {difference:+.4f} ± {_figure(held_out['stderr'])}; "
        f"worst task {cell(worst['name'])}: {worst['change']:+.1%}"
    )
    history = document["history"]
    console.print(f"fitness   {sparkline([generation['worth'] for generation in history])}")
    console.print(f"diversity {sparkline([generation['diversity'] for generation in history])}")
    console.print(f"[dim]passed on: {cell(document['goes_on'])}; the report is in {cell(out)}[/]")


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
