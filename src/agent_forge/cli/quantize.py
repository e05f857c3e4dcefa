"""`agent-forge quantize`: trains a causal language model for ternary weights and packs it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from agent_forge.cli._options import json_option, renamed, seed_option, share
from agent_forge.cli._output import cell, json_out


def _share_or_any(text: str) -> float:
    return math.inf if text == "any" else share(text)


@click.command()
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL")
@click.argument("out", type=click.Path(path_type=Path), metavar="OUT")
@click.option("--data", multiple=True, metavar="PATH", help="Your text: a JSONL or text file, or a folder of them.")
@click.option("--levels", type=click.Choice(["ternary", "two_bit"]), default="ternary", show_default=True,
              help="Levels of a weight.")  # fmt: skip
@click.option("--scales", type=click.Choice(["tensor", "row", "group"]), default="row", show_default=True,
              help="Weights that share a scale.")  # fmt: skip
@click.option(
    "--learn-scales/--mean-scales", default=None, help="Learn the scales (not for `tensor`), or use mean |w|."
)
@click.option("--embedding", type=click.Choice(["int4", "int8", "none"]), default="int4", show_default=True,
              help="Format of the embedding.")  # fmt: skip
@click.option("--activations", type=click.Choice(["int8", "none"]), default="int8", show_default=True,
              help="Format of the inputs of ternary layers.")  # fmt: skip
@click.option("--sub-norm", is_flag=True, help="Put an RMS norm in front of every ternary layer.")
@click.option("--layout", type=click.Choice(["1.6bit", "2bit"]), default="1.6bit", show_default=True,
              help="How levels are packed.")  # fmt: skip
@click.option("--layers", metavar="REGEX", help="Linear layers to quantize [default: those inside the blocks].")
@click.option("--steps", type=click.IntRange(min=1), help="Training steps [default: some minutes' worth].")
@renamed("--batch", former="--rows", type=click.IntRange(min=1), help="Rows per step.")
@click.option("--length", type=click.IntRange(min=8), help="Tokens per row.")
@renamed("--eval-tokens", former="--judged", type=click.IntRange(min=64), help="Held-out tokens to evaluate on.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Change a value of the recipe, e.g. lr=0.002.")
@click.option("--max-ppl-increase", "increase", type=_share_or_any, default="30%", show_default=True,
              metavar="SHARE", help="Limit for the growth of perplexity, or `any`.")  # fmt: skip
@click.option("--max-ppl", type=click.FloatRange(min=0), hidden=True)  # 1 + --max-ppl-increase; 0: any
@click.option("--min-accuracy", type=click.FloatRange(min=0), default=0.85, show_default=True,
              help="Share of the accuracy above chance to keep (0: any).")  # fmt: skip
@click.option("--min-ratio", type=click.FloatRange(min=0), default=8.0, show_default=True,
              help="Compression against float32 to reach (0: any).")  # fmt: skip
@renamed("--dense-out", former="--dense", type=click.Path(path_type=Path), metavar="DIR",
         help="Also write the de-quantized model there.")  # fmt: skip
@click.option("--device", metavar="NAME", help="cpu or cuda [default: a GPU where there is one].")
@seed_option
@click.option("--strict", is_flag=True, help="Exit with 1 unless the result passed every gate.")
@json_option
def command(model: Path, out: Path, strict: bool, as_json: bool, **options: Any) -> int:
    """Quantize the linear layers of MODEL (a Hugging Face folder) to three levels and pack it into the new folder OUT.

    The model is distilled from its original, and what lies in OUT is loaded again and evaluated. If a demand is
    missed, OUT is the input unchanged and `accepted` is false.
    """
    from agent_forge.forge.phases.worker import quiet
    from agent_forge.forge.quantization.job import quantise_folder
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

        report = quantise_folder(
            model,
            out,
            _settings(options),
            data=options["data"],
            dense=options["dense_out"],
            judged=options["eval_tokens"],
            device=options["device"],
            seed=options["seed"],
            tell=tell,
        )
    if as_json:
        json_out(report)
    else:
        _show(report, out)
    return 0 if report["accepted"] or not strict else 1


def _settings(options: dict[str, Any]) -> Any:
    from agent_forge.config import resolve
    from agent_forge.forge.quantization.gate import Demands
    from agent_forge.forge.quantization.levels import Format
    from agent_forge.forge.quantization.recipe import QATRecipe
    from agent_forge.forge.quantization.settings import QuantizeSettings

    learn = options["learn_scales"] if options["learn_scales"] is not None else options["scales"] != "tensor"
    format_ = Format(
        levels=options["levels"],
        granularity=options["scales"],
        learn_scales=learn,
        activations=options["activations"],
        sub_norm=options["sub_norm"],
        embedding=options["embedding"],
    )
    stated = {"steps": options["steps"], "batch_rows": options["batch"], "length": options["length"]}
    sets = [*(f"{name}={value}" for name, value in stated.items() if value is not None), *options["sets"]]
    increase = options["increase"]
    max_ppl = options["max_ppl"] if options["max_ppl"] is not None else 0 if math.isinf(increase) else 1 + increase
    return QuantizeSettings(
        format=format_,
        recipe=resolve(QATRecipe, sets=sets).value,
        demands=Demands(max_ppl, options["min_accuracy"], options["min_ratio"]),
        layout=options["layout"],
        **({} if options["layers"] is None else {"layers": options["layers"]}),
    )


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
