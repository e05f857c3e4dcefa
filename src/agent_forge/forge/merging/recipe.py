"""Recipes: mergekit's YAML, read strictly.

A recipe has either `models` (merged layer by layer), `slices` (ranges of layers stacked on each other) or, for our own
method `dfs`, a `path` through the layers of all models. Several documents in one file, all but the last with a `name`,
are stages: a later one may use an earlier one as a model (as in `mergekit-multi`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from agent_forge.config import nearest
from agent_forge.errors import ConfigError
from agent_forge.forge.merging.settings import METHODS, PARAMETERS, Values, check_setting

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}


@dataclass(frozen=True)
class InputModel:
    """A model, or its layers [start, end), with its own parameters."""

    model: str
    layer_range: tuple[int, int] | None = None
    parameters: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Slice:
    """A range of output layers, merged from one range of each source."""

    sources: tuple[InputModel, ...]
    base_model: str | None = None
    parameters: Values = field(default_factory=dict)


@dataclass(frozen=True)
class Joint:
    """A step of a path: the hidden state, times `scale`, enters this layer of this model."""

    model: str
    layer: int
    scale: float = 1.0


@dataclass(frozen=True)
class TokenSource:
    """Where the embedding of one token comes from: a model, a token of a model, or zero."""

    model: str | None = None
    token: str | None = None
    token_id: int | None = None
    zero: bool = False
    force: bool = False


@dataclass(frozen=True)
class TokenizerSpec:
    """The tokens of the output: `union`, `base`, or those of one model."""

    source: str
    tokens: Mapping[str, TokenSource] = field(default_factory=dict)
    pad_to_multiple_of: int | None = None


@dataclass(frozen=True)
class Recipe:
    """A merge as data. `parse_recipe` reads one, `to_yaml` writes it, `merge` runs it."""

    merge_method: str
    models: tuple[InputModel, ...] = ()
    slices: tuple[Slice, ...] = ()
    path: tuple[Joint, ...] = ()
    base_model: str | None = None
    dtype: str | None = None
    out_dtype: str | None = None
    vocabulary: TokenizerSpec | None = None
    chat_template: str | None = None
    parameters: Values = field(default_factory=dict)
    name: str | None = None
    stages: tuple[Recipe, ...] = ()

    def references(self) -> list[str]:
        """The models and stages that this stage names, in order of first mention, the base first."""
        slices = [source.model for part in self.slices for source in part.sources]
        bases = [self.base_model, *(part.base_model for part in self.slices)]
        named = [*bases, *(source.model for source in self.models), *slices, *(joint.model for joint in self.path)]
        return list(dict.fromkeys(model for model in named if model is not None))

    def models_on_disk(self) -> list[str]:
        """The models that are folders: everything named, in all stages, that is not a stage."""
        stages = {stage.name for stage in self.stages}
        named = [model for recipe in (*self.stages, self) for model in recipe.references()]
        return list(dict.fromkeys(model for model in named if model not in stages))


def parse_recipe(recipe: str | Mapping[str, Any] | Sequence[Mapping[str, Any]], where: str = "recipe") -> Recipe:
    """Reads a recipe from YAML text, from a mapping, or from a list of mappings (stages).

    Raises ConfigError, which names the part that is unknown or wrong. Only the text is looked at; `prepare` checks
    whether the models fit together.

    >>> recipe = parse_recipe("{merge_method: linear, models: [{model: a, parameters: {weight: 1}}]}")
    >>> recipe.merge_method, recipe.references()
    ('linear', ['a'])
    >>> parse_recipe(to_yaml(recipe)) == recipe
    True
    """
    documents = _documents(recipe, where)
    stages: list[Recipe] = []
    for number, document in enumerate(documents, 1):
        place = where if len(documents) == 1 else f"{where}, document {number}"
        stage = _recipe(document, place)
        if number < len(documents) and stage.name is None:
            raise ConfigError("every stage but the last must have a name", where=place, fix="Add `name: …`")
        if number < len(documents) and stage.name in {earlier.name for earlier in stages}:
            raise ConfigError(f"the name {stage.name!r} occurs twice", where=place)
        stages.append(stage)
    *earlier, last = stages
    return replace(last, stages=tuple(earlier))


def _documents(recipe: Any, where: str) -> list[Mapping[str, Any]]:
    if isinstance(recipe, str):
        try:
            documents = [document for document in yaml.load_all(recipe, Loader=_StrictLoader) if document is not None]
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ConfigError(f"not valid YAML: {' '.join(str(error).split())[:300]}", where=where) from error
    else:
        documents = [recipe] if isinstance(recipe, Mapping) else list(recipe)
    if not documents:
        raise ConfigError("the recipe is empty", where=where)
    for document in documents:
        if not isinstance(document, Mapping):
            raise ConfigError("a recipe must be a mapping with merge_method, models, …", where=where)
    return documents


class _StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe, and refuses a key that occurs twice instead of silently using the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        counts = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice := sorted(name for name, count in counts.items() if count > 1):
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]!r} occurs twice", node.start_mark)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


# --- the parts -------------------------------------------------------------------------------------------------------

TOP = (
    *("merge_method", "models", "slices", "modules", "path", "base_model", "dtype", "out_dtype"),
    *("tokenizer_source", "tokenizer", "chat_template", "parameters", "name"),
)


def _recipe(document: Mapping[str, Any], where: str) -> Recipe:
    _check_keys(document, TOP, where)
    method = document.get("merge_method")
    if not isinstance(method, str) or method not in METHODS:
        near = nearest(str(method), METHODS) if method is not None else None
        fault = "merge_method is missing" if method is None else f"unknown merge method {method!r}"
        fix = f"Did you mean {near!r}?" if near else f"Use one of {', '.join(METHODS)}"
        raise ConfigError(fault, where=where, fix=fix)
    models, slices = _inputs(document, where)
    path = tuple(_joint(item, f"{where}, path[{i}]") for i, item in enumerate(_list(document, "path", where)))
    parts = [name for name, part in (("models", models), ("slices", slices), ("path", path)) if part]
    expected = "path" if method == "dfs" else "models or slices"
    if len(parts) != 1 or (parts[0] == "path") != (method == "dfs"):
        raise ConfigError(f"{method} takes exactly one of {expected}, not {', '.join(parts) or 'none'}", where=where)
    recipe = Recipe(
        merge_method=method,
        models=models,
        slices=slices,
        path=path,
        base_model=_model(document.get("base_model"), f"{where}, base_model", optional=True),
        dtype=_dtype(document, "dtype", where),
        out_dtype=_dtype(document, "out_dtype", where),
        vocabulary=_vocabulary(document, where),
        chat_template=_text(document, "chat_template", where),
        parameters=_parameters(document, where),
        name=_text(document, "name", where),
    )
    _check_counts(recipe, where)
    return recipe


def _inputs(document: Mapping[str, Any], where: str) -> tuple[tuple[InputModel, ...], tuple[Slice, ...]]:
    """`models` and `slices`, also from the only entry of `modules`."""
    if "modules" in document:
        modules = document["modules"]
        if not isinstance(modules, Mapping) or len(modules) != 1:
            raise ConfigError("only models with one module can be merged", where=f"{where}, modules")
        ((name, inner),) = modules.items()
        place = f"{where}, modules.{name}"
        _check_keys(_mapping(inner, place), ["models", "slices"], place)
        document = {**document, **inner}
    models = tuple(
        _source(item, f"{where}, models[{i}]", []) for i, item in enumerate(_list(document, "models", where))
    )
    slices = tuple(_slice(item, f"{where}, slices[{i}]") for i, item in enumerate(_list(document, "slices", where)))
    return models, slices


def _source(item: Any, where: str, more: list[str]) -> InputModel:
    item = _mapping(item, where)
    _check_keys(item, ["model", "parameters", *more], where)
    model = _model(item.get("model"), f"{where}, model")
    assert model is not None
    ends = item.get("layer_range")
    if "layer_range" in more:
        if not (isinstance(ends, (list, tuple)) and len(ends) == 2 and all(_is_count(end) for end in ends)):
            raise ConfigError(f"layer_range must be two numbers, not {ends!r}", where=where)
        if ends[0] >= ends[1]:
            raise ConfigError(f"layer_range {list(ends)} contains no layer", where=where)
    return InputModel(model, None if ends is None else (ends[0], ends[1]), _parameters(item, where))


def _slice(item: Any, where: str) -> Slice:
    item = _mapping(item, where)
    _check_keys(item, ["sources", "base_model", "parameters", "residual_weight"], where)
    if item.get("residual_weight") is not None:
        raise ConfigError("residual_weight has no effect in mergekit and is not accepted", where=where)
    sources = tuple(
        _source(part, f"{where}.sources[{i}]", ["layer_range"]) for i, part in enumerate(_list(item, "sources", where))
    )
    if not sources:
        raise ConfigError("the slice has no sources", where=where)
    lengths = {end - start for start, end in (source.layer_range or (0, 0) for source in sources)}
    if len(lengths) > 1:
        raise ConfigError("all sources of a slice must have the same number of layers", where=where)
    base = _model(item.get("base_model"), f"{where}, base_model", optional=True)
    return Slice(sources, base, _parameters(item, where))


def _joint(item: Any, where: str) -> Joint:
    item = _mapping(item, where)
    _check_keys(item, ["model", "layer", "scale"], where)
    model, layer, scale = _model(item.get("model"), f"{where}, model"), item.get("layer"), item.get("scale", 1.0)
    assert model is not None
    if not _is_count(layer):
        raise ConfigError(f"layer must be a number from 0 on, not {layer!r}", where=where)
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < 1e6:
        raise ConfigError(f"scale must be a number above 0, not {scale!r}", where=where)
    return Joint(model, layer, float(scale))


def _vocabulary(document: Mapping[str, Any], where: str) -> TokenizerSpec | None:
    simple, full = document.get("tokenizer_source"), document.get("tokenizer")
    if simple is not None and full is not None:
        raise ConfigError("give tokenizer_source or tokenizer, not both", where=where)
    if full is None:
        source = _model(simple, f"{where}, tokenizer_source", optional=True)
        return None if source is None else TokenizerSpec(source)
    place = f"{where}, tokenizer"
    full = _mapping(full, place)
    _check_keys(full, ["source", "tokens", "pad_to_multiple_of"], place)
    pad = full.get("pad_to_multiple_of")
    if pad is not None and not (_is_count(pad) and pad > 0):
        raise ConfigError(f"pad_to_multiple_of must be a number above 0, not {pad!r}", where=place)
    tokens = _mapping(full.get("tokens") or {}, f"{place}.tokens")
    source = _model(full.get("source", "union"), f"{place}.source")
    assert source is not None
    return TokenizerSpec(source, {str(t): _token(item, f"{place}.tokens.{t}") for t, item in tokens.items()}, pad)


def _token(item: Any, where: str) -> TokenSource:
    item = _mapping(item, where)
    _check_keys(item, ["source", "force"], where)
    source, force = item.get("source"), bool(item.get("force", False))
    if source is None:
        return TokenSource(force=force)
    if isinstance(source, str):
        return TokenSource(model=source, force=force)
    source = _mapping(source, f"{where}.source")
    if source.get("kind") == "zero":
        _check_keys(source, ["kind"], f"{where}.source")
        return TokenSource(zero=True, force=force)
    _check_keys(source, ["kind", "model", "token", "token_id"], f"{where}.source")
    if source.get("kind") != "model_token" or ("token" in source) == ("token_id" in source):
        raise ConfigError("kind must be zero, or model_token with either token or token_id", where=f"{where}.source")
    model = _model(source.get("model"), f"{where}.source.model")
    return TokenSource(model, source.get("token"), source.get("token_id"), force=force)


def _parameters(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    parameters = _mapping(item.get("parameters") or {}, f"{where}, parameters")
    _check_keys(parameters, PARAMETERS, f"{where}, parameters")
    return {name: check_setting(name, value, f"{where}, parameters.{name}") for name, value in parameters.items()}


def _model(value: Any, where: str, optional: bool = False) -> str | None:
    """A folder, a name in the Hugging Face cache, or a stage; also in mergekit's nested form {model: {path: …}}."""
    if value is None and optional:
        return None
    if isinstance(value, Mapping):
        _check_keys(value, ["model", "path"], where)
        return _model(value.get("model", value.get("path")), where)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"a model must be the path of a folder, not {value!r}", where=where)
    if "+" in value and not Path(value).exists():
        raise ConfigError(
            f"{value!r} names an adapter", where=where, fix="Make one model of the two with `agent-forge vectors apply`"
        )
    return value


