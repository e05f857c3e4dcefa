"""The limits of tools, as the executor takes them."""

from __future__ import annotations

from collections.abc import Iterable

from agent_forge.agents.actions import LOOK_UP, SEARCH
from agent_forge.agents.tools import Tool
from agent_forge.runtime import Limits, ToolRules


def limits_of(box: Iterable[Tool], *, approval: bool = False) -> Limits:
    """The tools' concurrency and rate limits for the executor. Timeouts and retries stay with the tools themselves.

    `approval`: tools with side effects wait for one.
    """
    rules = {
        tool.name: ToolRules(
            tool.concurrency,
            tool.rate,
            side_effects=tool.side_effects,
            memo=tool.cache,
            approval=approval and tool.side_effects,
        )
        for tool in box
    }
    if SEARCH in rules:
        rules.setdefault(LOOK_UP, rules[SEARCH])  # a look-up searches
    return Limits(tools=rules)
