"""`agent-forge train`: trains a planner on requests with their plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from agent_forge.cli._options import json_option, seed_option
from agent_forge.cli._output import cell, json_out
from agent_forge.cli._settings import read_settings, set_option, settings_options
from agent_forge.learning.settings import PlannerSettings


@click.group()
def command() -> None:
    """Train models for your own work."""


@command.command()
@click.option("--base-model", metavar="MODEL",
              help="Hugging Face folder or digest to start from [default: the shipped planner].")  # fmt: skip
@click.option("--data", multiple=True, metavar="FILE",
              help="Rows (repeatable), as JSON Lines: plans, or logs of tool calls.")  # fmt: skip
@settings_options(PlannerSettings, skip=("data",))
@set_option
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, metavar="DIR", help="New folder for the planner."
)
@seed_option
@click.option("--strict", is_flag=True, help="Exit with 1 unless the planner passed its gate.")
@json_option
def planner(
    base_model: str | None,
    data: tuple[str, ...],
    sets: tuple[str, ...],
    out: Path,
    seed: int,
    strict: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Train a planner: plan with it by --planner DIR.

    \b
        agent-forge train planner --tools tools.py --out mine                    # generated requests
        agent-forge train planner --tools tools.py --traces HOME --out mine      # and what went right before

    Without --base-model the planner that comes with the package is adapted to your tools, on a CPU in minutes. The
    table shows how it does on requests that it has not seen, beside the planner before and planners that learn nothing.
    """
    settings = read_settings(PlannerSettings, options, sets=sets, values={"data": list(data)} if data else {})
    from agent_forge.forge.phases.worker import quiet
    from agent_forge.forge.progress import training_figures
    from agent_forge.learning.planner import train_planner
    from agent_forge.terminal import ProgressDisplay

    quiet()
    with ProgressDisplay() as display:

        def tell(**fields: Any) -> None:
            if "stage" in fields:
                display.update(fields["stage"])
            elif "loss" in fields:
                display.update("train", fields["step"], fields["steps"], unit="steps", detail=training_figures(fields))

        report = train_planner(base_model, out, settings, seed=seed, tell=tell)
    json_out(report.as_dict()) if as_json else _show(report.as_dict(), out)
    return 0 if report.accepted or not strict else 1


def _show(report: dict[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    gate = report["gate"]
    table = Table(title=f"{cell(out)}: {gate['verdict']}", title_justify="left")
    names = [name.removeprefix("fully right, ") for name in report if name.startswith("fully right, ")]
    columns = ("fully right", "grounded arguments", "node F1", "edge F1", "regret")
    for column in ("held-out requests", *columns):
        table.add_column(column)
    for name in names:
        figures = (report.get(f"{column}, {name}") for column in columns)
        table.add_row(name, *("" if figure is None else f"{figure:.2f}" for figure in figures))
    console = Console()
    console.print(table)
    counts = ("training rows", "held-out rows", "steps")
    console.print(", ".join(f"{report[name]:,.0f} {name}" for name in counts))
    for name, count in report.items():
        if name.startswith("dropped, "):
            console.print(f"[dim]{count:,.0f} rows dropped: {cell(name.removeprefix('dropped, '))}[/]")
