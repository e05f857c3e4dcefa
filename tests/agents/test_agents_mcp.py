"""Tools from a real MCP server, started as a process, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from agent_forge.agents import Toolbox
from agent_forge.agents.mcp import mcp_server, read_result
from agent_forge.agents.tools import ArgumentsInvalid, ToolTimeout
from agent_forge.errors import ToolError

SERVER = str(Path(__file__).with_name("agents_mcp_server.py"))
STDIO = [sys.executable, SERVER, "stdio"]
pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="mcp is not installed")


def test_tools_over_stdio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_FORGE_CANARY", "not for the server")

    async def main() -> None:
        async with mcp_server(STDIO, env={"GIVEN": "yes"}) as server:
            box = Toolbox(server.tools)
            assert box.names == ("add", "greet", "person", "fail", "slow", "die", "secret")
            add = box.get("add")
            assert add.description == "Adds two numbers."
            assert add.schema["required"] == ["a"]
            assert (add.side_effects, add.cache) == (False, True)
            assert (box.get("greet").side_effects, box.get("greet").cache) == (True, False)
            assert await box.call("add", {"a": 2, "b": 3}) == 5
            assert await box.call("greet", {"name": "Ada"}) == "hello Ada"
            assert await box.call("person", {"name": "Ada"}) == {"name": "Ada", "city": "Oslo"}
            assert await box.call("secret", {}) == "yes|"
            results = await asyncio.gather(*(box.call("add", {"a": n}) for n in range(10)))
            assert results == list(range(1, 11))
            with pytest.raises(ArgumentsInvalid, match="'a' must be integer"):
                await box.call("add", {"a": "two"})
            with pytest.raises(ArgumentsInvalid, match="'a' is missing"):
                await box.call("add", {})
            with pytest.raises(ToolError, match="out of luck"):
                await box.call("fail", {"reason": "out of luck"})
        with pytest.raises(ToolError, match="connection to the server is closed"):
            await box.call("greet", {"name": "x"})

    asyncio.run(main())


def test_an_error_in_the_block_stays_what_it_is() -> None:
    async def main() -> None:
        async with mcp_server(STDIO, prefix="small_") as server:
            assert server.tools[0].name == "small_add"
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(main())


def test_a_slow_tool_and_a_server_that_dies_end_in_typed_errors() -> None:
    async def main() -> None:
        async with mcp_server(STDIO, timeout_s=0.5) as server:
            box = Toolbox(server.tools)
            with pytest.raises(ToolTimeout):
                await box.call("slow", {})
        async with mcp_server(STDIO, timeout_s=20) as server:
            box = Toolbox(server.tools)
            with pytest.raises(ToolError):
                await box.call("die", {})
            with pytest.raises(ToolError):
                await box.call("greet", {"name": "x"})

    start = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - start < 90


@pytest.mark.parametrize(
    "command",
    [
        ["no-such-program-anywhere"],
        [sys.executable, "-c", "import sys; sys.exit(3)"],
        [sys.executable, "-c", "import sys; sys.stdin.read()"],  # it says nothing
    ],
)
def test_servers_that_are_none(command: list[str]) -> None:
    async def main() -> None:
        async with mcp_server(command, start_s=1):
            raise AssertionError("unreachable")

    with pytest.raises(ToolError, match="MCP server"):
        asyncio.run(main())


@pytest.fixture
def http_url() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, SERVER, "http", str(port)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


def test_tools_over_http(http_url: str) -> None:
    async def main() -> Any:
        async with mcp_server(url=http_url, headers={"x-test": "1"}) as server:
            return await Toolbox(server.tools).call("add", {"a": 40, "b": 2})

    assert asyncio.run(main()) == 42


def test_a_dead_url() -> None:
    async def main() -> None:
        async with mcp_server(url="http://127.0.0.1:9/mcp", start_s=10):
            raise AssertionError("unreachable")

    with pytest.raises(ToolError, match="MCP server http"):
        asyncio.run(main())


@pytest.mark.parametrize("options", [{}, {"command": []}, {"command": ["x"], "url": "http://x"}])
def test_a_server_is_a_command_or_a_url(options: Any) -> None:
    with pytest.raises(ToolError, match="either a command or a url"):
        mcp_server(**options)


def test_results() -> None:
    text = {"type": "text", "text": "a"}
    image = {"type": "image", "data": "x"}
    assert read_result({"content": [text, text]}, "here") == "a\na"
    assert read_result({"content": []}, "here") == ""
    assert read_result({"content": [text, image]}, "here") == [text, image]
    assert read_result({"content": [], "structuredContent": {"x": 1}}, "here") == {"x": 1}
    with pytest.raises(ToolError, match="without a message"):
        read_result({"content": [image], "isError": True}, "here")
