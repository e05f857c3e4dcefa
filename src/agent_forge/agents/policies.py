"""Which policy serves a unit, as `run` understands it: a planner, a strategy or a model."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from agent_forge.agents.choices import PLANNERS, STRATEGIES, AnyModel, AnyPlanner, Strategy, choose_model
from agent_forge.errors import AgentForgeError
from agent_forge.home import home_path
from agent_forge.inference.policy import why_not as policy_problem
from agent_forge.model_files import POLICY
from agent_forge.settings import trace_store

if TYPE_CHECKING:
    from agent_forge.rollout import Assignment

log = logging.getLogger(__name__)


def assign(
    unit: str | None,
    rollout: str | None,
    home: str | os.PathLike[str] | None,
    planner: AnyPlanner,
    strategy: Strategy,
    model: AnyModel,
) -> tuple[Assignment | None, AnyPlanner, Strategy, AnyModel]:
    """Who serves a unit, and the planner, strategy and model to do it with. Without a unit nothing changes."""
    if unit is None:
        return None, planner, strategy, model
    from agent_forge.rollout import policy_for

    assignment = policy_for(unit, rollout=rollout, home=home, why_not=lambda policy: why_not(policy, model))
    policy = assignment.folder or assignment.policy
    if policy is None or why_not(policy, model) is not None:  # a baseline that cannot serve leaves it to the defaults
        return assignment, planner, strategy, model
    if policy in PLANNERS:
        return assignment, policy, "auto", model
    for each in STRATEGIES:
        if policy == each:
            return assignment, None, each, model
    return assignment, planner, strategy, policy


def why_not(policy: str, model: AnyModel) -> str | None:
    """Why a policy cannot serve here; None if it can."""
    if policy in ("react", "model") and choose_model(model) is None:
        return f"{policy!r} needs a model"
    if (Path(policy).expanduser() / POLICY).is_file():
        return policy_problem(policy)
    known = policy in PLANNERS or policy in STRATEGIES or policy == "smollm2" or "://" in policy
    if known or policy.startswith("recorded:") or Path(policy).expanduser().exists():
        return None
    return f"there is no policy {policy!r}"


def strategy_by_flag(home: str | os.PathLike[str] | None, unit: str | None, has_model: bool) -> Strategy | None:
    """What the flag `gap_enabled` says: "graph" where it is true, "react" (which needs a model) where it is false, None
    where nobody has set it."""
    set_here = any(os.environ.get(name) for name in ("GAP_ENABLED", "AGENT_FORGE_FLAG_GAP_ENABLED"))
    if not set_here and not _has_flags(home):
        return None
    from agent_forge.rollout import Flags

    try:
        flags = Flags(home)
    except AgentForgeError as error:  # a broken file must not stop requests
        log.error("the flags cannot be read: %s", error)
        return None
    try:
        found = flags.evaluate("gap_enabled", unit=unit)
    finally:
        flags.close()
    if found.reason in ("DEFAULT", "ERROR"):
        return None
    return "graph" if found.value else "react" if has_model else None


def _has_flags(home: str | os.PathLike[str] | None) -> bool:
    """Whether anything could have set a flag: most homes have neither file nor store, and are not to pay for them."""
    place = trace_store(home)
    if place is not None and "://" in os.fspath(place):
        return True
    folder = home_path(place)
    return bool(os.environ.get("AGENT_FORGE_FLAGS")) or any(
        (folder / name).exists() for name in ("flags.yaml", "rollout.db")
    )
