"""What a user sets once: flag over environment over project file over user file over default.

The project file is `agent-forge.yaml` in the current folder, the user file `agent-forge/config.yaml` under the
configuration folder of the system.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_forge.config import Resolved

PROJECT_FILE = "agent-forge.yaml"


@dataclass(frozen=True)
class Settings:
    """Each key is also the environment variable AGENT_FORGE_<KEY>."""

    home: str = "~/.agent-forge"  # where traces, journals and models are kept
    store: str | None = None  # URL of a PostgreSQL database for traces and registry; without it, SQLite under home
    model: str | None = None  # the model to use when none is named: a URL, a folder, "smollm2"
    planner: str | None = None  # rules, local or model; without it, what the other settings allow
    concurrency: int | None = None  # tasks that run at once


def variable(key: str) -> str:
    return f"AGENT_FORGE_{key.upper()}"


def trace_store(home: str | os.PathLike[str] | None = None) -> str | os.PathLike[str] | None:
    """Where traces are kept: a database URL given as `home`, else the setting `store`, else the home folder."""
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
    from agent_forge.config import Resolved, resolve

    names = {variable(field.name): field.name for field in fields(Settings)}
    env = {key: os.environ[name] for name, key in names.items() if os.environ.get(name)}
    resolved = resolve(Settings, *settings_files(), env=env)
    origins = {
        key: f"environment ({variable(key)})" if origin.startswith("environment") else origin
        for key, origin in resolved.origins.items()
    }
    return Resolved(resolved.value, origins)


def environment_from_files() -> dict[str, str]:
    """The environment variables that the settings files stand for and that are not set. Raises ConfigError."""
    files = settings_files()
    if not files:
        return {}
    from agent_forge.config import resolve

    resolved = resolve(Settings, *files)
    return {
        variable(key): str(getattr(resolved.value, key))
        for key, origin in resolved.origins.items()
        if origin != "default" and not os.environ.get(variable(key)) and getattr(resolved.value, key) is not None
    }
