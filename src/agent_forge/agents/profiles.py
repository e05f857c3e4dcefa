"""Agent profiles: YAML files that say who an agent is, what it can do, with which model and which tools."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Literal

from agent_forge.config import load, nearest
from agent_forge.errors import ConfigError, UsageError

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")


@dataclass(frozen=True)
class AgentProfile:
    """What is known about an agent before it has done anything.

    >>> AgentProfile(name="ada", task_types=("research",)).max_concurrent
    4
    """

    name: str  # small letters, digits, - and _
    description: str = ""  # one sentence: what it is for
    instructions: str = ""  # what its model is told, as the system message
    task_types: tuple[str, ...] = ()  # the kinds of task it takes
    skills: tuple[str, ...] = ()  # what a task may require
    model: str | None = None  # a model by name; None: the one in the settings
    tools: tuple[str, ...] = ()  # the tools it may call, by name
    max_concurrent: int = 4  # tasks at once
    cost_tier: Literal["cheap", "medium", "expensive"] = "medium"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"{self.name!r} is not a name for an agent", fix="small letters, digits, - and _")
        if self.max_concurrent < 1:
            raise ConfigError(f"max_concurrent must be at least 1, got {self.max_concurrent}", where=self.name)


def load_profile(path: str | os.PathLike[str]) -> AgentProfile:
    """The profile in a YAML file. Raises ConfigError for an unknown key, a wrong type or a bad value."""
    return load(AgentProfile, path)


def load_profiles(folder: str | os.PathLike[str]) -> dict[str, AgentProfile]:
    """The profiles of a folder's .yaml files, by name. Raises ConfigError; two of one name are an error."""
    found: dict[str, AgentProfile] = {}
    paths = sorted(path for path in Path(folder).glob("*.yaml"))
    if not paths:
        raise ConfigError("there are no agent profiles (*.yaml) in it", where=os.fspath(folder))
    for path in paths:
        profile = load_profile(path)
        if profile.name in found:
            raise ConfigError(f"there are two agents named {profile.name!r}", where=str(path))
        found[profile.name] = profile
    return found


@cache
def builtin_profiles() -> dict[str, AgentProfile]:
    """The profiles that come with the package, by name."""
    with as_file(files("agent_forge.agents") / "profiles") as folder:
        return load_profiles(folder)


def find_profile(name: str, profiles: dict[str, AgentProfile] | None = None) -> AgentProfile:
    """A profile by name, of the built-in ones unless others are given. Raises UsageError, naming the nearest."""
    known = builtin_profiles() if profiles is None else profiles
    if name not in known:
        near = nearest(name, known)
        raise UsageError(
            f"there is no agent {name!r}", fix=f"did you mean {near!r}?" if near else f"there are {', '.join(known)}"
        )
    return known[name]
