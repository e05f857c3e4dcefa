"""Merging models: exact, streaming, and in mergekit's own configuration language.

    recipe = parse_recipe(Path("ties.yaml").read_text(), where="ties.yaml")
    merge(recipe, "merged")                       # to disk, tensor by tensor
    tensors = merge_tensors(recipe)               # in memory; the same numbers

Importing this costs neither torch nor numpy; `merge` needs torch only where there is no C compiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_forge.lazy import attach

if TYPE_CHECKING:
    from agent_forge.forge.merging.engine import MergeReport, merge
    from agent_forge.forge.merging.recipe import Joint, Recipe, Slice, Source, parse_recipe
    from agent_forge.forge.merging.settings import METHODS
    from agent_forge.forge.merging.sources import open_folder
    from agent_forge.forge.merging.staging import prepare
    from agent_forge.forge.merging.tensors import MergedTensors, merge_tensors
    from agent_forge.forge.merging.writing import to_mapping, to_yaml

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "engine": "MergeReport merge",
        "recipe": "Joint Recipe Slice Source parse_recipe",
        "settings": "METHODS",
        "sources": "open_folder",
        "staging": "prepare",
        "tensors": "MergedTensors merge_tensors",
        "writing": "to_mapping to_yaml",
    },
)
