"""From a recipe to work: the models opened, the stages laid out, everything checked before a tensor is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_forge.errors import CheckpointError, ConfigError
from agent_forge.forge.merging.layout import Layout, Output, lay_out
from agent_forge.forge.merging.recipe import Recipe
from agent_forge.forge.merging.settings import METHODS
from agent_forge.forge.merging.sources import Held, Opened, Spec, open_folder

if TYPE_CHECKING:
    from agent_forge.forge.merging.vocabulary import TokenMap


@dataclass
class Stage:
    """A recipe with its models open: a model itself, whose tensors are computed when they are asked for."""

    name: str
    recipe: Recipe
    models: Mapping[str, Opened]
    layout: Layout
    token_map: TokenMap | None
    folder: Path | None  # of the model that gives the tokenizer
    config: Mapping[str, Any] = field(init=False)
    tensors: Mapping[str, Spec] = field(init=False)

    def __post_init__(self) -> None:
        self.config = self.layout.config
        self.tensors = {output.name: output.spec for output in self.layout.outputs}
        self.outputs: dict[str, Output] = {output.name: output for output in self.layout.outputs}

    def bytes_of(self, tensor: str) -> memoryview:
        from agent_forge.forge.merging.tensors import stage_bytes

        return stage_bytes(self, tensor)


def prepare(recipe: Recipe, sources: Mapping[str, Any] | None = None, beside: Path | None = None) -> Stage:
    """Opens what the recipe names (headers and config.json only) and lays it out; raises for whatever does not fit.

    `sources` gives models by the name that the recipe calls them: an opened model, or a mapping of torch tensors (its
    config then comes from the folder of that name, if there is one, else from another model of the recipe).
    """
    opened: dict[str, Opened] = {}
    for name in recipe.models_on_disk():
        opened[name] = _open(name, (sources or {}).get(name), beside, sources)
    stage: Stage | None = None
    for step in (*recipe.stages, recipe):
        stage = _stage(step, opened, beside)
        if step.name is not None:
            opened[step.name] = stage
    assert stage is not None
    return stage


def _open(name: str, given: Any, beside: Path | None, sources: Mapping[str, Any] | None) -> Opened:
    if given is None:
        return open_folder(name, beside)
    if hasattr(given, "bytes_of"):
        opened: Opened = given
        return opened
    config = getattr(given, "config", None)
    if config is None:
        found = next((other.config for other in (sources or {}).values() if hasattr(other, "config")), None)
        config = open_folder(name, beside).config if found is None else found
    return Held(name, dict(config), given)


def _stage(recipe: Recipe, opened: Mapping[str, Opened], beside: Path | None) -> Stage:
    models = {name: opened[name] for name in recipe.references()}
    vocabulary = recipe.vocabulary
    if vocabulary is not None and vocabulary.source not in ("base", "union", *models):
        models = {**models, vocabulary.source: open_folder(vocabulary.source, beside)}
    _refuse_other_kinds(models)
    token_map = _token_map(recipe, models)
    layout = lay_out(recipe, models, None if token_map is None else token_map.rows)
    for output in layout.outputs:
        _check_values(output)
    donor = models[layout.donor if vocabulary is None or vocabulary.source in ("base", "union") else vocabulary.source]
    return Stage(recipe.name or "merge", recipe, models, layout, token_map, donor.folder)


# What says how a matrix is cut into heads: with other counts the same shape means something else.
_HEADS = ("num_attention_heads", "num_key_value_heads", "head_dim", "n_head", "num_heads")


def _refuse_other_kinds(models: Mapping[str, Opened]) -> None:
    """Refuses models whose weights do not mean the same, although their shapes may be equal. Raises CheckpointError."""
    for key in ("model_type", *_HEADS):
        told = {name: model.config.get(key) for name, model in models.items()}
        found = {name: value for name, value in told.items() if value is not None}
        if len({str(value) for value in found.values()}) > 1:
            said = ", ".join(f"{name}: {value}" for name, value in found.items())
            raise CheckpointError(f"the models differ in {key}, so their weights do not mean the same: {said}")


def _token_map(recipe: Recipe, models: Mapping[str, Opened]) -> TokenMap | None:
    if recipe.vocabulary is None:
        return None
    from agent_forge.forge.merging.vocabulary import map_tokens  # needs numpy

    return map_tokens(recipe, models)


def _check_values(output: Output) -> None:
    """What mergekit finds out in the middle of a merge, or divides by."""
    if METHODS.get(output.method) is None:
        return
    kind = METHODS[output.method].sparsify
    for place, piece in enumerate(output.pieces):
        density, epsilon = piece.values.get("density"), piece.values.get("epsilon")
        if place == output.base or density is None:
            continue
        if density < 0:
            raise ConfigError(f"density {density} is negative", where=f"{piece.model} {piece.tensor}")
        inside = epsilon is None or (density - epsilon > 0 and density + epsilon < 1)
        if kind == "ranked" and 0 < density < 1 and not inside:
            raise ConfigError(
                f"density {density} with epsilon {epsilon}: both density - epsilon and density + epsilon must lie in "
                "(0, 1)",
                where=f"{piece.model} {piece.tensor}",
            )
    averaged = output.method == "linear" and output.values["normalize"]
    if averaged and sum(piece.values["weight"] for piece in output.pieces) == 0:
        raise ConfigError("the weights add up to zero, and `normalize` divides by that", where=output.name)
