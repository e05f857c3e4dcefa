"""`agent-forge compress`: the smallest model that is still good enough."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._app import json_option, json_out
from agent_forge.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from agent_forge.forge.compression.search import CompressionReport

MOST_MB = 6  # of each source of text: it calibrates and recovers, and more would only be tokenised
UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def size_in_bytes(text: str) -> int:
    """A size with a unit: kB and MB are powers of ten, KiB and MiB of two.

    >>> size_in_bytes("6MB"), size_in_bytes("1.5 MiB")
    (6000000, 1572864)
    """
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].lower() not in UNITS or float(match[1]) <= 0:
        raise UsageError(f"{text!r} is not a size", where="--budget", fix="write for example 6MB or 800kB")
    return int(float(match[1]) * UNITS[match[2].lower()])


def share(text: str) -> float:
    """A share, in per cent or as a number.

    >>> share("5%"), share("0.05")
    (0.05, 0.05)
    """
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(%?)", text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a share", where="--max-ppl-increase", fix="write for example 5%")
    if not match[2] and float(match[1]) > 1:  # 5 is meant as 5 % more often than as 500 %
        fix = f"write {match[1]}% or {100 * float(match[1]):g}%"
        raise UsageError(f"{text!r} is more than the whole", where="--max-ppl-increase", fix=fix)
    return float(match[1]) / (100 if match[2] else 1)


@click.command()
@click.argument("model", type=click.Path(exists=True, file_okay=False))
@click.argument("out", type=click.Path())
@click.option("--budget", metavar="SIZE", help="The whole folder may take so much: 6MB.")
@click.option(
    "--max-ppl-increase", "increase", metavar="SHARE", help="Perplexity may grow by so much: 5%. [30% with --budget]"
)
@click.option(
    "--data", multiple=True, metavar="PATH", help="Text to calibrate and judge on [bundled stories, problems]."
)
@click.option("--codecs", help="Which codecs may be used, with commas. [grid,integer,ternary]")
@click.option("--recover", "steps", type=click.IntRange(min=0), help="Steps of distillation a stage; 0: none.")
@click.option(
    "--length",
    type=click.IntRange(min=8),
    default=256,
    show_default=True,
    help="Tokens in a row, or what the model reads.",
)
@click.option("--rows", type=click.IntRange(min=1), help="Rows to calibrate on.")
@click.option("--judged", type=click.IntRange(min=1), default=64, show_default=True, help="Held-out rows to judge on.")
@click.option("--batch", type=click.IntRange(min=1), help="Rows at a time.")
@click.option("--trial-tokens", type=click.IntRange(min=16), help="Tokens that options are tried on.")
@click.option("--measured", type=click.IntRange(min=0), help="Options measured a matrix, the rest inferred; 0: all.")
@click.option("--picture", type=click.Path(), help="Also draw size against quality of every stage, as SVG.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--strict", is_flag=True, help="Exit 1 unless every gate was passed.")
@json_option
def command(
    model: str,
    out: str,
    budget: str | None,
    increase: str | None,
    data: tuple[str, ...],
    codecs: str | None,
    steps: int | None,
    length: int,
    rows: int | None,
    judged: int,
    batch: int | None,
    trial_tokens: int | None,
    measured: int | None,
    picture: str | None,
    seed: int,
    strict: bool,
    as_json: bool,
) -> int:
    """Compress the Hugging Face folder MODEL into OUT.

    With --budget OUT is the best model of that size, without it the smallest one within --max-ppl-increase. What fails
    its gate on held-out text is thrown away: OUT is the last artefact that passed, and "accepted" says whether it is
    what was asked for. OUT loads with AutoModelForCausalLM after `import agent_forge.forge`.

    How much work goes into it (--recover, --rows, --trial-tokens, --measured) follows from the model's size and from
    whether there is a GPU, unless it is given: up to 50 M weights it takes well under an hour on two cores.
    """
    if budget is None and increase is None:
        raise UsageError("say how far to go", fix="give --budget 6MB or --max-ppl-increase 5%")
    limits = {"budget": None if budget is None else size_in_bytes(budget),
              "max_increase": 0.3 if increase is None else share(increase)}  # fmt: skip
    given = {"recovery_steps": steps, "rows": rows, "trial_tokens": trial_tokens, "measured": measured,
             "batch_rows": batch, "codecs": None if codecs is None else tuple(codecs.split(","))}  # fmt: skip
    asked = {name: value for name, value in given.items() if value is not None}
    work = {"length": length, "seed": seed, **asked}
    report = _compress(model, out, data or ("stories", "problems"), judged, {**limits, **work})
    if picture:
        from agent_forge.forge.compression.report import draw_stages

        draw_stages(report, picture)
    json_out({"model": model, "out": out, **report.as_dict()}) if as_json else _show(report, out)
    return 1 if strict and not report.accepted else 0


def _compress(model: str, out: str, data: tuple[str, ...], judged: int, options: dict[str, Any]) -> CompressionReport:
    from pathlib import Path

    from agent_forge.forge.compression.search import compress
    from agent_forge.forge.compression.settings import CompressSettings, usual_work
    from agent_forge.forge.compression.text import mixed, prepare_text
    from agent_forge.forge.corpus import Source, read_corpus

    seed = options.pop("seed")
    settings = CompressSettings(**{**usual_work(Path(model)), **options})
    corpus = read_corpus({path: Source(path, most_mb=MOST_MB) for path in data}, _held_out(Path(model)))
    train, held_out = mixed(corpus.train.values()), mixed(corpus.held_out.values())
    text = prepare_text(Path(model), train, held_out, settings.length, judged, seed, _tell)
    return compress(model, out, text, settings, _tell, seed)


def _held_out(model: Path) -> float:
    """The share that our own models were made with: they have learnt from other documents beyond it."""
    import json

    try:
        known = json.loads((model / "card.json").read_text(encoding="utf-8"))["config"]["held_out"]
        return min(0.05, float(known))
    except (OSError, ValueError, KeyError, TypeError):
        return 0.05


def _tell(**said: Any) -> None:
    """Stages on a line each; steps only on a terminal, written over."""
    if "ppl" in said:
        verdict = "passed" if said["passed"] else "failed"
        line = f"{said['stage']}: {said['bytes']:,} bytes, perplexity {said['ppl']:.4g}, KL {said['kl']:.4f}: {verdict}"
        print(f"\r\033[K{line}" if sys.stderr.isatty() else line, file=sys.stderr, flush=True)
    elif sys.stderr.isatty():
        done = f" {said['done']}/{said['total']}" if "done" in said else ""
        print(f"\r\033[K{said['stage']}{done}", end="", file=sys.stderr, flush=True)


def _show(report: CompressionReport, out: str) -> None:
    from rich.console import Console

    from agent_forge.forge.compression.report import stage_table

    console = Console()
    console.print(stage_table(report))
    found = report.as_dict()
    console.print(
        f"{found['bytes_before']:,} → {found['bytes']:,} bytes ({found['ratio']:.1f} ×, {found['bits_per_weight']:.2f} "
        f"bits a weight with everything), perplexity × {found['ppl_ratio']:.3f}, {report.reason}"
    )
    console.print(f"the model is in {out}", style="dim")
