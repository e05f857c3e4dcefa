"""Training checkpoints: safetensors and JSON in a folder that is either complete or absent."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from agent_forge.errors import DataError
from agent_forge.files import sync_folder

STATE = "state.json"


def save_checkpoint(folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> Path:
    """Writes one safetensors file per entry of `tensors` into a temporary folder, then renames it to `folder`."""
    temporary = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for name, content in tensors.items():
        save_file(
            {key: value.detach().contiguous() for key, value in content.items()}, temporary / f"{name}.safetensors"
        )
    (temporary / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
    for file in temporary.iterdir():
        with open(file, "rb") as handle:
            os.fsync(handle.fileno())
    if folder.exists():
        shutil.rmtree(folder)
    temporary.replace(folder)
    sync_folder(folder.parent)
    return folder


def load_checkpoint(folder: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """The `tensors` and `state` of a checkpoint. Raises DataError if the folder is not one."""
    try:
        state: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
        return {file.stem: load_file(file) for file in sorted(folder.glob("*.safetensors"))}, state
    except (OSError, ValueError) as error:
        raise DataError("this is not a training checkpoint", where=str(folder), fix="Remove it and resume") from error


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / STATE).exists())


def remove_old(folder: Path, keep: int) -> None:
    for path in checkpoints(folder)[:-keep]:
        shutil.rmtree(path)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters that learn (tied ones once) and persistent buffers: what is fixed, as below an adapter, is the same in
    the model that a run resumes with."""
    saved = model.state_dict()
    named = {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}
    return named | {name: saved[name] for name, _ in model.named_buffers() if name in saved}


@torch.no_grad()
def restore_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    for name, target in weights_of(model).items():
        target.copy_(weights[name])


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimiser's state: named tensors, and the rest as JSON."""
    document = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for index, entries in document["state"].items():
        for name, value in entries.items():
            (tensors if isinstance(value, Tensor) else plain)[f"{index}.{name}"] = value
    return tensors, {"plain": plain, "groups": document["param_groups"]}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**rest["plain"], **tensors}.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": rest["groups"]})


def random_state() -> dict[str, Tensor]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random(state: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
