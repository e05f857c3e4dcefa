"""Configuration: frozen dataclasses filled from YAML files, the environment and `--set a.b=c`.

    @dataclass(frozen=True)
    class Training:
        steps: int = option(1000, help="optimiser steps", at_least=1)
        schedule: Literal["cosine", "wsd"] = "cosine"

    training = load(Training, "training.yaml", sets=["steps=200"])

Everything is strict: an unknown key, a wrong type or a value out of range is a ConfigError that names the file, the
line, the key and the nearest known key, and all faults are reported at once. A class may say what a key is that others
use for the same thing: `other_names: ClassVar = {"n_steps": "it is `steps` here"}`. `dump` writes YAML that loads to an
equal object. Standard library and PyYAML only, so that a bare GPU machine can use it.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import math
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, Union

import yaml

from agent_forge.errors import ConfigError

T = TypeVar("T")

MAX_BYTES = 4 << 20
MAX_NODES = 100_000


def option(
    default: Any = MISSING,
    *,
    help: str = "",
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    flag: str = "",
    former: str = "",
    unit: Literal["bytes", "share"] | None = None,
    hidden: bool = False,
) -> Any:
    """A dataclass field with a help text and bounds. A default may be a mapping or a dataclass.

    The rest is for commands whose options come from the fields (`cli._settings`): `flag` is the option's name where it
    is not the field's, `former` are names that it had before, `unit` lets it be written as 6MB or 5%, and `hidden`
    leaves it out of the help.
    """
    metadata = {
        "help": help,
        "at_least": at_least,
        "at_most": at_most,
        "above": above,
        "flag": flag,
        "former": tuple(former.split()),
        "unit": unit,
        "hidden": hidden,
    }
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Resolved(Generic[T]):
    """A configuration and, for each dotted key, where its value came from."""

    value: T
    origins: Mapping[str, str]


def load(
    cls: type[T],
    *files: str | os.PathLike[str],
    sets: Iterable[str] = (),
    env: Mapping[str, str] | None = None,
) -> T:
    """An instance of the dataclass `cls` from `files`, then `env`, then `sets`; the later wins. See `resolve`."""
    return resolve(cls, *files, sets=sets, env=env).value


def resolve(
    cls: type[T],
    *files: str | os.PathLike[str],
    sets: Iterable[str] = (),
    env: Mapping[str, str] | None = None,
    variable: Callable[[str], str] = str,
    values: Mapping[str, Any] | None = None,
    where: str = "<values>",
) -> Resolved[T]:
    """An instance of the dataclass `cls`, and where each value came from.

    `values` are plain ones, as for `build`; the later of files, values, `env` and `sets` wins. `env` maps dotted keys
    to texts, and a text there or in `sets` is read as YAML (`--set steps=200` is a number) unless the key takes a
    string; `variable` is the name that a key has in the environment.

    Raises ConfigError naming every fault.
    """
    tree = _Tree({}, "defaults")
    for file in files:
        tree = _merge(tree, _read_file(Path(file)))
    if values:
        tree = _merge(tree, _tree_of(values, where))
    for key, text in (env or {}).items():
        tree = _merge(tree, _nest(key, text, f"environment ({variable(key)})"))
    for item in sets:
        key, equals, text = item.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{item!r} is not of the form key=value", where="--set", fix="Write --set a.b=c")
        tree = _merge(tree, _nest(key.strip(), text, f"--set {item}"))
    return from_tree(cls, tree)


def parse(cls: type[T], text: str, where: str = "<text>") -> T:
    """An instance of `cls` from YAML text. Raises ConfigError.

    >>> parse(_Example, "size: 3")
    _Example(size=3, name='a')
    """
    return from_tree(cls, _read_text(text, where)).value


def build(cls: type[T], values: Mapping[str, Any], where: str = "<values>") -> T:
    """An instance of `cls` from plain values, checked like a file. Raises ConfigError.

    >>> build(_Example, {"size": 3})
    _Example(size=3, name='a')
    """
    return from_tree(cls, _tree_of(values, where)).value


def from_tree(cls: type[T], tree: _Tree) -> Resolved[T]:
    builder = _Builder()
    value = builder.dataclass(cls, tree, "")
    if builder.faults:
        raise ConfigError("\n".join(builder.faults))
    return Resolved(value, builder.origins)


def as_dict(config: Any) -> Any:
    """The configuration as plain JSON-like values."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: as_dict(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {str(key): as_dict(value) for key, value in config.items()}
    if isinstance(config, (list, tuple)):
        return [as_dict(value) for value in config]
    if isinstance(config, enum.Enum):
        return config.value
    return str(config) if isinstance(config, Path) else config


