"""Trust per agent and category, with a credible interval for the mean reward."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from agent_forge.server.cache import cached
from agent_forge.server.context import Context
from agent_forge.server.dashboard import DashboardPage, Document, page_routes
from agent_forge.traces import Store, TrustTable
from agent_forge.traces.performance import performance

LEVEL = 0.05
COLUMNS = 8  # categories in the table; the others are only in the list
HOW = {
    "interval": "The true mean reward lies in it with probability 90 %: the 5 % and 95 % quantiles of a Beta "
    "distribution over the mean, with the other work of the agent as its prior.",
    "count": "Verified rewards in [0, 1] of this agent, model and category. Their weight halves every 30 days.",
    "mean": "The mean of that distribution: the expected next reward.",
    "lower_bound": "Used by routing: the true mean is lower with probability 5 % only. Missing below 10 observations.",
}


def routes(context: Context) -> list[BaseRoute]:
    """The table."""
    return page_routes(context, "/trust", "trust.html", trust_page)


def trust_page(context: Context, request: Request) -> Document:
    """The trust in every agent, at most a few seconds old."""
    document: Document = cached(context, "trust", lambda: trust_document(context.traces))
    return document


def trust_document(store: Store) -> Document:
    """The beliefs about every agent, model and category, as a table and a list, and each agent in words."""
    table = TrustTable()
    counted = table.observe_store(store)
    cells = [_cell(table, row) for row in table.rows()]
    who = list(dict.fromkeys((cell["agent"], cell["model"]) for cell in cells))
    weight: dict[str, float] = {}
    for cell in cells:
        weight[cell["category"] or ""] = weight.get(cell["category"] or "", 0.0) + cell["count"]
    columns = sorted(weight, key=lambda name: (-weight[name], name))[:COLUMNS]
    return {
        "columns": columns,
        "table": [
            {"agent": agent, "model": model, "cells": _row(cells, agent, model, columns)} for agent, model in who
        ],
        "cells": cells,
        "rewards": counted,
        "agents": [row.to_json() for row in performance(store)],
        "minimum": table.minimum,
        "how": HOW,
    }


def _cell(table: TrustTable, row: dict[str, Any]) -> dict[str, Any]:
    belief = table.belief(row["agent"], row["model"], row["category"])
    has_low = row["lower_bound"] is not None and table.level == LEVEL
    low = row["lower_bound"] if has_low else belief.quantile(LEVEL)
    return {**row, "low": low, "high": belief.quantile(1 - LEVEL)}


def _row(
    cells: list[dict[str, Any]], agent: str | None, model: str | None, columns: list[str]
) -> list[dict[str, Any] | None]:
    own = {cell["category"] or "": cell for cell in cells if (cell["agent"], cell["model"]) == (agent, model)}
    return [own.get(column) for column in columns]


PAGE = DashboardPage("Trust", "/trust", "u", 30, routes)
