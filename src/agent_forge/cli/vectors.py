"""`agent-forge vectors`: what fine-tuning changed, as a thing of its own."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from agent_forge.cli._app import json_option, json_out


@click.group()
def command() -> None:
    """Task vectors: the difference between a tuned model and its base."""


@command.command()
@click.argument("base")
@click.argument("tuned")
@click.argument("out")
@click.option("--rank", type=click.IntRange(1), default=16, show_default=True)
@json_option
def extract(base: str, tuned: str, out: str, rank: int, as_json: bool) -> None:
    """Write the difference TUNED - BASE as a LoRA adapter into the new folder OUT."""
    from agent_forge.forge.merging.vectors import extract_lora

    made = extract_lora(base, tuned, out, rank)
    if as_json:
        json_out(made.document())
        return
    shares = sorted(made.energy.values())
    click.echo(
        f"{len(shares)} matrices at rank {rank}: {shares[len(shares) // 2]:.1%} of the energy kept in the median, "
        f"{shares[0]:.1%} at least"
    )
    if made.left_out:
        click.echo(f"not in the adapter, though they differ: {', '.join(made.left_out)}", err=True)
    click.echo(f"the adapter is in {made.out}")


@command.command()
@click.argument("base")
@click.argument("adapter")
@click.argument("out")
@click.option("--scale", type=float, default=1.0, show_default=True, help="Times the adapter's own.")
@json_option
def apply(base: str, adapter: str, out: str, scale: float, as_json: bool) -> None:
    """Write the model BASE + ADAPTER into the new folder OUT."""
    from agent_forge.forge.merging.vectors import apply_lora

    report = apply_lora(base, adapter, out, scale)
    if as_json:
        json_out(report.document())
    else:
        click.echo(f"the model is in {report.out}")


@command.command()
@click.argument("base")
@click.argument("models", nargs=-1, required=True)
@click.option("--density", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True)
@click.option("--svg", type=click.Path(dir_okay=False, writable=True), help="Draw it into this file.")
@json_option
def interference(base: str, models: tuple[str, ...], density: float, svg: str | None, as_json: bool) -> None:
    """How far the task vectors of MODELS, tuned from BASE, contradict each other: sign conflicts and cosines.

    --density looks only at that share of the largest changes of each tensor, as TIES does.
    """
    from agent_forge.forge.merging.picture import interference_svg
    from agent_forge.forge.merging.vectors import interference as measure

    rows = measure(base, models, density)
    if svg is not None:
        Path(svg).write_text(interference_svg(rows), encoding="utf-8")
    if as_json:
        json_out({"tensors": [asdict(row) for row in rows[:-1]], "all": asdict(rows[-1])})
        return
    click.echo(f"{'tensor':56s}{'conflict':>10s}{'cosine':>9s}")
    for row in rows:
        shown = [f"{value:.3f}" if value is not None else "–" for value in (row.conflict, row.cosine)]
        click.echo(f"{row.name:56s}{shown[0]:>10s}{shown[1]:>9s}")
