"""`agent-forge quantize`: any causal language model on three levels, trained for and packed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from agent_forge.cli._app import json_option, json_out


@click.command()
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL")
@click.argument("out", type=click.Path(path_type=Path), metavar="OUT")
@click.option("--data", multiple=True, metavar="PATH", help="Your text: JSONL or text files, or a folder of them.")
@click.option("--levels", type=click.Choice(["ternary", "two_bit"]), default="ternary", show_default=True)
@click.option("--scales", type=click.Choice(["tensor", "row", "group"]), default="row", show_default=True)
@click.option("--learn-scales/--mean-scales", default=None, help="Scales are learned (not for `tensor`), or mean |w|.")
@click.option("--embedding", type=click.Choice(["int4", "int8", "none"]), default="int4", show_default=True)
@click.option("--activations", type=click.Choice(["int8", "none"]), default="int8", show_default=True)
@click.option("--sub-norm", is_flag=True, help="An RMS norm in front of every ternary layer.")
@click.option("--layout", type=click.Choice(["1.6bit", "2bit"]), default="1.6bit", show_default=True)
@click.option("--layers", default=None, metavar="REGEX", help="Linear layers to quantise; by default those in blocks.")
@click.option("--steps", type=click.IntRange(min=1), help="Training steps; by default what takes minutes here.")
@click.option("--rows", type=click.IntRange(min=1), default=None, help="Rows of a step.")
@click.option("--length", type=click.IntRange(min=8), default=None, help="Tokens of a row.")
@click.option("--judged", type=click.IntRange(min=64), help="Held-out tokens to judge on.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Anything else of the recipe: lr=0.002")
@click.option(
    "--max-ppl",
    type=click.FloatRange(min=0),
    default=1.3,
    show_default=True,
    help="Times the original's perplexity; 0: any.",
)
@click.option(
    "--min-accuracy",
    type=click.FloatRange(min=0),
    default=0.85,
    show_default=True,
    help="Share above chance kept; 0: any.",
)
@click.option(
    "--min-ratio",
    type=click.FloatRange(min=0),
    default=8.0,
    show_default=True,
    help="Times smaller than float32; 0: any.",
)
@click.option(
    "--dense", type=click.Path(path_type=Path), metavar="DIR", help="Also write the de-quantised model there."
)
@click.option("--device", metavar="NAME", help="cpu or cuda; by default a GPU where there is one.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--strict", is_flag=True, help="Exit with 1 if the gate is missed.")
@json_option
def command(model: Path, out: Path, strict: bool, as_json: bool, **options: Any) -> int:
    """Put the linear layers of MODEL (a Hugging Face folder) on three levels and pack it into the new folder OUT.

    The model is trained to say what it said before (distillation), and judged on what lies in OUT, loaded anew. If a
    demand is missed, OUT is the input unchanged and `accepted` is false.
    """
    from agent_forge.forge.phases.worker import quiet
    from agent_forge.forge.quantization.job import quantise_folder

    quiet()
    sources = {name: options[name] for name in ("data", "dense", "judged", "device", "seed")}
    found = quantise_folder(model, out, _settings(options), **sources, tell=_tell)
    if as_json:
        json_out(found)
    else:
        _show(found, out)
    return 0 if found["accepted"] or not strict else 1


def _settings(options: dict[str, Any]) -> Any:
    from agent_forge.config import resolve
    from agent_forge.forge.quantization.gate import Demands
    from agent_forge.forge.quantization.levels import Format
    from agent_forge.forge.quantization.recipe import QATRecipe
    from agent_forge.forge.quantization.settings import QuantizeSettings

    learn = options["learn_scales"] if options["learn_scales"] is not None else options["scales"] != "tensor"
    format = Format(
        levels=options["levels"],
        granularity=options["scales"],
        learn_scales=learn,
        activations=options["activations"],
        sub_norm=options["sub_norm"],
        embedding=options["embedding"],
    )
    given = {"steps": options["steps"], "batch_rows": options["rows"], "length": options["length"]}
    sets = [*(f"{name}={value}" for name, value in given.items() if value is not None), *options["sets"]]
    changes = {"layers": options["layers"]} if options["layers"] is not None else {}
    return QuantizeSettings(
        format=format,
        recipe=resolve(QATRecipe, sets=sets).value,
        demands=Demands(options["max_ppl"], options["min_accuracy"], options["min_ratio"]),
        layout=options["layout"],
        **changes,
    )


def _tell(**figures: Any) -> None:
    """One line a stage on stderr; training steps only on a terminal, where the line is written over."""
    live = sys.stderr.isatty()
    if "done" in figures:
        if live:
            line = f"{figures['stage']} {figures['done']}/{figures['total']}"
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
    elif "stage" in figures:
        detail = f": perplexity {figures['ppl']:.4g} ({figures['ppl_ratio']:.3f} x)" if "ppl" in figures else ""
        print(f"{chr(13) + chr(27) + '[K' if live else ''}{figures['stage']}{detail}", file=sys.stderr, flush=True)
    elif live and "loss" in figures:
        print(f"\r\033[Kstep {figures['step']}, loss {figures['loss']:.3f}", end="", file=sys.stderr)


def _show(found: dict[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    verdict = "accepted" if found["accepted"] else "not accepted: OUT is the input, unchanged"
    table = Table(title=f"{out}: {verdict}", title_justify="left")
    for column in ("stage", "perplexity", "times", "bits per byte", "accuracy kept", "seconds"):
        table.add_column(column)
    for stage in found["stages"]:
        figures = (stage["ppl"], stage["ppl_ratio"], stage["bits_per_byte"], stage["accuracy_kept"], stage["seconds"])
        table.add_row(stage["stage"], *("" if figure is None else f"{figure:.4g}" for figure in figures))
    console = Console()
    console.print(table)
    size = f"{found['bytes_before']:,} to {found['bytes']:,} bytes, {found['ratio']:.2f} times smaller"
    console.print(f"{size}; {found['bits_per_weight']:.2f} bits a weight; KL {found['kl']:.4g} nats a token")
    for clause in found["gate"]:
        mark = "met" if clause["met"] else "missed"
        value = "not measured" if clause["found"] is None else f"{clause['found']:.3g}"
        console.print(f"{mark}: {clause['name']} {value}, wanted {clause['wanted']}", style="dim")
