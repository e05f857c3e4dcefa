"""Small models on disk for the tests of merging, without transformers: a config.json, a safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

SHAPES = {
    "self_attn.q_proj": (16, 16),
    "self_attn.o_proj": (16, 16),
    "mlp.up_proj": (24, 16),
    "mlp.down_proj": (16, 24),
}


def llama_tensors(layers: int = 2, vocabulary: int = 30, seed: int = 0, head: bool = True) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, 16)}
    for layer in range(layers):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in SHAPES.items()}
        shapes[f"model.layers.{layer}.input_layernorm.weight"] = (16,)
    shapes["model.norm.weight"] = (16,)
    if head:
        shapes["lm_head.weight"] = (vocabulary, 16)
    return {name: torch.randn(shape, generator=generator) * 0.05 for name, shape in shapes.items()}


def moved(tensors: Mapping[str, Tensor], seed: int, size: float = 0.01) -> dict[str, Tensor]:
    """An expert: the base and a task vector of its own."""
    generator = torch.Generator().manual_seed(seed)
    return {name: x + torch.randn(x.shape, generator=generator) * size for name, x in tensors.items()}


def write_model(folder: Path, tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.float32, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    layers = len({name.split(".")[2] for name in tensors if name.startswith("model.layers.")})
    document = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 16,
        "num_hidden_layers": layers,
        "vocab_size": tensors["model.embed_tokens.weight"].shape[0],
        **config,
    }
    (folder / "config.json").write_text(json.dumps(document))
    save_file({name: x.to(dtype).contiguous() for name, x in tensors.items()}, str(folder / "model.safetensors"))
    return folder


def read_model(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(str(shard))
    return tensors


def family(folder: Path, dtype: torch.dtype = torch.float32, **given: Any) -> dict[str, str]:
    """A base and three experts: their names and folders."""
    base = llama_tensors(**given)
    paths = {"base": write_model(folder / "base", base, dtype)}
    for seed, name in enumerate("abc", 1):
        paths[name] = write_model(folder / name, moved(base, seed), dtype)
    return {name: str(path) for name, path in paths.items()}
