"""Merging models: exact, streaming, and in mergekit's own configuration language.

    recipe = parse_recipe(Path("ties.yaml").read_text(), where="ties.yaml")
    merge(recipe, "merged")                       # to disk, tensor by tensor
    tensors = merge_tensors(recipe)               # in memory; the same numbers

Importing this package loads neither torch nor numpy; `merge` needs torch only where there is no C compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_forge.lazy import attach

if TYPE_CHECKING:
    from agent_forge.forge.merging.engine import MergeReport, merge
    from agent_forge.forge.merging.prepared import MergedTensors, merge_tensors, prepare
    from agent_forge.forge.merging.recipe import InputModel, Joint, Recipe, Slice, parse_recipe
    from agent_forge.forge.merging.settings import METHODS, MergeSettings
    from agent_forge.forge.merging.sources import open_folder
    from agent_forge.forge.merging.writing import to_mapping, to_yaml

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "engine": "MergeReport merge",
        "prepared": "MergedTensors merge_tensors prepare",
        "recipe": "InputModel Joint Recipe Slice parse_recipe",
        "settings": "METHODS MergeSettings",
        "sources": "open_folder",
        "writing": "to_mapping to_yaml",
    },
)
