"""A recipe as YAML that `parse_recipe` reads back as the same recipe."""

from __future__ import annotations

from typing import Any

import yaml

from agent_forge.forge.merging.recipe import InputModel, Recipe, Slice, TokenizerSpec, TokenSource

EMPTY: tuple[Any, ...] = (None, {}, [], ())


class _RecipeDumper(yaml.SafeDumper):
    """Puts short lists of numbers, joints and conditions on one line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_list(dumper: _RecipeDumper, items: list[Any]) -> yaml.Node:
    flat = all(isinstance(item, (int, float)) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=flat)


def _represent_mapping(dumper: _RecipeDumper, items: dict[str, Any]) -> yaml.Node:
    flat = "layer" in items or "value" in items
    return dumper.represent_mapping("tag:yaml.org,2002:map", items.items(), flow_style=flat)


_RecipeDumper.add_representer(list, _represent_list)
_RecipeDumper.add_representer(dict, _represent_mapping)


def to_mapping(recipe: Recipe) -> dict[str, Any]:
    """One stage as plain data in mergekit's form, without defaults."""
    document = {
        "name": recipe.name,
        "merge_method": recipe.merge_method,
        "base_model": recipe.base_model,
        "models": [_source(source) for source in recipe.models],
        "slices": [_slice(part) for part in recipe.slices],
        "path": [{"model": step.model, "layer": step.layer, "scale": step.scale} for step in recipe.path],
        "parameters": dict(recipe.parameters),
        "dtype": recipe.dtype,
        "out_dtype": recipe.out_dtype,
        **_vocabulary(recipe.vocabulary),
        "chat_template": recipe.chat_template,
    }
    return {key: value for key, value in document.items() if value not in EMPTY}


def to_yaml(recipe: Recipe) -> str:
    """The recipe as YAML text; its stages, if any, as documents before it. `parse_recipe` reads it back.

    >>> from agent_forge.forge.merging import parse_recipe
    >>> recipe = parse_recipe({"merge_method": "slerp", "base_model": "a", "models": [{"model": "a"}, {"model": "b"}],
    ...                        "parameters": {"t": [0, 0.5, 1]}})
    >>> print(to_yaml(recipe), end="")
    merge_method: slerp
    base_model: a
    models:
    - model: a
    - model: b
    parameters:
      t: [0.0, 0.5, 1.0]
    """
    documents = [to_mapping(stage) for stage in (*recipe.stages, recipe)]
    options: dict[str, Any] = {"Dumper": _RecipeDumper, "sort_keys": False, "allow_unicode": True, "width": 1000}
    return "---\n".join(yaml.dump(document, **options) for document in documents)


def _source(source: InputModel) -> dict[str, Any]:
    document: dict[str, Any] = {"model": source.model}
    if source.layer_range is not None:
        document["layer_range"] = list(source.layer_range)
    if source.parameters:
        document["parameters"] = dict(source.parameters)
    return document


def _slice(part: Slice) -> dict[str, Any]:
    document: dict[str, Any] = {"sources": [_source(source) for source in part.sources]}
    if part.base_model is not None:
        document["base_model"] = part.base_model
    if part.parameters:
        document["parameters"] = dict(part.parameters)
    return document


def _vocabulary(vocabulary: TokenizerSpec | None) -> dict[str, Any]:
    if vocabulary is None:
        return {}
    if not vocabulary.tokens and vocabulary.pad_to_multiple_of is None:
        return {"tokenizer_source": vocabulary.source}
    full: dict[str, Any] = {"source": vocabulary.source}
    if vocabulary.tokens:
        full["tokens"] = {token: _token(source) for token, source in vocabulary.tokens.items()}
    if vocabulary.pad_to_multiple_of is not None:
        full["pad_to_multiple_of"] = vocabulary.pad_to_multiple_of
    return {"tokenizer": full}


def _token(source: TokenSource) -> dict[str, Any]:
    document: dict[str, Any] = {"force": True} if source.force else {}
    if source.zero:
        document["source"] = {"kind": "zero"}
    elif source.token is not None or source.token_id is not None:
        ends = {"token": source.token} if source.token is not None else {"token_id": source.token_id}
        document["source"] = {"kind": "model_token", "model": source.model, **ends}
    elif source.model is not None:
        document["source"] = source.model
    return document
