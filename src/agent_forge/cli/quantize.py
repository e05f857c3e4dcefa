"""`agent-forge quantize`: trains a causal language model for ternary weights and packs it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from agent_forge.cli._options import data_option, json_option, renamed, seed_option, share, sources_of
from agent_forge.cli._output import cell, json_out
from agent_forge.cli._settings import read_settings, set_option, settings_options
from agent_forge.forge.quantization.gate import Demands
from agent_forge.forge.quantization.settings import QuantizeSettings


def _share_or_any(text: str) -> float:
    return math.inf if text == "any" else share(text)


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("out", type=click.Path(path_type=Path), metavar="OUT")
@data_option
@settings_options(QuantizeSettings)
@click.option("--max-ppl-increase", "increase", type=_share_or_any, metavar="SHARE",
              help=f"Limit for the growth of perplexity, or `any` [default: {Demands().perplexity - 1:.0%}].",
              )  # fmt: skip
@set_option
@renamed("--dense-out", former="--dense", type=click.Path(path_type=Path), metavar="DIR",
         help="Also write the de-quantized model there.")  # fmt: skip
@click.option("--device", metavar="NAME", help="cpu or cuda [default: a GPU where there is one].")
@seed_option
@click.option("--strict", is_flag=True, help="Exit with 1 unless the result passed every gate.")
@json_option
def command(
    model: str,
    out: Path,
    data: tuple[str, ...],
    increase: float | None,
    sets: tuple[str, ...],
    dense_out: Path | None,
    device: str | None,
    seed: int,
    strict: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Quantize the linear layers of MODEL (a Hugging Face folder, or a digest) to three levels, packed into the new
    folder OUT.

    The model is distilled from its original, and what lies in OUT is loaded again and evaluated. If a demand is
    missed, OUT is the input unchanged and `accepted` is false.
    """
    if increase is not None and options["demands__perplexity"] is None:
        options["demands__perplexity"] = 0.0 if math.isinf(increase) else 1 + increase
    settings = read_settings(QuantizeSettings, options, sets=sets, values=sources_of(data))
    from agent_forge.forge import quantize
    from agent_forge.forge.phases.worker import quiet
    from agent_forge.terminal import ProgressDisplay

    quiet()
    with ProgressDisplay() as display:
        loss = ""

        def tell(**fields: Any) -> None:
            nonlocal loss
            if "ppl" in fields:
                display.line(f"{fields['stage']}: perplexity {fields['ppl']:.4g} ({fields['ppl_ratio']:.3f} ×)")
            elif "stage" in fields:
                display.update(fields["stage"], fields.get("done"), fields.get("total"), detail=loss)
            elif "loss" in fields:
                loss = f"loss {fields['loss']:.3f}"

        report = quantize(model, out, settings, dense=dense_out, device=device, seed=seed, tell=tell)
    json_out(report.as_dict()) if as_json else _show(report.as_dict(), out)
    return 0 if report.accepted or not strict else 1


def _show(report: dict[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    verdict = "accepted" if report["accepted"] else "not accepted: OUT is the input, unchanged"
    table = Table(title=f"{cell(out)}: {verdict}", title_justify="left")
    for column in ("stage", "perplexity", "× original", "bits per byte", "accuracy kept", "seconds"):
        table.add_column(column)
    for stage in report["stages"]:
        figures = (stage["ppl"], stage["ppl_ratio"], stage["bits_per_byte"], stage["accuracy_kept"], stage["seconds"])
        table.add_row(stage["stage"], *("" if figure is None else f"{figure:.4g}" for figure in figures))
    console = Console()
    console.print(table)
    size = f"{report['bytes_before']:,} → {report['bytes']:,} bytes, {report['ratio']:.2f} × smaller"
    console.print(f"{size}; {report['bits_per_weight']:.2f} bits per weight; KL {report['kl']:.4g} nats per token")
    for clause in report["gate"]:
        outcome = "met" if clause["met"] else "missed"
        value = "not measured" if clause["found"] is None else f"{clause['found']:.3g}"
        console.print(f"[dim]{outcome}: {clause['name']} {value}, required {clause['wanted']}[/]")
