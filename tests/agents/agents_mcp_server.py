"""A small MCP server for the tests: `python agents_mcp_server.py stdio`, or `http PORT`."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

try:
    from mcp.server.mcpserver import MCPServer as FastMCP
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:
    from mcp.server.fastmcp import FastMCP  # type: ignore[no-redef]
    from mcp.server.fastmcp.exceptions import ToolError  # type: ignore[no-redef]
from mcp.types import ToolAnnotations


def make(**options: Any) -> Any:
    server: Any = FastMCP("small", **options)

    def add(a: int, b: int = 1) -> int:
        """Adds two numbers."""
        return a + b

    def greet(name: str) -> str:
        return f"hello {name}"

    def person(name: str) -> dict[str, str]:
        """A person."""
        return {"name": name, "city": "Oslo"}

    def fail(reason: str) -> str:
        raise ToolError(reason)

    def slow() -> str:
        time.sleep(30)
        return "late"

    def die() -> str:
        os._exit(3)

    def secret() -> str:
        return os.environ.get("GIVEN", "") + "|" + os.environ.get("AGENT_FORGE_CANARY", "")

    reads = ToolAnnotations.model_validate({"readOnlyHint": True})
    server.tool(annotations=reads)(add)
    for function in (greet, person, fail, slow, die, secret):
        server.tool()(function)
    return server


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        make().run("stdio")
    elif "mcpserver" in FastMCP.__module__:
        make().run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        make(host="127.0.0.1", port=int(sys.argv[2])).run("streamable-http")
