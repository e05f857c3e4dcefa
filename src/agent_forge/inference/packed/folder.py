"""A packed model as a Hugging Face folder: config.json with a quantization_config,
model.safetensors, tokenizer."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from agent_forge.errors import UsageError
from agent_forge.files import atomic_write, file_digest
from agent_forge.inference.packed.modules import BITS_OF
from agent_forge.inference.packed.products import PackedMatrix
from agent_forge.inference.packed.quantizer import PackedConfig, put_dense
from agent_forge.inference.packed.trits import TernaryWeight

WEIGHTS = "model.safetensors"
LAYOUTS = ("2bit", "1.6bit")
LARGEST = {"int8": 127, "int4": 7}
GROUPS = {"int8": 0, "int4": 32}  # columns of an embedding that share a scale; 0: the whole row
REST = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def save_packed(
    model: Any,
    folder: str | os.PathLike[str],
    *,
    ternary: Mapping[str, TernaryWeight],
    int8: Collection[str] = (),
    layout: str = "2bit",
    embedding: str | None = "int8",
    embedding_group: int | None = None,
    activations: str | None = "int8",
    head_activations: str | None = "int8",
    rest: str | None = None,
    tokenizer: Any = None,
) -> int:
    """Writes `model` with the linear layers named in `ternary` packed; returns the bytes of the folder.

    Those named in `int8` are rounded to bytes, one scale per row, which needs no training.
    `layout` is 2bit (fastest) or 1.6bit (smallest). `embedding` is int8, int4, fp16 or None
    (unchanged), for the embedding and the head, tied or not. `rest` is the type of all other
    weights: fp32, fp16, bf16 or None (unchanged). The model itself is not changed. Raises
    UsageError for a name that is not a linear layer, or shapes that differ.
    """
    if layout not in LAYOUTS or embedding not in ("int8", "int4", "fp16", None):
        raise UsageError(
            f"layout {layout!r} with embedding {embedding!r}",
            fix="Layouts are 2bit and 1.6bit; embeddings int8, int4, fp16 or None",
        )
    entries: dict[str, dict[str, Any]] = {}
    packed: dict[str, Tensor] = {}
    modules = dict(model.named_modules())
    for name, weight in ternary.items():
        module, shape = modules.get(name), tuple(weight.trits.shape)
        if not isinstance(module, nn.Linear) or tuple(module.weight.shape) != shape:
            actual = "missing" if module is None else f"a {type(module).__name__}"
            raise UsageError(f"{name} is {actual}, not a linear layer of {shape}", where="save_packed")
        kind = layout if weight.is_ternary else "4level"
        matrix = PackedMatrix.of(weight.trits.cpu(), weight.scales.cpu(), kind, weight.group)
        entries[name] = _store(packed, name, matrix, weight.sub_norm, module)
    for name in int8:
        entries[name] = _store(packed, name, round_rows(modules[name].weight, "int8"), module=modules[name])
    embeddings, heads = _store_words(model, packed, entries, embedding, embedding_group)
    config = PackedConfig(entries, embeddings, heads, activations, head_activations)
    tensors = _plain_tensors(model, {*entries, *embeddings, *heads}, rest, embedding) | packed
    return _write(model, Path(folder), config, tensors, tokenizer)


def _store(
    packed: dict[str, Tensor], name: str, matrix: PackedMatrix, sub_norm: bool = False, module: Any = None
) -> dict[str, Any]:
    """Adds the matrix to the tensors to write, and returns its entry in the configuration."""
    shape = matrix.shape
    packed[f"{name}.packed"] = matrix.packed
    packed[f"{name}.scales"] = matrix.scales.view(BITS_OF[matrix.scales.dtype])
    scales = "float16" if matrix.scales.dtype == torch.float16 else "float32"
    entry = {
        "kind": shape.kind, "rows": shape.rows, "columns": shape.columns, "group": shape.group, "scales": scales
    }  # fmt: skip
    bias = getattr(module, "bias", None)
    if bias is not None:
        packed[f"{name}.bias"] = bias.detach().cpu()
        entry["bias"] = True
    return entry | ({"sub_norm": True} if sub_norm else {})


def round_rows(weight: Tensor, kind: str, group: int | None = None) -> PackedMatrix:
    """A table of floats in int8 or int4: integers up to 127 or 7, where the largest of each group lies.

    A table that was rounded this way before is left unchanged.

    >>> table = round_rows(torch.tensor([[1.0, -0.5], [0.1, 0.3]]), "int4").dense()
    >>> bool((round_rows(table, "int4").dense() == table).all())
    True
    """
    wide = weight.detach().float().cpu()
    columns = min(group or GROUPS[kind] or wide.shape[1], wide.shape[1])
    padded = F.pad(wide.abs(), (0, -wide.shape[1] % columns)).unflatten(1, (-1, columns))
    scales = (padded.amax(-1) / LARGEST[kind]).clamp_min(1e-5).half()
    steps = scales.float().repeat_interleave(columns, dim=1)[:, : wide.shape[1]]
    numbers = (wide / steps).round().clamp(-LARGEST[kind], LARGEST[kind]).to(torch.int8)
    return PackedMatrix.of(numbers, scales, kind, columns)


def _store_words(
    model: Any, packed: dict[str, Tensor], entries: dict[str, dict[str, Any]], kind: str | None, group: int | None
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Adds the embedding and the head in int8 or int4; returns (embeddings, heads) of the configuration."""
    if kind not in GROUPS:
        return {}, {}
    words, head = model.get_input_embeddings(), model.get_output_embeddings()
    names = {id(module): name for name, module in model.named_modules()}
    if not isinstance(words, nn.Embedding):
        raise UsageError(f"the embedding is a {type(words).__name__}: it cannot be packed", fix="Use embedding=None")
    where = names[id(words)]
    embeddings = {where: _store(packed, where, round_rows(words.weight, kind, group))}
    packed[f"{where}.like"] = words.weight.new_empty(0, device="cpu")
    if head is None or names[id(head)] in entries:
        return embeddings, {}
    at = names[id(head)]
    if head.weight is words.weight:
        if head.bias is not None:
            packed[f"{at}.bias"] = head.bias.detach().cpu()
        return embeddings, {at: where}
    entries[at] = _store(packed, at, round_rows(head.weight, kind, group), module=head)
    return embeddings, {}


