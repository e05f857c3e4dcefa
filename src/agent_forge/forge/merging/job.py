"""A merge from its settings: the models of the call take their places in the recipe, and the result may be judged."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_forge.errors import ConfigError
from agent_forge.forge.checkpoint import Checkpoint
from agent_forge.forge.gates import GateResult
from agent_forge.forge.merging.engine import MergeReport, merge
from agent_forge.forge.merging.recipe import parse_recipe
from agent_forge.forge.merging.settings import MergeSettings

INPUT = re.compile(r"input(\d+)")


def merge_models(
    models: Sequence[Checkpoint],
    out: Path,
    settings: MergeSettings,
    *,
    phase: str = "merge",
    beside: Path | None = None,
    where: str = "recipe",
    progress: Callable[[int, int, str], None] | None = None,
) -> MergeReport:
    """Merges `models`, which the recipe calls input1, input2 …, and others that it names itself, into the folder `out`.

    Models are also looked up relative to `beside`, and those of `models` that are there go by their names: the same
    merge is then the same checkpoint on any machine.
    """
    names = [model.path.name if model.path.parent == beside else str(model.path) for model in models]
    recipe = parse_recipe(_placed(settings.recipe or {}, names, where), where)
    inputs = tuple(model.digest for model in models)
    report = merge(recipe, out, settings, progress=progress, beside=beside, inputs=inputs, phase=phase)
    if not settings.sources:
        return report
    found = [Path(name) if Path(name).is_dir() else (beside or Path()) / name for name in recipe.models_on_disk()]
    rivals = [model.path for model in models] or found
    gate, best = judge_merge(rivals, Path(out), settings)
    return replace(report, gate=gate, best_input=best)


def _placed(value: Any, names: Sequence[str], where: str) -> Any:
    """The recipe with the models of the call in place of input1, input2 …"""
    if isinstance(value, dict):
        return {key: _placed(item, names, where) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_placed(item, names, where) for item in value]
    match = INPUT.fullmatch(value) if names and isinstance(value, str) else None
    if match is None:
        return value
    if not 1 <= int(match[1]) <= len(names):
        raise ConfigError(f"the recipe names {value!r}, and there are {len(names)} models", where=where)
    return names[int(match[1]) - 1]


def judge_merge(rivals: Sequence[Path], merged: Path, settings: MergeSettings) -> tuple[GateResult, int]:
    """The merge against the best of its inputs, in bits per byte of held-out text; and which input that is."""
    import torch

    from agent_forge.context_length import context_length
    from agent_forge.forge.checkpoint import load
    from agent_forge.forge.corpus import read_corpus
    from agent_forge.forge.evaluation.text import measure_text
    from agent_forge.forge.lineage import judging_share
    from agent_forge.forge.phases.measure import compare
    from agent_forge.forge.quantization.material import beginning
    from agent_forge.forge.training.evaluation import HeldOut
    from agent_forge.forge.training.packing import encode, pack
    from agent_forge.inference.loading import load_model, load_tokenizer

    share = min(judging_share(load(folder), settings.sources, settings.held_out) for folder in rivals)
    texts = [text for of in read_corpus(settings.sources, share).held_out.values() for text in of]
    sizes = tuple(len(text.encode()) for text in texts)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def bits(folder: Path) -> Any:
        tokenizer = load_tokenizer(folder)
        model = load_model(folder, dtype=torch.float32)
        length = min(settings.length, context_length(model.config) or settings.length)
        rows = pack(encode(tokenizer, texts, eos=False), length, beginning(tokenizer), alone=True)
        return measure_text(model.to(device), HeldOut(rows, sizes)).bits

    before = [bits(folder) for folder in rivals]
    best = min(range(len(before)), key=lambda number: float(before[number].sum()))
    return compare(before[best], bits(merged), sizes), best
