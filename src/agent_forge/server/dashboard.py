"""The dashboard: discovery of pages, templates, HTML and JSON from one document, static files, and live updates.

A page is a function from a request to a JSON document, and a template that shows it. The document itself is served at
the address of the page with `.json`, or to clients that accept only JSON.
"""

from __future__ import annotations

import hashlib
import math
import time
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from agent_forge._version import __version__
from agent_forge.errors import AgentForgeError, StoreError, UsageError
from agent_forge.refusal import Refusal
from agent_forge.server.context import Context
from agent_forge.server.drawing import charts, graph, wording
from agent_forge.server.responses import json_response, status_of, utf8
from agent_forge.server.sse import HEARTBEAT_S, encode, event_stream

HERE = Path(__file__).parent
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# keys of documents that mean something else in templates
RENAMED = {"version": "version_", "request": "request_text", "parts": "parts_"}
POLL_S = 0.5  # how often a watched page is checked for changes

Document = dict[str, Any]
Data = Callable[[Context, Request], Document]
View = Callable[[Document], dict[str, Any]]
Watch = Callable[[Context, str], str]  # a text that changes whenever the thing of that name has changed


# --- pages ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DashboardPage:
    """An entry of the navigation: its name, address, the key that goes there after `g`, and its routes.

    To add a page, add a module to `server/pages` with `PAGE = DashboardPage("Weather", "/weather", "w", 60, routes)`,
    and a template.
    """

    name: str
    path: str
    key: str
    order: int
    routes: Callable[[Context], list[BaseRoute]]
    watches: Mapping[str, Watch] = field(default_factory=dict)  # what it shows live, by kind


@cache
def pages() -> tuple[DashboardPage, ...]:
    """All pages, in the order of the navigation."""
    package = import_module("agent_forge.server.pages")
    modules = [import_module(f"{package.__name__}.{module.name}") for module in iter_modules(package.__path__)]
    return tuple(sorted((module.PAGE for module in modules if hasattr(module, "PAGE")), key=lambda page: page.order))


def routes(context: Context) -> list[BaseRoute]:
    """The routes of all pages, of the static files, and of live updates."""
    watches = {kind: watch for page in pages() for kind, watch in page.watches.items()}
    return [*(route for page in pages() for route in page.routes(context)), *_shared_routes(context, watches)]


# --- templates --------------------------------------------------------------------------------------------------------


@cache
def environment() -> Environment:
    """The templates, with automatic escaping, and the filters and functions they use."""
    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in (
        "number",
        "signed",
        "count",
        "size",
        "duration",
        "share",
        "money",
        "measured",
        "pretty",
        "short",
        "iso",
    ):
        templates.filters[name] = getattr(wording, name)
    templates.filters.update(when=when, state_class=graph.state_class, path=lambda text: quote(str(text), safe=""))
    templates.globals.update(
        version=__version__,
        static=static_address,
        digest=_digest,
        inline=lambda name: static_files()[name].decode(),
        SIGNS=graph.SIGNS,
        query=with_query,
        ticks=charts.nice_ticks,
    )
    return templates


def _digest(text: str) -> str:
    """The digest of a text as a content security policy names it."""
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def when(then_s: float | None) -> Markup:
    """A point in time: how long ago, with the date as a tooltip."""
    if then_s is None:
        return Markup("–")
    exact = wording.iso(then_s)
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(exact, wording.ago(then_s, time.time()))


def with_query(request: Request | None, **changes: Any) -> str:
    """The query of this page with some values changed; None removes one."""
    values = {**(request.query_params if request is not None else {}), **changes}
    return "?" + urlencode({name: value for name, value in values.items() if value is not None and value != ""})


def render(context: Context | None, request: Request | None, template: str, document: Document) -> str:
    """The page as HTML. Without a request it is self-contained."""
    return environment().get_template(template).render(
        {RENAMED.get(name, name): value for name, value in document.items()},
        document=document,
        nav=pages(),
        here="" if request is None else request.url.path,
        request=request,
        home=None if context is None else str(context.home),
        alone=request is None,
    )  # fmt: skip


# --- responses --------------------------------------------------------------------------------------------------------


def page_routes(context: Context, path: str, template: str, data: Data, view: View | None = None) -> list[BaseRoute]:
    """A page at `path`, and its JSON at `path.json`. `view` adds to the document what only the HTML needs."""

    def endpoint(request: Request) -> Response:
        return respond(context, request, template, data, view)

    return [Route(f"{'/overview' if path == '/' else path}.json", endpoint), Route(path, endpoint)]