def _check_counts(recipe: Recipe, where: str) -> None:
    """Checks the number of models and the base before any model is opened. Raises ConfigError."""
    method = METHODS[recipe.merge_method]
    groups = [(recipe.models, recipe.base_model)] if recipe.models else []
    groups += [(part.sources, part.base_model or recipe.base_model) for part in recipe.slices]
    for sources, base in groups:
        names = [source.model for source in sources]
        if len(set(names)) < len(names):
            raise ConfigError("a model occurs twice among the inputs of one merge", where=where)
        if base is not None and base not in names:
            if recipe.slices and method.base == "required":
                raise ConfigError(f"the base {base!r} is not among the sources of a slice", where=where)
            names += [base] if recipe.models else []
        if method.base == "required" and base is None:
            raise ConfigError(f"{recipe.merge_method} requires a base_model", where=where)
        fault = method.count_fault(len(names), base is not None and base in names)
        if fault:
            raise ConfigError(f"{recipe.merge_method} {fault}", where=where)


def _check_keys(item: Mapping[str, Any], known: Any, where: str) -> None:
    for key in item:
        if key not in known:
            near = nearest(str(key), known)
            fix = f"Did you mean {near!r}?" if near else f"Use one of {', '.join(known)}"
            raise ConfigError(f"unknown key {key!r}", where=where, fix=fix)


def _mapping(item: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(item, Mapping):
        raise ConfigError(f"must be a mapping, not {item!r}", where=where)
    return item


def _list(item: Mapping[str, Any], key: str, where: str) -> Sequence[Any]:
    items = item.get(key)
    if items is None:
        return ()
    if not isinstance(items, (list, tuple)):
        raise ConfigError(f"must be a list, not {items!r}", where=f"{where}, {key}")
    return items


def _text(document: Mapping[str, Any], key: str, where: str) -> str | None:
    text = document.get(key)
    if text is not None and not isinstance(text, str):
        raise ConfigError(f"must be text, not {text!r}", where=f"{where}, {key}")
    return text


def _dtype(document: Mapping[str, Any], key: str, where: str) -> str | None:
    if document.get(key) is None:
        return None
    name = str(document[key]).removeprefix("torch.")
    if name not in DTYPES:
        raise ConfigError(f"unknown {key} {document[key]!r}", where=where, fix=f"Use one of {', '.join(DTYPES)}")
    return name


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
