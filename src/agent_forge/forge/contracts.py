"""What a phase takes and what it promises, checked before any work is done.

A contract is a list of clauses; a handoff asks for all of them (see `handoff`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_forge.forge.checkpoint import Checkpoint, Metric, read_header

Bounds = tuple[float, float]
ANY_NUMBER: Bounds = (-math.inf, math.inf)


@dataclass(frozen=True)
class Contract:
    """Conditions on a list of checkpoints; what is left out is not asked for."""

    checkpoints: tuple[int, int] = (1, 1)
    architectures: tuple[str, ...] = ()
    parameters: tuple[int, int] | None = None
    dtypes: tuple[str, ...] = ()  # safetensors' names: F32, F16, BF16
    formats: tuple[str, ...] = ()  # "dense", or the name of a quantisation method as config.json has it
    tied: bool | None = None  # whether the head is the embedding
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
    if contract.formats:
        stored = format_of(checkpoint.path)
        found.append(Clause("format", " or ".join(contract.formats), stored, stored in contract.formats))
    if contract.tied is not None:
        tied = is_tied(checkpoint.path)
        words = {True: "head and embedding tied", False: "head and embedding apart"}
        found.append(Clause("tying", words[contract.tied], words[tied], tied == contract.tied))
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


def format_of(folder: Path) -> str:
    """How the weights are stored: "dense", or the quantisation method that config.json names."""
    method = _config(folder).get("quantization_config")
    return str(method.get("quant_method", "unnamed")) if isinstance(method, dict) else "dense"


def is_tied(folder: Path) -> bool:
    """Whether the head is the embedding: as config.json says, else by whether a head of its own is stored."""
    said = _config(folder).get("tie_word_embeddings")
    if isinstance(said, bool):
        return said
    return not any("lm_head.weight" in read_header(shard) for shard in sorted(folder.glob("*.safetensors")))


def _config(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}
