"""Random JSON Schemas, instances of them, and a small tokenizer whose tokens run across JSON's punctuation."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Mapping
from typing import Any

NAMES = ["a", "b", "city", "größe", 'qu"ote', "back\\slash", "a/b", "new\nline", "日本", "$ref", "not", "😀", " "]
TEXTS = [
    "",
    "x",
    "otters",
    'say "hi"',
    "tab\there",
    "C:\\x",
    "Zürich",
    "😀😀",
    "line\nfeed",
    "</tool_call>",
    "{}",
    "null",
]
PATTERNS = ["^a+$", "^[a-z]{2,4}$", "b", r"^\d{3}-\d{2}$", "^(red|green)$", r"^\w+@\w+$", "^[^x]*$", "^.{1,3}$"]
UNFOLLOWED = [
    {"not": {"type": "string"}}, {"type": "array", "uniqueItems": True}, {"if": {}, "then": False},
    {"type": "object", "minProperties": 2}, {"type": "array", "contains": {}}, {"type": "number", "multipleOf": 0.1},
    {"type": "string", "pattern": r"^\W"}, {"type": "string", "pattern": "(?!a)b"},
    {"oneOf": [{"type": "number"}, {"type": "integer"}]}, {"type": "object", "patternProperties": {"^a": True}},
]  # fmt: skip


def tiny_tokens(seed: int = 0) -> Any:
    """A byte-level tokenizer with a few hundred merges; token 0 ends."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    rng = random.Random(seed)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
    )
    texts = [json.dumps(value(rng, 3), ensure_ascii=False) for _ in range(300)]
    texts += [f'<tool_call>{{"name": "find", "arguments": {text}}}</tool_call>' for text in texts]
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def value(rng: random.Random, depth: int) -> Any:
    """Any JSON value."""
    kind = rng.randrange(7 if depth else 5)
    if kind == 0:
        return rng.choice(TEXTS)
    if kind == 1:
        return rng.randrange(-1000, 1000)
    if kind == 2:
        return round(rng.uniform(-100, 100), rng.randrange(1, 5))
    if kind in (3, 4):
        return rng.choice([True, False, None])
    if kind == 5:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {name: value(rng, depth - 1) for name in rng.sample(NAMES, rng.randrange(4))}


def random_schema(rng: random.Random) -> dict[str, Any]:
    """A random schema; about one in fifty contains something that no grammar follows."""
    return _recursive(rng, 3) if rng.random() < 0.1 else schema(rng, 3)


def schema(rng: random.Random, depth: int) -> dict[str, Any]:
    kinds = [_string, _integer, _number, _string, _constant, _types, _all]
    if depth:
        kinds += [_array, _object, _object, _object, _any, _one]
    if rng.random() < 0.004:
        return dict(rng.choice(UNFOLLOWED))
    made = rng.choice(kinds)(rng, depth)
    if rng.random() < 0.2:
        made["description"] = rng.choice(TEXTS)
    return made


def _string(rng: random.Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "string"}
    kind = rng.randrange(6)
    if kind == 0:
        made["enum"] = rng.sample(TEXTS, rng.randrange(1, 5))
    elif kind == 1:
        made["pattern"] = rng.choice(PATTERNS)
    elif kind == 2:
        made["format"] = rng.choice(["date", "uuid", "ipv4", "email", "password", "byte"])
    elif kind < 5:
        low = rng.randrange(4)
        made |= {"minLength": low} if rng.random() < 0.5 else {}
        made |= {"maxLength": low + rng.randrange(6)} if rng.random() < 0.7 else {}
    return made


def _bounds(rng: random.Random, digits: int) -> dict[str, Any]:
    low = round(rng.uniform(-200, 200), digits)
    high = round(low + rng.uniform(5, 300), digits)
    made: dict[str, Any] = {}
    if rng.random() < 0.6:
        made[rng.choice(["minimum", "exclusiveMinimum"])] = low if digits else int(low)
    if rng.random() < 0.6:
        made[rng.choice(["maximum", "exclusiveMaximum"])] = high if digits else int(high)
    return made


