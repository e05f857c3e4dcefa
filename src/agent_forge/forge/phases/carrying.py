"""Thoughts go along: what the input of a phase thinks with is beside the model that the phase makes, too.

Phases train, merge or pack language models, and know nothing of the heads in `thoughts/` (phase 3). The heads fit any
model of the same sizes. They are copied as they are, neither trained nor judged again; where they cannot go along, the
gate's note says why.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from agent_forge.forge.checkpoint import Checkpoint, Metric, digest_of, finish, staging
from agent_forge.forge.cleanup import remove_folder
from agent_forge.forge.phases import Phase, PhaseOutcome, Work
from agent_forge.inference.loading import load_config
from agent_forge.model_files import THOUGHTS

SIZES = ("hidden_size", "vocab_size", "embedding_rank")  # what the heads depend on; the last is Cognate's
CARRIED = "thoughts carried along, not judged again"


def carry_thoughts(kind: Phase, work: Work, outcome: PhaseOutcome, existing: set[Path]) -> PhaseOutcome:
    """The outcome with the thoughts of its input, or with a note that they were dropped, and why.

    `existing` are the checkpoints that were there before the phase: they stay, whatever becomes of this one.
    """
    thinkers = [one for one in work.inputs if (one.path / THOUGHTS).is_dir()]
    made = outcome.checkpoint
    if made is None or not thinkers or (made.path / THOUGHTS).is_dir():
        return outcome
    reason = kind.drops_thoughts or misfit(thinkers, made)
    if reason:
        return replace(outcome, gate=outcome.gate.noting(f"thoughts dropped: {reason}"))
    with staging(work.models) as place:
        folder = place / "thinking"
        shutil.copytree(made.path, folder)
        shutil.copytree(thinkers[0].path / THOUGHTS, folder / THOUGHTS)
        size = sum(file.stat().st_size for file in (folder / THOUGHTS).iterdir())
        how = f"{CARRIED}; other figures of size are without them"
        metrics = {**made.card.metrics, "thoughts_bytes": Metric(float(size), how=how)}
        checkpoint = finish(folder, replace(made.card, metrics=metrics), work.models)
    if made.path not in existing:
        remove_folder(made.path)
    return replace(outcome, checkpoint=checkpoint, gate=outcome.gate.noting(CARRIED))


def misfit(thinkers: list[Checkpoint], made: Checkpoint) -> str:
    """Why the thoughts of the inputs cannot be those of the model that was made; empty if they can."""
    if len({digest_of(one.path / THOUGHTS) for one in thinkers}) > 1:
        return "the inputs have different ones"
    if made.card.architecture != thinkers[0].card.architecture:
        return f"they are those of {thinkers[0].card.architecture}, and this is {made.card.architecture}"
    before, after = (load_config(one.path) for one in (thinkers[0], made))
    for name in SIZES:
        sizes = [getattr(config, name, None) for config in (before, after)]
        if sizes[0] != sizes[1]:
            return f"{name} was {sizes[0]} and is {sizes[1]}"
    return ""
