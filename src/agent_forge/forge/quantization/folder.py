"""A quantised model as folders: packed to keep and to run, and de-quantised for phases that train on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from agent_forge.forge.checkpoint import count_parameters, files_of
from agent_forge.forge.compression.folder import folder_bytes
from agent_forge.forge.quantization.bitlinear import BitLinear, quantised_modules
from agent_forge.inference.packed import TernaryWeight, save_packed

REDUNDANT = ("vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json")  # all in tokenizer.json
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "chat_template.jinja", "chat_template.json"),
    *REDUNDANT,
)


def packed_weight(layer: BitLinear) -> TernaryWeight:
    """A layer as codes and scales."""
    codes, scales = layer.codes()
    scales = scales.expand(layer.out_features, -1)
    group = layer.format.group if scales.shape[1] > 1 else None
    if layer.format.levels == "two_bit":  # -1.5, -0.5, 0.5, 1.5 times s are -3, -1, 1, 3 times s / 2
        codes, scales = codes * 2, scales / 2
    return TernaryWeight(codes.to(torch.int8).cpu(), scales.half().float().cpu(), group, layer.format.sub_norm)


def write_packed(model: Any, source: Path, out: Path, layout: str = "1.6bit") -> int:
    """Writes the packed model with the tokenizer of the folder `source`; returns the bytes of
    everything in `out`."""
    modules = dict(quantised_modules(model))
    format = next(iter(modules.values())).format
    save_packed(
        model,
        out,
        ternary={name: packed_weight(layer) for name, layer in modules.items() if isinstance(layer, BitLinear)},
        layout=layout,
        embedding=None if format.embedding == "none" else format.embedding,
        embedding_group=format.embedding_group or None,
        activations=None if format.activations == "none" else "int8",
        rest="fp16",
    )
    copy_tokenizer(source, out)
    for file in files_of(out):
        file.chmod(0o644)
    return folder_bytes(out)


def copy_tokenizer(source: Path, out: Path) -> None:
    """Copies the tokenizer's files, JSON without white space, except what tokenizer.json holds already."""
    whole = (source / "tokenizer.json").is_file()
    for name in TOKENIZER_FILES:
        if (source / name).is_file() and not (whole and name in REDUNDANT):
            shutil.copyfile(source / name, out / name)
    for file in out.glob("*.json"):
        document = json.loads(file.read_text(encoding="utf-8"))
        if file.name == "tokenizer.json":
            _shorten_merges(document)
        file.write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def _shorten_merges(document: dict[str, Any]) -> None:
    """Merges as "a b" instead of ["a", "b"], where no token contains a space: both forms are read alike."""
    model = document.get("model") or {}
    merges = model.get("merges") or []
    if merges and all(isinstance(pair, list) and not any(" " in part for part in pair) for pair in merges):
        model["merges"] = [" ".join(pair) for pair in merges]


def write_dense(model: Any, source: Path, out: Path) -> None:
    """Writes a plain model (see `to_dense`) with its tokenizer, in float32: a scale times a level
    is exact there."""
    model.float().save_pretrained(out)
    copy_tokenizer(source, out)


def float32_bytes(folder: Path) -> int:
    """What the folder would take with every stored weight in float32."""
    other = sum(file.stat().st_size for file in files_of(folder) if file.suffix != ".safetensors")
    return 4 * count_parameters(folder) + other