def _integer(rng: random.Random, depth: int) -> dict[str, Any]:
    made = {"type": "integer", **_bounds(rng, 0)}
    return made | ({"multipleOf": rng.choice([2, 3, 5])} if rng.random() < 0.1 else {})


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "number", **_bounds(rng, rng.randrange(5))}


def _constant(rng: random.Random, depth: int) -> dict[str, Any]:
    if rng.random() < 0.5:
        return {"const": value(rng, 1)}
    return {"enum": [value(rng, 1) for _ in range(rng.randrange(1, 4))]}


def _types(rng: random.Random, depth: int) -> dict[str, Any]:
    types = rng.sample(["string", "integer", "boolean", "null", "number"], rng.randrange(1, 4))
    return {"type": types} if rng.random() < 0.8 else {}


def _all(rng: random.Random, depth: int) -> dict[str, Any]:
    low = rng.randrange(-50, 50)
    return {"type": "integer", "allOf": [{"minimum": low}, {"maximum": low + rng.randrange(1, 100)}]}


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "array"}
    if rng.random() < 0.3:
        made["prefixItems"] = [schema(rng, depth - 1) for _ in range(rng.randrange(1, 3))]
        made["items"] = False if rng.random() < 0.5 else schema(rng, depth - 1)
    else:
        made["items"] = schema(rng, depth - 1)
        low = rng.randrange(3)
        made |= {"minItems": low} if rng.random() < 0.5 else {}
        made |= {"maxItems": low + rng.randrange(4)} if rng.random() < 0.5 else {}
    if rng.random() < 0.1:
        made["uniqueItems"] = False
    return made


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randrange(5))
    made: dict[str, Any] = {"type": "object", "properties": {name: schema(rng, depth - 1) for name in names}}
    made["required"] = [name for name in names if rng.random() < 0.5]
    extra = rng.random()
    if extra < 0.5:
        made["additionalProperties"] = False
    elif extra < 0.7:
        made["additionalProperties"] = schema(rng, depth - 1)
    return made


def _any(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [schema(rng, depth - 1) for _ in range(rng.randrange(1, 4))]}


def _one(rng: random.Random, depth: int) -> dict[str, Any]:
    tags = rng.sample(string.ascii_lowercase, rng.randrange(1, 4))
    return {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": tag}, "value": schema(rng, depth - 1)},
                "required": ["kind", "value"],
            }
            for tag in tags
        ]
    }


def _recursive(rng: random.Random, depth: int) -> dict[str, Any]:
    node = {
        "type": "object",
        "properties": {"leaf": schema(rng, depth - 1), "next": {"$ref": "#/$defs/node"}},
        "required": ["leaf"],
        "additionalProperties": False,
    }
    return {"$defs": {"node": node}, "$ref": "#/$defs/node"}


def instance(rng: random.Random, of: Any, depth: int = 4, root: Mapping[str, Any] | None = None) -> Any:
    """A value that probably validates: the caller checks it. Properties are in the order of the schema."""
    if isinstance(of, bool) or not of:
        return value(rng, 1)
    root = of if root is None else root
    if "$ref" in of:
        return instance(rng, root["$defs"]["node"], depth - 1, root)
    if "const" in of:
        return of["const"]
    if "enum" in of:
        return rng.choice(of["enum"])
    for keyword in ("anyOf", "oneOf"):
        if keyword in of:
            return instance(rng, rng.choice(of[keyword]), depth, root)
    kind = of.get("type", "null")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if kind == "string":
        return _text(rng, of)
    if kind in ("integer", "number"):
        low = of.get("minimum", of.get("exclusiveMinimum", -500))
        number = rng.uniform(low, of.get("maximum", of.get("exclusiveMaximum", low + 400)))
        whole = kind == "integer" or rng.random() < 0.3
        number = round(number) if whole else round(number, rng.randrange(1, 6))
        return int(number) if number == int(number) else number  # 98.0 is written as 98 where the maximum is 98.5
    if kind == "array":
        first = [instance(rng, each, depth - 1, root) for each in of.get("prefixItems", [])]
        rest = of.get("items", True)
        low, high = of.get("minItems", 0), of.get("maxItems", 3)
        count = 0 if rest is False else rng.randint(low, max(low, high if depth > 0 else low))
        return first + [instance(rng, rest, depth - 1, root) for _ in range(max(0, count - len(first)))]
    if kind == "object":
        return _members(rng, of, depth, root)
    return rng.choice([True, False]) if kind == "boolean" else None


