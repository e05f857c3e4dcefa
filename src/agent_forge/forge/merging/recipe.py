"""What is to be merged, and how: mergekit's YAML, read strictly.

A recipe says either `models` (merged layer by layer), `slices` (stretches of layers put one after another) or, for our
own method `dfs`, a `path` through the layers of all parents. Several documents in one file, all but the last with a
`name`, are stages: a later one may use an earlier one as a model (as `mergekit-multi` does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from agent_forge.config import nearest
from agent_forge.errors import ConfigError
from agent_forge.forge.merging.settings import METHODS, PARAMETERS, Settings, check_setting

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}


@dataclass(frozen=True)
class Source:
    """A model, or the layers [start, end) of it, with the parameters that hold for it alone."""

    model: str
    layer_range: tuple[int, int] | None = None
    parameters: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class Slice:
    """A stretch of output layers, merged from one stretch of each source."""

    sources: tuple[Source, ...]
    base_model: str | None = None
    parameters: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class Joint:
    """A step of a path: the state, times `scale`, enters this layer of this model."""

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
class Vocabulary:
    """Which tokens the output has: `union`, `base`, or those of one model."""

    source: str
    tokens: Mapping[str, TokenSource] = field(default_factory=dict)
    pad_to_multiple_of: int | None = None


@dataclass(frozen=True)
class Recipe:
    """A merge, as data. `parse_recipe` makes one, `to_yaml` writes it, `merge` carries it out."""

    merge_method: str
    models: tuple[Source, ...] = ()
    slices: tuple[Slice, ...] = ()
    path: tuple[Joint, ...] = ()
    base_model: str | None = None
    dtype: str | None = None
    out_dtype: str | None = None
    vocabulary: Vocabulary | None = None
    chat_template: str | None = None
    parameters: Settings = field(default_factory=dict)
    name: str | None = None
    stages: tuple[Recipe, ...] = ()

    def references(self) -> list[str]:
        """The models that are named, in the order of their first mention, the base first; stages as their names."""
        slices = [source.model for part in self.slices for source in part.sources]
        bases = [self.base_model, *(part.base_model for part in self.slices)]
        named = [*bases, *(source.model for source in self.models), *slices, *(joint.model for joint in self.path)]
        return list(dict.fromkeys(model for model in named if model is not None))

    def models_on_disk(self) -> list[str]:
        """The models that are folders: what this recipe and its stages name, less the stages themselves."""
        names = {stage.name for stage in self.stages}
        found = [model for recipe in (*self.stages, self) for model in recipe.references() if model not in names]
        return list(dict.fromkeys(found))


def parse_recipe(given: str | Mapping[str, Any] | Sequence[Mapping[str, Any]], where: str = "recipe") -> Recipe:
    """Reads a recipe from YAML text, from a mapping, or from a list of mappings (stages).

    Raises ConfigError that names the part that is unknown or wrong. Nothing but the text itself is looked at; whether
    the models fit together is found out by `check`.

    >>> recipe = parse_recipe("{merge_method: linear, models: [{model: a, parameters: {weight: 1}}]}")
    >>> recipe.merge_method, recipe.references()
    ('linear', ['a'])
    >>> parse_recipe(to_yaml(recipe)) == recipe
    True
    """
    documents = _documents(given, where)
    stages: list[Recipe] = []
    for number, document in enumerate(documents, 1):
        place = where if len(documents) == 1 else f"{where}, document {number}"
        recipe = _recipe(document, place)
        if number < len(documents):
            if recipe.name is None:
                raise ConfigError("a stage that is not the last needs a name", where=place, fix="add `name: …`")
            if recipe.name in {stage.name for stage in stages}:
                raise ConfigError(f"the name {recipe.name!r} is given twice", where=place)
            stages.append(recipe)
    return replace(recipe, stages=tuple(stages))


def _documents(given: Any, where: str) -> list[Mapping[str, Any]]:
    if isinstance(given, str):
        try:
            found = [document for document in yaml.load_all(given, Loader=_Loader) if document is not None]
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ConfigError(f"not valid YAML: {_shorter(error)}", where=where) from error
    else:
        found = [given] if isinstance(given, Mapping) else list(given)
    if not found:
        raise ConfigError("there is nothing in it", where=where)
    for document in found:
        if not isinstance(document, Mapping):
            raise ConfigError("a recipe is a mapping with merge_method, models, …", where=where)
    return found


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Safe, and a key that is given twice is an error, not a silent choice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        if twice := {str(name) for name in names if names.count(name) > 1}:
            raise yaml.constructor.ConstructorError(None, None, f"{sorted(twice)[0]!r} is given twice", node.start_mark)
        made: dict[Any, Any] = super().construct_mapping(node, deep)
        return made


def _shorter(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


# --- the parts -------------------------------------------------------------------------------------------------------

TOP: tuple[str, ...] = ("merge_method", "models", "slices", "modules", "path", "base_model", "dtype", "out_dtype")
TOP += ("tokenizer_source", "tokenizer", "chat_template", "parameters", "name")


def _recipe(document: Mapping[str, Any], where: str) -> Recipe:
    _known(document, TOP, where)
    method = document.get("merge_method")
    if not isinstance(method, str) or method not in METHODS:
        near = nearest(str(method), METHODS) if method is not None else None
        what = f"the merge method {method!r} is not known" if method is not None else "merge_method is missing"
        raise ConfigError(what, where=where, fix=f"did you mean {near!r}?" if near else f"one of {', '.join(METHODS)}")
    models, slices = _inputs(document, where)
    path = tuple(_joint(item, f"{where}, path[{i}]") for i, item in enumerate(_list(document, "path", where)))
    given = [name for name, part in (("models", models), ("slices", slices), ("path", path)) if part]
    wanted = "path" if method == "dfs" else "models or slices"
    if len(given) != 1 or (given[0] == "path") != (method == "dfs"):
        raise ConfigError(f"{method} needs exactly one of: {wanted}; given: {', '.join(given) or 'none'}", where=where)
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


def _inputs(document: Mapping[str, Any], where: str) -> tuple[tuple[Source, ...], tuple[Slice, ...]]:
    """`models` and `slices`; a single entry under `modules` means the same."""
    if "modules" in document:
        modules = document["modules"]
        if not isinstance(modules, Mapping) or len(modules) != 1:
            raise ConfigError("only models of one module are merged", where=f"{where}, modules")
        ((name, inner),) = modules.items()
        place = f"{where}, modules.{name}"
        _known(_mapping(inner, place), ["models", "slices"], place)
        document = {**document, **inner}
    models = tuple(
        _source(item, f"{where}, models[{i}]", []) for i, item in enumerate(_list(document, "models", where))
    )
    slices = tuple(_slice(item, f"{where}, slices[{i}]") for i, item in enumerate(_list(document, "slices", where)))
    return models, slices


def _source(item: Any, where: str, more: list[str]) -> Source:
    item = _mapping(item, where)
    _known(item, ["model", "parameters", *more], where)
    model = _model(item.get("model"), f"{where}, model")
    assert model is not None
    found = item.get("layer_range")
    if "layer_range" in more:
        if not (isinstance(found, (list, tuple)) and len(found) == 2 and all(_is_count(end) for end in found)):
            raise ConfigError(f"layer_range is two numbers, not {found!r}", where=where)
        if found[0] >= found[1]:
            raise ConfigError(f"layer_range {list(found)} holds no layer", where=where)
    return Source(model, None if found is None else (found[0], found[1]), _parameters(item, where))


def _slice(item: Any, where: str) -> Slice:
    item = _mapping(item, where)
    _known(item, ["sources", "base_model", "parameters", "residual_weight"], where)
    if item.get("residual_weight") is not None:
        raise ConfigError("residual_weight has no effect in mergekit and is not accepted", where=where)
    sources = tuple(
        _source(part, f"{where}.sources[{i}]", ["layer_range"]) for i, part in enumerate(_list(item, "sources", where))
    )
    if not sources:
        raise ConfigError("there are no sources", where=where)
    lengths = {end - start for start, end in (source.layer_range or (0, 0) for source in sources)}
    if len(lengths) > 1:
        raise ConfigError("all sources of a slice must have the same number of layers", where=where)
    base = _model(item.get("base_model"), f"{where}, base_model", optional=True)
    return Slice(sources, base, _parameters(item, where))


def _joint(item: Any, where: str) -> Joint:
    item = _mapping(item, where)
    _known(item, ["model", "layer", "scale"], where)
    model, layer, scale = _model(item.get("model"), f"{where}, model"), item.get("layer"), item.get("scale", 1.0)
    assert model is not None
    if not _is_count(layer):
        raise ConfigError(f"layer is a number from 0, not {layer!r}", where=where)
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < 1e6:
        raise ConfigError(f"scale is a number above 0, not {scale!r}", where=where)
    return Joint(model, layer, float(scale))


def _vocabulary(document: Mapping[str, Any], where: str) -> Vocabulary | None:
    simple, full = document.get("tokenizer_source"), document.get("tokenizer")
    if simple is not None and full is not None:
        raise ConfigError("give tokenizer_source or tokenizer, not both", where=where)
    if full is None:
        source = _model(simple, f"{where}, tokenizer_source", optional=True)
        return None if source is None else Vocabulary(source)
    place = f"{where}, tokenizer"
    full = _mapping(full, place)
    _known(full, ["source", "tokens", "pad_to_multiple_of"], place)
    pad = full.get("pad_to_multiple_of")
    if pad is not None and not (_is_count(pad) and pad > 0):
        raise ConfigError(f"pad_to_multiple_of is a number above 0, not {pad!r}", where=place)
    tokens = _mapping(full.get("tokens") or {}, f"{place}.tokens")
    source = _model(full.get("source", "union"), f"{place}.source")
    assert source is not None
    return Vocabulary(source, {str(t): _token(item, f"{place}.tokens.{t}") for t, item in tokens.items()}, pad)


def _token(item: Any, where: str) -> TokenSource:
    item = _mapping(item, where)
    _known(item, ["source", "force"], where)
    source, force = item.get("source"), bool(item.get("force", False))
    if source is None:
        return TokenSource(force=force)
    if isinstance(source, str):
        return TokenSource(model=source, force=force)
    source = _mapping(source, f"{where}.source")
    if source.get("kind") == "zero":
        _known(source, ["kind"], f"{where}.source")
        return TokenSource(zero=True, force=force)
    _known(source, ["kind", "model", "token", "token_id"], f"{where}.source")
    if source.get("kind") != "model_token" or ("token" in source) == ("token_id" in source):
        raise ConfigError("kind is zero, or model_token with one of token and token_id", where=f"{where}.source")
    model = _model(source.get("model"), f"{where}.source.model")
    return TokenSource(model, source.get("token"), source.get("token_id"), force=force)


def _parameters(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    given = _mapping(item.get("parameters") or {}, f"{where}, parameters")
    _known(given, PARAMETERS, f"{where}, parameters")
    return {name: check_setting(name, value, f"{where}, parameters.{name}") for name, value in given.items()}


def _model(value: Any, where: str, optional: bool = False) -> str | None:
    """A folder, a name in the Hugging Face cache, or a stage. mergekit's nested form {model: {path: …}} is read too."""
    if value is None and optional:
        return None
    if isinstance(value, Mapping):
        _known(value, ["model", "path"], where)
        return _model(value.get("model", value.get("path")), where)
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"a model is a folder's path, not {value!r}", where=where)
    if "+" in value and not Path(value).exists():
        raise ConfigError(
            f"{value!r} names an adapter", where=where, fix="`agent-forge vectors apply` makes a model of the two first"
        )
    return value


