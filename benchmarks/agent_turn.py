"""What does a turn of an agent cost beside the model call itself?

The model answers at once, from memory, so all CPU time is ours: prompt, reading the call, checking it, the executor,
the observation, spans. The same model calls and tool calls are made by hand in the same run, as the floor.

    python benchmarks/agent_turn.py [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from agent_forge import Agent, tool
from agent_forge.agents import AgentLimits, AgentProfile
from agent_forge.inference import ChatClient, Completion, Request, TokenUsage, ToolCall
from agent_forge.traces import Recorder, Store

GOAL_S = 0.002


@tool
async def look(n: int) -> str:
    """Looks at a number."""
    return f"{n} looks fine"


class Instant(ChatClient):
    """Calls `look` in each turn, and answers in the last."""

    name = "instant"
    provider = "benchmark"
    leaves_spans = True

    def __init__(self, turns: int, calls: int) -> None:
        self.turns, self.calls, self.turn = turns, calls, 0

    async def answer(self, request: Request) -> Completion:
        self.turn += 1
        usage = TokenUsage(len(request.messages) * 20, 20)
        if self.turn % self.turns == 0:
            return Completion("done", self.name, "stop", (), usage)
        made = tuple(ToolCall(f"c{n}", "look", {"n": self.turn % self.turns * 100 + n}) for n in range(self.calls))
        return Completion("", self.name, "tool_calls", made, usage)

    async def pieces(self, request: Request) -> AsyncIterator[str | Completion]:
        yield await self.answer(request)


async def by_hand(turns: int, calls: int, requests: int) -> float:
    """CPU seconds per turn of the model calls and tool calls alone."""
    model = Instant(turns, calls)
    started = time.process_time()
    for _ in range(requests):
        messages: list[dict[str, object]] = [{"role": "user", "content": "go"}]
        while (completion := await model.complete(messages, tools=[look])).tool_calls:
            results = [await look.call(call.arguments) for call in completion.tool_calls]
            messages += [{"role": "tool", "content": json.dumps(result)} for result in results]
    return (time.process_time() - started) / (requests * turns)


async def by_agent(turns: int, calls: int, requests: int, recorder: Recorder | None) -> float:
    profile = AgentProfile(name="ada", limits=AgentLimits(turns=turns))
    numbers = ", ".join(str(turn * 100 + n) for turn in range(turns) for n in range(calls))
    request = f"Look at {numbers}."  # a call takes only values that were given
    agent = Agent(profile, [look], Instant(turns, calls), recorder=recorder, record=recorder is not None)
    await agent.arun(request)  # imports and schemas, once
    started = time.process_time()
    for _ in range(requests):
        result = await agent.arun(request)
        assert result.ok, result.error
        assert result.turns == turns
    if recorder is not None:
        recorder.flush()
    return (time.process_time() - started) / (requests * turns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    requests = 10 if parser.parse_args().quick else 100
    print("turns  calls  by hand  agent    with spans  (CPU per turn)   goal: 2 ms over the model call")
    for turns, calls in ((2, 1), (8, 1), (8, 8)):
        asyncio.run(by_hand(turns, calls, 2))
        floor = asyncio.run(by_hand(turns, calls, requests))
        plain = asyncio.run(by_agent(turns, calls, requests, None))
        with tempfile.TemporaryDirectory() as folder:
            recorder = Recorder(Store.open(Path(folder)))
            traced = asyncio.run(by_agent(turns, calls, requests, recorder))
            recorder.close()
        verdict = "met" if traced - floor <= GOAL_S else "missed"
        figures = "  ".join(f"{value * 1e3:6.3f} ms" for value in (floor, plain, traced))
        print(f"{turns:5}  {calls:5}  {figures}   own: {(traced - floor) * 1e3:.3f} ms, {verdict}")


if __name__ == "__main__":
    main()
