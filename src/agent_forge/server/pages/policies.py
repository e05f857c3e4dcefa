"""Policies: the current one, the one before it, and what every rollout showed about each."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from agent_forge.errors import StoreError
from agent_forge.rollout.policies import changes
from agent_forge.server.context import Context
from agent_forge.server.dashboard import DashboardPage, Document, page_routes
from agent_forge.server.rollouts import rollouts_of


def routes(context: Context) -> list[BaseRoute]:
    """The table."""
    return page_routes(context, "/policies", "policies.html", policies_page)


def policies_page(context: Context, request: Request) -> Document:
    """Every policy that a rollout names, with its part in it and the latest figures."""
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
    return {**rollouts.policies(), "policies": list(reversed(rows.values()))}


PAGE = DashboardPage("Policies", "/policies", "p", 57, routes)
