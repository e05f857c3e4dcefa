"""What a phase takes and promises, checked before any work is done.

A contract is a list of clauses; a handoff must meet all of them (see `handoff`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_forge.forge.checkpoint import Checkpoint
from agent_forge.inference.loading import read_json
from agent_forge.inference.safetensors_file import read_header

Bounds = tuple[float, float]
ANY_NUMBER: Bounds = (-math.inf, math.inf)


@dataclass(frozen=True)
class Contract:
    """Conditions on a list of checkpoints; fields left at their defaults demand nothing."""

    checkpoints: tuple[int, int] = (1, 1)
    architectures: tuple[str, ...] = ()
    parameters: tuple[int, int] | None = None
    dtypes: tuple[str, ...] = ()  # safetensors' names: F32, F16, BF16
    formats: tuple[str, ...] = ()  # "dense", or the name of a quantisation method as in config.json
    tied: bool | None = None  # whether the head is the embedding
    tokenizer: bool = False  # each checkpoint must come with one
    same_tokenizer: bool = False
    same_architecture: bool = False
    metrics: Mapping[str, Bounds] = field(default_factory=dict)  # present in the card and within bounds


@dataclass(frozen=True)
class ContractClause:
    """One condition, the actual state, and whether the condition is met."""

    name: str
    required: str
    actual: str
    met: bool

    def __str__(self) -> str:
        return f"{self.name}: {self.required}, found {self.actual}"


def clauses(contract: Contract, checkpoints: Sequence[Checkpoint]) -> list[ContractClause]:
    """Every clause of the contract, checked against the checkpoints."""
    return list(_clauses(contract, checkpoints))


def _clauses(contract: Contract, checkpoints: Sequence[Checkpoint]) -> Iterator[ContractClause]:
    low, high = contract.checkpoints
    count = f"exactly {low}" if low == high else f"{low} to {high}"
    met = low <= len(checkpoints) <= high
    yield ContractClause("checkpoints", f"{count} checkpoints", str(len(checkpoints)), met)
    for checkpoint in checkpoints:
        yield from _clauses_of_one(contract, checkpoint)
    for name, required in (("tokenizer", contract.same_tokenizer), ("architecture", contract.same_architecture)):
        if required:
            values = [getattr(checkpoint.card, name) for checkpoint in checkpoints]
            kinds = sorted({value or "none" for value in values})
            met = len(kinds) == 1 and None not in values  # two models without a tokenizer do not share one
            yield ContractClause(f"same {name}", "one for all", ", ".join(kinds), met)


def _clauses_of_one(contract: Contract, checkpoint: Checkpoint) -> Iterator[ContractClause]:
    card = checkpoint.card
    if contract.architectures:
        met = card.architecture in contract.architectures
        yield ContractClause("architecture", " or ".join(contract.architectures), str(card.architecture), met)
    if contract.parameters:
        low, high = contract.parameters
        met = card.parameters is not None and low <= card.parameters <= high
        count = "not counted" if card.parameters is None else f"{card.parameters:,}"
        yield ContractClause("parameters", f"{low:,} to {high:,}", count, met)
    if contract.dtypes:
        types = dtypes_of(checkpoint.path)
        met = types <= set(contract.dtypes)
        yield ContractClause("dtype", " or ".join(contract.dtypes), ", ".join(sorted(types)), met)
    if contract.formats:
        stored = format_of(checkpoint.path)
        yield ContractClause("format", " or ".join(contract.formats), stored, stored in contract.formats)
    if contract.tied is not None:
        tied = is_tied(checkpoint.path)
        words = {True: "head and embedding tied", False: "head and embedding apart"}
        yield ContractClause("tying", words[contract.tied], words[tied], tied == contract.tied)
    if contract.tokenizer:
        yield ContractClause("tokenizer", "one in the folder", card.tokenizer or "none", card.tokenizer is not None)
    for name, (least, most) in contract.metrics.items():
        metric = card.metrics.get(name)
        actual = "not measured" if metric is None else f"{metric.value:g}"
        met = metric is not None and least <= metric.value <= most
        yield ContractClause(f"metric {name}", f"{least:g} to {most:g}", actual, met)


def dtypes_of(folder: Path) -> set[str]:
    """The types of the stored weights, from the headers. Integers (positions, masks) are not weights."""
    headers = (read_header(shard) for shard in sorted(folder.glob("*.safetensors")))
    types = {tensor["dtype"] for header in headers for tensor in header.values()}
    return {name for name in types if name.startswith(("F", "BF"))}


def format_of(folder: Path) -> str:
    """How the weights are stored: "dense", or the quantisation method that config.json names."""
    method = _config(folder).get("quantization_config")
    return str(method.get("quant_method", "unnamed")) if isinstance(method, dict) else "dense"


def is_tied(folder: Path) -> bool:
    """Whether the head is the embedding: as config.json says, or else because no head is stored."""
    tied = _config(folder).get("tie_word_embeddings")
    if isinstance(tied, bool):
        return tied
    return not any("lm_head.weight" in read_header(shard) for shard in sorted(folder.glob("*.safetensors")))


def _config(folder: Path) -> dict[str, Any]:
    return read_json(folder / "config.json")
