"""Who gets the new one, and when is it pulled back? Flags, experiments and staged rollouts.

The names are loaded when they are used, so that asking which policy serves a unit costs little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_forge.lazy import attach

if TYPE_CHECKING:
    from agent_forge.rollout.bucketing import bucket, choose_variant
    from agent_forge.rollout.decision import decide
    from agent_forge.rollout.experiments import Experiment, analyse
    from agent_forge.rollout.flags import Flag, Flags
    from agent_forge.rollout.metrics import Guardrails
    from agent_forge.rollout.readings import Readings, StageReading, TraceReadings
    from agent_forge.rollout.rollouts import Rollouts
    from agent_forge.rollout.sequential import Difference, Moments, compare
    from agent_forge.rollout.serving import Assignment, expose, policy_for
    from agent_forge.rollout.state import Rollout, RolloutDecision

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "bucketing": "bucket choose_variant",
        "decision": "decide",
        "experiments": "Experiment analyse",
        "flags": "Flag Flags",
        "metrics": "Guardrails",
        "readings": "Readings StageReading TraceReadings",
        "rollouts": "Rollouts",
        "sequential": "Difference Moments compare",
        "serving": "Assignment expose policy_for",
        "state": "Rollout RolloutDecision",
    },
)
