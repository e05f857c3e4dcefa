"""From Python type hints to JSON Schema, and from JSON values to the Python values of the hints.

Supported: str, int, float, bool, None, Any, list, dict with string keys, Optional and other unions, Literal, Enum,
TypedDict, dataclasses, and Annotated[..., "a description"]. Anything else is refused when the tool is created: a schema
that is looser than the function would let a model call it wrongly.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union

from agent_forge.errors import ToolError

Schema = dict[str, Any]
Build = Callable[[Any], Any]

_PLAIN: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    None: {"type": "null"},
    type(None): {"type": "null"},
    list: {"type": "array"},
    dict: {"type": "object"},
    Any: {},
    object: {},
}
_JSON_NAME = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_LISTS = (list, Sequence)
_DICTS = (dict, Mapping)


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """An annotation as a schema for models, and a function that builds the Python value from valid JSON."""

    schema: Schema
    build: Build | None = None  # None: the JSON value is already the Python value

    def value(self, json_value: Any) -> Any:
        return json_value if self.build is None else self.build(json_value)


def json_value(value: Any) -> Any:
    """The JSON of a value with dataclasses and enumerations in it: what `Shape.value` builds, the other way round."""
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: json_value(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: json_value(each) for name, each in value.items()}
    return [json_value(each) for each in value] if isinstance(value, (list, tuple)) else value


class UnsupportedAnnotation(ToolError):
    """A type hint without a JSON Schema."""


def shape_of(annotation: Any, *, where: str, outer: tuple[Any, ...] = ()) -> Shape:
    """The shape of a type hint; `where` names the parameter in the error.

    >>> shape_of(list[int], where="f(xs)").schema
    {'type': 'array', 'items': {'type': 'integer'}}

    Raises UnsupportedAnnotation.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _annotated(annotation, where, outer)
    if origin in (Union, types.UnionType):
        return _union(arguments, where, outer)
    if origin is Literal:
        return _choices(arguments, where)
    if origin in _LISTS:
        return _list(arguments[0], where, outer)
    if origin in _DICTS:
        return _dict(arguments, where, outer)
    if _is_plain(annotation):
        return Shape(dict(_PLAIN[annotation]), int if annotation is int else None)
    return _class(annotation, where, outer)


def _is_plain(annotation: Any) -> bool:
    try:
        return annotation in _PLAIN
    except TypeError:  # an unhashable annotation, as in `x: [int]`
        return False


def _annotated(annotation: Any, where: str, outer: tuple[Any, ...]) -> Shape:
    inner, *notes = typing.get_args(annotation)
    shape = shape_of(inner, where=where, outer=outer)
    texts = [note for note in notes if isinstance(note, str)]
    return Shape({**shape.schema, "description": " ".join(texts)}, shape.build) if texts else shape


def _union(members: tuple[Any, ...], where: str, outer: tuple[Any, ...]) -> Shape:
    shapes = [shape_of(member, where=where, outer=outer) for member in members]
    schema: Schema = {"anyOf": [shape.schema for shape in shapes]}
    names = [shape.schema.get("type") for shape in shapes]
    if all(set(shape.schema) == {"type"} for shape in shapes):
        schema = {"type": names}  # the short form: {"type": ["string", "null"]}
    return Shape(schema, _first_valid(shapes) if any(shape.build for shape in shapes) else None)


def _first_valid(shapes: list[Shape]) -> Build:
    def build(value: Any) -> Any:
        for shape in shapes:
            if is_valid(value, shape.schema):
                return shape.value(value)
        return value

    return build


def is_valid(value: Any, schema: Schema) -> bool:
    """Whether a JSON value satisfies a schema."""
    from jsonschema import Draft202012Validator

    return bool(Draft202012Validator(schema).is_valid(value))


def _choices(values: tuple[Any, ...], where: str) -> Shape:
    schema: Schema = {"enum": list(values)}
    if not all(value is None or isinstance(value, str | int | float) for value in values):
        raise UnsupportedAnnotation("a choice that is not a string, number, boolean or None", where=where)
    names = list(dict.fromkeys(_JSON_NAME[type(value)] for value in values))
    schema["type"] = names[0] if len(names) == 1 else names
    return Shape(schema)


