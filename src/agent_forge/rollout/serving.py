"""Which policy serves a unit, and the span that says so.

Asking never fails a request: where the store cannot be read, or the candidate is no longer what it was when the rollout
was made, the baseline serves, and the assignment says why.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from agent_forge.database import is_url
from agent_forge.errors import AgentForgeError
from agent_forge.home import home_path
from agent_forge.rollout.bucketing import bucket
from agent_forge.rollout.policies import changes
from agent_forge.rollout.readings import ARM, ARMS, COVARIATE, ROLLOUT, STAGE, UNIT, exposure_name
from agent_forge.rollout.rollouts import CURRENT, FILE, Rollouts
from agent_forge.settings import trace_store

if TYPE_CHECKING:
    from agent_forge.rollout.state import Rollout
    from agent_forge.traces import Recorder, Span

log = logging.getLogger(__name__)
WhyNot = Callable[[str], str | None]  # why a policy cannot serve; None if it can


@dataclass(frozen=True, slots=True)
class Assignment:
    """Who serves a unit: the policy (None: nothing was ever promoted, the defaults serve), and the rollout or
    experiment that says so. `why` is set where the candidate should serve and cannot."""

    policy: str | None
    unit: str
    rollout: str | None = None
    arm: str | None = None
    stage: int = 0
    share: float = 0.0
    why: str | None = None
    folder: str | None = None  # of a policy that is a model


def policy_for(
    unit: str | int,
    *,
    rollout: str | None = None,
    home: str | os.PathLike[str] | Rollouts | None = None,
    why_not: WhyNot | None = None,
) -> Assignment:
    """The policy that serves a unit: its arm in the rollout (by default the latest active one), else the current one.

    It reads the store every time, so a rollback is seen by the next request. A candidate whose manifest, base,
    tokenizer or template is not what it was when the rollout was made does not serve; nor does one that `why_not`
    objects to.
    """
    unit = str(unit)
    rollouts = home if isinstance(home, Rollouts) else None
    try:
        if rollouts is None:
            place = trace_store(home)  # type: ignore[arg-type]
            if (place is None or not is_url(place)) and not (home_path(place) / FILE).exists():
                return Assignment(None, unit)  # nobody has ever rolled anything out
            rollouts = Rollouts.open(home)  # type: ignore[arg-type]
        if rollout is not None and (variant := _variant(rollouts, rollout, unit, why_not)) is not None:
            return variant
        found = rollouts.get(rollout) if rollout is not None else rollouts.active()
        if found is None or found.state in ("promoted", "rolled_back"):
            return _current(rollouts, unit, why_not)
        return _arm(found, unit, why_not)
    except AgentForgeError as error:
        log.warning("the current policy serves unit %s: %s", unit_digest(rollout or "", unit), error)
        current = None
        with suppress(AgentForgeError):
            current = rollouts.current() if rollouts is not None else None
        return Assignment(current, unit, why=str(error))
    finally:
        if rollouts is not None and rollouts is not home:
            rollouts.close()


def _current(rollouts: Rollouts, unit: str, why_not: WhyNot | None) -> Assignment:
    """The policy that was promoted last; the defaults, with the reason, where it cannot serve."""
    policy = rollouts.current()
    if policy is None:
        return Assignment(None, unit)
    recorded = rollouts.fingerprint(policy)
    if (why := _objection(policy, recorded, why_not)) is not None:
        log.warning("the defaults serve instead of %s: %s", policy, why)
        return Assignment(None, unit, why=why)
    return Assignment(policy, unit, folder=recorded.get("folder"))


def _objection(policy: str, recorded: Mapping[str, Any], why_not: WhyNot | None) -> str | None:
    """Why a policy cannot serve; None if it can."""
    if differs := changes(recorded):
        return f"its {' and '.join(differs)} changed since the rollout was made"
    return None if why_not is None else why_not(recorded.get("folder") or policy)


def _variant(rollouts: Rollouts, name: str, unit: str, why_not: WhyNot | None) -> Assignment | None:
    """The variant of a unit, if there is an experiment of that name."""
    from agent_forge.rollout.experiments import experiments

    if (found := experiments(rollouts).get(name)) is None:
        return None
    experiment, state = found
    if state != "running":
        return _current(rollouts, unit, why_not)
    variant = experiment.variant(unit)
    share = experiment.variants[variant] / sum(experiment.variants.values())
    return Assignment(None if variant == CURRENT else variant, unit, name, variant, 0, share)


def _arm(rollout: Rollout, unit: str, why_not: WhyNot | None) -> Assignment:
    chosen = bucket(rollout.name, unit) < rollout.share
    arm, policy, why = ARMS[not chosen], rollout.candidate if chosen else rollout.baseline, None
    recorded = rollout.fingerprints.get(policy, {})
    if chosen and (why := _objection(policy, recorded, why_not)) is not None:
        log.warning("rollout %s: %s serves instead of %s: %s", rollout.name, rollout.baseline, policy, why)
        arm, policy = "fallback", rollout.baseline  # in neither arm: it would dilute both, and the shares tell
        recorded = rollout.fingerprints.get(policy, {})
    name = None if policy == CURRENT else policy
    folder = recorded.get("folder")
    return Assignment(name, unit, rollout.name, arm, rollout.stage, rollout.share, why, folder)


def unit_digest(experiment: str, unit: str) -> str:
    """What a trace says about a unit: enough to count it, nothing about who it is."""
    return sha256(f"{len(experiment)}:{experiment}:unit:{unit}".encode("utf-8", "surrogatepass")).hexdigest()[:16]


def expose(recorder: Recorder, assignment: Assignment, *, covariate: float | None = None) -> Span | None:
    """Records that a unit was served, as a span inside the current one, whose policy it sets.

    `covariate` is a figure about the unit from before the rollout, such as its success rate last month, for experiments
    that adjust for it.
    """
    from agent_forge.traces import current_span

    around = current_span()
    if around is not None and assignment.policy is not None:
        around.policy = assignment.policy
    if assignment.rollout is None:
        return None
    attributes: dict[str, Any] = {
        ROLLOUT: assignment.rollout,
        ARM: assignment.arm,
        UNIT: unit_digest(assignment.rollout, assignment.unit),
        STAGE: assignment.stage,
    }
    optional: Mapping[str, Any] = {COVARIATE: covariate, f"{ROLLOUT}.why": assignment.why}
    attributes |= {name: value for name, value in optional.items() if value is not None}
    span = recorder.start(
        exposure_name(assignment.rollout), "observation", attributes=attributes, policy=assignment.policy
    )
    recorder.end(span)
    return span
