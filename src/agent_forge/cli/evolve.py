"""`agent-forge evolve`: breed merge recipes until one beats every parent, or say that none does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from agent_forge.cli._app import json_option, json_out


@click.command()
@click.argument("config", type=click.Path())
@click.argument("out", type=click.Path())
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Change a value: search.generations=5")
@json_option
def command(config: str, out: str, sets: tuple[str, ...], as_json: bool) -> None:
    """Evolve merges of the parents that CONFIG names, and judge the champion on held-out data.

    \b
        parents: [models/reasoning, models/memory]     # Hugging Face folders
        base: models/base                              # what they were branched from
        data:                                          # rows with text, with question and answer, or with choices
          stories: {path: stories.jsonl}
          problems: {path: problems.jsonl}
        search: {generations: 10, evaluations: 60}
        seed: 0

    The same command goes on with a run that was stopped or killed. The champion is in OUT/champion, its recipe in
    OUT/champion.yaml; with the verdict "no gain" the best parent is the better model.
    """
    from agent_forge.config import load
    from agent_forge.forge.evolution.settings import Evolve

    settings = load(Evolve, _existing(config), sets=sets)
    from agent_forge.forge.events import Bus, jsonl_sink
    from agent_forge.forge.evolution.report import write_report
    from agent_forge.forge.evolution.run import evolve
    from agent_forge.forge.phases.worker import locked, quiet

    folder = Path(out)
    quiet()
    with locked(folder):
        (folder / "events.jsonl").unlink(missing_ok=True)  # a run that goes on tells all of its generations again
        bus = Bus(jsonl_sink(folder / "events.jsonl"))

        def tell(**fields: Any) -> None:
            bus.tell("progress", "evolve", **fields)
            _say(fields)

        document = write_report(evolve(settings, folder, tell), folder)
    if as_json:
        json_out(document)
    else:
        _show(document, folder)


def _existing(config: str) -> str:
    from agent_forge.errors import UsageError

    if not Path(config).is_file():
        raise UsageError("there is no such file", where=config)
    return config


def _say(fields: dict[str, Any]) -> None:
    line = (
        f"generation {fields['step']}: champion {fields['champion']:.4f}, mean {fields['mean']:.4f}, "
        f"diversity {fields['diversity']:.2f}, {fields['evaluations']} recipes"
    )
    print(line, file=sys.stderr, flush=True)


def _show(document: dict[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from agent_forge.forge.evolution.report import sparkline

    held_out, champion = document["held_out"], document["champion"]
    table = Table(title=f"{document['verdict']}: {document['evaluations']} recipes", title_justify="left")
    for column in ("model", "fitness, selection", "fitness, held out"):
        table.add_column(column)
    for row in (*document["parents"], document["uniform_average"]):
        table.add_row(row["name"], _figure(row["fitness"]), _figure(row["held_out"]))
    table.add_row("champion", _figure(champion["fitness"]), _figure(held_out["champion"]))
    console = Console()
    console.print(table)
    error = held_out["stderr"]
    console.print(f"champion − {held_out['best_parent_name']}: "
                  f"{held_out['champion'] - held_out['best_parent']:+.4f} ± {_figure(error)}; "
                  f"worst task {held_out['worst_task']['name']}: {held_out['worst_task']['change']:+.1%}")  # fmt: skip
    history = document["history"]
    console.print(f"fitness   {sparkline([generation['worth'] for generation in history])}")
    console.print(f"diversity {sparkline([generation['diversity'] for generation in history])}")
    console.print(f"goes on: {document['goes_on']}; the report is in {out}", style="dim")


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