def _plain_tensors(model: Any, taken: set[str], rest: str | None, embedding: str | None) -> dict[str, Tensor]:
    """Everything that is not packed, tied weights once."""
    tensors: dict[str, Tensor] = {}
    tied = getattr(model, "all_tied_weights_keys", {})
    words = {id(module) for module in (model.get_input_embeddings(), model.get_output_embeddings())}
    for name, tensor in model.state_dict().items():
        owner = name.rpartition(".")[0]
        if any(name.startswith(f"{module}.") for module in taken) or name in tied:
            continue
        kind = "fp16" if embedding == "fp16" and id(model.get_submodule(owner)) in words else rest
        cast = tensor.to(REST[kind]) if kind is not None and tensor.is_floating_point() else tensor
        tensors[name] = cast.detach().cpu().contiguous().clone()
    return tensors


def _write(model: Any, folder: Path, config: PackedConfig, tensors: dict[str, Tensor], tokenizer: Any) -> int:
    """The weights first and config.json last: a half-written folder does not load."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").unlink(missing_ok=True)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    config.files = {WEIGHTS: file_digest(folder / WEIGHTS)}
    if getattr(model, "generation_config", None) is not None and model.can_generate():
        model.generation_config.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    about = copy.deepcopy(model.config)
    about.architectures = [type(model).__name__]
    document = about.to_dict() | {"quantization_config": config.to_dict()}
    document.pop("_name_or_path", None)  # a path of this machine, not part of the model
    document["dtype"] = str(model.dtype).removeprefix("torch.")
    with atomic_write(folder / "config.json") as file:
        file.write(json.dumps(document, indent=1, sort_keys=True, default=str) + "\n")
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def unpack_model(model: Any, dtype: torch.dtype | None = None) -> Any:
    """Turns a packed model into a plain one with the de-quantised weights, in place; returns it."""
    if getattr(model, "hf_quantizer", None) is not None:
        return model.dequantize(dtype or torch.float32)
    return put_dense(model, dtype)
