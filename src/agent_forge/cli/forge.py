"""`agent-forge forge`: makes models."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._options import (
    data_option,
    home_option,
    json_option,
    mask_option,
    sample_option,
    seed_option,
    sources_of,
    workers_option,
)
from agent_forge.cli._output import cell, echo, json_out
from agent_forge.cli._settings import read_settings, set_option, settings_options
from agent_forge.errors import UsageError
from agent_forge.forge.exporting import ExportSettings

if TYPE_CHECKING:
    from agent_forge.forge.events import PhaseEvent
    from agent_forge.forge.pipeline import Report
    from agent_forge.terminal import ProgressDisplay


@click.group()
def command() -> None:
    """Make a model, phase by phase: from nothing, or from any Hugging Face model, to a small specialist."""


@command.command()
@click.argument("pipeline", metavar="PRESET|FILE")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE",
              help="Change a value, e.g. phases.base.config.length=64.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Fail when a phase brings no gain; otherwise its input is passed on.")
@workers_option
@click.option("--tensorboard", is_flag=True, help="Also write TensorBoard logs, beside the session's events.")
@click.option("--wandb", is_flag=True, help="Also write an offline Weights & Biases log, beside the session's events.")
@mask_option
@sample_option
@home_option
@json_option
def run(
    pipeline: str,
    sets: tuple[str, ...],
    strict: bool,
    workers: str | None,
    tensorboard: bool,
    wandb: bool,
    mask: str | None,
    sample: float | None,
    home: str | None,
    as_json: bool,
) -> int:
    """Run a pipeline: nano (minutes on 2 cores), small (minutes on a GPU), full, or a file.

    Finished phases are skipped, and the same command continues a run that was stopped or killed.
    """
    from agent_forge.forge.pipeline import read_pipeline

    checked = read_pipeline(pipeline, sets)
    from agent_forge.forge.events import Bus, tensorboard_sink, wandb_sink
    from agent_forge.forge.registry import Registry
    from agent_forge.forge.session import ForgeSession
    from agent_forge.settings import trace_store
    from agent_forge.terminal import ProgressDisplay
    from agent_forge.traces import Recorder

    registry = Registry(home)
    recorder = Recorder.from_settings(trace_store(registry.home), mask=mask, sample=sample)
    try:
        with ProgressDisplay() as display:
            bus = Bus(event_display(display))
            session = ForgeSession(checked, registry, strict=strict, bus=bus, recorder=recorder, workers=workers)
            if tensorboard:
                session.bus.sinks.append(tensorboard_sink(session.folder / "tensorboard"))
            if wandb:
                session.bus.sinks.append(wandb_sink(session.folder, session.id))
            report = session.run()
    except KeyboardInterrupt:
        echo(f"session {session.id} is paused: the same command continues it", err=True)
        raise
    finally:
        recorder.close()
    if as_json:
        json_out(report.as_dict())
    else:
        _show(report, str(registry.models))
    return 0 if report.state == "completed" else 1


def event_display(display: ProgressDisplay) -> Callable[[PhaseEvent], None]:
    """A sink that shows the events of a session: a bar per training phase, a line for everything else."""
    from agent_forge.forge.progress import training_figures

    def on_event(event: PhaseEvent) -> None:
        fields = event.fields
        if event.kind != "progress":
            display.finish(event.phase)
            gate = fields.get("gate")
            detail = fields.get("error") or (_gate(gate) if gate else "")
            display.line(f"{event.phase}: {event.kind}{f' ({detail})' if detail else ''}")
        elif "loss" in fields:
            detail = training_figures(fields)
            display.update(event.phase, fields["step"], fields.get("steps"), unit="steps", detail=detail)
        elif "done" in fields:
            display.update(event.phase, fields["done"], fields["total"], detail=str(fields.get("stage", "")))

    return on_event


def _gate(gate: Any) -> str:
    note = f"; {gate['note']}" if gate.get("note") else ""
    if gate["before"] is None or gate["after"] is None:
        return f"{gate['metric']}: {gate['verdict']}{note}"
    error = "" if gate["stderr"] is None else f" ± {gate['stderr']:.2g}"
    control = f", control {gate['control']:.4g}" if gate.get("control") is not None else ""
    return f"{gate['metric']} {gate['before']:.4g} → {gate['after']:.4g}{error}{control}{note}"


def _show(report: Report, models: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"session {report.session}: {report.state}", title_justify="left")
    for column in ("phase", "state", "gate", "checkpoint", "seconds"):
        table.add_column(column)
    for phase in report.phases:
        gate = _gate(phase.gate) if phase.gate else phase.error
        seconds = f"{phase.seconds:.1f}" if phase.seconds is not None else ""
        table.add_row(cell(phase.name), phase.state, cell(gate), (phase.checkpoint or "")[:12], seconds)
    console = Console()
    console.print(table)
    for phase in report.phases:
        if phase.traceback is not None:
            console.print(f"Where {cell(phase.name)} failed: {cell(phase.traceback)}", soft_wrap=True)
    console.print(f"[dim]The models are in {cell(models)}[/]")


@command.command("phase")
@click.argument("name")
@click.argument("paths", nargs=-1, required=True, metavar="[MODEL]... OUT")
@click.option("--config", "files", multiple=True, metavar="FILE", help="Settings of the phase, as YAML (repeatable).")
@data_option
@set_option
@seed_option
@click.option("--strict", is_flag=True, help="Exit with 1 unless the result passed the gate of the phase.")
@json_option
def phase_command(
    name: str,
    paths: tuple[str, ...],
    files: tuple[str, ...],
    data: tuple[str, ...],
    sets: tuple[str, ...],
    seed: int,
    strict: bool,
    as_json: bool,
) -> int:
    """Run the phase NAME alone on MODEL (a folder or a digest; some phases take none, or several) into the folder OUT.

    \b
        agent-forge forge phase quietstar models/mine thinking
        agent-forge forge phase quietstar models/mine thinking --data notes.jsonl --set thought_tokens=4

    The settings are those of a pipeline file: `agent-forge forge phases --json` lists them. OUT is what the phase made,
    also where it brought no gain; the same command continues a run that was stopped or killed.
    """
    from agent_forge.forge import run_phase
    from agent_forge.forge.events import PhaseEvent
    from agent_forge.forge.phases import phase
    from agent_forge.forge.phases.worker import quiet
    from agent_forge.terminal import ProgressDisplay

    *models, out = paths
    settings = read_settings(phase(name).config, {}, *files, sets=sets, values=sources_of(data))
    quiet()
    with ProgressDisplay() as display:
        show = event_display(display)

        def tell(**fields: Any) -> None:
            show(PhaseEvent("progress", name, fields))

        report = run_phase(name, models, out, settings, seed=seed, tell=tell)
    if as_json:
        json_out(report.as_dict())
    else:
        echo(f"{report.out}: {report.gate.verdict} ({_gate(report.gate.as_dict())})")
    return 0 if report.accepted or not strict else 1


@command.command()
@home_option
@json_option
def ls(home: str | None, as_json: bool) -> None:
    """List the sessions."""
    from agent_forge.forge.registry import Registry

    sessions = [{**session, "pipeline": session["pipeline"]["name"]} for session in Registry(home).sessions()]
    if not sessions and not as_json:
        echo("there are no sessions yet: `agent-forge forge run nano` starts one", err=True)
    _print_states(sessions, "session", as_json)


@command.command()
@click.argument("session")
@home_option
@json_option
def show(session: str, home: str | None, as_json: bool) -> None:
    """Show the phases of SESSION."""
    from agent_forge.forge.registry import Registry

    registry = Registry(home)
    if session not in {row["session"] for row in registry.sessions()}:
        raise UsageError(f"there is no session {session!r}", fix="`agent-forge forge ls` lists them")
    phases = registry.phases(session)
    for phase in phases:
        file = registry.home / "sessions" / session / f"{phase['name']}.traceback.txt"
        phase["traceback"] = str(file) if file.is_file() else None
    _print_states(phases, "name", as_json)


@command.command(hidden=True)
@click.argument("session", required=False)
@click.pass_context
@home_option
@json_option
def status(ctx: click.Context, session: str | None, home: str | None, as_json: bool) -> None:
    """`ls` and `show`, as they were called before."""
    if session is None:
        ctx.invoke(ls, home=home, as_json=as_json)
    else:
        ctx.invoke(show, session=session, home=home, as_json=as_json)


def _print_states(rows: list[dict[str, Any]], key: str, as_json: bool) -> None:
    if as_json:
        json_out(rows)
        return
    for row in rows:
        echo(f"{row[key]:36s} {row['state']}")
        if row.get("error"):
            echo(f"    {row['error']}")
        if row.get("traceback"):
            echo(f"    where it failed: {row['traceback']}")


@command.command()
@click.option("--source", "sources", required=True, multiple=True, metavar="DIGEST|FOLDER",
              help="Checkpoint to hand over (repeatable, in this order).")  # fmt: skip
@click.option("--target", required=True, metavar="PHASE", help="Phase that would take it.")
@home_option
@json_option
def handoff(sources: tuple[str, ...], target: str, home: str | None, as_json: bool) -> int:
    """Check, clause by clause, whether a phase would take a checkpoint; exits with 1 if it would not."""
    from pathlib import Path

    from agent_forge.forge import checkpoint
    from agent_forge.forge.contracts import clauses
    from agent_forge.forge.handoff import ADAPTERS
    from agent_forge.forge.phases import phase
    from agent_forge.forge.registry import Registry

    contract = phase(target).takes
    checkpoints = [checkpoint.load(one) if Path(one).is_dir() else Registry(home).load(one) for one in sources]
    checks = clauses(contract, checkpoints)
    passed = all(check.met or check.name in ADAPTERS for check in checks)
    if as_json:
        rows = [
            {"clause": c.name, "required": c.required, "found": c.actual, "met": c.met, "adapter": c.name in ADAPTERS}
            for c in checks
        ]
        digests = [one.digest for one in checkpoints]
        source = digests[0] if len(digests) == 1 else digests
        json_out({"source": source, "target": target, "passed": passed, "clauses": rows})
    else:
        for check in checks:
            adapted = ", an adapter would be applied" if not check.met and check.name in ADAPTERS else ""
            echo(f"{'✓' if check.met else '✗'} {check}{adapted}")
    return 0 if passed else 1


@command.command()
@json_option
def phases(as_json: bool) -> None:
    """List the phases and what each takes; with --json, also the configuration of each."""
    from dataclasses import fields

    from agent_forge.forge.phases import MODULES, phase

    kinds = [phase(name) for name in MODULES]
    if as_json:
        json_out(
            [
                {
                    "name": kind.name,
                    "about": kind.about,
                    "takes": list(kind.takes.checkpoints),
                    "config": {field.name: field.metadata.get("help", "") for field in fields(kind.config)},
                }
                for kind in kinds
            ]
        )
        return
    for kind in kinds:
        low, high = kind.takes.checkpoints
        count = f"{low}" if low == high else f"{low} to {high}"
        echo(f"{kind.name:12s} {kind.about} (takes {count} checkpoint{'s' * (high != 1)})")


@command.command()
@click.argument("digest", metavar="DIGEST|SESSION[/PHASE]|FOLDER")
@click.argument("out")
@settings_options(ExportSettings)
@home_option
@json_option
def export(digest: str, out: str, home: str | None, as_json: bool, **options: Any) -> None:
    """Verify a checkpoint and write it to the folder OUT, with a README made from its card.

    The folder loads in transformers, and in vLLM unless the architecture is our own; `--format gguf` writes a file for
    llama.cpp from a Llama-like model.
    """
    from pathlib import Path

    from agent_forge.forge import checkpoint
    from agent_forge.forge.exporting import export_model
    from agent_forge.forge.registry import Registry

    registry = Registry(home)
    source = checkpoint.load(digest) if Path(digest).is_dir() else registry.load(digest)
    report = export_model(source, out, read_settings(ExportSettings, options), registry)
    for parent in report.missing:
        echo(f"its parent {parent[:12]} is not in the registry: the README has no figures to compare with", err=True)
    json_out(report.as_dict()) if as_json else echo(str(report.path))
