"""A checkpoint as a folder to give away: the files that transformers and vLLM load, and a model card for people."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from agent_forge.errors import UsageError
from agent_forge.files import sync_folder
from agent_forge.forge.checkpoint import Checkpoint, files_of, staging


def export_checkpoint(checkpoint: Checkpoint, out: str | os.PathLike[str]) -> Path:
    """Copies the checkpoint to the folder `out`, which must not exist; it appears whole or not at all."""
    target = Path(out)
    if target.exists():
        raise UsageError("it exists already", where=str(target), fix="name a folder that does not")
    target.parent.mkdir(parents=True, exist_ok=True)
    with staging(target.parent) as folder:
        for file in files_of(checkpoint.path):
            copy = folder / file.relative_to(checkpoint.path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
        (folder / "README.md").write_text(model_card(checkpoint), encoding="utf-8")
        folder.chmod(0o755)
        folder.rename(target)
        sync_folder(target.parent)
    return target


def model_card(checkpoint: Checkpoint) -> str:
    """The card in Markdown: what it is, where it came from, what was measured."""
    card = checkpoint.card
    rows = [
        f"| {name} | {metric.value:.6g} | {'' if metric.stderr is None else f'{metric.stderr:.2g}'} "
        f"| {'' if metric.n is None else metric.n} | {metric.how} |"
        for name, metric in card.metrics.items()
    ]
    return "\n".join(
        [
            f"# {checkpoint.name}",
            "",
            f"{card.architecture}, {card.parameters:,} parameters, made by {card.made_by} in phase `{card.phase}`"
            f" with seed {card.seed}.",
            "",
            f"- digest: `{checkpoint.digest}`",
            *[f"- made from: `{digest}`" for digest in card.inputs],
            *[f"- data `{name}`: `{digest}`" for name, digest in card.data.items()],
            "",
            "| measured | value | standard error | n | how |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )
