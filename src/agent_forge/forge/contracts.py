"""What a phase takes and what it promises, checked before any work is done.

A contract is a list of clauses. A handoff whose clauses are not all met is adapted where an adapter for the clause is
registered, and otherwise refused with the unmet clauses; nothing is assumed in silence.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent_forge.errors import HandoffError
from agent_forge.forge.checkpoint import CARD, Card, Checkpoint, finish, read_header, staging

Bounds = tuple[float, float]
ANY_NUMBER: Bounds = (-math.inf, math.inf)


@dataclass(frozen=True)
class Contract:
    """Conditions on a list of checkpoints; what is left out is not asked for."""

    checkpoints: tuple[int, int] = (1, 1)
    architectures: tuple[str, ...] = ()
    parameters: tuple[int, int] | None = None
    dtypes: tuple[str, ...] = ()  # safetensors' names: F32, F16, BF16
    same_tokenizer: bool = False
    same_architecture: bool = False
    metrics: Mapping[str, Bounds] = field(default_factory=dict)  # measured, present in the card, and within bounds


@dataclass(frozen=True)
class Clause:
    """One condition, what was found, and whether it is met."""

    name: str
    required: str
    found: str
    met: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.required}, found {self.found}"


def clauses(contract: Contract, checkpoints: Sequence[Checkpoint]) -> list[Clause]:
    """Every clause of the contract with what the checkpoints say to it."""
    low, high = contract.checkpoints
    count = f"exactly {low}" if low == high else f"{low} to {high}"
    found = [Clause("checkpoints", f"{count} checkpoints", str(len(checkpoints)), low <= len(checkpoints) <= high)]
    for checkpoint in checkpoints:
        found.extend(_clauses_of_one(contract, checkpoint))
    cards = [checkpoint.card for checkpoint in checkpoints]
    if contract.same_tokenizer:
        found.append(_same("tokenizer", [card.tokenizer for card in cards]))
    if contract.same_architecture:
        found.append(_same("architecture", [card.architecture for card in cards]))
    return found


def _clauses_of_one(contract: Contract, checkpoint: Checkpoint) -> list[Clause]:
    card, found = checkpoint.card, []
    if contract.architectures:
        met = card.architecture in contract.architectures
        found.append(Clause("architecture", " or ".join(contract.architectures), str(card.architecture), met))
    if contract.parameters:
        low, high = contract.parameters
        met = card.parameters is not None and low <= card.parameters <= high
        found.append(Clause("parameters", f"{low:,} to {high:,}", f"{card.parameters:,}", met))
    if contract.dtypes:
        types = dtypes_of(checkpoint.path)
        found.append(
            Clause("dtype", " or ".join(contract.dtypes), ", ".join(sorted(types)), types <= set(contract.dtypes))
        )
    for name, (low, high) in contract.metrics.items():
        metric = card.metrics.get(name)
        met = metric is not None and low <= metric.value <= high
        found.append(
            Clause(
                f"metric {name}", f"{low:g} to {high:g}", "not measured" if metric is None else f"{metric.value:g}", met
            )
        )
    return found


def _same(name: str, values: Sequence[str | None]) -> Clause:
    kinds = {value[:12] if value else "none" for value in values}
    return Clause(f"same {name}", "one for all", ", ".join(sorted(kinds)) or "nothing", len(kinds) <= 1)


def dtypes_of(folder: Path) -> set[str]:
    """The types of the stored weights, read off the headers."""
    headers = (read_header(shard) for shard in sorted(folder.glob("*.safetensors")))
    return {tensor["dtype"] for header in headers for tensor in header.values()}


def handoff(
    contract: Contract, checkpoints: Sequence[Checkpoint], target: str, models: Path
) -> tuple[list[Checkpoint], list[Clause]]:
    """The checkpoints as the phase `target` may take them, and the clauses as they were found.

    Unmet clauses that have an adapter are adapted (the adapted checkpoint is a new one under `models`, with the old one
    as its parent). Raises HandoffError with what is still unmet.
    """
    found = clauses(contract, checkpoints)
    adapted = list(checkpoints)
    for name in dict.fromkeys(clause.name for clause in found if not clause.met):
        if name in ADAPTERS:
            adapted = [ADAPTERS[name](checkpoint, contract, models) for checkpoint in adapted]
    unmet = [clause for clause in clauses(contract, adapted) if not clause.met]
    if unmet:
        raise HandoffError(
            f"the handoff to {target!r} is refused; unmet: {'; '.join(map(str, unmet))}",
            fix="change the phase before it, or the pipeline file",
        )
    return adapted, found


def _cast(checkpoint: Checkpoint, contract: Contract, models: Path) -> Checkpoint:
    """The same weights stored as the first type that the contract allows."""
    if dtypes_of(checkpoint.path) <= set(contract.dtypes):
        return checkpoint
    from safetensors import safe_open
    from safetensors.torch import save_file

    wanted = TORCH_NAME[contract.dtypes[0]]
    with staging(models) as folder:
        for file in checkpoint.path.iterdir():
            if file.suffix != ".safetensors" and file.name != CARD:
                shutil.copy(file, folder / file.name)
        for shard in sorted(checkpoint.path.glob("*.safetensors")):
            with safe_open(shard, framework="pt") as tensors:
                cast = {name: _to(tensors.get_tensor(name), wanted) for name in tensors.keys()}  # noqa: SIM118
            save_file(cast, folder / shard.name, metadata={"format": "pt"})
        _set_dtype(folder / "config.json", wanted)
        card = replace(checkpoint.card, phase="adapter", config={"dtype": wanted}, inputs=(checkpoint.digest,))
        return finish(folder, replace(card, metrics={}), models)


def _to(tensor, dtype: str):
    import torch

    return tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor


def _set_dtype(config: Path, dtype: str) -> None:
    document = json.loads(config.read_text(encoding="utf-8"))
    document.pop("torch_dtype", None)
    config.write_text(json.dumps({**document, "dtype": dtype}, indent=2), encoding="utf-8")


TORCH_NAME = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
ADAPTERS: dict[str, Callable[[Checkpoint, Contract, Path], Checkpoint]] = {"dtype": _cast}

__all__ = ["ADAPTERS", "Card", "Clause", "Contract", "clauses", "handoff"]
