"""Collecting traces: runs scenarios until there are enough of them, at least so many for each agent.

A scenario is a function that does something once, given a recorder and a seed, and returns how it was verified. What
fails is recorded as a failure and kept: the store holds traces at the rate at which things succeed and fail (balancing
is for sampling, `dataset.balanced`). A collection has a name, which is the session of its traces; started again, it
goes on from what the store holds.

    >>> from agent_forge.traces.recorder import Recorder
    >>> from agent_forge.traces.reward import exit_code
    >>> from agent_forge.traces.store import Store
    >>> def toss(recorder, seed):
    ...     with recorder.span("toss", kind="tool", inputs={"seed": seed}):
    ...         return exit_code(seed % 2)
    >>> recorder = Recorder(Store.open(":memory:"))
    >>> done = collect([Scenario("coin", "Tosser", toss)], Target(traces=6), recorder)
    >>> done.traces, done.agents
    (6, {'Tosser': 6})
    >>> recorder.close()
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from agent_forge.errors import UsageError
from agent_forge.traces.reward import Verification, components, reward_of

if TYPE_CHECKING:
    from agent_forge.traces.recorder import Recorder
    from agent_forge.traces.store import Store

Verdict = Verification | Iterable[Verification] | None
Run = Callable[["Recorder", int], "Verdict | Awaitable[Verdict]"]

SCENARIO, ATTEMPT = "agent_forge.scenario", "agent_forge.attempt"


@dataclass(frozen=True)
class Scenario:
    """Something that can be run again and again: `run(recorder, seed)`, plain or async, tells how it was verified."""

    name: str
    agent: str
    run: Run
    category: str | None = None


@dataclass(frozen=True)
class Target:
    """How much is enough: so many traces in all, and at least so many for each agent."""

    traces: int = 2000
    per_agent: int = 0

    def __post_init__(self) -> None:
        if self.traces < 0 or self.per_agent < 0:
            raise UsageError("a target cannot be negative")


@dataclass
class Collected:
    """Where a collection stands: what the store holds, and what this run has added to it."""

    traces: int = 0
    agents: dict[str, int] = field(default_factory=dict)
    added: int = 0
    verified: int = 0
    reward_sum: float = 0.0
    errors: int = 0  # of those added

    @property
    def mean_reward(self) -> float | None:
        """The mean reward of what this run added and could verify."""
        return self.reward_sum / self.verified if self.verified else None


def collect(scenarios: Sequence[Scenario], target: Target, recorder: Recorder, **options: Any) -> Collected:
    """Runs scenarios until the target is met; see `acollect`."""
    return asyncio.run(acollect(scenarios, target, recorder, **options))


async def acollect(
    scenarios: Sequence[Scenario],
    target: Target,
    recorder: Recorder,
    *,
    name: str = "collection",
    seed: int = 0,
    concurrency: int = 4,
    progress: Callable[[Collected], object] | None = None,
) -> Collected:
    """Runs scenarios until the store holds enough traces of the collection `name`, and says where it stands.

    Each run is one trace: a root span with the scenario's agent and category, under it what the scenario records.
    Its seed depends on `seed`, the scenario and the attempt alone, so a collection that was interrupted and one that
    was not hold the same. Raises UsageError from a scenario (a wrong call is no failure of an agent) and for
    scenarios that cannot meet the target.
    """
    if not scenarios or len({scenario.name for scenario in scenarios}) != len(scenarios):
        raise UsageError("a collection needs scenarios, each with a name of its own")
    done = _attempts_done(recorder.store, name)
    standing = Collected()
    agenda = _Agenda(scenarios, target, done, standing)
    session = _Session(recorder, name, seed, standing, progress)

    async def work() -> None:
        while (job := agenda.next()) is not None:
            await session.attempt(*job)

    workers = [asyncio.create_task(work()) for _ in range(max(1, concurrency))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await asyncio.to_thread(recorder.flush)
    return standing


class _Agenda:
    """Who is next: the agent that lacks most, and of its scenarios the one that ran least."""

    def __init__(
        self, scenarios: Sequence[Scenario], target: Target, done: dict[str, set[int]], standing: Collected
    ) -> None:
        self.scenarios, self.target = scenarios, target
        self.taken = {scenario.name: set(done.get(scenario.name, ())) for scenario in scenarios}
        self.planned = Counter({scenario.agent: 0 for scenario in scenarios})
        for scenario in scenarios:
            self.planned[scenario.agent] += len(self.taken[scenario.name])
        standing.agents = dict(self.planned)
        standing.traces = sum(self.planned.values())

    def next(self) -> tuple[Scenario, int] | None:
        agent = min(self.planned, key=lambda agent: self.planned[agent])
        if self.planned[agent] >= self.target.per_agent and sum(self.planned.values()) >= self.target.traces:
            return None
        own = [scenario for scenario in self.scenarios if scenario.agent == agent]
        scenario = min(own, key=lambda scenario: len(self.taken[scenario.name]))
        taken = self.taken[scenario.name]
        attempt = next(number for number in range(len(taken) + 1) if number not in taken)
        taken.add(attempt)
        self.planned[agent] += 1
        return scenario, attempt


class _Session:
    """Carries out attempts and counts them."""

    def __init__(
        self,
        recorder: Recorder,
        name: str,
        seed: int,
        standing: Collected,
        progress: Callable[[Collected], object] | None,
    ) -> None:
        self.recorder, self.name, self.seed, self.standing, self.progress = recorder, name, seed, standing, progress

    async def attempt(self, scenario: Scenario, number: int) -> None:
        failed = False
        scope = self.recorder.span(
            scenario.name,
            kind="agent",
            agent=scenario.agent,
            category=scenario.category,
            session=self.name,
            attributes={SCENARIO: scenario.name, ATTEMPT: number},
        )
        looks: list[Verification] = []
        try:
            with scope as span:
                looks = await self._run(scenario, number)
                span.reward = reward_of(looks)
                if span.reward is not None:
                    span.set(**{"agent_forge.reward.components": components(looks)})
        except UsageError:
            raise
        except Exception:  # an agent that fails is what a collection is about: the span says how
            failed = True
        self._count(scenario, reward_of(looks), failed)

    async def _run(self, scenario: Scenario, number: int) -> list[Verification]:
        seed = seed_of(self.seed, self.name, scenario.name, number)
        if inspect.iscoroutinefunction(scenario.run):
            verdict: Any = await scenario.run(self.recorder, seed)
        else:  # in a thread, which keeps the current span: to_thread takes the context along
            verdict = await asyncio.to_thread(scenario.run, self.recorder, seed)
        if verdict is None:
            return []
        return [verdict] if isinstance(verdict, Verification) else list(verdict)

    def _count(self, scenario: Scenario, reward: float | None, failed: bool) -> None:
        standing = self.standing
        standing.traces += 1
        standing.added += 1
        standing.agents[scenario.agent] += 1
        standing.errors += failed
        if reward is not None:
            standing.verified += 1
            standing.reward_sum += reward
        if self.progress is not None:
            self.progress(standing)


def seed_of(seed: int, collection: str, scenario: str, attempt: int) -> int:
    """The seed of one attempt: the same on every machine, different for every attempt."""
    digest = sha256(f"{seed}/{collection}/{scenario}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def _attempts_done(store: Store, collection: str) -> dict[str, set[int]]:
    """The attempts of a collection that the store holds whole: those whose root span was finished."""
    done: dict[str, set[int]] = {}
    after: str | None = None
    while True:
        page = store.search(session=collection, kind="agent", limit=1000, after=after)
        for span in page:
            if SCENARIO in span.attributes and span.end_ns is not None and span.parent_id is None:
                done.setdefault(str(span.attributes[SCENARIO]), set()).add(int(span.attributes[ATTEMPT]))
        if (after := page.next) is None:
            return done
