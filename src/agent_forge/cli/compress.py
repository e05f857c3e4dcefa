"""`agent-forge compress`: the smallest model that is still good enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._options import data_option, json_option, renamed, seed_option, sources_of
from agent_forge.cli._output import cell, json_out
from agent_forge.cli._settings import read_settings, set_option, settings_options
from agent_forge.errors import UsageError
from agent_forge.forge.compression.settings import CompressSettings

if TYPE_CHECKING:
    from agent_forge.forge.compression.search import CompressionReport


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("out", type=click.Path())
@data_option
@settings_options(CompressSettings)
@click.option("--eval-tokens", type=click.IntRange(min=8), help="Held-out tokens to evaluate on [default: 64 rows].")
@set_option
@renamed("--svg", former="--picture", type=click.Path(), metavar="FILE",
         help="Also draw size against quality of every stage.")  # fmt: skip
@seed_option
@click.option("--strict", is_flag=True, help="Exit with 1 unless the result passed every gate.")
@json_option
def command(
    model: str,
    out: str,
    data: tuple[str, ...],
    eval_tokens: int | None,
    sets: tuple[str, ...],
    svg: str | None,
    seed: int,
    strict: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Compress MODEL (a Hugging Face folder, or a digest) into OUT.

    With --max-size OUT is the best model of that size; without it, the smallest one within --max-ppl-increase. A stage
    that fails its gate on held-out text is discarded: OUT is the last one that passed, and "accepted" tells whether it
    is what was asked for. OUT loads with AutoModelForCausalLM after `import agent_forge.forge`.

    The amount of work (--steps, --calibration-rows, --trial-tokens, --trials) follows from the size of the model and
    from whether there is a GPU, unless stated: up to 50 M weights take well under an hour on two cores.
    """
    goals = ("budget", "budget_mb", "max_increase")
    if not any(options[name] is not None for name in goals) and not any(one.startswith(goals) for one in sets):
        raise UsageError("there is no limit to compress to", fix="Add --max-size 6MB or --max-ppl-increase 5%")
    settings = read_settings(CompressSettings, options, sets=sets, values=sources_of(data))
    if eval_tokens is not None:
        from dataclasses import replace

        settings = replace(settings, judged=max(1, eval_tokens // settings.length))
    from agent_forge.forge import compress
    from agent_forge.forge.phases.worker import quiet
    from agent_forge.terminal import ProgressDisplay

    quiet()
    with ProgressDisplay() as display:

        def tell(**fields: Any) -> None:
            if "ppl" in fields:
                figures = f"{fields['bytes']:,} bytes, perplexity {fields['ppl']:.4g}, KL {fields['kl']:.4f}"
                display.line(f"{fields['stage']}: {figures}: {'passed' if fields['passed'] else 'failed'}")
            else:
                loss = f"loss {fields['loss']:.3f}" if "loss" in fields else ""
                done, total = (fields.get(a, fields.get(b)) for a, b in (("done", "step"), ("total", "steps")))
                display.update(fields["stage"], done, total, detail=loss)

        report = compress(model, out, settings, seed=seed, tell=tell)
    if svg:
        from agent_forge.forge.compression.report import draw_stages

        draw_stages(report, svg)
    json_out({"model": model, **report.as_dict()}) if as_json else _show(report, out)
    return 1 if strict and not report.accepted else 0


def _show(report: CompressionReport, out: str) -> None:
    from rich.console import Console

    from agent_forge.forge.compression.report import stage_table

    console = Console()
    console.print(stage_table(report))
    figures = report.as_dict()
    console.print(
        f"{figures['bytes_before']:,} → {figures['bytes']:,} bytes ({figures['ratio']:.1f} × smaller, "
        f"{figures['bits_per_weight']:.2f} bits per weight, everything counted), "
        f"perplexity × {figures['ppl_ratio']:.3f}, {cell(report.reason)}"
    )
    console.print(f"[dim]The model is in {cell(out)}[/]")
