"""The report of an evolution: a JSON document and a Markdown page."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent_forge.config import as_dict
from agent_forge.files import atomic_write
from agent_forge.forge.evolution.fitness import accuracy, perplexity
from agent_forge.forge.evolution.run import AVERAGE, Evolved, rivals
from agent_forge.forge.evolution.tasks import TEXT

BARS = "▁▂▃▄▅▆▇█"


def document_of(evolved: Evolved) -> dict[str, Any]:
    """What `agent-forge evolve --json` prints."""
    champion = evolved.history.champion
    names = {**rivals(evolved.family), AVERAGE: None}
    rows = [
        {
            "name": name,
            "model": None if folder is None else str(folder),
            "fitness": evolved.fitness.get(name),
            "held_out": evolved.yardstick.fitness(evolved.held_out[name]),
        }
        for name, folder in names.items()
    ]
    return {
        "generations": len(evolved.history.generations),
        "evaluations": len(evolved.history.members),
        "champion": {
            "recipe": evolved.recipe,
            "fitness": champion.fitness,
            "technique": champion.genome.technique,
            "genome": champion.genome.as_dict(),
            "model": str(evolved.champion),
        },
        "parents": rows[:-1],
        "uniform_average": rows[-1],
        "held_out": evolved.verdict.as_dict(),
        "verdict": evolved.verdict.gate.verdict,
        "goes_on": str(evolved.goes_on),
        "tasks": task_table(evolved),
        "ended_by": evolved.history.ended,
        "seconds": {name: round(value, 3) for name, value in evolved.seconds.items()},
        "history": [asdict(generation) for generation in evolved.history.generations],
        "config": as_dict(evolved.config),
    }


def task_table(evolved: Evolved) -> dict[str, dict[str, Any]]:
    """By task and model on the held-out data: perplexity, accuracy where there are answers, and the score relative to
    the base."""
    table: dict[str, dict[str, Any]] = {}
    for task, kind in evolved.yardstick.kinds.items():
        table[task] = {}
        for name, measurement in evolved.held_out.items():
            rows = measurement.scores[task]
            row = {"kind": kind, "items": len(rows), "perplexity": perplexity(rows)}
            if kind != TEXT:
                row["accuracy"], error = accuracy(rows)
                row["accuracy_stderr"] = None if math.isnan(error) else error
            table[task][name] = {**row, "score": evolved.yardstick.task_score(task, measurement)}
    return table


def write_report(evolved: Evolved, out: Path) -> dict[str, Any]:
    """Writes report.json and report.md, and returns the JSON document."""
    document = document_of(evolved)
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    files = {"report.json": text, "report.md": markdown_of(document)}
    for name, text in files.items():
        with atomic_write(out / name) as file:
            file.write(text)
    return document


def markdown_of(document: dict[str, Any]) -> str:
    """The report as Markdown."""
    held_out, champion = document["held_out"], document["champion"]
    last = {"name": "**champion**", "fitness": champion["fitness"], "held_out": held_out["champion"]}
    error = "not measured" if held_out["stderr"] is None else f"{held_out['stderr']:.4f}"
    lines = [
        "# Evolution",
        "",
        f"**{document['verdict']}**: on held-out data the champion scores {held_out['champion']:.4f}, the best parent "
        f"({held_out['best_parent_name']}) {held_out['best_parent']:.4f}; standard error of the difference {error}.",
        "",
        f"{document['evaluations']} recipes in {document['generations']} generations; ended by {document['ended_by']}. "
        f"The champion's technique is {champion['technique']}.",
        "",
        "| fitness | selection data | held-out data |",
        "|---|---|---|",
        *(
            f"| {row['name']} | {_figure(row['fitness'])} | {_figure(row['held_out'])} |"
            for row in (*document["parents"], document["uniform_average"], last)
        ),
        "",
        *_task_lines(document["tasks"]),
        "",
        "```yaml",
        champion["recipe"].rstrip(),
        "```",
        "",
    ]
    return "\n".join(lines)


def _task_lines(tasks: dict[str, dict[str, Any]]) -> list[str]:
    lines = ["| task | model | perplexity | accuracy | score |", "|---|---|---|---|---|"]
    for task, models in tasks.items():
        for name, row in models.items():
            hits = "" if "accuracy" not in row else f"{row['accuracy']:.3f} ± {row['accuracy_stderr'] or 0:.3f}"
            lines.append(f"| {task} | {name} | {_figure(row['perplexity'], 3)} | {hits} | {row['score']:.4f} |")
    return lines


def _figure(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def sparkline(values: Sequence[float]) -> str:
    """A row of bars for the terminal.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    low, high = min(values), max(values)
    width = (high - low) or 1.0
    return "".join(BARS[round((value - low) / width * (len(BARS) - 1))] for value in values)