def _members(rng: random.Random, of: Mapping[str, Any], depth: int, root: Mapping[str, Any]) -> dict[str, Any]:
    members = {}
    for name, each in of.get("properties", {}).items():
        if name in of.get("required", ()) or (depth > 0 and rng.random() < 0.5):
            members[name] = instance(rng, each, depth - 1, root)
    more = of.get("additionalProperties", True)
    if more is not False and rng.random() < 0.5:
        members |= {f"extra {number} \\": instance(rng, more, depth - 1, root) for number in range(rng.randrange(3))}
    return members


def _text(rng: random.Random, of: Mapping[str, Any]) -> str:
    if "pattern" in of:
        examples = {"^a+$": "aaa", "^[a-z]{2,4}$": "xyz", "b": "abc", r"^\d{3}-\d{2}$": "012-34", "^.{1,3}$": "ü\t😀"}
        return examples.get(of["pattern"], {"^(red|green)$": "red", r"^\w+@\w+$": "a@b"}.get(of["pattern"], "y"))
    examples = {"date": "2026-11-16", "uuid": "123e4567-e89b-12d3-a456-426614174000", "ipv4": "127.0.0.1"}
    if "format" in of:
        return examples.get(of["format"], "a@example.org")
    low = of.get("minLength", 0)
    size = rng.randint(low, of.get("maxLength", low + 8))
    return "".join(rng.choice('ab"\\/\n\té日😀 {}<>') for _ in range(size))


def emit(vocabulary: Any, grammar: Any, tokenizer: Any, rng: Any, most: int = 400) -> str | None:
    """What random logits write under a grammar, None if that is not complete after `most` tokens.

    `rng` is numpy's. The longer it takes, the more attractive become quotes and brackets: a uniform choice between
    tokens would hardly ever end a string.
    """
    import numpy as np

    texts = [tokenizer.decode([token]) for token in range(vocabulary.size)]
    closing = np.array([bool(text) and set(text) <= set('"}], \n') for text in texts])
    walk, written = vocabulary.start(grammar), []
    while not walk.finished and len(written) < most:
        logits = rng.normal(0.0, 3.0, vocabulary.size).astype(np.float32)
        logits[closing] += len(written) / 8
        logits[0] += 3.0
        walk.mask(logits)
        token = int(logits.argmax())
        assert logits[token] > -np.inf
        if token == 0:
            break
        walk.advance(token)
        written.append(token)
    return str(tokenizer.decode(written)) if walk.may_stop else None


def can_write(vocabulary: Any, grammar: Any, tokenizer: Any, text: str) -> bool:
    """Whether a grammar lets tokens pass that spell this text. (Where only one text can follow, it wants the
    tokenizer's own tokens for that, which may differ from those of the whole text.)"""
    from tokenizers.pre_tokenizers import ByteLevel

    spelt = "".join(ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0]) if text else ""
    walk = vocabulary.start(grammar)
    while spelt:
        tokens = (tokenizer.id_to_token(int(token)) for token in walk.allowed().nonzero()[0])
        longest = max((token for token in tokens if token and spelt.startswith(token)), key=len, default=None)
        if longest is None:
            return False
        walk.advance(tokenizer.token_to_id(longest))
        spelt = spelt[len(longest) :]
    return bool(walk.may_stop)
