"""What a written plan earns: it is carried out with simulated tools and compared with the row's own plan.

    reward = (calls needed / calls made) * (critical path needed / critical path taken),   0 if the plan is wrong

A simulated tool returns the call it was asked for, with the results that went into it. Two results are then equal only
if every deterministic tool would give equal results, and no tool has to exist. A plan is right if it ends with all the
results of the row's plan, each call that must wait for another one waiting for it; so the order of calls and of
arguments does not count, nor whether a default was written out. What it calls or waits for beyond that costs a part of
the reward. A plan that is malformed, or has a value that nobody gave, earns nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent_forge.agents.planner.constraint import faulty
from agent_forge.agents.planner.script import properties
from agent_forge.learning.judging import Calls, critical_path, groundings
from agent_forge.learning.rows import PlanRow, references
from agent_forge.tasks.calls import expanded


def plan_reward(row: PlanRow, calls: Calls) -> float:
    """From 0 to 1. Where no tool serves the request, calling nothing earns 1 and anything else 0.

    >>> from agent_forge.learning.rows import PlanRow
    >>> city = {"properties": {"city": {"type": "string"}}}
    >>> oslo, rome = ({"tool": "weather", "args": {"city": name}} for name in ("Oslo", "Rome"))
    >>> row = PlanRow("1", "Weather in Oslo?", ({"name": "weather", "parameters": city},), (oslo,))
    >>> [plan_reward(row, calls) for calls in ([oslo], [], [rome])]
    [1.0, 0.0, 0.0]
    """
    if not row.calls or not calls:
        return float(not row.calls and not calls)
    well_formed = not replace(row, calls=tuple(calls)).faults() and not waits_ahead(calls)
    if not well_formed or not reaches(row.calls, calls, row.tools):
        return 0.0
    if not all(groundings(row, calls)) or not accepted(row, calls):
        return 0.0
    return len(row.calls) / len(calls) * critical_path(row.calls) / critical_path(calls)


def waits_ahead(calls: Calls) -> bool:
    """Whether a call waits for itself, for a later one or for one that is not there."""
    return any(not 1 <= earlier < n for n, call in enumerate(calls, 1) for earlier in call.get("after") or ())


def accepted(row: PlanRow, calls: Calls) -> bool:
    """Whether the tools' schemas take the values, as far as they are known before anything runs."""
    schemas = {tool["name"]: tool.get("parameters") or {} for tool in row.tools}
    return not any(
        faulty(
            {k: v for k, v in call["args"].items() if v is not None and not any(references(v))}, schemas[call["tool"]]
        )
        for call in calls
    )


def results(calls: Calls, tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each call returns: the tool with its arguments, references replaced by the results they refer to."""
    schemas = {tool["name"]: properties(tool.get("parameters") or {}) for tool in tools}
    complete = []
    for call in calls:
        defaults = {name: each["default"] for name, each in schemas[call["tool"]].items() if "default" in each}
        given = {name: value for name, value in call["args"].items() if value is not None}
        complete.append({"tool": call["tool"], "args": {**defaults, **given}})
    return [repr(result) for result in expanded(complete)]


def reaches(needed: Calls, calls: Calls, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Whether calls give all the results of the needed ones, and wait where those wait.

    Each needed call is matched with a call of its own. Which one matters only among equal results, so there is hardly
    ever more than one to try.
    """
    wanted, given = results(needed, tools), results(calls, tools)
    before = ancestors(calls)
    # calls with equal results, before and after the same others, are interchangeable
    kind = [(before[n], frozenset(m for m in range(len(calls)) if n in before[m])) for n in range(len(calls))]
    match: list[int] = []  # of each needed call so far

    def matched() -> bool:
        place = len(match)
        if place == len(needed):
            return True
        waits = [match[earlier - 1] for earlier in needed[place].get("after") or ()]
        free = [n for n, result in enumerate(given) if result == wanted[place] and n not in match]
        for n in {kind[n]: n for n in free}.values():
            if before[n].issuperset(waits):
                match.append(n)
                if matched():
                    return True
                match.pop()
        return False

    return matched()


def ancestors(calls: Calls) -> list[frozenset[int]]:
    """For each call the places of those that end before it begins."""
    before: list[frozenset[int]] = []
    for call in calls:
        direct = {n - 1 for n in (*(call.get("after") or ()), *(each["ref"] for each in references(call["args"])))}
        before.append(frozenset(direct).union(*(before[n] for n in direct)))
    return before