def dump(config: Any) -> str:
    """YAML that `load` turns into an equal object."""
    return yaml.dump(as_dict(config), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that PyYAML's plain style does not bring back (unusual line breaks and control characters)."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = None if text.replace("\n", "").isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def nearest(key: str, names: Iterable[str]) -> str | None:
    """The name that `key` was probably meant to be, if any is close."""
    matches = difflib.get_close_matches(key, list(names), n=1, cutoff=0.6)
    return matches[0] if matches else None


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tree:
    """A value as written, and where: a mapping or list of `_Tree`s, a scalar, or a `_Text` not yet read as YAML."""

    value: Any
    where: str


class _Text(str):
    """A value from the command line or the environment: its type is that of the key it is for."""


def _read_file(path: Path) -> _Tree:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"the file is larger than {MAX_BYTES >> 20} MiB", where=str(path))
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8 text (byte {error.start})", where=str(path)) from error
    return _read_text(text, str(path))


def _read_text(text: str, where: str) -> _Tree:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            return _Tree({}, where)
        tree = _Composer(where).tree(node)
    except yaml.MarkedYAMLError as error:
        line = f"{where}:{error.problem_mark.line + 1}" if error.problem_mark else where
        raise ConfigError(f"not valid YAML: {error.problem}", where=line) from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"not valid YAML: {error}", where=where) from error
    except RecursionError as error:
        raise ConfigError("nested too deeply", where=where) from error
    if not isinstance(tree.value, dict):
        raise ConfigError("a mapping of keys to values is expected", where=tree.where)
    return tree


