"""Agents: the profiles that come with the package, and how everyone who has acted did."""

from __future__ import annotations

from starlette.requests import Request
from starlette.routing import BaseRoute

from agent_forge.config import as_dict
from agent_forge.server.cache import cached
from agent_forge.server.context import Context
from agent_forge.server.dashboard import DashboardPage, Document, page_routes
from agent_forge.traces.performance import performance


def routes(context: Context) -> list[BaseRoute]:
    """The table."""
    return page_routes(context, "/agents", "agents.html", agents_page)


def agents_page(context: Context, request: Request) -> Document:
    """Profiles and measured performance, at most a few seconds old. An agent without spans has no figures."""
    from agent_forge.agents.profiles import builtin_profiles

    measured = cached(context, "agents", lambda: {row.agent: row.to_json() for row in performance(context.traces)})
    profiles = {name: as_dict(profile) for name, profile in builtin_profiles().items()}
    names = [*profiles, *(name for name in measured if name not in profiles)]
    return {
        "agents": [
            {"name": name, "profile": profiles.get(name), "measured": measured.get(name)} for name in names if name
        ]
    }


PAGE = DashboardPage("Agents", "/agents", "a", 28, routes)
