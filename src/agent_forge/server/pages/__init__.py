"""The dashboard: one module a page. A module with a `PAGE` is found, routed and put into the navigation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from agent_forge.server.context import Context


@dataclass(frozen=True)
class Page:
    """An entry of the navigation: its name, where it begins, the key that goes there after `g`, and its routes.

    A new page is one module here with `PAGE = Page("Rollouts", "/rollouts", "o", 60, routes)`, and its template.
    """

    name: str
    path: str
    key: str
    order: int
    routes: Callable[[Context], list[BaseRoute]]
    watches: Mapping[str, Callable[[Context, str], str]] = field(default_factory=dict)  # what it shows live, by kind


@cache
def pages() -> tuple[Page, ...]:
    """Every page there is, in the order of the navigation."""
    names = sorted(module.name for module in iter_modules(__path__))
    found = [getattr(import_module(f"{__name__}.{name}"), "PAGE", None) for name in names]
    return tuple(sorted((page for page in found if isinstance(page, Page)), key=lambda page: page.order))


def routes(context: Context) -> list[BaseRoute]:
    """The routes of all pages, the static files, and the news of what changes."""
    from agent_forge.server.page import frame_routes

    watches = {kind: watch for page in pages() for kind, watch in page.watches.items()}
    return [*(route for page in pages() for route in page.routes(context)), *frame_routes(context, watches)]
