"""`agent-forge compress`: the smallest model that is still good enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._options import json_option, renamed, seed_option, share, size
from agent_forge.cli._output import cell, json_out
from agent_forge.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from agent_forge.forge.compression.search import CompressionReport
    from agent_forge.terminal import ProgressDisplay

MOST_MB = 6  # per source of text: it calibrates and recovers, and more would only be tokenised
EVAL_ROWS = 64


@click.command()
@click.argument("model", type=click.Path(exists=True, file_okay=False))
@click.argument("out", type=click.Path())
@renamed("--max-size", former="--budget", type=size, metavar="SIZE",
         help="Size limit for the whole folder, e.g. 6MB.")  # fmt: skip
@click.option("--max-ppl-increase", "increase", type=share, metavar="SHARE",
              help="Limit for the growth of perplexity, e.g. 5% [default with --max-size: 30%].")  # fmt: skip
@click.option("--data", multiple=True, metavar="PATH",
              help="Text to calibrate and evaluate on [default: bundled stories and problems].")  # fmt: skip
@click.option("--codecs", metavar="NAMES", help="Codecs to use, separated by commas [default: grid,integer,ternary].")
@renamed("--steps", former="--recover", type=click.IntRange(min=0), help="Distillation steps per stage (0: none).")
@click.option("--length", type=click.IntRange(min=8), default=256, show_default=True,
              help="Tokens per row, at most what the model can read.")  # fmt: skip
@renamed("--calibration-rows", former="--rows", type=click.IntRange(min=1), help="Rows to calibrate on.")
@click.option("--eval-tokens", type=click.IntRange(min=8),
              help=f"Held-out tokens to evaluate on [default: {EVAL_ROWS} rows].")  # fmt: skip
@click.option("--judged", "eval_rows", type=click.IntRange(min=1), hidden=True)  # --eval-tokens, counted in rows
@click.option("--batch", type=click.IntRange(min=1), help="Rows per step.")
@click.option("--trial-tokens", type=click.IntRange(min=16), help="Tokens to try options on.")
@renamed("--trials", former="--measured", type=click.IntRange(min=0),
         help="Options to measure per matrix; the rest are inferred (0 measures all).")  # fmt: skip
@renamed("--svg", former="--picture", type=click.Path(), metavar="FILE",
         help="Also draw size against quality of every stage.")  # fmt: skip
@seed_option
@click.option("--strict", is_flag=True, help="Exit with 1 unless the result passed every gate.")
@json_option
def command(model: str, out: str, svg: str | None, strict: bool, as_json: bool, **options: Any) -> int:
    """Compress the Hugging Face folder MODEL into OUT.

    With --max-size OUT is the best model of that size; without it, the smallest one within --max-ppl-increase. A stage
    that fails its gate on held-out text is discarded: OUT is the last one that passed, and "accepted" tells whether it
    is what was asked for. OUT loads with AutoModelForCausalLM after `import agent_forge.forge`.

    The amount of work (--steps, --calibration-rows, --trial-tokens, --trials) follows from the size of the model and
    from whether there is a GPU, unless stated: up to 50 M weights take well under an hour on two cores.
    """
    from agent_forge.terminal import ProgressDisplay

    if options["max_size"] is None and options["increase"] is None:
        raise UsageError("there is no limit to compress to", fix="Add --max-size 6MB or --max-ppl-increase 5%")
    with ProgressDisplay() as display:
        report = _compress(model, out, options, display)
    if svg:
        from agent_forge.forge.compression.report import draw_stages

        draw_stages(report, svg)
    json_out({"model": model, "out": out, **report.as_dict()}) if as_json else _show(report, out)
    return 1 if strict and not report.accepted else 0


def _compress(model: str, out: str, options: dict[str, Any], display: ProgressDisplay) -> CompressionReport:
    from pathlib import Path

    from agent_forge.forge.compression.search import compress
    from agent_forge.forge.compression.settings import CompressSettings, usual_work
    from agent_forge.forge.compression.text import mixed, prepare_text
    from agent_forge.forge.corpus import Source, read_corpus
    from agent_forge.forge.phases.worker import quiet

    stated = {
        "recovery_steps": options["steps"],
        "rows": options["calibration_rows"],
        "trial_tokens": options["trial_tokens"],
        "measured": options["trials"],
        "batch_rows": options["batch"],
        "codecs": None if options["codecs"] is None else tuple(options["codecs"].split(",")),
    }
    settings = CompressSettings(
        budget=options["max_size"],
        max_increase=0.3 if options["increase"] is None else options["increase"],
        length=options["length"],
        **{**usual_work(Path(model)), **{name: value for name, value in stated.items() if value is not None}},
    )
    tokens, rows = options["eval_tokens"], options["eval_rows"] or EVAL_ROWS
    rows = rows if tokens is None else max(1, tokens // settings.length)
    data = options["data"] or ("stories", "problems")

    def tell(**fields: Any) -> None:
        if "ppl" in fields:
            figures = f"{fields['bytes']:,} bytes, perplexity {fields['ppl']:.4g}, KL {fields['kl']:.4f}"
            display.line(f"{fields['stage']}: {figures}: {'passed' if fields['passed'] else 'failed'}")
        else:
            loss = f"loss {fields['loss']:.3f}" if "loss" in fields else ""
            done, total = (
                fields.get(name, fields.get(other)) for name, other in (("done", "step"), ("total", "steps"))
            )
            display.update(fields["stage"], done, total, detail=loss)

    quiet()
    display.update("read text")
    corpus = read_corpus({path: Source(path, most_mb=MOST_MB) for path in data}, _held_out(Path(model)))
    train, held_out = mixed(corpus.train.values()), mixed(corpus.held_out.values())
    text = prepare_text(Path(model), train, held_out, settings.length, rows, options["seed"], tell)
    display.update("load the model")
    return compress(model, out, text, settings, tell, options["seed"])


def _held_out(model: Path) -> float:
    """The share that our own models held out: beyond it lie documents that they were trained on."""
    import json

    try:
        share = json.loads((model / "card.json").read_text(encoding="utf-8"))["config"]["held_out"]
        return min(0.05, float(share))
    except (OSError, ValueError, KeyError, TypeError):
        return 0.05


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
