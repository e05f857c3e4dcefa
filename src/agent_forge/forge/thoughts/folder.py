"""A thinking model as a folder: an ordinary model folder, and the heads in `thoughts/` beside it.

transformers, and every command here, load it as the language model that it is; `load_thinking` loads the thoughts too.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from agent_forge.errors import CheckpointError
from agent_forge.forge.thoughts.model import ThinkingModel
from agent_forge.inference.loading import load_model, load_tokenizer, read_json
from agent_forge.model_files import THOUGHTS


@dataclass(frozen=True)
class ThinkingFolder:
    """A thinking model in memory, its tokenizer, and the length of its thoughts."""

    model: ThinkingModel
    tokenizer: Any
    thought_tokens: int


def save_heads(model: ThinkingModel, thought_tokens: int, folder: str | os.PathLike[str]) -> None:
    """Writes what makes the model in `folder` think."""
    place = Path(folder) / THOUGHTS
    place.mkdir(parents=True)
    heads = {name: tensor.detach().cpu().contiguous() for name, tensor in model.heads().items()}
    save_file(heads, place / "heads.safetensors", metadata={"format": "pt"})
    document = {"thought_tokens": thought_tokens, "start": model.start_id, "end": model.end_id}
    (place / "thoughts.json").write_text(json.dumps({**document, "silent": model.silent}, indent=1), encoding="utf-8")


def load_thinking(folder: str | os.PathLike[str], *, device: str = "cpu", dtype: Any = None) -> ThinkingFolder:
    """The model with its thoughts, ready to generate. Raises CheckpointError where there are none, or damaged ones."""
    source = Path(folder)
    if not (source / THOUGHTS / "thoughts.json").is_file():
        fix = "Train thoughts: `agent-forge forge phase quietstar MODEL OUT`"
        raise CheckpointError("this model has no thoughts", where=str(source), fix=fix)
    document = read_json(source / THOUGHTS / "thoughts.json")
    model = load_model(source, dtype=dtype or torch.float32)
    try:
        heads = load_file(source / THOUGHTS / "heads.safetensors")
        silent = tuple(int(number) for number in document["silent"])
        thinking = ThinkingModel(model, int(document["start"]), int(document["end"]), heads["start"], silent)
        missing = set(thinking.heads()) ^ set(heads)
        if missing:
            raise ValueError(f"heads that do not fit: {', '.join(sorted(missing))}")
        thinking.load_state_dict(heads, strict=False)
        count = int(document["thought_tokens"])
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"the thoughts cannot be loaded: {error}", where=str(source / THOUGHTS)) from error
    return ThinkingFolder(thinking.to(device).eval(), load_tokenizer(source), count)
