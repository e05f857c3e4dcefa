"""Models with different tokenizers: the tokens of the output, and the row of each token in each model.

The rules are mergekit's. A token that a model lacks takes, for that model, the embedding of the base if the base has
it, else the mean over the models that have it. New tokens are added to the base's tokenizer.json, so its own tokens
keep their ids and its merges stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agent_forge.errors import CheckpointError, ConfigError
from agent_forge.forge.merging.recipe import Recipe, TokenSource
from agent_forge.forge.merging.sources import Spec, TensorSource
from agent_forge.inference.loading import read_json

Array = Any
ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}


@dataclass(frozen=True)
class TokenMap:
    """The tokens of the output with their ids, and the row of each token in each model (-1: it has none)."""

    tokens: Mapping[str, int]
    rows: int  # of the output's embedding, padding included
    own: Mapping[str, Array]  # by model: [tokens], its row of each token
    base: str | None  # whose row replaces a missing one, if the recipe names a base
    overrides: Mapping[str, TokenSource] = field(default_factory=dict)
    vocabularies: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    tokenizer: Mapping[str, Any] = field(default_factory=dict)  # the output's tokenizer.json


def read_vocabulary(model: TensorSource) -> tuple[dict[str, Any], dict[str, int]]:
    """A model's tokenizer.json, and its tokens with their ids, less those beyond the embedding."""
    if model.folder is None or not (model.folder / "tokenizer.json").is_file():
        raise CheckpointError("there is no tokenizer.json, which mapping tokens requires", where=model.name)
    document = read_json(model.folder / "tokenizer.json")
    vocab = document.get("model", {}).get("vocab", {})
    if isinstance(vocab, list):  # Unigram: [[token, score], …]
        vocab = {entry[0]: number for number, entry in enumerate(vocab)}
    tokens = {str(token): int(number) for token, number in vocab.items()}
    tokens |= {entry["content"]: entry["id"] for entry in document.get("added_tokens", [])}
    limit = model.config.get("vocab_size", len(tokens))
    embedded = {token: number for token, number in tokens.items() if number < limit}
    return document, dict(sorted(embedded.items(), key=lambda item: item[1]))


