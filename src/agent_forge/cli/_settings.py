"""Options from a settings class: one for every field, so that a default exists once.

A field is an option of its name (`max_increase` is `--max-increase`), unless it says otherwise
(`agent_forge.config.option`). The fields of a class within the class are options too. Mappings have no option.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal, TypeVar, Union

import click

from agent_forge.cli._options import RenamedOption, share, size
from agent_forge.config import nearest, resolve
from agent_forge.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
UNITS: dict[str | None, tuple[Callable[[str], Any], str]] = {"bytes": (size, "SIZE"), "share": (share, "SHARE")}

set_option = click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Change any setting, e.g. seed=1.")


def settings_options(cls: type[Any], *, skip: Collection[str] = ()) -> Callable[[F], F]:
    """The options of the settings class `cls`, for a command that reads them with `read_settings`.

    A field in `skip` has none, nor has one that is a mapping or a list of mappings.
    """
    options = [_option(path, field, hint) for path, field, hint in _fields(cls) if path not in skip]

    def decorate(function: F) -> F:
        for names, attributes in reversed([option for option in options if option is not None]):
            function = click.option(*names, **attributes)(function)
        return function

    return decorate


def read_settings(
    cls: type[T],
    options: dict[str, Any],
    *files: str,
    sets: Collection[str] = (),
    values: Mapping[str, Any] | None = None,
) -> T:
    """The settings from files, then `values`, then the options that were stated, then `--set`. Raises ConfigError.

    What belongs to the settings is taken out of `options`. `--set` also takes a name inside a class by itself:
    lr=0.1 for recipe.lr=0.1.
    """
    stated: dict[str, Any] = {**(values or {})}
    paths = [path for path, _, _ in _fields(cls)]
    for path in paths:
        value = options.pop(path.replace(".", "__"), None)
        if value is not None:
            *groups, name = path.split(".")
            inside = stated
            for group in groups:
                inside = inside.setdefault(group, {})
            inside[name] = value
    known = [*paths, *_names(cls), *getattr(cls, "other_names", ())]  # the last are refused with the right name
    changes = [_with_path(change, known) for change in sets]
    return resolve(cls, *files, sets=changes, values=stated, where="the command").value


def _names(cls: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


def _with_path(change: str, paths: Collection[str]) -> str:
    """`lr=0.1` as `recipe.lr=0.1`."""
    key, equals, text = change.partition("=")
    if "." in key or key in paths:
        return change
    inside = {path.rpartition(".")[2]: path for path in paths}
    if key not in inside:
        match = nearest(key, inside)
        hint = f"did you mean {match!r}?" if match else f"known keys are {', '.join(sorted(inside))}"
        raise ConfigError(f"unknown key {key!r}; {hint}", where=f"--set {change}")
    return f"{inside[key]}{equals}{text}"


def _fields(cls: type[Any], path: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """(dotted path, field, type) of every field, also inside the classes of fields; None is taken out of the type."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if typing.get_origin(hint) in (Union, types.UnionType):
            members = [member for member in typing.get_args(hint) if member is not type(None)]
            hint = members[0] if len(members) == 1 else str if str in members else Any
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from _fields(hint, f"{path}{field.name}.")
        else:
            yield f"{path}{field.name}", field, hint


def _option(path: str, field: dataclasses.Field[Any], hint: Any) -> tuple[list[str], dict[str, Any]] | None:
    """The names of an option and its attributes for click; None for a type that has no option."""
    data = field.metadata
    kind = _kind(hint, data)
    if kind is None:
        return None
    plain = f"--{field.name.replace('_', '-')}"
    flag = data.get("flag") or (f"{plain}/--no-{plain[2:]}" if hint is bool and field.default is True else plain)
    hidden_names = [*data.get("former", ()), *([plain] if plain not in flag.split("/") else [])]
    text = f"{data.get('help', '').rstrip('.')}{_default(field, hint)}."
    return [flag, path.replace(".", "__")], {
        "cls": RenamedOption,
        "former": tuple(hidden_names),
        "default": None,
        "hidden": data.get("hidden", False),
        "help": text,
        **kind,
    }


def _kind(hint: Any, data: Mapping[str, Any]) -> dict[str, Any] | None:
    low, high, above = data.get("at_least"), data.get("at_most"), data.get("above")
    origin = typing.get_origin(hint)
    if data.get("unit") is not None:
        parse, metavar = UNITS[data["unit"]]
        return {"type": parse, "metavar": metavar}
    if hint is bool:
        return {"is_flag": True}
    if hint is int:
        return {"type": click.IntRange(low if above is None else int(above) + 1, high)}
    if hint is float:
        return {"type": click.FloatRange(low if above is None else above, high, min_open=above is not None)}
    if origin is Literal:
        return {"type": click.Choice([str(choice) for choice in typing.get_args(hint)])}
    if hint is str:
        return {"metavar": "TEXT"}
    if origin in (list, tuple) and _is_text(typing.get_args(hint)[0]):
        return {"type": lambda text: [name.strip() for name in text.split(",")], "metavar": "NAMES"}
    return None


def _is_text(hint: Any) -> bool:
    return hint is str or typing.get_origin(hint) is Literal


def _default(field: dataclasses.Field[Any], hint: Any) -> str:
    """What the help says of the default. That of a flag, and one that depends on the model, is in the help itself."""
    value = field.default
    if value in (None, dataclasses.MISSING, (), "") or hint is bool:
        return ""
    if isinstance(value, (list, tuple)):
        value = ",".join(map(str, value))
    elif field.metadata.get("unit") == "share":
        value = f"{100 * value:g}%"
    return f" [default: {value}]"
