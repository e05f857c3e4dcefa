"""Merges in memory: one tensor, or all of them. What the evolution evaluates, and the same numbers as on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_forge.forge.merging.layout import Output
from agent_forge.forge.merging.recipe import Recipe
from agent_forge.forge.merging.sources import Held, Opened
from agent_forge.forge.merging.staging import Stage, prepare
from agent_forge.forge.merging.vocabulary import as_floats, mapped

if TYPE_CHECKING:
    from torch import Tensor


class MergedTensors(dict[str, Any]):
    """The tensors of a merge by name, and the config.json that goes with them."""

    config: dict[str, Any]


def merge_tensors(
    recipe: Recipe,
    *,
    device: Any = None,
    sources: Mapping[str, Any] | None = None,
    beside: Path | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    threads: int = 1,
) -> MergedTensors:
    """Carries a recipe out in memory: {tensor name: tensor}, bit for bit what `merge` writes; `.config` comes with it.

    `sources` gives models that are open already, by the name that the recipe calls them: a mapping of tensor names to
    torch tensors, on any device (with an attribute `config`, or the folder of that name is asked), or an opened model.
    The merge runs where `device` says; by default where the tensors are.
    """
    stage = prepare(recipe, sources, beside)
    made = MergedTensors()
    made.config = dict(stage.config)
    outputs = stage.layout.outputs

    def one(output: Output) -> Tensor:
        return stage_tensor(stage, output, device)

    with ThreadPoolExecutor(threads) as pool:
        in_turn = pool.map(one, outputs) if threads > 1 else map(one, outputs)
        for number, (output, tensor) in enumerate(zip(outputs, in_turn, strict=True), 1):
            made[output.name] = tensor
            if progress is not None:
                progress(number, len(outputs), output.name)
    return made


def stage_tensor(stage: Stage, output: Output, device: Any = None) -> Tensor:
    """One output tensor of a stage."""
    import torch

    from agent_forge.forge.merging.compute import compute, torch_dtype

    if not output.spec.elements:
        return torch.empty(output.spec.shape, dtype=torch_dtype(output.spec.dtype), device=device)
    if _on_cpu(stage, output, device):
        from agent_forge.forge.merging import native

        if native.can(output):
            data = stage_bytes(stage, output.name)
            return torch.frombuffer(data, dtype=torch_dtype(output.spec.dtype)).reshape(output.spec.shape)
    tensors = [tensor.to(device) if device is not None else tensor for tensor in pieces(stage, output)]
    from agent_forge.forge.merging.blocks import can, compute_blocks
    from agent_forge.forge.merging.thresholds import thresholds_of

    if can(output, tensors):
        return compute_blocks(output, tensors)
    return compute(output, tensors, thresholds_of(stage, output))


def _on_cpu(stage: Stage, output: Output, device: Any) -> bool:
    if device is not None and str(device) != "cpu":
        return False
    for piece in output.pieces:
        model = stage.models[piece.model]
        if isinstance(model, Held) and model.values[piece.tensor].device.type != "cpu":
            return False
    return True


def pieces(stage: Stage, output: Output) -> list[Tensor]:
    """The inputs of an output as torch tensors, their rows mapped where the recipe maps tokens."""
    import torch

    if stage.token_map is not None and output.vocabulary:
        return [torch.from_numpy(table) for table in mapped_tables(stage, output)]
    return [tensor_of(stage.models[piece.model], piece.tensor) for piece in output.pieces]


def tensor_of(model: Opened, name: str) -> Tensor:
    """A tensor of an opened model; no copy where it is mapped or held."""
    import torch

    from agent_forge.forge.merging.compute import torch_dtype

    if isinstance(model, Held):
        held: Tensor = model.values[name].detach()
        return held
    if isinstance(model, Stage):
        return stage_tensor(model, model.outputs[name])
    spec = model.tensors[name]
    if not spec.elements:
        return torch.empty(spec.shape, dtype=torch_dtype(spec.dtype))
    return torch.frombuffer(model.bytes_of(name), dtype=torch_dtype(spec.dtype)).reshape(spec.shape)


def mapped_tables(stage: Stage, output: Output) -> list[Any]:
    """The inputs of an output whose rows are tokens, as arrays that all have the output's rows."""
    assert stage.token_map is not None
    models = [stage.models[piece.model] for piece in output.pieces]
    tables = [
        as_floats(model.bytes_of(piece.tensor), model.tensors[piece.tensor])
        for model, piece in zip(models, output.pieces, strict=True)
    ]
    return mapped(stage.token_map, [piece.model for piece in output.pieces], tables)


def stage_bytes(stage: Stage, tensor: str) -> memoryview:
    """An output tensor as it is stored."""
    from agent_forge.forge.merging import native

    output = stage.outputs[tensor]
    if native.can(output):
        return native.whole(stage, output)
    import torch

    made = stage_tensor(stage, output).cpu().contiguous()
    data: Any = made.reshape(-1).view(torch.uint8).numpy()
    return memoryview(data)


Tensors = Sequence["Tensor"]