def map_tokens(recipe: Recipe, models: Mapping[str, TensorSource]) -> TokenMap:
    """The token map of a recipe with a vocabulary. Raises ConfigError, CheckpointError."""
    spec = recipe.vocabulary
    assert spec is not None
    names = recipe.references()
    read = {name: read_vocabulary(models[name]) for name in names}
    source = (recipe.base_model or names[0]) if spec.source in ("base", "union") else spec.source
    if source not in read:
        read[source] = read_vocabulary(models[source])
    document, tokens = dict(read[source][0]), dict(read[source][1])
    others = [token for name in names for token in read[name][1]] if spec.source == "union" else []
    added = [token for token in dict.fromkeys([*others, *spec.tokens]) if token not in tokens]
    flags = {entry["content"]: entry for name in names for entry in read[name][0].get("added_tokens", [])}
    free = max(tokens.values(), default=-1) + 1
    entries = list(document.get("added_tokens", []))
    for number, token in enumerate(added, free):
        tokens[token] = number
        entries.append({**ADDED, **flags.get(token, {}), "id": number, "content": token})
    document["added_tokens"] = entries
    count = max(tokens.values()) + 1
    multiple = spec.pad_to_multiple_of or 1
    own = {}
    for name in names:
        rows = np.full(count, -1, dtype=np.int64)
        for token, number in tokens.items():
            rows[number] = read[name][1].get(token, -1)
        own[name] = rows
    vocabularies = {name: vocabulary for name, (_, vocabulary) in read.items()}
    _check_tokens(spec.tokens, vocabularies)
    return TokenMap(
        tokens, -(-count // multiple) * multiple, own, recipe.base_model, spec.tokens, vocabularies, document
    )


def _check_tokens(tokens: Mapping[str, TokenSource], vocabularies: Mapping[str, Mapping[str, int]]) -> None:
    for token, source in tokens.items():
        if source.model is None:
            continue
        if source.model not in vocabularies:
            raise ConfigError(f"{source.model!r} is not one of the models", where=f"tokenizer.tokens.{token}")
        donor = source.token if source.token is not None else token
        if source.token_id is None and donor not in vocabularies[source.model]:
            raise ConfigError(f"{source.model} has no token {donor!r}", where=f"tokenizer.tokens.{token}")


def map_rows(token_map: TokenMap, names: Sequence[str], tables: Sequence[Array]) -> list[Array]:
    """The models' tables (float32 or float64, [tokens, …], in the order of `names`) with the rows of the output."""
    count = len(next(iter(token_map.own.values())))
    present = np.stack([token_map.own[name] >= 0 for name in names])
    fill, forced = _fill_rows(token_map, names, tables, present, count)
    results = []
    for name, table in zip(names, tables, strict=True):
        rows = token_map.own[name]
        result = np.zeros((token_map.rows, *table.shape[1:]), dtype=table.dtype)
        has = (rows >= 0) & ~forced
        result[:count][has] = table[rows[has]]
        result[:count][~has] = fill[~has]
        if token_map.rows > count:  # padding: the mean, as Hewitt's note on new vocabulary advises
            result[count:] = result[:count].mean(axis=0, dtype=np.float64)
        results.append(result)
    return results


def _fill_rows(
    token_map: TokenMap, names: Sequence[str], tables: Sequence[Array], present: Array, count: int
) -> tuple[Array, Array]:
    """For every token, the row for models that lack it [tokens, …]; and which tokens use it in all models [tokens]."""
    fill = np.zeros((count, *tables[0].shape[1:]), dtype=tables[0].dtype)
    have = present.sum(axis=0)
    base = names.index(token_map.base) if token_map.base in names else None
    for number in np.flatnonzero((have > 0) & (have < len(names))):
        donors = [i for i in range(len(names)) if present[i, number]]
        if base is not None and base in donors:
            donors = [base]
        rows = [tables[i][token_map.own[names[i]][number]].astype(np.float64) for i in donors]
        fill[number] = sum(rows) / len(rows)
    forced = np.zeros(count, dtype=bool)
    for token, source in token_map.overrides.items():
        place = token_map.tokens[token]
        forced[place] = source.force
        if source.zero:
            fill[place] = 0
        elif source.model is not None and source.model in names:
            vocabulary = token_map.vocabularies[source.model]
            row = source.token_id if source.token_id is not None else vocabulary[source.token or token]
            fill[place] = tables[names.index(source.model)][row]
    return fill, forced


def as_floats(data: memoryview, spec: Spec) -> Array:
    """A stored tensor as a float32 array (float64 for that type), without loss."""
    if spec.dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").reshape(spec.shape)
    kinds = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
    values = np.frombuffer(data, kinds[spec.dtype]).reshape(spec.shape)
    return values.astype("<f4") if spec.dtype == "F16" else values


def write_tokenizer(token_map: TokenMap, folder: Path) -> None:
    """Replaces the copied tokenizer.json by the output's, and removes files that would contradict it."""
    text = json.dumps(dict(token_map.tokenizer), ensure_ascii=False, indent=2)
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")
    for name in ("vocab.json", "merges.txt", "tokenizer.model", "added_tokens.json"):
        (folder / name).unlink(missing_ok=True)
    settings = folder / "tokenizer_config.json"
    if settings.is_file():
        document = read_json(settings)
        if "added_tokens_decoder" in document:
            entries = token_map.tokenizer.get("added_tokens", [])
            document["added_tokens_decoder"] = {
                str(entry["id"]): {key: value for key, value in entry.items() if key != "id"} for entry in entries
            }
            settings.write_text(json.dumps(document, ensure_ascii=False, indent=2), encoding="utf-8")
