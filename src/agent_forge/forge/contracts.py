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
from agent_forge.forge.checkpoint import CARD, Checkpoint, Metric, files_of, finish, read_header, staging

Bounds = tuple[float, float]
ANY_NUMBER: Bounds = (-math.inf, math.inf)


@dataclass(frozen=True)
class Contract:
    """Conditions on a list of checkpoints; what is left out is not asked for."""

    checkpoints: tuple[int, int] = (1, 1)
    architectures: tuple[str, ...] = ()
    parameters: tuple[int, int] | None = None
    dtypes: tuple[str, ...] = ()  # safetensors' names: F32, F16, BF16
    tokenizer: bool = False  # each must come with one
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
        count = "not counted" if card.parameters is None else f"{card.parameters:,}"
        found.append(Clause("parameters", f"{low:,} to {high:,}", count, met))
    if contract.dtypes:
        types = dtypes_of(checkpoint.path)
        found.append(
            Clause("dtype", " or ".join(contract.dtypes), ", ".join(sorted(types)), types <= set(contract.dtypes))
        )
    if contract.tokenizer:
        found.append(Clause("tokenizer", "one in the folder", card.tokenizer or "none", card.tokenizer is not None))
    for name, bounds in contract.metrics.items():
        found.append(_clause_of_metric(name, bounds, card.metrics.get(name)))
    return found


def _clause_of_metric(name: str, bounds: Bounds, metric: Metric | None) -> Clause:
    low, high = bounds
    met = metric is not None and low <= metric.value <= high
    found = "not measured" if metric is None else f"{metric.value:g}"
    return Clause(f"metric {name}", f"{low:g} to {high:g}", found, met)


def _same(name: str, values: Sequence[str | None]) -> Clause:
    """All alike, and known: two models without a tokenizer are not known to share one."""
    kinds = {value or "none" for value in values}
    return Clause(f"same {name}", "one for all", ", ".join(sorted(kinds)), len(kinds) == 1 and None not in values)


def dtypes_of(folder: Path) -> set[str]:
    """The types of the stored weights, read off the headers. Whole numbers (positions, masks) are not weights."""
    headers = (read_header(shard) for shard in sorted(folder.glob("*.safetensors")))
    types = {tensor["dtype"] for header in headers for tensor in header.values()}
    return {name for name in types if name.startswith(("F", "BF"))}


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
    """The same weights stored as the first type that the contract allows. Raises HandoffError if some do not fit."""
    if dtypes_of(checkpoint.path) <= set(contract.dtypes):
        return checkpoint
    from safetensors import safe_open
    from safetensors.torch import save_file

    wanted = TORCH_NAME[contract.dtypes[0]]
    with staging(models) as folder:
        _copy_all_but_weights(checkpoint.path, folder)
        size = 0
        for shard in sorted(checkpoint.path.glob("*.safetensors")):
            with safe_open(shard, framework="pt") as tensors:
                cast = {name: _to(tensors.get_tensor(name), wanted, name) for name in tensors.keys()}  # noqa: SIM118
            save_file(cast, folder / shard.name, metadata={"format": "pt"})
            size += sum(tensor.nbytes for tensor in cast.values())
        _set_dtype(folder, wanted, size)
        config = {**checkpoint.card.config, "adapter": {"dtype": wanted}}
        card = replace(checkpoint.card, phase="adapter", config=config, inputs=(checkpoint.digest,), metrics={})
        return finish(folder, card, models)


def _copy_all_but_weights(source: Path, target: Path) -> None:
    for file in files_of(source):
        if file.parent != source or (file.suffix != ".safetensors" and file.name != CARD):
            copy = target / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)


def _to(tensor, dtype: str, name: str):
    import torch

    if not tensor.is_floating_point():
        return tensor
    cast = tensor.to(getattr(torch, dtype))
    if not torch.equal(cast.isfinite(), tensor.isfinite()):
        raise HandoffError(f"{name!r} has values that {dtype} cannot hold", fix="train, or keep, it in another type")
    return cast


def _set_dtype(folder: Path, dtype: str, size: int) -> None:
    """Says the new type in config.json, and the new size in the index of a model that comes in several files."""
    document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    document.pop("torch_dtype", None)
    (folder / "config.json").write_text(json.dumps({**document, "dtype": dtype}, indent=2), encoding="utf-8")
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        document = json.loads(index.read_text(encoding="utf-8"))
        document["metadata"] = {**document.get("metadata", {}), "total_size": size}
        index.write_text(json.dumps(document, indent=2), encoding="utf-8")


TORCH_NAME = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
ADAPTERS: dict[str, Callable[[Checkpoint, Contract, Path], Checkpoint]] = {"dtype": _cast}

__all__ = ["ADAPTERS", "ANY_NUMBER", "Clause", "Contract", "clauses", "dtypes_of", "handoff"]
