"""The artefact: a Hugging Face folder with the compressed weights, whose size is the size that is reported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from agent_forge.errors import CheckpointError
from agent_forge.forge.checkpoint import CARD
from agent_forge.forge.compression.loading import METHOD
from agent_forge.forge.compression.packed_tokenizer import FILE, PackedTokenizer, pack_tokenizer
from agent_forge.inference.loading import load_tokenizer, read_json

WEIGHTS = "model.safetensors"
COPIED = ("generation_config.json", "chat_template.jinja", "LICENSE", "NOTICE", "special_tokens_map.json")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "tokenizer_config.json")
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id")


def folder_bytes(folder: Path) -> int:
    """The size of all files in the folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def copy_model(source: Path, folder: Path) -> None:
    """The model as it came, without its card: the result where nothing smaller passed."""
    for file in sorted(source.rglob("*")):
        target = folder / file.relative_to(source)
        if file.is_file() and target != folder / CARD:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


def write_weights(folder: Path, containers: Mapping[str, bytes], others: Mapping[str, torch.Tensor]) -> None:
    """One file with the containers as bytes, and what is not a weight (masks, positions) as it is."""
    tensors = {name: torch.from_numpy(np.frombuffer(data, np.uint8).copy()) for name, data in containers.items()}
    tensors.update({name: tensor.contiguous() for name, tensor in others.items()})
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def write_config(source: Path, folder: Path) -> None:
    """The model's configuration without white space, with the quantizer that reads the weights."""
    document = read_json(source / "config.json")
    document["quantization_config"] = {"quant_method": METHOD, "format": 1}
    _write(folder / "config.json", document)
    for name in COPIED:
        if (source / name).is_file():
            shutil.copy(source / name, folder / name)
    generation = folder / "generation_config.json"
    if generation.is_file():
        _write(generation, json.loads(generation.read_text(encoding="utf-8")))


def write_tokenizer(source: Path, folder: Path, samples: Sequence[str]) -> None:
    """The tokenizer, packed if it then reads the samples like the original, otherwise unchanged;
    nothing if there is none."""
    if not (source / "tokenizer.json").is_file():
        _copy_tokenizer(source, folder)
        return
    (folder / FILE).write_bytes(pack_tokenizer((source / "tokenizer.json").read_text(encoding="utf-8")))
    settings = source / "tokenizer_config.json"
    document = json.loads(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
    document.pop("added_tokens_decoder", None)  # these are in the tokenizer itself
    _write(folder / "tokenizer_config.json", {**document, "tokenizer_class": PackedTokenizer.__name__})
    if not _reads_alike(load_tokenizer(source), folder, samples):
        (folder / FILE).unlink()
        _copy_tokenizer(source, folder)


def _reads_alike(original: Any, folder: Path, samples: Sequence[str]) -> bool:
    try:
        packed = load_tokenizer(folder)
    except CheckpointError:
        return False
    same = all(getattr(packed, name) == getattr(original, name) for name in SPECIAL)
    return same and all(packed(text)["input_ids"] == original(text)["input_ids"] for text in samples)


def _copy_tokenizer(source: Path, folder: Path) -> None:
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copy(source / name, folder / name)
    plain = folder / "tokenizer.json"
    if plain.is_file():
        _write(plain, json.loads(plain.read_text(encoding="utf-8")))


def _write(file: Path, document: Any) -> None:
    file.write_text(json.dumps(document, separators=(",", ":"), ensure_ascii=False), encoding="utf-8")
