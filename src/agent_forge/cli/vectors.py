"""`agent-forge vectors`: task vectors, the difference that fine-tuning made."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from agent_forge.cli._options import json_option
from agent_forge.cli._output import echo, json_out


@click.group()
def command() -> None:
    """Extract, apply and compare task vectors: the difference between a tuned model and its base."""


@command.command()
@click.argument("base")
@click.argument("tuned")
@click.argument("out")
@click.option("--rank", type=click.IntRange(1), default=16, show_default=True, help="Rank of the adapter.")
@json_option
def extract(base: str, tuned: str, out: str, rank: int, as_json: bool) -> None:
    """Write the difference TUNED - BASE as a LoRA adapter into the new folder OUT."""
    from agent_forge.forge.merging.vectors import extract_lora

    adapter = extract_lora(base, tuned, out, rank)
    if as_json:
        json_out(adapter.document())
        return
    shares = sorted(adapter.energy.values())
    echo(
        f"{len(shares)} matrices at rank {rank}, keeping {shares[len(shares) // 2]:.1%} of the energy (median), "
        f"at least {shares[0]:.1%}"
    )
    if adapter.left_out:
        echo(f"changed, but not in the adapter: {', '.join(adapter.left_out)}", err=True)
    echo(f"the adapter is in {adapter.out}")


@command.command()
@click.argument("base")
@click.argument("adapter")
@click.argument("out")
@click.option("--scale", type=float, default=1.0, show_default=True, help="Factor on the adapter's own scale.")
@json_option
def apply(base: str, adapter: str, out: str, scale: float, as_json: bool) -> None:
    """Write the model BASE + ADAPTER into the new folder OUT."""
    from agent_forge.forge.merging.vectors import apply_lora

    report = apply_lora(base, adapter, out, scale)
    if as_json:
        json_out(report.as_dict())
    else:
        echo(f"the model is in {report.out}")


@command.command()
@click.argument("base")
@click.argument("models", nargs=-1, required=True)
@click.option("--density", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True,
              help="Share of each tensor's changes to compare, the largest first, as in TIES.")  # fmt: skip
@click.option("--svg", type=click.Path(dir_okay=False, writable=True), metavar="FILE", help="Also draw the result.")
@json_option
def interference(base: str, models: tuple[str, ...], density: float, svg: str | None, as_json: bool) -> None:
    """Measure how much the task vectors of MODELS, tuned from BASE, contradict each other: sign conflicts, cosines."""
    from agent_forge.forge.merging.picture import interference_svg
    from agent_forge.forge.merging.vectors import interference as measure

    rows = measure(base, models, density)
    if svg is not None:
        Path(svg).write_text(interference_svg(rows), encoding="utf-8")
    if as_json:
        json_out({"tensors": [asdict(row) for row in rows[:-1]], "all": asdict(rows[-1])})
        return
    echo(f"{'tensor':56s}{'conflict':>10s}{'cosine':>9s}")
    for row in rows:
        conflict, cosine = ("–" if value is None else f"{value:.3f}" for value in (row.conflict, row.cosine))
        echo(f"{row.name:56s}{conflict:>10s}{cosine:>9s}")