class _Composer:
    """Turns YAML nodes into `_Tree`s that remember their lines."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.nodes = 0
        self.constructor = yaml.SafeLoader("")

    def tree(self, node: yaml.Node) -> _Tree:
        self.nodes += 1
        where = f"{self.where}:{node.start_mark.line + 1}"
        if self.nodes > MAX_NODES:  # also what an alias bomb runs into
            raise ConfigError(f"more than {MAX_NODES} values", where=where)
        if isinstance(node, yaml.MappingNode):
            return _Tree(self.mapping(node), where)
        if isinstance(node, yaml.SequenceNode):
            return _Tree([self.tree(item) for item in node.value], where)
        return _Tree(self.constructor.construct_object(node), where)

    def mapping(self, node: yaml.MappingNode) -> dict[str, _Tree]:
        entries: dict[str, _Tree] = {}
        for key_node, value_node in node.value:
            where = f"{self.where}:{key_node.start_mark.line + 1}"
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError("a key must be plain text", where=where)
            if key_node.value in entries:
                raise ConfigError(f"the key {key_node.value!r} occurs twice", where=where)
            entries[key_node.value] = self.tree(value_node)
        return entries


def _tree_of(value: Any, where: str) -> _Tree:
    if isinstance(value, Mapping):
        return _Tree({str(key): _tree_of(item, f"{where}.{key}") for key, item in value.items()}, where)
    if isinstance(value, (list, tuple)):
        return _Tree([_tree_of(item, where) for item in value], where)
    return _Tree(value, where)


def _nest(key: str, text: str, where: str) -> _Tree:
    tree = _Tree(_Text(text), where)
    for part in reversed(key.split(".")):
        tree = _Tree({part: tree}, where)
    return tree


def _merge(below: _Tree, above: _Tree) -> _Tree:
    if not isinstance(below.value, dict) or not isinstance(above.value, dict):
        return above
    merged = dict(below.value)
    for key, tree in above.value.items():
        merged[key] = _merge(merged[key], tree) if key in merged else tree
    return _Tree(merged, above.where)


# --- checking --------------------------------------------------------------------------------------------------------


class _Wrong(Exception):
    """A value that does not fit its key."""


class _Builder:
    """Builds typed values from a tree, collecting faults and origins on the way."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.origins: dict[str, str] = {}

    def dataclass(self, cls: type[T], tree: _Tree, path: str) -> T:
        tree = _open_text(tree)
        if not isinstance(tree.value, dict):
            raise _Wrong(f"expected a mapping with the keys of {cls.__name__}, got {_shown(tree.value)}")
        hints = typing.get_type_hints(cls)
        fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
        for key in tree.value:
            if key not in fields:
                match = nearest(key, fields)
                hint = f"did you mean {match!r}?" if match else f"known keys are {', '.join(sorted(fields))}"
                hint = getattr(cls, "other_names", {}).get(key, hint)
                self.fault(tree.value[key].where, f"unknown key {_join(path, key)!r}; {hint}")
        values = {
            name: self.field(field, hints[name], tree.value.get(name), _join(path, name), tree.where)
            for name, field in fields.items()
        }
        if self.faults:
            return typing.cast(T, None)
        try:
            return cls(**values)
        except (ValueError, TypeError) as error:  # a check across fields in __post_init__
            self.fault(tree.where, f"{path or cls.__name__}: {error}")
            return typing.cast(T, None)

    def field(self, field: dataclasses.Field[Any], hint: Any, tree: _Tree | None, path: str, where: str) -> Any:
        if tree is None:
            if field.default is not MISSING:
                self.origins[path] = "default"
                return field.default
            if field.default_factory is not MISSING:
                self.origins[path] = "default"
                return field.default_factory()
            if dataclasses.is_dataclass(hint):
                return self.dataclass(typing.cast(type[Any], hint), _Tree({}, where), path)
            self.fault(where, f"the key {path!r} is missing and has no default")
            return None
        if not dataclasses.is_dataclass(hint):
            self.origins[path] = tree.where
        try:
            value = self.value(hint, tree, path)
            _check_bounds(field.metadata, value)
            return value
        except _Wrong as wrong:
            self.fault(tree.where, f"{path}: {wrong}")
            return None

    def value(self, hint: Any, tree: _Tree, path: str) -> Any:
        origin = typing.get_origin(hint)
        if origin in (Union, types.UnionType):
            return self.union(typing.get_args(hint), tree, path)
        if dataclasses.is_dataclass(hint):
            return self.dataclass(typing.cast(type[Any], hint), tree, path)
        if origin is Literal:
            return _choice(typing.get_args(hint), _open_text(tree).value)
        if origin in (tuple, list):
            return self.sequence(origin, typing.get_args(hint), tree, path)
        if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
            return self.mapping(typing.get_args(hint)[1], tree, path)
        if hint is Any:
            return _plain(_open_text(tree))
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return hint(_choice(tuple(member.value for member in hint), _open_text(tree).value))
        return _scalar(hint, tree.value)

    def union(self, hints: tuple[Any, ...], tree: _Tree, path: str) -> Any:
        reasons = []
        for hint in sorted(hints, key=lambda h: h is str):  # a text is the last thing that a value may be
            try:
                before = len(self.faults)
                value = self.value(hint, tree, path)
                if len(self.faults) == before:
                    return value
                reasons.append(self.faults[before])
                del self.faults[before:]
            except _Wrong as wrong:
                if hint is not type(None):  # that it may be left out does not help who wrote something
                    reasons.append(str(wrong))
        raise _Wrong(" or ".join(dict.fromkeys(reasons)))

    def sequence(self, kind: Any, hints: tuple[Any, ...], tree: _Tree, path: str) -> Any:
        tree = _open_text(tree)
        if not isinstance(tree.value, list):
            raise _Wrong(f"expected a list, got {_shown(tree.value)}")
        if kind is tuple and not (len(hints) == 2 and hints[1] is Ellipsis):
            if len(hints) != len(tree.value):
                raise _Wrong(f"expected {len(hints)} values, got {len(tree.value)}")
            pairs = list(zip(hints, tree.value, strict=True))
        else:
            pairs = [(hints[0], item) for item in tree.value]
        return kind(self.value(hint, item, f"{path}[{i}]") for i, (hint, item) in enumerate(pairs))

    def mapping(self, hint: Any, tree: _Tree, path: str) -> dict[str, Any]:
        tree = _open_text(tree)
        if not isinstance(tree.value, dict):
            raise _Wrong(f"expected a mapping, got {_shown(tree.value)}")
        return {key: self.value(hint, item, _join(path, key)) for key, item in tree.value.items()}

    def fault(self, where: str, text: str) -> None:
        self.faults.append(f"{where}: {text}")


