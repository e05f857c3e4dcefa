"""Schemas of tools as they come: references resolved, types by the names of JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Function lists in the wild name types as their language does.
JSON_TYPES = {
    "str": "string", "text": "string", "date": "string", "int": "integer", "float": "number", "double": "number",
    "bool": "boolean", "list": "array", "tuple": "array", "dict": "object", "map": "object", "hashmap": "object",
}  # fmt: skip
DEPTH = 8  # of schemas within schemas; a recursive one ends there, open


def plain_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema without references, its types by their JSON Schema names.

    >>> plain_schema({"type": "dict", "properties": {"n": {"$ref": "#/$defs/N"}}, "$defs": {"N": {"type": "float"}}})
    {'type': 'object', 'properties': {'n': {'type': 'number'}}}
    """
    return _plain(schema, schema, DEPTH)


def _plain(schema: Any, root: Mapping[str, Any], depth: int) -> dict[str, Any]:
    if not isinstance(schema, Mapping) or depth == 0:
        return {}
    place = schema.get("$ref")
    if isinstance(place, str):
        rest = {name: each for name, each in schema.items() if name != "$ref"}
        return {**_plain(_at(root, place), root, depth - 1), **_plain(rest, root, depth)}
    result = {name: each for name, each in schema.items() if name not in ("$defs", "definitions")}
    kinds = schema.get("type")
    if isinstance(kinds, str):
        result["type"] = JSON_TYPES.get(kinds.lower(), kinds.lower())
    elif isinstance(kinds, list):
        result["type"] = [JSON_TYPES.get(str(kind).lower(), str(kind).lower()) for kind in kinds]
    if result.get("type") == "any":
        del result["type"]
    if isinstance(schema.get("properties"), Mapping):
        result["properties"] = {name: _plain(each, root, depth - 1) for name, each in schema["properties"].items()}
    if isinstance(schema.get("items"), Mapping):
        result["items"] = _plain(schema["items"], root, depth - 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list):
            result[key] = [_plain(each, root, depth - 1) for each in schema[key]]
    if len(result.get("allOf") or ()) == 1:  # how pydantic writes a reference with a description
        result = {**result.pop("allOf")[0], **result}
    return result


def _at(root: Mapping[str, Any], place: str) -> Any:
    """What a local reference points to; an empty schema where that is not there."""
    target: Any = root
    for step in place.removeprefix("#").strip("/").split("/") if place.startswith("#") else ["$nowhere"]:
        if step:
            name = step.replace("~1", "/").replace("~0", "~")
            target = target.get(name, {}) if isinstance(target, Mapping) else {}
    return target
