"""What a user sets once. A flag wins over the environment, then project file, user file, default.

The project file is `agent-forge.yaml` in the current folder, the user file `agent-forge/config.yaml` under the
configuration folder of the system.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from agent_forge.config import Resolved

PROJECT_FILE = "agent-forge.yaml"


@dataclass(frozen=True)
class ModelPrice:
    """What a model costs, in US dollars per million tokens."""

    input: float = field(metadata={"at_least": 0})
    output: float = field(metadata={"at_least": 0})
    cached_input: float | None = field(default=None, metadata={"at_least": 0})  # input that the provider had cached


@dataclass(frozen=True)
class Settings:
    """Each key is also the environment variable AGENT_FORGE_<KEY>."""

    home: str = "~/.agent-forge"  # where traces, journal and models are kept
    # URL of a PostgreSQL database for traces, journal and registry; without it, SQLite files in home
    store: str | None = None
    # URL of a Redis server that carries events between several `agent-forge serve`; without it, the store does
    events: str | None = None
    models: str | None = None  # URL of a model store (s3://…, gcs://…, file://…) that several machines share
    model: str | None = None  # the model to use when none is named: a URL, a folder, "smollm2"
    planner: Literal["rules", "forged", "local", "model"] | None = None  # without it, what the other settings allow
    concurrency: int | None = field(default=None, metadata={"at_least": 1})  # tasks that run at once
    mask: Literal["secrets", "pii", "none"] = "secrets"  # what is masked in traces before they are written
    sample: float = field(default=1.0, metadata={"at_least": 0, "at_most": 1})  # share of traces to record
    prices: dict[str, ModelPrice] = field(default_factory=dict)  # by model; they come before the bundled public prices


def variable(key: str) -> str:
    return f"AGENT_FORGE_{key.upper()}"


def trace_store(home: str | os.PathLike[str] | None = None) -> str | os.PathLike[str] | None:
    """Where traces and journal are kept: a database URL given as `home`, else the setting `store`, else `home`."""
    if isinstance(home, str) and "://" in home:
        return home
    return os.environ.get(variable("store")) or home


def user_file() -> str:
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return os.path.join(os.path.expanduser(folder), "agent-forge", "config.yaml")


def settings_files() -> list[str]:
    """The settings files that exist, the strongest last. (No pathlib: this runs at the start of every command.)"""
    return [path for path in (user_file(), PROJECT_FILE) if os.path.isfile(path)]


def resolve_settings() -> Resolved[Settings]:
    """The settings in force, with the origin of each. Raises ConfigError."""
    from agent_forge.config import resolve

    names = {variable(each.name): each.name for each in fields(Settings)}
    env = {key: os.environ[name] for name, key in names.items() if os.environ.get(name) and name not in _FROM_FILES}
    return resolve(Settings, *settings_files(), env=env, variable=variable)


_FROM_FILES: set[str] = set()  # the variables that are set only because a settings file says so


@contextmanager
def files_in_environment() -> Iterator[None]:
    """Puts what the settings files set, and the environment does not, into the environment.

    So options, library code and child processes all read one channel: flag, then environment, then
    project file, then user file. Raises ConfigError.
    """
    added = _environment_from_files()
    os.environ.update(added)
    _FROM_FILES.update(added)
    try:
        yield
    finally:
        _FROM_FILES.difference_update(added)
        for name in added:
            os.environ.pop(name, None)


def _environment_from_files() -> dict[str, str]:
    files = settings_files()
    if not files:
        return {}
    import json

    from agent_forge.config import as_dict, resolve

    resolved = resolve(Settings, *files)
    values = as_dict(resolved.value)
    return {
        variable(key): json.dumps(values[key]) if isinstance(values[key], dict) else str(values[key])
        for key, origin in resolved.origins.items()
        if key in values and origin != "default" and not os.environ.get(variable(key)) and values[key] is not None
    }
