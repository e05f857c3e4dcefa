"""`agent-forge train`: trains a planner on requests with their plans, or the model of an agent on its exercises."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from agent_forge.cli._options import home_option, json_option, seed_option
from agent_forge.cli._output import cell, echo, json_out
from agent_forge.cli._settings import read_settings, set_option, settings_options
from agent_forge.errors import UsageError
from agent_forge.learning.settings import AgentTraining, PlannerSettings


class TrainGroup(click.Group):
    """What is not the name of a command is the name of an agent: `train qa` is `train agent qa`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            if get_close_matches(args[0], ["planner"], cutoff=0.8):
                fix = "The planner is trained by `agent-forge train planner`"
                raise UsageError(f"there is no agent {args[0]!r}", where="agent-forge train", fix=fix)
            args = ["agent", *args]
        return super().parse_args(ctx, args)


@click.group(cls=TrainGroup, subcommand_metavar="planner|AGENT [OPTIONS]")
def command() -> None:
    """Train models for your own work: a planner, or the model of an agent by its name."""


@command.command()
@click.argument("name", metavar="AGENT", required=False)
@click.option("--base-model", metavar="MODEL", required=True,
              help="Model to start from: a Hugging Face folder, a digest, or smollm2.")  # fmt: skip
@click.option("--config", "path", metavar="FILE", help="Trainer configuration of the original, for all its agents.")
@settings_options(AgentTraining)
@set_option
@click.option("--tools", metavar="MODULE|FILE", help="Tools of your own for attempts of several turns.")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="DIR",
              help="New folder for the policy; with --config, one in it per agent.")  # fmt: skip
@click.option("--resume", is_flag=True,
              help="Continue an interrupted run, as the same command does; print a finished one's report.")  # fmt: skip
@seed_option
@home_option
@click.option("--strict", is_flag=True, help="Exit with 1 unless the policy is clearly better than its base.")
@json_option
def agent(
    name: str | None, base_model: str, path: str | None, sets: tuple[str, ...], tools: str | None, out: Path,
    resume: bool, seed: int, home: str | None, strict: bool, as_json: bool, **options: Any,
) -> int:  # fmt: skip
    """Train the model of AGENT on exercises that are checked by executing the answers.

    \b
        agent-forge train qa --base-model smollm2 --iterations 100 --out qa-policy
        agent-forge train qa --base-model smollm2 --algorithm dpo --traces HOME --out qa-policy

    First it learns the reference solvers' answers, then by reinforcement from what its own answers earn. The table
    shows the mean reward on held-out exercises at each stage. The result is an adapter, the agent's next policy.
    """
    agents, stated = [name] if name else [], {}
    if path is not None:
        from agent_forge.config import as_dict
        from agent_forge.learning.trainer_file import read_trainer_file

        listed, settings_in_file = read_trainer_file(path)
        agents, stated = agents or listed, as_dict(settings_in_file)
    if not agents:
        raise UsageError("there is no agent to train", fix="Name one: agent-forge train qa …")
    settings = read_settings(AgentTraining, options, sets=sets, values=stated)
    reports = {
        each: _train(each, base_model, out if path is None else out / each, settings, seed, home, tools, resume)
        for each in agents
    }
    if as_json:
        json_out(reports[agents[0]] if path is None else {"agents": reports})
    else:
        _show_stages(reports)
    return 0 if all(report["accepted"] for report in reports.values()) or not strict else 1


def _train(
    name: str, base: str, out: Path, settings: AgentTraining, seed: int, home: str | None, tools: str | None,
    resume: bool,
) -> dict[str, Any]:  # fmt: skip
    import json

    from agent_forge.forge.phases.worker import quiet
    from agent_forge.learning.agents import REPORT, train_agent
    from agent_forge.terminal import ProgressDisplay

    if resume and (out / REPORT).is_file():
        return dict(json.loads((out / REPORT).read_text(encoding="utf-8")))
    quiet()
    with ProgressDisplay() as display:

        def tell(**fields: Any) -> None:
            if "stage" in fields:
                display.update(fields["stage"])
            elif "steps" in fields and "step" in fields:
                known = [name for name in ("loss", "reward") if fields.get(name) is not None]
                figures = ", ".join(f"{name} {fields[name]:.3f}" for name in known)
                display.update(fields["phase"], fields["step"], fields["steps"], unit="steps", detail=figures)

        report = train_agent(name, base, out, settings, seed=seed, home=home, tools=tools, tell=tell)
    return report.as_dict()


def _show_stages(reports: dict[str, dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    stages = ("before", "warmup", "after", "control")
    table = Table("agent", *stages, "policy", title="mean reward on held-out exercises", title_justify="left")
    for name, report in reports.items():
        figures = (report.get(stage) for stage in stages)
        cells = ["" if one is None else f"{one['mean']:.3f} ± {one['stderr'] or 0:.3f}" for one in figures]
        table.add_row(cell(name), *cells, cell(report["policy"]["name"]))
    Console().print(table)
    for name, report in reports.items():
        gate, policy = report["gate"], report["policy"]["name"]
        gain = f"{gate['after'] - gate['before']:+.3f} ± {gate['stderr'] or 0:.3f} over its base: {gate['verdict']}"
        use = f" Use it with --model {policy}." if report["accepted"] else ""
        echo(f"{policy} ({gain}) is in {report['out']}.{use}")
        if report["stopped"]:
            echo(f"{name}: reinforcement stopped early: {report['stopped']}", err=True)


@command.command()
@click.option("--base-model", metavar="MODEL",
              help="Model to start from: a folder or a digest [default: the shipped planner].")  # fmt: skip
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
        agent-forge train planner --tools tools.py --reinforce 50 --out mine     # then from its own plans, scored

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
            elif "reward" in fields:
                detail = f"reward {fields['reward']:.3f}"
                display.update("reinforce", fields["iteration"], fields["iterations"], unit="iterations", detail=detail)
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