def _list(item: Any, where: str, outer: tuple[Any, ...]) -> Shape:
    shape = shape_of(item, where=where, outer=outer)
    schema = {"type": "array", "items": shape.schema}
    return Shape(schema, (lambda values: [shape.value(value) for value in values]) if shape.build else None)


def _dict(arguments: tuple[Any, ...], where: str, outer: tuple[Any, ...]) -> Shape:
    key, item = arguments
    if key is not str:
        raise UnsupportedAnnotation(
            f"JSON objects have string keys, not {key!r}", where=where, fix="Annotate it as dict[str, ...]"
        )
    shape = shape_of(item, where=where, outer=outer)
    schema = {"type": "object", "additionalProperties": shape.schema}
    return Shape(schema, (lambda d: {k: shape.value(v) for k, v in d.items()}) if shape.build else None)


def _class(annotation: Any, where: str, outer: tuple[Any, ...]) -> Shape:
    if annotation in outer:
        raise UnsupportedAnnotation(f"{annotation.__name__} contains itself", where=where)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        shape = _choices(tuple(member.value for member in annotation), where)
        return Shape(shape.schema, annotation)
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type):
        return _dataclass(annotation, where, (*outer, annotation))
    if typing.is_typeddict(annotation):
        return _typed_dict(annotation, where, (*outer, annotation))
    raise UnsupportedAnnotation(
        f"the type {annotation.__qualname__ if isinstance(annotation, type) else repr(annotation)} has no JSON Schema",
        where=where,
        fix="Use str, int, float, bool, None, list, dict, Optional, Literal, Enum, TypedDict or a dataclass",
    )


def _dataclass(cls: type, where: str, outer: tuple[Any, ...]) -> Shape:
    hints = hints_of(cls, where)
    fields = [field for field in dataclasses.fields(cls) if field.init]
    shapes = {f.name: shape_of(hints[f.name], where=f"{where}.{f.name}", outer=outer) for f in fields}
    missing = dataclasses.MISSING
    required = [f.name for f in fields if f.default is missing and f.default_factory is missing]
    properties = {f.name: with_default(shapes[f.name].schema, f.default) for f in fields}

    def build(values: Mapping[str, Any]) -> Any:
        return cls(**{name: shapes[name].value(value) for name, value in values.items()})

    return Shape(object_schema(properties, required), build)


def _typed_dict(cls: Any, where: str, outer: tuple[Any, ...]) -> Shape:
    hints = {name: _unwrapped(hint) for name, hint in hints_of(cls, where).items()}
    shapes = {name: shape_of(hint, where=f"{where}.{name}", outer=outer) for name, hint in hints.items()}
    required = [name for name in shapes if name in cls.__required_keys__]
    schema = object_schema({name: shape.schema for name, shape in shapes.items()}, required)
    if not any(shape.build for shape in shapes.values()):
        return Shape(schema)
    return Shape(schema, lambda values: {name: shapes[name].value(value) for name, value in values.items()})


def _unwrapped(hint: Any) -> Any:
    """Required[T] and NotRequired[T] as T (typing has them from 3.11 on, typing_extensions before)."""
    named = str(typing.get_origin(hint)).rpartition(".")[2]
    return typing.get_args(hint)[0] if named in ("Required", "NotRequired") else hint


def object_schema(properties: dict[str, Schema], required: list[str]) -> Schema:
    """The schema of an object with exactly these properties."""
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": required} if required else schema


def with_default(schema: Schema, default: Any) -> Schema:
    """The schema with its default, if that is a JSON value."""
    default = default.value if isinstance(default, enum.Enum) else default
    try:
        json.dumps(default, allow_nan=False)
    except (TypeError, ValueError):
        return schema
    return {**schema, "default": default}


def hints_of(thing: Any, where: str) -> dict[str, Any]:
    """The type hints of a function or class, including Annotated."""
    try:
        return typing.get_type_hints(thing, include_extras=True)
    except Exception as error:
        raise UnsupportedAnnotation(
            f"its type hints cannot be read: {error}", where=where, fix="Define the types at module level"
        ) from error
