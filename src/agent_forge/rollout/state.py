"""The state of a rollout, as it is stored, and a decision about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any

from agent_forge.config import build
from agent_forge.errors import StoreError, UsageError
from agent_forge.rollout.metrics import Guardrails

STATES = ("running", "paused", "promoted", "rolled_back")


def iso(moment_s: float) -> str:
    """A moment as ISO 8601 text in UTC.

    >>> iso(1767225600.5)
    '2026-01-01T00:00:00.500000Z'
    """
    return datetime.fromtimestamp(moment_s, timezone.utc).isoformat().replace("+00:00", "Z")


def parse_stages(text: str) -> tuple[float, ...]:
    """Shares from per cent: each larger than the one before, the last 100. Raises UsageError.

    >>> parse_stages("10,50,100")
    (0.1, 0.5, 1.0)
    """
    try:
        stages = tuple(float(part.strip().rstrip("%")) / 100 for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"{text!r} are not stages", fix="Write per cent, for example 10,50,100") from error
    check_stages(stages)
    return stages


def check_stages(stages: tuple[float, ...]) -> None:
    rising = all(low < high for low, high in pairwise(stages))
    if not stages or not rising or stages[0] < 0 or stages[-1] != 1:
        shown = ",".join(f"{100 * share:g}" for share in stages)
        raise UsageError(f"the stages {shown} do not rise to 100", fix="Write per cent, for example 10,50,100")


@dataclass(frozen=True)
class RolloutDecision:
    """What was decided at a moment, why, and the figures that made it."""

    at_s: float
    action: str  # create, start, hold, promote, rollback, pause, resume
    why: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    votes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # soft trips by window, for the next decision

    def to_json(self) -> dict[str, Any]:
        return {"at": iso(self.at_s), "action": self.action, "why": self.why, "figures": dict(self.figures)}


@dataclass(frozen=True)
class Rollout:
    """A rollout as it stands. `share` is that of the candidate; the baseline has the rest."""

    name: str
    candidate: str
    baseline: str
    stages: tuple[float, ...] = (0.1, 0.5, 1.0)
    guardrails: Guardrails = field(default_factory=Guardrails)
    state: str = "running"
    stage: int = 0
    entered_s: float | None = None  # when the clock of the stage started: at the first step in it
    stepped_s: float | None = None  # the latest step
    votes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fingerprints: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of both policies, when it was made
    version: int = 0

    @property
    def share(self) -> float:
        return 0.0 if self.state == "rolled_back" else self.stages[self.stage]

    def to_json(self) -> dict[str, Any]:
        """What is stored beside the name, state and version."""
        document = {name: value for name, value in asdict(self).items() if name not in ("name", "state", "version")}
        return {**document, "share": self.share}

    @classmethod
    def from_json(cls, name: str, state: str, version: int, document: Any, where: str) -> Rollout:
        """The stored rollout. Raises StoreError where it was changed by another hand: nobody would know what to do."""
        try:
            values = dict(document)
            share = values.pop("share")
            values["stages"] = tuple(float(each) for each in values["stages"])
            check_stages(values["stages"])
            values["guardrails"] = build(Guardrails, values["guardrails"])
            values["votes"] = {str(key): tuple(names) for key, names in values["votes"].items()}
            rollout = cls(name=name, state=state, version=version, **values)
            whole = rollout.state in STATES and 0 <= rollout.stage < len(rollout.stages)
            if not whole or rollout.share != share or (state == "promoted") != (share == 1):
                raise ValueError(f"state {state!r}, stage {rollout.stage} and share {share} do not fit together")
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, UsageError) as error:
            raise StoreError(
                f"the state of rollout {name!r} is damaged: {error}",
                where=where,
                fix=f"`agent-forge rollout rollback {name}` gives everyone the baseline",
            ) from error
        return rollout
