"""Policies: those that were trained, the current one and the one before it, and what every rollout showed."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from agent_forge.errors import StoreError
from agent_forge.forge.registry import POLICIES, Entry
from agent_forge.rollout.policies import changes
from agent_forge.server.context import Context
from agent_forge.server.dashboard import DashboardPage, Document, page_routes
from agent_forge.server.rollouts import rollouts_of

STAGES = ("before", "warmup", "after", "control")  # of the report that `agent-forge train AGENT` writes


def routes(context: Context) -> list[BaseRoute]:
    """The tables."""
    return page_routes(context, "/policies", "policies.html", policies_page)


def policies_page(context: Context, request: Request) -> Document:
    """Every policy that was trained, with its report; and all that a rollout names, with the latest figures."""
    rollouts = rollouts_of(context)
    rows: dict[str, dict[str, Any]] = {}
    for name in reversed(rollouts.names()):
        try:
            rollout = rollouts.get(name)
        except StoreError:
            continue
        figures = next((each.figures for each in reversed(rollouts.decisions(name)) if "success" in each.figures), {})
        for role, policy in (("candidate", rollout.candidate), ("baseline", rollout.baseline)):
            fingerprint = rollout.fingerprints.get(policy, {})
            row = rows.setdefault(policy, {"policy": policy, "parts": []})
            row.update(fingerprint=dict(fingerprint), changed=changes(fingerprint))
            row["parts"].append(
                {
                    "rollout": name,
                    "role": role,
                    "state": rollout.state,
                    "share": rollout.share if role == "candidate" else 1 - rollout.share,
                    "success": figures.get("success", {}).get(role),
                    "reward": figures.get("reward", {}).get(role),
                    "units": figures.get("units", {}).get(role),
                }
            )
    trained = [trained_line(entry) for entry in context.registry.ls(POLICIES)]
    return {**rollouts.policies(), "trained": trained, "policies": list(reversed(rows.values()))}


def trained_line(entry: Entry) -> dict[str, Any]:
    """A policy of the registry: what it was made from, and its means on held-out exercises."""
    manifest = entry.card["config"]
    stages = {name: (manifest.get("report") or {}).get(name) for name in STAGES}
    base = manifest.get("base") or {}
    return {
        "policy": entry.name, "digest": entry.digest, "created_s": entry.created_s, "base": base.get("digest"),
        "base_folder": base.get("folder"), "reward": manifest.get("reward"), **stages,
    }  # fmt: skip


PAGE = DashboardPage("Policies", "/policies", "p", 57, routes)
