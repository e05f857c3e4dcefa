"""Merging models: exact, streaming, and in mergekit's own configuration language.

    recipe = parse_recipe(Path("ties.yaml").read_text(), where="ties.yaml")
    merge(recipe, "merged")                       # to disk, tensor by tensor
    tensors = merge_tensors(recipe)               # in memory; the same numbers

Importing this costs neither torch nor numpy; `merge` needs torch only where there is no C compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_forge.forge.merging.engine import MergeReport as MergeReport
    from agent_forge.forge.merging.engine import merge as merge
    from agent_forge.forge.merging.recipe import Joint as Joint
    from agent_forge.forge.merging.recipe import Recipe as Recipe
    from agent_forge.forge.merging.recipe import Slice as Slice
    from agent_forge.forge.merging.recipe import Source as Source
    from agent_forge.forge.merging.recipe import parse_recipe as parse_recipe
    from agent_forge.forge.merging.settings import METHODS as METHODS
    from agent_forge.forge.merging.sources import open_folder as open_folder
    from agent_forge.forge.merging.staging import prepare as prepare
    from agent_forge.forge.merging.tensors import MergedTensors as MergedTensors
    from agent_forge.forge.merging.tensors import merge_tensors as merge_tensors
    from agent_forge.forge.merging.writing import to_mapping as to_mapping
    from agent_forge.forge.merging.writing import to_yaml as to_yaml

_HOMES = {
    "MergeReport": "engine",
    "merge": "engine",
    "prepare": "staging",
    "Joint": "recipe",
    "Recipe": "recipe",
    "Slice": "recipe",
    "Source": "recipe",
    "parse_recipe": "recipe",
    "METHODS": "settings",
    "open_folder": "sources",
    "MergedTensors": "tensors",
    "merge_tensors": "tensors",
    "to_mapping": "writing",
    "to_yaml": "writing",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
