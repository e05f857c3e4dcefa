"""`agent-forge forge`: make models."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TextIO

import click

from agent_forge.cli._app import home_option, json_option, json_out

if TYPE_CHECKING:
    from agent_forge.forge.events import PhaseEvent
    from agent_forge.forge.pipeline import Report


@click.group()
def command() -> None:
    """Make a model: phases from nothing, or from any Hugging Face model, to a small specialist."""


@command.command()
@click.argument("pipeline", metavar="PRESET|FILE")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Change a value: phases.base.config.length=64")
@click.option("--strict", is_flag=True, help="A phase without gain fails the run; otherwise its input is passed on.")
@click.option("--tensorboard", is_flag=True, help="Also write TensorBoard logs, beside the session's events.")
@click.option("--wandb", is_flag=True, help="Also write an offline Weights & Biases log, beside the session's events.")
@home_option
@json_option
def run(
    pipeline: str, sets: tuple[str, ...], strict: bool, tensorboard: bool, wandb: bool, home: str | None, as_json: bool
) -> int:
    """Run a pipeline: nano (minutes on 2 cores), small (minutes on a GPU), full, or a file.

    What is finished is skipped, and a run that was stopped or killed goes on where it was.
    """
    from agent_forge.forge.pipeline import read_pipeline

    checked = read_pipeline(pipeline, sets)
    from agent_forge.forge.events import Bus, tensorboard_sink, wandb_sink
    from agent_forge.forge.registry import Registry
    from agent_forge.forge.session import ForgeSession
    from agent_forge.settings import trace_store
    from agent_forge.traces import Recorder

    registry = Registry(home)
    recorder = Recorder(trace_store(registry.home))
    try:
        session = ForgeSession(checked, registry, strict=strict, bus=Bus(Talk(sys.stderr)), recorder=recorder)
        if tensorboard:
            session.bus.sinks.append(tensorboard_sink(session.folder / "tensorboard"))
        if wandb:
            session.bus.sinks.append(wandb_sink(session.folder, session.id))
        report = session.run()
    except KeyboardInterrupt:
        click.echo(f"session {session.id} is paused: the same command goes on with it", err=True)
        raise
    finally:
        recorder.close()
    if as_json:
        json_out(report.as_dict())
    else:
        _show(report, str(registry.models))
    return 0 if report.state == "completed" else 1


PLAIN_EVERY_S = 15.0


class Talk:
    """What is said while it runs, on stderr: a line an event. Training steps are one line that is written over on a
    terminal; elsewhere a plain line now and then."""

    def __init__(self, stream: TextIO, every_s: float = PLAIN_EVERY_S) -> None:
        self.stream, self.every_s = stream, every_s
        self.terminal, self.said_s = stream.isatty(), time.monotonic()

    def __call__(self, event: PhaseEvent) -> None:
        if event.kind != "progress":
            gate = event.fields.get("gate")
            detail = event.fields.get("error") or (_gate(gate) if gate else "")
            self._say(f"{event.phase}: {event.kind}{f' ({detail})' if detail else ''}", "\n")
        elif "loss" in event.fields and (self.terminal or time.monotonic() - self.said_s >= self.every_s):
            self._say(f"{event.phase}: {_step(event.fields)}", "" if self.terminal else "\n")

    def _say(self, text: str, end: str) -> None:
        self.said_s = time.monotonic()
        print(f"{CLEAR if self.terminal else ''}{text}", end=end, file=self.stream, flush=True)


CLEAR = "\r\033[K"


def _step(fields: Mapping[str, Any]) -> str:
    """How far the training is: the step, the loss, and what was measured of its speed."""
    step, steps, rate = fields["step"], fields.get("steps"), fields.get("tokens_per_s")
    parts = [f"step {step}" if steps is None else f"step {step}/{steps}", f"loss {fields['loss']:.3f}"]
    if rate:
        parts.append(f"{rate:,.0f} tokens/s")
        if fields.get("mfu") is not None:
            parts.append(f"MFU {fields['mfu']:.1%}")
        if steps is not None and fields.get("tokens"):
            parts.append(f"{_clock((steps - step) * fields['tokens'] / step / rate)} left")
    return ", ".join(parts)


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _gate(gate: Any) -> str:
    if gate["verdict"] == "not measured":
        return f"{gate['metric']}: not measured"
    return f"{gate['metric']} {gate['before']:.4g} → {gate['after']:.4g} ± {gate['stderr']:.2g}"


def _show(report: Report, models: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"session {report.session}: {report.state}", title_justify="left")
    for column in ("phase", "state", "gate", "checkpoint", "seconds"):
        table.add_column(column)
    for phase in report.phases:
        gate = _gate(phase.gate) if phase.gate else phase.error or ""
        seconds = f"{phase.seconds:.1f}" if phase.seconds is not None else ""
        table.add_row(phase.name, phase.state, gate, (phase.checkpoint or "")[:12], seconds)
    console = Console()
    console.print(table)
    console.print(f"the models are in {models}", style="dim")


@command.command()
@click.argument("session", required=False)
@home_option
@json_option
def status(session: str | None, home: str | None, as_json: bool) -> None:
    """Show the sessions, or the phases of one."""
    from agent_forge.errors import UsageError
    from agent_forge.forge.registry import Registry

    registry = Registry(home)
    sessions = registry.sessions()
    if session is None:
        documents = [{**found, "pipeline": found["pipeline"]["name"]} for found in sessions]
    else:
        if session not in {found["session"] for found in sessions}:
            raise UsageError(f"there is no session {session!r}", fix="`agent-forge forge status` lists them")
        documents = registry.phases(session)
    if as_json:
        json_out(documents)
        return
    if not documents:
        click.echo("no sessions yet: `agent-forge forge run nano` starts one", err=True)
    for document in documents:
        click.echo(f"{document.get('session') or document['name']:36s} {document['state']}")


@command.command()
@click.option("--source", "sources", required=True, multiple=True, help="A digest or a model folder; may be repeated.")
@click.option("--target", required=True, help="The phase that would take it.")
@home_option
@json_option
def handoff(sources: tuple[str, ...], target: str, home: str | None, as_json: bool) -> int:
    """Say whether a phase would take a checkpoint (or several, in that order), clause by clause; exits 1 if not."""
    from pathlib import Path

    from agent_forge.forge import checkpoint
    from agent_forge.forge.contracts import clauses
    from agent_forge.forge.handoff import ADAPTERS
    from agent_forge.forge.phases import phase
    from agent_forge.forge.registry import Registry

    takes = phase(target).takes
    found = [checkpoint.load(one) if Path(one).is_dir() else Registry(home).load(one) for one in sources]
    answers = clauses(takes, found)
    passed = all(a.met or a.name in ADAPTERS for a in answers)
    if as_json:
        rows = [
            {"clause": a.name, "required": a.required, "found": a.actual, "met": a.met, "adapter": a.name in ADAPTERS}
            for a in answers
        ]
        source = found[0].digest if len(found) == 1 else [one.digest for one in found]
        json_out({"source": source, "target": target, "passed": passed, "clauses": rows})
    else:
        for answer in answers:
            adapted = ", an adapter would be applied" if not answer.met and answer.name in ADAPTERS else ""
            click.echo(f"{'✓' if answer.met else '✗'} {answer}{adapted}")
    return 0 if passed else 1


@command.command()
@json_option
def phases(as_json: bool) -> None:
    """List the phases and what each takes; with --json also how it is configured."""
    from dataclasses import fields

    from agent_forge.forge.phases import MODULES, phase

    found = [phase(name) for name in MODULES]
    if as_json:
        json_out(
            [
                {
                    "name": kind.name,
                    "about": kind.about,
                    "takes": list(kind.takes.checkpoints),
                    "config": {field.name: field.metadata.get("help", "") for field in fields(kind.config)},
                }
                for kind in found
            ]
        )
        return
    for kind in found:
        low, high = kind.takes.checkpoints
        takes = f"{low}" if low == high else f"{low} to {high}"
        click.echo(f"{kind.name:12s} {kind.about} (takes {takes} checkpoint{'s' * (high != 1)})")


@command.command()
@click.argument("digest", metavar="DIGEST|FOLDER")
@click.argument("out")
@click.option(
    "--format", "form", type=click.Choice(["hf", "gguf"]), default="hf", help="A folder, or a file for llama.cpp."
)
@click.option("--dense", is_flag=True, help="Packed weights as plain float16, for vLLM and others.")
@click.option("--ternary", type=click.Choice(["TQ2_0", "TQ1_0"]), default="TQ2_0", help="GGUF type of ternary weights.")
@click.option("--others", type=click.Choice(["F16", "F32", "Q8_0"]), default="F16", help="GGUF type of the others.")
@click.option("--pre", help="llama.cpp's name for how the tokenizer cuts words, where it cannot be told.")
@home_option
@json_option
def export(
    digest: str,
    out: str,
    form: str,
    dense: bool,
    ternary: str,
    others: str,
    pre: str | None,
    home: str | None,
    as_json: bool,
) -> None:
    """Write a checkpoint, every byte checked, to the folder OUT, with a README made from its card.

    The folder loads in transformers, and in vLLM where the architecture is not our own; `--format gguf` makes a file
    for llama.cpp from a Llama-shaped model.
    """
    from pathlib import Path

    from agent_forge.errors import CheckpointError, UsageError
    from agent_forge.forge import checkpoint
    from agent_forge.forge.export import export_checkpoint, export_to_gguf
    from agent_forge.forge.registry import Registry

    registry = Registry(home)
    found = checkpoint.load(digest) if Path(digest).is_dir() else registry.load(digest)
    controls = []
    for source in found.card.inputs:
        try:
            controls.append(registry.load(source))
        except (UsageError, CheckpointError):
            click.echo(f"{source[:12]}, from which it was made, is not in the registry: no control figures", err=True)
    if form == "gguf":
        path = export_to_gguf(found, out, ternary=ternary, others=others, pre=pre, controls=controls)
    else:
        path = export_checkpoint(found, out, dense=dense, controls=controls)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    json_out({"path": str(path), "format": form, "bytes": size}) if as_json else click.echo(str(path))
