"""A recipe made ready: models open, stages laid out, everything checked before a tensor is read; and merges in memory.

A `PreparedRecipe` is itself a source of tensors, computed when they are read, so a later stage uses an earlier one as
it uses a folder, and nothing in between is written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agent_forge.errors import CheckpointError, ConfigError
from agent_forge.forge.merging import native
from agent_forge.forge.merging.layout import Layout, Output, lay_out
from agent_forge.forge.merging.recipe import Recipe
from agent_forge.forge.merging.settings import METHODS
from agent_forge.forge.merging.sources import ModelInMemory, Spec, TensorSource, open_folder, stored_bytes
from agent_forge.forge.merging.thresholds import Threshold, find_thresholds, trims_model
from agent_forge.forge.merging.vocabulary import TokenMap, as_floats, map_rows, map_tokens

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class PreparedRecipe:
    """One stage of a recipe with its models open."""

    name: str
    recipe: Recipe
    models: Mapping[str, TensorSource]
    layout: Layout
    token_map: TokenMap | None
    folder: Path | None  # of the model that gives the tokenizer
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def config(self) -> Mapping[str, Any]:
        return self.layout.config

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        return {output.name: output for output in self.layout.outputs}

    @cached_property
    def tensors(self) -> Mapping[str, Spec]:
        return {output.name: output.spec for output in self.layout.outputs}

    def tensor(self, output: Output, device: Any = None) -> Tensor:
        """One output tensor, computed where `device` says; by default where its inputs are."""
        import torch

        from agent_forge.forge.merging.compute import compute, torch_dtype

        dtype, shape = torch_dtype(output.spec.dtype), output.spec.shape
        if not output.spec.elements:
            return torch.empty(shape, dtype=dtype, device=device)
        if native.supports(output) and self._on_host(output, device):
            return torch.frombuffer(native.compute_bytes(self._job(output)), dtype=dtype).reshape(shape)
        tensors = [tensor if device is None else tensor.to(device) for tensor in self._torch_inputs(output)]
        return compute(output, tensors, self._thresholds(output))

    def bytes_of(self, tensor: str) -> memoryview:
        """One output tensor, as it is stored."""
        output = self.outputs[tensor]
        if native.supports(output):
            return native.compute_bytes(self._job(output))
        return stored_bytes(self.tensor(output))

    def write(self, output: Output, descriptor: int, at: int) -> None:
        """Computes a tensor and writes it to its place in a file."""
        piece = output.pieces[0]
        source = self.models[piece.model]
        plain = output.method == "passthrough" and piece.values.get("scale") is None and not self._maps_rows(output)
        if plain and source.tensors[piece.tensor].dtype == output.spec.dtype:
            native.write_at(descriptor, source.bytes_of(piece.tensor), at)
        elif native.supports(output):
            native.write(self._job(output), descriptor, at)
        else:
            native.write_at(descriptor, self.bytes_of(output.name), at)

    def _job(self, output: Output) -> native.TensorJob:
        return native.prepare_job(output, self._stored_inputs(output), self._thresholds(output))

    def _on_host(self, output: Output, device: Any) -> bool:
        if device is not None and str(device) != "cpu":
            return False
        inputs = ((self.models[piece.model], piece.tensor) for piece in output.pieces)
        return all(
            model.values[name].device.type == "cpu" for model, name in inputs if isinstance(model, ModelInMemory)
        )

    def _maps_rows(self, output: Output) -> bool:
        return self.token_map is not None and output.vocabulary

    def _mapped_tables(self, output: Output) -> list[Any]:
        """The inputs of an output whose rows are tokens, all with the output's rows: numpy [tokens, …]."""
        assert self.token_map is not None
        tables = []
        for piece in output.pieces:
            model = self.models[piece.model]
            tables.append(as_floats(model.bytes_of(piece.tensor), model.tensors[piece.tensor]))
        return map_rows(self.token_map, [piece.model for piece in output.pieces], tables)

    def _stored_inputs(self, output: Output) -> list[native.Stored]:
        if self._maps_rows(output):
            return [(table, "F64" if table.itemsize == 8 else "F32") for table in self._mapped_tables(output)]
        models = [(self.models[piece.model], piece.tensor) for piece in output.pieces]
        return [(np.frombuffer(model.bytes_of(name), np.uint8), model.tensors[name].dtype) for model, name in models]

    def _torch_inputs(self, output: Output) -> list[Tensor]:
        import torch

        if self._maps_rows(output):
            return [torch.from_numpy(table) for table in self._mapped_tables(output)]
        return [tensor_of(self.models[piece.model], piece.tensor) for piece in output.pieces]

    def _thresholds(self, output: Output) -> list[Threshold | None]:
        """The threshold for each piece of an output; empty where tensors are trimmed one by one."""
        if not trims_model(output):
            return []
        with self._lock:  # several threads need the same four passes over the model
            thresholds = self._model_thresholds
        return [thresholds.get((output.name, piece.model)) for piece in output.pieces]

    @cached_property
    def _model_thresholds(self) -> dict[tuple[str, str], Threshold]:
        return find_thresholds(self.layout.outputs, self._histogram)

    def _histogram(self, output: Output, place: int, shift: int, prefix: int) -> Any:
        if native.supports(output):
            return native.histogram(output, self._stored_inputs(output), place, shift, prefix)
        from agent_forge.forge.merging.compute import histogram

        assert output.base is not None
        tensors = self._torch_inputs(output)
        return histogram(tensors[place].double() - tensors[output.base].double(), shift, prefix)


