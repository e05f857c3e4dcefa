"""From one phase to the next: a checkpoint meets the contract, is adapted to it, or is refused.

An unmet clause that has an adapter is adapted; any other is refused by name. Nothing is assumed silently.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_forge.errors import HandoffError
from agent_forge.forge.checkpoint import CARD, Card, Checkpoint, files_of, finish, staging
from agent_forge.forge.contracts import Contract, ContractClause, clauses, dtypes_of, format_of, is_tied
from agent_forge.inference.loading import read_json

INDEX = "model.safetensors.index.json"
ADAPTED = "adapter"  # the phase on the card of an adapted checkpoint, and where its configuration has the change
TORCH_NAME = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def handoff(
    contract: Contract, checkpoints: Sequence[Checkpoint], target: str, models: Path
) -> tuple[list[Checkpoint], list[ContractClause]]:
    """The checkpoints as the phase `target` takes them, and the clauses as checked before any adapting.

    An adapted checkpoint is a new one under `models`, with the old one as its parent. Raises HandoffError naming the
    clauses that are still unmet.
    """
    checked = clauses(contract, checkpoints)
    adapted = list(checkpoints)
    unmet_names = {clause.name for clause in checked if not clause.met}
    for name, adapter in ADAPTERS.items():
        if name in unmet_names:
            adapted = [adapter(checkpoint, contract, models) for checkpoint in adapted]
    unmet = [clause for clause in clauses(contract, adapted) if not clause.met]
    if unmet:
        raise HandoffError(
            f"the handoff to {target!r} is refused; unmet: {'; '.join(map(str, unmet))}",
            fix="Change the phase before it, or the pipeline file",
        )
    return adapted, checked


def _cast(checkpoint: Checkpoint, contract: Contract, models: Path) -> Checkpoint:
    """The same weights in the first type that the contract allows. Raises HandoffError if some do not fit."""
    if dtypes_of(checkpoint.path) <= set(contract.dtypes):
        return checkpoint
    from safetensors import safe_open
    from safetensors.torch import save_file

    dtype = TORCH_NAME[contract.dtypes[0]]
    with staging(models) as folder:
        _copy_all_but_weights(checkpoint.path, folder)
        size = 0
        for shard in sorted(checkpoint.path.glob("*.safetensors")):
            with safe_open(shard, framework="pt") as tensors:
                cast = {name: _to(tensors.get_tensor(name), dtype, name) for name in tensors.keys()}  # noqa: SIM118
            save_file(cast, folder / shard.name, metadata={"format": "pt"})
            size += sum(tensor.nbytes for tensor in cast.values())
        _set_dtype(folder, dtype, size)
        return finish(folder, _card(checkpoint, {"dtype": dtype}), models)


def _tie_or_untie(checkpoint: Checkpoint, contract: Contract, models: Path) -> Checkpoint:
    """The same model with its head tied to the embedding, or apart from it, as the contract demands.

    Untying copies the embedding. Tying is refused unless the two are equal: it would throw the head away.
    """
    if is_tied(checkpoint.path) == contract.tied:
        return checkpoint
    from torch import equal, nn

    model = _model(checkpoint)
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings()
    if contract.tied and not (head.weight.shape == embedding.shape and equal(head.weight, embedding)):
        fix = "Leave them apart, or train with tied weights"
        raise HandoffError("the head differs from the embedding, and tying them would lose it", fix=fix)
    head.weight = embedding if contract.tied else nn.Parameter(embedding.detach().clone())
    model.config.tie_word_embeddings = contract.tied
    return _rewritten(checkpoint, model, {"tied": contract.tied}, models)


def _unpack(checkpoint: Checkpoint, contract: Contract, models: Path) -> Checkpoint:
    """A quantised model as a dense one with the same values, where the contract takes dense ones."""
    method = format_of(checkpoint.path)
    if method in contract.formats or "dense" not in contract.formats:
        return checkpoint
    model = _model(checkpoint)
    try:
        model = model.dequantize()
    except (NotImplementedError, ValueError) as error:
        raise HandoffError(f"a model in the format {method!r} cannot be made dense: {error}") from error
    return _rewritten(checkpoint, model, {"format": "dense"}, models)


def _model(checkpoint: Checkpoint) -> Any:
    from agent_forge.inference.loading import load_model

    return load_model(checkpoint.path)


def _rewritten(checkpoint: Checkpoint, model: Any, change: dict[str, Any], models: Path) -> Checkpoint:
    with staging(models) as folder:
        _copy_all_but_weights(checkpoint.path, folder)
        (folder / INDEX).unlink(missing_ok=True)
        model.save_pretrained(folder)
        return finish(folder, _card(checkpoint, change), models)


def _card(checkpoint: Checkpoint, change: dict[str, Any]) -> Card:
    """The card of the adapted model, without metrics: those were measured on other bytes."""
    config = {**checkpoint.card.config, ADAPTED: change}
    return replace(checkpoint.card, phase=ADAPTED, config=config, inputs=(checkpoint.digest,), metrics={})


def _copy_all_but_weights(source: Path, target: Path) -> None:
    for file in files_of(source):
        if file.parent != source or (file.suffix != ".safetensors" and file.name != CARD):
            copy = target / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)


def _to(tensor: Any, dtype: str, name: str) -> Any:
    import torch

    if not tensor.is_floating_point():
        return tensor
    cast = tensor.to(getattr(torch, dtype))
    if not torch.equal(cast.isfinite(), tensor.isfinite()):
        raise HandoffError(f"{name!r} has values that {dtype} cannot hold", fix="Train it, or keep it, in another type")
    return cast


def _set_dtype(folder: Path, dtype: str, size: int) -> None:
    """Writes the new type to config.json, and the new size to the index of a model in several files."""
    document = read_json(folder / "config.json")
    document.pop("torch_dtype", None)
    (folder / "config.json").write_text(json.dumps({**document, "dtype": dtype}, indent=2), encoding="utf-8")
    index = folder / INDEX
    if index.is_file():
        document = json.loads(index.read_text(encoding="utf-8"))
        document["metadata"] = {**document.get("metadata", {}), "total_size": size}
        index.write_text(json.dumps(document, indent=2), encoding="utf-8")


# By the name of a clause: what makes a checkpoint meet it. Later adapters see the output of earlier ones.
ADAPTERS: dict[str, Callable[[Checkpoint, Contract, Path], Checkpoint]] = {
    "format": _unpack,
    "tying": _tie_or_untie,
    "dtype": _cast,
}