def _open_text(tree: _Tree) -> _Tree:
    if not isinstance(tree.value, _Text):
        return tree
    try:
        return _Composer(tree.where).tree(yaml.compose(tree.value, Loader=yaml.SafeLoader) or yaml.ScalarNode("", ""))
    except (yaml.YAMLError, AttributeError) as error:
        raise _Wrong(f"{str(tree.value)!r} is not a YAML value") from error


def _scalar(hint: Any, value: Any) -> Any:
    if isinstance(value, _Text):
        if hint is str:
            return str(value)
        value = _open_text(_Tree(value, "")).value
    if hint is float:
        return _number(value)
    if hint is Path:
        if isinstance(value, str):
            return Path(value)
        raise _Wrong(f"expected a path, got {_shown(value)}")
    if hint is type(None) or hint is None:
        if value is None:
            return None
        raise _Wrong(f"expected nothing, got {_shown(value)}")
    if type(value) is hint:
        return value
    quote = " (put it in quotes)" if hint is str and isinstance(value, (int, float, bool)) else ""
    names: dict[Any, str] = {int: "a whole number", bool: "true or false", str: "a text"}
    raise _Wrong(f"expected {names.get(hint, getattr(hint, '__name__', hint))}, got {_shown(value)}{quote}")


def _number(value: Any) -> float:
    # YAML 1.1 reads 1e-3 as a text; people mean the number
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            return float(value)
    raise _Wrong(f"expected a number, got {_shown(value)}")


def _choice(choices: tuple[Any, ...], value: Any) -> Any:
    for choice in choices:
        if type(choice) is type(value) and choice == value:
            return choice
    match = nearest(str(value), [str(choice) for choice in choices])
    hint = f"; did you mean {match!r}?" if match else ""
    raise _Wrong(f"expected one of {', '.join(map(str, choices))}, got {_shown(value)}{hint}")


def _check_bounds(bounds: Mapping[str, Any], value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    low, high, above = bounds.get("at_least"), bounds.get("at_most"), bounds.get("above")
    bounded = low is not None or high is not None or above is not None
    if bounded and isinstance(value, float) and math.isnan(value):
        raise _Wrong("must be a number, not nan")
    if low is not None and value < low:
        raise _Wrong(f"must be at least {low}, got {value}")
    if above is not None and value <= above:
        raise _Wrong(f"must be above {above}, got {value}")
    if high is not None and value > high:
        raise _Wrong(f"must be at most {high}, got {value}")


def _plain(tree: _Tree) -> Any:
    if isinstance(tree.value, dict):
        return {key: _plain(item) for key, item in tree.value.items()}
    if isinstance(tree.value, list):
        return [_plain(item) for item in tree.value]
    return tree.value


def _shown(value: Any) -> str:
    kinds = {dict: "a mapping", list: "a list", type(None): "nothing"}
    return kinds.get(type(value), f"{value!r}")


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


@dataclass(frozen=True)
class _Example:
    size: int = option(1, help="used by the doctest of `parse`")
    name: str = "a"
