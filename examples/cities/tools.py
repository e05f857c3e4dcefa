"""Tools for `plan.yaml`: `agent-forge run --plan examples/cities/plan.yaml --tools examples/cities/tools.py`."""

from __future__ import annotations

import asyncio

from agent_forge import tool

PEOPLE = {"Paris": 2_103_000, "London": 8_866_000, "Rome": 2_755_000}


@tool
async def population(city: str) -> int:
    """How many people live in a city. Takes half a second, as a remote service would."""
    await asyncio.sleep(0.5)
    return PEOPLE[city]


@tool
def largest(people: list[int], names: list[str]) -> str:
    """The name with the largest number."""
    return max(zip(people, names, strict=True))[1]
