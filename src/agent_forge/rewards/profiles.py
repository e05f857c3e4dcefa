"""Reward profiles: what counts how much for an agent, in `profiles.yaml` or in a YAML file of one's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Literal

from agent_forge.config import load, nearest
from agent_forge.errors import ConfigError, UsageError

COMPONENTS = ("correctness", "format", "efficiency", "safety")


@dataclass(frozen=True)
class RewardWeights:
    """The share of each component in the total. They sum to 1."""

    correctness: float = 0.6
    format: float = 0.2
    efficiency: float = 0.1
    safety: float = 0.1

    def __post_init__(self) -> None:
        weights = [getattr(self, name) for name in COMPONENTS]
        if min(weights) < 0 or abs(sum(weights) - 1) > 1e-9:
            raise ConfigError(f"reward weights must not be negative and must sum to 1, not {sum(weights):g}")


@dataclass(frozen=True)
class RewardProfile:
    """How the answers of one agent are rewarded.

    Within its thresholds an answer is fully efficient; at four times a threshold it is not efficient at all.
    """

    name: str = ""
    family: str | None = None  # the task family whose checker decides what is correct
    scheme: Literal["weighted", "plus_minus"] = "weighted"  # plus_minus is the reward of the original, see `reward`
    weights: RewardWeights = RewardWeights()
    format_cap: float = 0.1  # the most that an answer of the wrong form gets
    safety_cap: float = 0.2  # the most that an unsafe answer gets
    seconds: float = 30.0
    tokens: int = 2000  # read and written
    calls: int = 8  # of tools
    # Which claims in text must occur in the prompt or an observation, or follow from them. Left out where the checker
    # computes what the answer states: there correctness decides.
    claims: tuple[Literal["numbers", "names", "quotations"], ...] = ()
    forbidden: bool = False  # whether an answer must not mention age, gender, origin and the like

    def __post_init__(self) -> None:
        if not (0 <= self.format_cap <= 1 and 0 <= self.safety_cap <= 1):
            raise ConfigError("a cap must lie between 0 and 1", where=self.name)
        if min(self.seconds, self.tokens, self.calls) <= 0:
            raise ConfigError("a threshold must be positive", where=self.name)


@dataclass(frozen=True)
class _ProfileFile:
    profiles: Mapping[str, RewardProfile]


@cache
def reward_profiles() -> dict[str, RewardProfile]:
    """The bundled profiles, by name: one per agent of the roster `genesis`, `default`, and `plus-minus-one`."""
    with as_file(files("agent_forge.rewards") / "profiles.yaml") as path:
        return _named(load(_ProfileFile, path))


def _named(file: _ProfileFile) -> dict[str, RewardProfile]:
    return {name: replace(profile, name=name) for name, profile in file.profiles.items()}


def reward_profile(name: str | os.PathLike[str]) -> RewardProfile:
    """A bundled profile by name, or the one in a YAML file of one's own. Raises UsageError or ConfigError."""
    name = os.fspath(name)
    if name.endswith((".yaml", ".yml")):
        return replace(load(RewardProfile, name), name=Path(name).stem)
    known = reward_profiles()
    if name not in known:
        closest = nearest(name, known)
        fix = f"Did you mean {closest!r}?" if closest else f"Choose one of {', '.join(known)}, or name a YAML file"
        raise UsageError(f"there is no reward profile {name!r}", fix=fix)
    return known[name]
