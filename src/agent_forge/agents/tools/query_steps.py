"""What the steps of a query do to a value: fields, items, filters, functions, comparisons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent_forge.agents.tools.tool import did_you_mean
from agent_forge.errors import ToolError

Test = Callable[[Any], bool]
Step = Callable[[Any, bool], tuple[Any, bool]]
"""From (value, whether it is a list of matches) to the same one step further."""


def inside(steps: list[Step]) -> Callable[[Any], Any]:
    """A path inside one item, where what is missing is null."""

    def value(item: Any) -> Any:
        matches, many = [item], True
        for step in steps:
            matches, many = step(matches, many)
        return matches[0] if matches else None

    return value


def get_field(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, dict) else None


def field(name: str) -> Step:
    def step(value: Any, many: bool) -> tuple[Any, bool]:
        if many:
            return [get_field(item, name) for item in value], True
        if not isinstance(value, dict):
            hint = "use [*] to go into every item" if isinstance(value, list) else None
            raise ToolError(f"{name!r} is a field, but here is {_kind(value)}", fix=hint)
        if name not in value:
            raise ToolError(f"there is no field {name!r}{did_you_mean(name, value)}")
        return value[name], False

    return step


def item_at(index: int) -> Step:
    def step(value: Any, many: bool) -> tuple[Any, bool]:
        if many:
            return [_at(item, index) for item in value], True
        if not isinstance(value, list):
            raise ToolError(f"[{index}] needs a list, but here is {_kind(value)}")
        if not -len(value) <= index < len(value):
            raise ToolError(f"there is no item [{index}] in a list of {len(value)}")
        return value[index], False

    return step


def _at(item: Any, index: int) -> Any:
    return item[index] if isinstance(item, list) and -len(item) <= index < len(item) else None


def _items(value: Any, many: bool, what: str) -> list[Any]:
    if many:
        return [inner for item in value if isinstance(item, list | dict) for inner in _values(item)]
    if not isinstance(value, list | dict):
        raise ToolError(f"{what} needs a list, but here is {_kind(value)}")
    return _values(value)


def _values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def every(value: Any, many: bool) -> tuple[Any, bool]:
    return _items(value, many, "[*]"), True


def filtered(test: Test) -> Step:
    return lambda value, many: ([item for item in _items(value, many, "[? …]") if test(item)], True)


def sliced(start: int | None, stop: int | None) -> Step:
    return lambda value, many: (_items(value, many, "a slice")[start:stop], True)


def listed(name: str, function: Callable[[list[Any]], Any]) -> Step:
    def step(value: Any, many: bool) -> tuple[Any, bool]:
        if name in ("keys", "values") and isinstance(value, dict):
            return (list(value) if name == "keys" else list(value.values())), False
        if not isinstance(value, list):
            raise ToolError(f"{name} needs a list, but here is {_kind(value)}")
        return function(value), False

    return step


def _numbers(items: list[Any], name: str) -> list[Any]:
    present = [item for item in items if item is not None]
    for item in present:
        if isinstance(item, bool) or not isinstance(item, int | float):
            raise ToolError(f"{name} needs numbers, but here is {_kind(item)}")
    if not present and name != "sum":
        raise ToolError(f"{name} of nothing")
    return present


def _mean(items: list[Any]) -> float:
    present = _numbers(items, "mean")
    return float(sum(present) / len(present))


def _extreme(name: str, choose: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    def of(items: list[Any]) -> Any:
        present = [item for item in items if item is not None]
        if not present:
            raise ToolError(f"{name} of nothing")
        return choose(present, key=_order)

    return of


def _order(value: Any) -> tuple[int, Any]:
    """A place for every JSON value: null, booleans, numbers, texts, then the rest as it stands."""
    if value is None:
        return 0, 0
    if isinstance(value, bool):
        return 1, value
    if isinstance(value, int | float):
        return 2, value
    return (3, value) if isinstance(value, str) else (4, 0)


def sorted_by(items: list[Any], key: Callable[[Any], Any]) -> list[Any]:
    return sorted(items, key=lambda item: _order(key(item)))


def grouped_by(items: list[Any], key: Callable[[Any], Any]) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for item in items:
        value = key(item)
        groups.setdefault("null" if value is None else str(value), []).append(item)
    return groups


def _unique(items: list[Any]) -> list[Any]:
    found: dict[str, Any] = {}
    for item in items:
        found.setdefault(repr(item), item)
    return list(found.values())


FUNCTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "count": len,
    "sum": lambda items: sum(_numbers(items, "sum")),
    "min": _extreme("min", min),
    "max": _extreme("max", max),
    "mean": _mean,
    "first": lambda items: items[0] if items else None,
    "last": lambda items: items[-1] if items else None,
    "unique": _unique,
    "sort": lambda items: sorted(items, key=_order),
    "reverse": lambda items: items[::-1],
    "keys": lambda items: list(range(len(items))),
    "values": lambda items: items,
}


def _comparable(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Order between numbers, or between texts; between anything else the answer is no."""

    def test(left: Any, right: Any) -> bool:
        kinds = _order(left)[0], _order(right)[0]
        return kinds in ((2, 2), (3, 3)) and compare(left, right)

    return test


def _contains(whole: Any, part: Any) -> bool:
    if isinstance(whole, str):
        return isinstance(part, str) and part in whole
    return isinstance(whole, list | dict) and part in whole if not isinstance(part, list | dict) else False


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda left, right: _order(left)[0] == _order(right)[0] and left == right,
    "!=": lambda left, right: not COMPARISONS["=="](left, right),
    "<": _comparable(lambda left, right: left < right),
    "<=": _comparable(lambda left, right: left <= right),
    ">": _comparable(lambda left, right: left > right),
    ">=": _comparable(lambda left, right: left >= right),
    "contains": _contains,
    "startswith": lambda left, right: isinstance(left, str) and isinstance(right, str) and left.startswith(right),
    "in": lambda left, right: _contains(right, left),
}


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")
