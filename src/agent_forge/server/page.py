"""What every page shares: templates and the words in them, HTML and JSON from one document, static files, and news.

A page is a function from a request to a JSON document, and a template that shows it. The document is also answered as
it is, at the page's address with `.json` or to a client that accepts JSON only.
"""

from __future__ import annotations

import hashlib
import math
import time
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import cache
from pathlib import Path
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
from agent_forge.server.answers import Refused, json_answer, utf8
from agent_forge.server.context import Context
from agent_forge.server.drawing import charts, graph, wording
from agent_forge.server.sse import HEARTBEAT_S, encoded, event_stream

HERE = Path(__file__).parent
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# keys of documents whose names mean something else in templates
TAKEN = {"version": "version_", "request": "request_text", "parts": "parts_"}
LOOK_S = 0.5  # how often news are looked for while somebody watches

Document = dict[str, Any]
Data = Callable[[Context, Request], Document]
View = Callable[[Document], dict[str, Any]]
Watch = Callable[[Context, str], str]  # a text that changes whenever what is named has changed


# --- templates --------------------------------------------------------------------------------------------------------


@cache
def environment() -> Environment:
    """The templates, with escaping on, and the words and drawings they use."""
    made = Environment(
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
        made.filters[name] = getattr(wording, name)
    made.filters.update(when=when, state_class=graph.state_class, path=lambda text: quote(str(text), safe=""))
    made.globals.update(
        version=__version__,
        static=static_address,
        digest=_digest,
        inline=lambda name: static_files()[name].decode(),
        SIGNS=graph.SIGNS,
        query=with_query,
        ticks=charts.nice_ticks,
    )
    return made


def _digest(text: str) -> str:
    """A text's digest as a content-security policy names it."""
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def when(then_s: float | None) -> Markup:
    """A moment: how long ago, with the date where the mouse rests and on paper."""
    if then_s is None:
        return Markup("–")
    exact = wording.iso(then_s)
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(exact, wording.ago(then_s, time.time()))


def with_query(request: Request | None, **changes: Any) -> str:
    """The query of this page with some values changed; None takes one away."""
    kept = dict(request.query_params) if request is not None else {}
    kept.update({name: value for name, value in changes.items() if value is not None})
    return "?" + urlencode({name: value for name, value in kept.items() if changes.get(name, "") is not None and value})


def render(context: Context | None, request: Request | None, template: str, document: Document) -> str:
    """The page as HTML. Without a request it is a page by itself: what it needs is inside it."""
    from agent_forge.server.pages import pages

    return environment().get_template(template).render(
        {TAKEN.get(name, name): value for name, value in document.items()},
        document=document,
        nav=pages(),
        here="" if request is None else request.url.path,
        request=request,
        home=None if context is None else str(context.home),
        alone=request is None,
    )  # fmt: skip


# --- answers ----------------------------------------------------------------------------------------------------------


def page_routes(context: Context, path: str, template: str, data: Data, view: View | None = None) -> list[BaseRoute]:
    """A page at `path`, and its JSON at `path.json`. `view` makes of the document what only the HTML needs."""

    def endpoint(request: Request) -> Response:
        return answer(context, request, template, data, view)

    return [Route(f"{'/overview' if path == '/' else path}.json", endpoint), Route(path, endpoint)]


def answer(context: Context, request: Request, template: str, data: Data, view: View | None) -> Response:
    """The document as HTML, or as JSON where that is asked for. The time it took is in `Server-Timing`."""
    as_json = request.url.path.endswith(".json") or "text/html" not in request.headers.get("accept", "text/html")
    started, status = time.perf_counter(), 200
    try:
        document = data(context, request)
    except AgentForgeError as error:
        status, template, view = _status(error), "error.html", None
        document = {"error": {"message": str(error), "status": status}}
    found = time.perf_counter()
    if as_json:
        made = json_answer(finite(document), status)
    else:
        shown = {**document, **(view(document) if view else {})}
        made = HTMLResponse(utf8(render(context, request, template, shown)), status)
    spent = (found - started, time.perf_counter() - found)
    made.headers["Server-Timing"] = f"data;dur={spent[0] * 1e3:.1f}, page;dur={spent[1] * 1e3:.1f}"
    made.headers["Cache-Control"] = "no-cache"
    made.headers["Vary"] = "Accept"
    return made


class NotThere(UsageError):
    """What was asked for does not exist."""


def _status(error: AgentForgeError) -> int:
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, NotThere) or (isinstance(error, StoreError) and "there is no" in error.what):
        return 404
    return 400 if error.exit_code == 2 else 500


