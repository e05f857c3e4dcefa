"""Loads models: registered checkpoints by name or digest, folders, SmolLM2 from its package. safetensors only."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_forge.errors import AgentForgeError, UsageError
from agent_forge.inference.loading import load_model, load_tokenizer
from agent_forge.server.context import Context

if TYPE_CHECKING:
    from agent_forge.forge.registry import Entry

NAME = re.compile(r"[A-Za-z0-9][\w.@-]{3,127}")  # of a registered checkpoint or policy, never a path


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that can be served: its name in requests, and where it is."""

    name: str
    folder: str  # or "smollm2"
    digest: str | None = None
    created_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory."""

    model: Any
    tokenizer: Any
    parameters: int
    bytes: int
    seconds: float


def source_of(text: str, context: Context) -> ModelSource:
    """The model that `--model [NAME=]M` names. Raises UsageError."""
    name, equals, rest = text.rpartition("=")
    if rest.lower() == "smollm2":
        return ModelSource(name or "smollm2", "smollm2")
    folder = Path(rest).expanduser()
    if (folder / "config.json").is_file():
        return ModelSource(name or folder.resolve().name, str(folder.resolve()))
    entry = registered(rest, context)
    if entry is None:
        raise UsageError(
            f"there is no model {rest!r}",
            fix="Name a folder with a config.json, smollm2, or one of `agent-forge models ls`",
        )
    if (base := base_of(entry, context)) is not None:
        if equals:
            raise UsageError(f"{rest!r} is an adapter, and goes by its own name", fix=f"Write --model {rest}")
        entry = base  # with it loaded, requests name the adapter
    return replace(checkpoint_source(entry), name=name) if equals else checkpoint_source(entry)


def checkpoint_source(entry: Entry) -> ModelSource:
    """A registered checkpoint, or policy, as a model to serve."""
    name = entry.name if "@" in entry.name else entry.path.name
    return ModelSource(name, str(entry.path), entry.digest, entry.created_s)


def base_of(entry: Entry, context: Context) -> Entry | None:
    """The base of a policy that is an adapter; None for a whole model. Raises UsageError if it is not registered."""
    return None if (entry.path / "config.json").is_file() else context.registry.find(entry.parents[0])


def registered(name: str, context: Context) -> Entry | None:
    """The registered checkpoint of that name or digest, or None if there is not exactly one."""
    if not NAME.fullmatch(name):
        return None
    try:
        return context.registry.find(name)
    except AgentForgeError:
        return None


def load(source: ModelSource, context: Context) -> LoadedModel:
    """Loads a model. A registered one is first verified byte by byte. Raises ModelError, CheckpointError."""
    started = time.monotonic()
    if source.digest is not None:
        context.registry.load(source.digest)
    model, tokenizer = _smollm2() if source.folder == "smollm2" else _folder(source.folder, context.settings.device)
    model = model.to(context.settings.device).eval()
    return LoadedModel(model, tokenizer, *_size(model), time.monotonic() - started)


def _size(model: Any) -> tuple[int, int]:
    """Weights and bytes. Packed weights are buffers, several weights per byte; a shared table counts once."""
    tensors = list(model.parameters())
    parameters = sum(tensor.numel() for tensor in tensors)
    for module in model.modules():
        if (shape := getattr(module, "shape", None)) is not None and hasattr(module, "packed"):
            parameters += shape.rows * shape.columns
            tensors += [module.packed, module.scales]
    return parameters, sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _smollm2() -> tuple[Any, Any]:
    from agent_forge.inference.local_model import LocalModel

    return LocalModel.smollm2().load()


def _folder(folder: str, device: str) -> tuple[Any, Any]:
    return load_model(folder, dtype="float32" if device == "cpu" else "bfloat16"), load_tokenizer(folder)