def tensor_of(model: TensorSource, name: str) -> Tensor:
    """A tensor of an open model, without a copy where it is mapped or in memory."""
    import torch

    from agent_forge.forge.merging.compute import torch_dtype

    if isinstance(model, ModelInMemory):
        value: Tensor = model.values[name].detach()
        return value
    if isinstance(model, PreparedRecipe):
        return model.tensor(model.outputs[name])
    spec = model.tensors[name]
    if not spec.elements:
        return torch.empty(spec.shape, dtype=torch_dtype(spec.dtype))
    return torch.frombuffer(model.bytes_of(name), dtype=torch_dtype(spec.dtype)).reshape(spec.shape)


# --- preparing -------------------------------------------------------------------------------------------------------


def prepare(recipe: Recipe, sources: Mapping[str, Any] | None = None, beside: Path | None = None) -> PreparedRecipe:
    """Opens the models of a recipe (headers and config.json only) and lays them out; raises for what does not fit.

    `sources` gives models by the names that the recipe uses: an open model, or a mapping of torch tensors (whose config
    is its attribute `config`, else that of another source, else that of the folder with this name).
    """
    sources = sources or {}
    models: dict[str, TensorSource] = {}
    for name in recipe.models_on_disk():
        source = sources.get(name)
        if source is None:
            models[name] = open_folder(name, beside)
        elif hasattr(source, "bytes_of"):
            models[name] = source
        else:
            configs = [other.config for other in (source, *sources.values()) if hasattr(other, "config")]
            config = configs[0] if configs else open_folder(name, beside).config
            models[name] = ModelInMemory(name, dict(config), source)
    for step in (*recipe.stages, recipe):
        prepared = _prepare_stage(step, models, beside)
        if step.name is not None:
            models[step.name] = prepared
    return prepared


def _prepare_stage(recipe: Recipe, known: Mapping[str, TensorSource], beside: Path | None) -> PreparedRecipe:
    models = {name: known[name] for name in recipe.references()}
    vocabulary = recipe.vocabulary
    if vocabulary is not None and vocabulary.source not in ("base", "union", *models):
        models = {**models, vocabulary.source: open_folder(vocabulary.source, beside)}
    _refuse_other_kinds(models)
    token_map = None if vocabulary is None else map_tokens(recipe, models)
    layout = lay_out(recipe, models, None if token_map is None else token_map.rows)
    for output in layout.outputs:
        _check_values(output)
    donor = models[layout.donor if vocabulary is None or vocabulary.source in ("base", "union") else vocabulary.source]
    return PreparedRecipe(recipe.name or "merge", recipe, models, layout, token_map, donor.folder)


# How a matrix is cut into heads: with other counts the same shape means something else.
_HEADS = ("num_attention_heads", "num_key_value_heads", "head_dim", "n_head", "num_heads")


def _refuse_other_kinds(models: Mapping[str, TensorSource]) -> None:
    """Refuses models whose weights mean different things although their shapes may agree. Raises CheckpointError."""
    for key in ("model_type", *_HEADS):
        values = {name: model.config[key] for name, model in models.items() if model.config.get(key) is not None}
        if len({str(value) for value in values.values()}) > 1:
            listed = ", ".join(f"{name}: {value}" for name, value in values.items())
            raise CheckpointError(f"the models differ in {key}, so their weights mean different things: {listed}")


def _check_values(output: Output) -> None:
    """Refuses values that mergekit stumbles over in the middle of a merge, or divides by. Raises ConfigError."""
    if output.method not in METHODS:
        return
    for place, piece in enumerate(output.pieces):
        density, epsilon = piece.values.get("density"), piece.values.get("epsilon")
        if place == output.base or density is None:
            continue
        if density < 0:
            raise ConfigError(f"density {density} is negative", where=f"{piece.model} {piece.tensor}")
        inside = epsilon is None or (density - epsilon > 0 and density + epsilon < 1)
        if METHODS[output.method].sparsify == "ranked" and 0 < density < 1 and not inside:
            raise ConfigError(
                f"density {density} with epsilon {epsilon}: density ± epsilon must lie between 0 and 1",
                where=f"{piece.model} {piece.tensor}",
            )
    averaged = output.method == "linear" and output.values["normalize"]
    if averaged and sum(piece.values["weight"] for piece in output.pieces) == 0:
        raise ConfigError("the weights add up to zero, and `normalize` divides by their sum", where=output.name)


# --- merging in memory -----------------------------------------------------------------------------------------------


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
    """Merges in memory: {tensor name: tensor}, bit for bit what `merge` writes; `.config` comes with it.

    `sources` gives models that are open already, by the names that the recipe uses: a mapping of tensor names to torch
    tensors, on any device, or an open model (see `prepare`). The merge runs on `device`; by default where the tensors
    are.
    """
    prepared = prepare(recipe, sources, beside)
    merged = MergedTensors()
    merged.config = dict(prepared.config)
    outputs: Sequence[Output] = prepared.layout.outputs
    with ThreadPoolExecutor(threads) as pool:
        run = pool.map if threads > 1 else map
        tensors = run(lambda output: prepared.tensor(output, device), outputs)
        for number, (output, tensor) in enumerate(zip(outputs, tensors, strict=True), 1):
            merged[output.name] = tensor
            if progress is not None:
                progress(number, len(outputs), output.name)
    return merged