def finite(value: Any) -> Any:
    """A document without what JSON cannot say: not a number is not measured."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)


def asked(request: Request, name: str) -> str | None:
    """A value of the query; None for an empty one: a form sends its empty fields too."""
    return request.query_params.get(name, "").strip() or None


def asked_number(request: Request, name: str) -> float | None:
    """A number of the query. Raises UsageError for what is none."""
    text = asked(request, name)
    try:
        value = None if text is None else float(text)
    except ValueError:
        value = math.nan
    if value is not None and not math.isfinite(value):
        raise UsageError(f"{name} is {text!r}, which is not a number", fix="leave it empty, or write one such as 0.5")
    return value


# --- static files -----------------------------------------------------------------------------------------------------


@cache
def static_files() -> dict[str, bytes]:
    """The static files by name: nothing else can be asked for."""
    return {file.name: file.read_bytes() for file in sorted((HERE / "static").iterdir()) if file.suffix in TYPES}


@cache
def static_address(name: str) -> str:
    """Where a static file is; the address changes with its content, so that browsers may keep it."""
    return f"/static/{name}?v={hashlib.sha256(static_files()[name]).hexdigest()[:12]}"


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in static_files():
        raise Refused(404, f"there is no file {name[:80]!r}", code="not_found")
    kept = "public, max-age=31536000, immutable" if "v" in request.query_params else "no-cache"
    return Response(static_files()[name], media_type=TYPES[Path(name).suffix], headers={"Cache-Control": kept})


# --- news -------------------------------------------------------------------------------------------------------------


def frame_routes(context: Context, watches: Mapping[str, Watch]) -> list[BaseRoute]:
    """The static files, and `/live/KIND/NAME`: server-sent events that say when what is named has changed."""

    async def live(request: Request) -> Response:
        kind, name = request.path_params["kind"], request.path_params["name"]
        if kind not in watches:
            raise Refused(404, f"nothing of the kind {kind[:40]!r} can be watched", code="not_found")
        seen = request.query_params.get("seen", "")
        return event_stream(_news(context, watches[kind], kind, name, seen))

    icon = Route("/favicon.ico", lambda request: RedirectResponse(static_address("icon.svg")))  # asked for beside JSON
    return [Route("/static/{name}", _static), icon, Route("/live/{kind}/{name:path}", live)]


async def _news(context: Context, watch: Watch, kind: str, name: str, seen: str) -> AsyncGenerator[bytes, None]:
    """Runs of other processes tell this one nothing, so it looks; what it does itself wakes it earlier."""
    yield b"retry: 2000\n\n"
    spoken = time.monotonic()
    with context.hub.subscribe(kind, f"{kind}:{name}") as subscription:
        while True:
            version = await run_in_threadpool(_version, context, watch, name)
            if version != seen:
                seen, spoken = version, time.monotonic()
                yield encoded({"version": version}, "changed")
            elif time.monotonic() - spoken > HEARTBEAT_S:
                spoken = time.monotonic()
                yield b": still here\n\n"
            await subscription.next(LOOK_S)


def _version(context: Context, watch: Watch, name: str) -> str:
    try:
        return watch(context, name)
    except AgentForgeError as error:
        return f"error: {type(error).__name__}"
