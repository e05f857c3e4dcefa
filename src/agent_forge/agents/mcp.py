"""Tools from a Model Context Protocol server, through the official client (extra `mcp`, versions 1 and 2)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any

from agent_forge.agents.tools import Tool
from agent_forge.errors import MissingExtraError, ToolError

MOST_DESCRIPTION = 2000
MOST_PAGES = 100
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_.-]")

Connect = Callable[[], AbstractAsyncContextManager[Any]]


class McpServer:
    """A connection to a server: `async with mcp_server(...) as server: Toolbox(server.tools)`.

    The session runs in a task of its own, so that errors in the block are not wrapped by the client's task groups and
    the tools can be called from any task. A tool counts as having side effects unless the server declares it read-only.
    Raises ToolError if the server cannot be reached.
    """

    def __init__(
        self, connect: Connect, where: str, *, prefix: str = "", start_s: float = 30.0, timeout_s: float | None = 60.0
    ) -> None:
        self.tools: list[Tool] = []
        self._connect = connect
        self._where = where
        self._prefix = prefix
        self._start_s = start_s
        self._timeout_s = timeout_s
        self._session: Any = None
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> McpServer:
        ready: asyncio.Future[list[Tool]] = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(self._serve(ready))
        try:
            first: list[asyncio.Future[Any]] = [ready, self._task]
            await asyncio.wait(first, timeout=self._start_s, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                self.tools = ready.result()
                return self
        except BaseException:
            await self._end()
            raise
        await self._end()
        raise ToolError(f"the server did not answer within {self._start_s:g} s", where=self._where)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        self._stop.set()
        if self._task is None:
            return
        if self._session is not None:  # otherwise it still waits for the server, not for the event
            await asyncio.wait([self._task], timeout=5.0)
        self._task.cancel()
        await asyncio.wait([self._task], timeout=5.0)

    async def _serve(self, ready: asyncio.Future[list[Tool]]) -> None:
        from mcp import ClientSession

        try:
            async with self._connect() as streams, ClientSession(streams[0], streams[1]) as session:
                await session.initialize()
                self._session = session
                ready.set_result([self._tool(each) for each in await _list_tools(session)])
                await self._stop.wait()
        except Exception as error:
            if not ready.done():
                failure = error if isinstance(error, ToolError) else ToolError(_reason(error), where=self._where)
                ready.set_exception(failure)
        finally:
            self._session = None

    def _tool(self, entry: Mapping[str, Any]) -> Tool:
        name = str(entry["name"])
        notes = entry.get("annotations") or {}
        side_effects = not notes.get("readOnlyHint", False)

        async def call(**args: Any) -> Any:
            return await self._call(name, args)

        return Tool(
            _NOT_A_NAME.sub("_", f"{self._prefix}{name}")[:64],
            str(entry.get("description") or "")[:MOST_DESCRIPTION],
            _checked(entry.get("inputSchema") or {"type": "object"}, name, self._where),
            call,
            side_effects=side_effects,
            cache=not side_effects,
            timeout_s=self._timeout_s,
        )

    async def _call(self, name: str, args: dict[str, Any]) -> Any:
        if self._session is None:
            raise ToolError("the connection to the server is closed", where=f"{self._where}, tool {name!r}")
        try:
            result = await self._session.call_tool(name, args)
        except Exception as error:
            raise ToolError(_reason(error), where=f"{self._where}, tool {name!r}") from error
        return read_result(result.model_dump(mode="json", by_alias=True), f"{self._where}, tool {name!r}")


async def _list_tools(session: Any) -> list[dict[str, Any]]:
    """Every tool of the server, with the field names of the protocol."""
    from mcp.types import PaginatedRequestParams

    tools: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        document = page.model_dump(mode="json", by_alias=True)
        tools += document["tools"]
        cursor = document.get("nextCursor")
        if not cursor:
            return tools
    raise ToolError(f"the server lists its tools on more than {MOST_PAGES} pages")


def _checked(schema: Any, name: str, where: str) -> dict[str, Any]:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ToolError(f"the schema of its tool {name!r} is invalid: {error.message[:200]}", where=where) from error
    return dict(schema)


def _reason(error: BaseException) -> str:
    """The innermost message: the client wraps errors in exception groups."""
    while getattr(error, "exceptions", None):
        error = error.exceptions[0]  # type: ignore[attr-defined]
    return f"{error}" or type(error).__name__


def read_result(result: Mapping[str, Any], where: str) -> Any:
    """The value of a tool's result: structured content if there is any, else its text, else its parts.

    >>> read_result({"content": [{"type": "text", "text": "4"}], "structuredContent": {"result": 4}}, "here")
    4

    Raises ToolError if the server reports a failure.
    """
    parts = result.get("content") or []
    text = "\n".join(part.get("text", "") for part in parts if part.get("type") == "text")
    if result.get("isError"):
        raise ToolError(text or "the tool failed without a message", where=where)
    structured = result.get("structuredContent")
    if structured is not None:
        # servers wrap values that are not objects as {"result": value}
        return structured["result"] if set(structured) == {"result"} else structured
    return text if all(part.get("type") == "text" for part in parts) else list(parts)


def mcp_server(
    command: Sequence[str] | None = None,
    *,
    url: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    headers: Mapping[str, str] | None = None,
    prefix: str = "",
    start_s: float = 30.0,
    timeout_s: float | None = 60.0,
) -> McpServer:
    """A server to connect to: a `command` to start that speaks over stdio, or a `url`.

    `env` extends the few environment variables that a started server gets; `headers` are sent with every request to a
    URL; `prefix` goes before the names of the tools. Raises MissingExtraError without the `mcp` package.
    """
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("tools from an MCP server", "mcp") from error
    if (command is None) == (url is None) or (command is not None and not command):
        raise ToolError(
            "an MCP server needs either a command or a url", fix='Write mcp_server(["python", "server.py"])'
        )
    options: dict[str, Any] = {"prefix": prefix, "start_s": start_s, "timeout_s": timeout_s}
    if url is not None:
        address = url
        return McpServer(lambda: _http(address, headers), f"MCP server {url}", **options)
    words = list(command or ())
    return McpServer(lambda: _stdio(words, env, cwd), f"MCP server {words[0]!r}", **options)


def _stdio(words: list[str], env: Mapping[str, str] | None, cwd: str | None) -> AbstractAsyncContextManager[Any]:
    from mcp import StdioServerParameters, stdio_client

    variables = dict(env) if env is not None else None
    return stdio_client(StdioServerParameters(command=words[0], args=words[1:], env=variables, cwd=cwd))


@asynccontextmanager
async def _http(url: str, headers: Mapping[str, str] | None) -> AsyncIterator[Any]:
    import mcp.client.streamable_http as transport

    try:
        import httpx2 as http  # version 2 of the client uses its own
    except ImportError:
        import httpx as http  # type: ignore[no-redef]
    async with http.AsyncClient(headers=dict(headers or {}), timeout=60.0) as client:
        async with transport.streamable_http_client(url, http_client=client) as streams:
            yield streams