def respond(context: Context, request: Request, template: str, data: Data, view: View | None) -> Response:
    """The document as HTML, or as JSON if requested. `Server-Timing` has the time it took."""
    as_json = request.url.path.endswith(".json") or "text/html" not in request.headers.get("accept", "text/html")
    started, status = time.perf_counter(), 200
    headers: dict[str, str] = {}
    try:
        document = data(context, request)
    except AgentForgeError as error:
        request.state.cause = str(error)
        status, headers = (404, {}) if _is_unknown(error) else status_of(error)
        template, view = "error.html", None
        document = {"error": {"message": str(error), "status": status}}
    read = time.perf_counter()
    if as_json:
        response = json_response(finite(document), status)
    else:
        shown = {**document, **(view(document) if view else {})}
        response = HTMLResponse(utf8(render(context, request, template, shown)), status)
    spent = (read - started, time.perf_counter() - read)
    response.headers["Server-Timing"] = f"data;dur={spent[0] * 1e3:.1f}, page;dur={spent[1] * 1e3:.1f}"
    response.headers["Cache-Control"] = "no-cache"
    response.headers["Vary"] = "Accept"
    response.headers.update(headers)
    return response


class NotFound(UsageError):
    """What the request names does not exist."""


def _is_unknown(error: AgentForgeError) -> bool:
    return isinstance(error, NotFound) or (isinstance(error, StoreError) and "there is no" in error.what)


def finite(value: Any) -> Any:
    """A document without what JSON does not have: NaN and infinity become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)


def query_value(request: Request, name: str) -> str | None:
    """A value of the query, or None if it is empty: forms send their empty fields too."""
    return request.query_params.get(name, "").strip() or None


def query_number(request: Request, name: str) -> float | None:
    """A number of the query, or None if it is empty. Raises UsageError."""
    text = query_value(request, name)
    try:
        value = None if text is None else float(text)
    except ValueError:
        value = math.nan
    if value is not None and not math.isfinite(value):
        raise UsageError(f"{name} is {text!r}, which is not a number", fix="Leave it empty, or write for example 0.5")
    return value


# --- static files -----------------------------------------------------------------------------------------------------


@cache
def static_files() -> dict[str, bytes]:
    """The static files by name; nothing else is served."""
    return {file.name: file.read_bytes() for file in sorted((HERE / "static").iterdir()) if file.suffix in TYPES}


@cache
def static_address(name: str) -> str:
    """The address of a static file; it changes with the content, so that browsers may cache the file."""
    return f"/static/{name}?v={hashlib.sha256(static_files()[name]).hexdigest()[:12]}"


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in static_files():
        raise Refusal(404, f"there is no file {name[:80]!r}", code="not_found")
    caching = "public, max-age=31536000, immutable" if "v" in request.query_params else "no-cache"
    return Response(static_files()[name], media_type=TYPES[Path(name).suffix], headers={"Cache-Control": caching})


# --- live updates -----------------------------------------------------------------------------------------------------


def _shared_routes(context: Context, watches: Mapping[str, Watch]) -> list[BaseRoute]:
    """The static files, and `/live/KIND/NAME`: server-sent events that tell when the thing of that name has changed."""

    async def live(request: Request) -> Response:
        kind, name = request.path_params["kind"], request.path_params["name"]
        if kind not in watches:
            raise Refusal(404, f"there is nothing to watch of kind {kind[:40]!r}", code="not_found")
        seen = request.query_params.get("seen", "")
        return event_stream(_news(context, watches[kind], kind, name, seen))

    icon = Route(
        "/favicon.ico", lambda request: RedirectResponse(static_address("icon.svg"))
    )  # requested with JSON pages, which have no <link>
    return [Route("/static/{name}", _static), icon, Route("/live/{kind}/{name:path}", live)]


async def _news(context: Context, watch: Watch, kind: str, name: str, seen: str) -> AsyncGenerator[bytes, None]:
    """Polls, since runs of other processes do not notify this one; its own events end the wait early."""
    yield b"retry: 2000\n\n"
    sent = time.monotonic()
    with context.hub.subscribe(kind, f"{kind}:{name}") as subscription:
        while True:
            version = await run_in_threadpool(_version, context, watch, name)
            if version != seen:
                seen, sent = version, time.monotonic()
                yield encode({"version": version}, "changed")
            elif time.monotonic() - sent > HEARTBEAT_S:
                sent = time.monotonic()
                yield b": still here\n\n"
            await subscription.next(POLL_S)


def _version(context: Context, watch: Watch, name: str) -> str:
    try:
        return watch(context, name)
    except AgentForgeError as error:
        return f"error: {type(error).__name__}"
