"""Agent profiles: YAML files that describe an agent, its tasks, its model and its tools.

Rosters are named sets of profiles: `default`, the team of `run --team`, and `genesis`, fifteen agents whose work is
checked by the task family of their name. `genesis:analyst` is the analyst of that roster.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Literal

from agent_forge.config import load, nearest, option
from agent_forge.errors import ConfigError, UsageError

ROSTERS = ("default", "genesis")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")


@dataclass(frozen=True)
class AgentLimits:
    """What an agent may use for one request. None: no limit."""

    turns: int = option(8, help="model calls; the last one must answer", at_least=1)
    calls: int = option(16, help="tool calls per turn", at_least=1)
    corrections: int = option(2, help="times a wrong call or answer goes back to the model", at_least=0)
    answer_tokens: int = option(1024, help="tokens the model may write per turn", at_least=1)
    result_chars: int = option(8000, help="characters of a tool's result that the model sees", at_least=100)
    context_tokens: int | None = option(None, help="tokens of a prompt; by default the model's context", at_least=256)
    tokens: int | None = option(None, help="tokens read and written in all turns", at_least=1)
    cost: float | None = option(None, help="US dollars in all turns", above=0)
    seconds: float | None = option(None, help="wall time", above=0)


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
    tools: tuple[str, ...] | None = None  # the names of the tools it may call; by default all it is given
    output_schema: Mapping[str, Any] | None = None  # the JSON Schema of its answers; by default the family's, or text
    family: str | None = None  # the task family that checks its work: a name, or FILE.py:NAME
    reward: str | None = None  # how its work is rewarded: a profile of `agent_forge.rewards`, or a YAML file
    temperature: float | None = 0.0  # None: the model's own
    grounded: bool = True  # whether calls need arguments that somebody gave: the request, a result, a default
    limits: AgentLimits = AgentLimits()
    max_concurrent: int = 4  # tasks at the same time
    cost_tier: Literal["cheap", "medium", "expensive"] = "medium"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"{self.name!r} is not a valid agent name", fix="Use lower-case letters, digits, - and _")
        if self.max_concurrent < 1:
            raise ConfigError(f"max_concurrent must be at least 1, got {self.max_concurrent}", where=self.name)
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise ConfigError(f"temperature must be between 0 and 2, got {self.temperature}", where=self.name)

    @property
    def answer_schema(self) -> Mapping[str, Any] | None:
        """The form of its answers to whole requests: its own, else that of its task family. Raises UsageError."""
        if self.output_schema is not None or self.family is None:
            return self.output_schema
        from agent_forge.tasks import family

        return family(self.family).schema


DEFAULT = AgentProfile(name="default", description="Does what it is asked with the tools it is given.")


def load_profile(path: str | os.PathLike[str]) -> AgentProfile:
    """The profile in a YAML file. Raises ConfigError for an unknown key, a wrong type or a bad value.

    Files that it names as family or reward are looked for in its own folder.
    """
    profile = load(AgentProfile, path)
    folder = Path(path).resolve().parent
    own: dict[str, Any] = {
        name: str(folder / value)
        for name in ("family", "reward")
        if (value := getattr(profile, name)) is not None and re.search(r"\.(py:\w+|ya?ml)$", value)
    }
    return replace(profile, **own)


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


def builtin_profiles() -> dict[str, AgentProfile]:
    """The profiles of the default roster, by name."""
    return roster("default")


@cache
def roster(name: str) -> dict[str, AgentProfile]:
    """The bundled profiles of a roster, by name. Raises UsageError."""
    if name not in ROSTERS:
        raise UsageError(f"there is no roster {name!r}", fix=f"Choose one of {', '.join(ROSTERS)}")
    with as_file(files("agent_forge.agents") / "profiles") as folder:
        return load_profiles(folder if name == "default" else folder / name)


def choose_profile(profile: AgentProfile | str | os.PathLike[str] | None) -> AgentProfile:
    """A profile, the name of a bundled one (ROSTER:NAME for another roster), or a YAML file; by default `default`.

    Raises UsageError or ConfigError.
    """
    if profile is None:
        return DEFAULT
    if isinstance(profile, AgentProfile):
        return profile
    name = os.fspath(profile)
    if name.endswith((".yaml", ".yml")) or os.sep in name:
        return load_profile(name)
    if ":" in name:
        team, _, name = name.partition(":")
        return find_profile(name, roster(team))
    return find_profile(name, {DEFAULT.name: DEFAULT, **builtin_profiles()})


def find_profile(name: str, profiles: dict[str, AgentProfile] | None = None) -> AgentProfile:
    """A profile by name, by default one of the bundled ones. Raises UsageError, which suggests the nearest name."""
    profiles = builtin_profiles() if profiles is None else profiles
    if name not in profiles:
        closest = nearest(name, profiles)
        fix = f"Did you mean {closest!r}?" if closest else f"Choose one of {', '.join(profiles)}"
        raise UsageError(f"there is no agent {name!r}", fix=fix)
    return profiles[name]
