"""`agent-forge evaluate`: the evaluation suite on any model."""

from __future__ import annotations

from typing import Any

import click

from agent_forge.cli._options import home_option, json_option, workers_option
from agent_forge.cli._output import cell, json_out
from agent_forge.cli._settings import read_settings, settings_options
from agent_forge.forge.evaluation.settings import EvaluateSettings


@click.command()
@click.argument("model", metavar="MODEL")
@settings_options(EvaluateSettings)
@workers_option
@home_option
@json_option
def command(model: str, workers: str | None, home: str | None, as_json: bool, **options: Any) -> None:
    """Evaluate MODEL: a Hugging Face folder, a registered checkpoint (by its digest), a packed folder, or an endpoint.

    Multiple choice is judged as in EleutherAI's harness: `accuracy` by the log-likelihood of each answer, and
    `accuracy_norm` by the same per character. An endpoint (http://host:port/v1#name) answers the tasks that need only
    its text.
    """
    settings = read_settings(EvaluateSettings, options)
    from agent_forge.forge import evaluate
    from agent_forge.forge.opening import find_model
    from agent_forge.forge.phases.worker import quiet
    from agent_forge.terminal import ProgressDisplay

    quiet()
    subject = model if "://" in model else find_model(model, home)
    with ProgressDisplay() as display:

        def tell(**fields: Any) -> None:
            if "done" in fields:
                display.update(fields["stage"], fields["done"], fields["total"])

        report = evaluate(subject, settings, workers=workers, tell=tell)
    document = {**report.as_dict(), "model": model}
    json_out(document) if as_json else _show(document)


def _show(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=cell(document["model"]), title_justify="left")
    for column in ("task", "accuracy", "per character", "n", "by chance", "how"):
        table.add_column(column)
    for score in document["scores"]:
        row = document["tasks"][score["task"]]
        plain = row["accuracy"] if row["accuracy"] is not None else score["value"]
        error = row["stderr"] if row["accuracy"] is not None else score["stderr"]
        normed = "" if row["accuracy_norm"] is None else f"{row['accuracy_norm']:.4f}"
        figure = f"{plain:.4f}" + ("" if error is None else f" ± {error:.4f}")
        table.add_row(score["task"], figure, normed, str(row["n"]), f"{score['chance']:.3g}", score["how"])
    Console().print(table)
