"""Models from disk: registered checkpoints by name or digest, folders, SmolLM2 from its package. safetensors only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_forge.errors import AgentForgeError, MissingExtraError, ModelError, UsageError
from agent_forge.server.context import Context

if TYPE_CHECKING:
    from agent_forge.forge.registry import Entry

NAME = re.compile(r"[A-Za-z0-9][\w.-]{3,127}")  # of a registered checkpoint: never a path


@dataclass(frozen=True, slots=True)
class Source:
    """A model that can be served: its name for requests, and where it is."""

    name: str
    place: str  # a folder, or "smollm2"
    digest: str | None = None
    created_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory."""

    model: Any
    tokenizer: Any
    parameters: int
    bytes: int
    seconds: float


def source_of(text: str, context: Context) -> Source:
    """What `--model [NAME=]M` means. Raises UsageError."""
    name, given, rest = text.rpartition("=")
    if rest.lower() == "smollm2":
        return Source(name or "smollm2", "smollm2")
    folder = Path(rest).expanduser()
    if (folder / "config.json").is_file():
        return Source(name or folder.resolve().name, str(folder.resolve()))
    entry = registered(rest, context)
    if entry is None:
        raise UsageError(
            f"there is no model {rest!r}",
            fix="name a folder with a config.json, smollm2, or one of `agent-forge models ls`",
        )
    return Source(name if given else entry.path.name, str(entry.path), entry.digest, entry.created_s)


def registered(name: str, context: Context) -> Entry | None:
    """The registered checkpoint of that name or digest; None if there is none, or more than one."""
    if not NAME.fullmatch(name):
        return None
    try:
        return context.registry.find(name)
    except AgentForgeError:
        return None


def load(source: Source, context: Context) -> Loaded:
    """Loads a model. A registered one is checked byte by byte first. Raises ModelError, CheckpointError."""
    import time

    begun = time.monotonic()
    if source.digest is not None:
        context.registry.load(source.digest)
    model, tokenizer = _smollm2() if source.place == "smollm2" else _folder(source.place, context.settings.device)
    model = model.to(context.settings.device).eval()
    return Loaded(model, tokenizer, *_size(model), time.monotonic() - begun)


def _size(model: Any) -> tuple[int, int]:
    """Weights and bytes. Packed weights are buffers, several to a byte; a table that is shared counts once."""
    tensors = list(model.parameters())
    parameters = sum(tensor.numel() for tensor in tensors)
    for module in model.modules():
        if (shape := getattr(module, "shape", None)) is not None and hasattr(module, "packed"):
            parameters += shape.rows * shape.columns
            tensors += [module.packed, module.scales]
    return parameters, sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _smollm2() -> tuple[Any, Any]:
    from agent_forge.agents.models.local_model import LocalModel

    return LocalModel.smollm2().load()


def _folder(folder: str, device: str) -> tuple[Any, Any]:
    try:
        import_module("transformers")  # waits where another thread imports it: see agent_forge.forge
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        import agent_forge.forge.models  # noqa: F401  (makes Cognate known to transformers)
    except ImportError as error:
        raise MissingExtraError("serving a model", "forge") from error
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        # safetensors only, and no code from the folder: a pickle or a script from an unknown source runs code
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            dtype="float32" if device == "cpu" else "bfloat16",
        )
        return model, AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"the checkpoint cannot be loaded: {str(error)[:300]}", where=folder) from error
