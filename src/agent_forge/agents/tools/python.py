"""Runs Python written by a model in the runtime's sandbox; without isolation it is refused."""

from __future__ import annotations

from typing import Any

from agent_forge.agents.tools.tool import Tool, tool
from agent_forge.errors import ToolError


def python_tool(*, time_s: float = 10.0, memory_mb: int = 512, name: str = "python") -> Tool:
    """A tool that runs a Python program in the sandbox: no network, no access to files, limited time and memory.

    Its calls raise SandboxError if no isolation is available, and ToolError for a program that fails.
    """

    async def python(code: str, stdin: str = "") -> dict[str, Any]:
        """Runs a Python program (standard library only, no network) and returns its output.

        Args:
            code: the program; its output is the result
            stdin: the standard input of the program
        """
        from agent_forge.runtime.sandbox import SandboxLimits, run_python

        ran = await run_python(code, stdin=stdin, limits=SandboxLimits(time_s=time_s, memory_mb=memory_mb))
        if ran.ok:
            return {"stdout": ran.stdout, "stderr": ran.stderr}
        last = ran.stderr.strip().splitlines()[-1:] or ["no message"]
        reasons = {"timed_out": f"it took longer than {time_s:g} s", "output_limit": "it printed too much"}
        raise ToolError(reasons.get(ran.state, f"it ended with code {ran.exit_code}: {last[0][:300]}"), where=name)

    return tool(name=name, cache=False)(python)