def _check_counts(recipe: Recipe, where: str) -> None:
    """How many models a method takes, and whether it needs a base: known before any of them is opened."""
    method = METHODS[recipe.merge_method]
    groups = [(recipe.models, recipe.base_model)] if recipe.models else []
    groups += [(part.sources, part.base_model or recipe.base_model) for part in recipe.slices]
    for sources, base in groups:
        names = [source.model for source in sources]
        if len(set(names)) < len(names):
            raise ConfigError("a model is named twice among the inputs of one merge", where=where)
        if base is not None and base not in names:
            if recipe.slices and method.base == "required":
                raise ConfigError(f"the base {base!r} is not among the sources of a slice", where=where)
            names += [base] if recipe.models else []
        if method.base == "required" and base is None:
            raise ConfigError(f"{recipe.merge_method} needs a base_model", where=where)
        fault = method.count_fault(len(names), base is not None and base in names)
        if fault:
            raise ConfigError(f"{recipe.merge_method} {fault}", where=where)


def _known(item: Mapping[str, Any], known: Any, where: str) -> None:
    for key in item:
        if key not in known:
            near = nearest(str(key), known)
            fix = f"did you mean {near!r}?" if near else f"known here: {', '.join(known)}"
            raise ConfigError(f"the key {key!r} is not known", where=where, fix=fix)


def _mapping(item: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(item, Mapping):
        raise ConfigError(f"a mapping is expected, not {item!r}", where=where)
    return item


def _list(item: Mapping[str, Any], key: str, where: str) -> Sequence[Any]:
    found = item.get(key)
    if found is None:
        return ()
    if not isinstance(found, (list, tuple)):
        raise ConfigError(f"a list is expected, not {found!r}", where=f"{where}, {key}")
    return found


def _text(document: Mapping[str, Any], key: str, where: str) -> str | None:
    found = document.get(key)
    if found is not None and not isinstance(found, str):
        raise ConfigError(f"a text is expected, not {found!r}", where=f"{where}, {key}")
    return found


def _dtype(document: Mapping[str, Any], key: str, where: str) -> str | None:
    found = document.get(key)
    if found is None:
        return None
    name = str(found).removeprefix("torch.")
    if name not in DTYPES:
        raise ConfigError(f"{key} {found!r} is not known", where=where, fix=f"one of {', '.join(DTYPES)}")
    return name


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
