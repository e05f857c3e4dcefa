"""Agent profiles: YAML files that describe an agent, its tasks, its model and its tools."""

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
    """The description of an agent.

    >>> AgentProfile(name="ada", task_types=("research",)).max_concurrent
    4
    """

    name: str  # lower-case letters, digits, - and _
    description: str = ""  # its purpose, in one sentence
    instructions: str = ""  # the system message for its model
    task_types: tuple[str, ...] = ()  # the types of task it accepts
    skills: tuple[str, ...] = ()  # skills that a task may require
    model: str | None = None  # a model by name; by default the one in the settings
    tools: tuple[str, ...] = ()  # the names of the tools it may call
    max_concurrent: int = 4  # tasks at the same time
    cost_tier: Literal["cheap", "medium", "expensive"] = "medium"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"{self.name!r} is not a valid agent name", fix="Use lower-case letters, digits, - and _")
        if self.max_concurrent < 1:
            raise ConfigError(f"max_concurrent must be at least 1, got {self.max_concurrent}", where=self.name)


def load_profile(path: str | os.PathLike[str]) -> AgentProfile:
    """The profile in a YAML file. Raises ConfigError for an unknown key, a wrong type or a bad value."""
    return load(AgentProfile, path)


def load_profiles(folder: str | os.PathLike[str]) -> dict[str, AgentProfile]:
    """The profiles in the .yaml files of a folder, by name. Raises ConfigError, also for two of the same name."""
    profiles: dict[str, AgentProfile] = {}
    paths = sorted(path for path in Path(folder).glob("*.yaml"))
    if not paths:
        raise ConfigError("the folder has no agent profiles (*.yaml)", where=os.fspath(folder))
    for path in paths:
        profile = load_profile(path)
        if profile.name in profiles:
            raise ConfigError(f"there are two agents named {profile.name!r}", where=str(path))
        profiles[profile.name] = profile
    return profiles


@cache
def builtin_profiles() -> dict[str, AgentProfile]:
    """The bundled profiles, by name."""
    with as_file(files("agent_forge.agents") / "profiles") as folder:
        return load_profiles(folder)


def find_profile(name: str, profiles: dict[str, AgentProfile] | None = None) -> AgentProfile:
    """A profile by name, by default one of the bundled ones. Raises UsageError, which suggests the nearest name."""
    profiles = builtin_profiles() if profiles is None else profiles
    if name not in profiles:
        closest = nearest(name, profiles)
        fix = f"Did you mean {closest!r}?" if closest else f"Choose one of {', '.join(profiles)}"
        raise UsageError(f"there is no agent {name!r}", fix=fix)
    return profiles[name]
