"""Collecting traces: runs scenarios until there are enough, in all and for each agent.

A scenario is a function that does something once, given a recorder and a seed, and returns how it was verified. What
fails is recorded as a failure: the store holds traces at the rate at which things succeed and fail (balancing is for
sampling, `dataset.balanced`). A collection has a name, which is the session of its traces; started again, it continues
from what the store holds.

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
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

from agent_forge.errors import UsageError
from agent_forge.traces.reward import Verification, components, reward_of

if TYPE_CHECKING:
    from agent_forge.traces.recorder import Recorder
    from agent_forge.traces.span import Span
    from agent_forge.traces.store import Store


class Rewarded(Protocol):
    """A reward with its parts, such as `agent_forge.rewards.Reward`."""

    @property
    def total(self) -> float: ...

    def parts(self) -> list[dict[str, Any]]: ...


Verdict = Verification | Iterable[Verification] | Rewarded | None
Run = Callable[["Recorder", int], "Verdict | Awaitable[Verdict]"]

SCENARIO, ATTEMPT = "agent_forge.scenario", "agent_forge.attempt"
STOPPED = "agent_forge.stopped"  # on an attempt that was interrupted, and is made again


@dataclass(frozen=True)
class Scenario:
    """Something that can be repeated: `run(recorder, seed)`, plain or async, returns how it was verified."""

    name: str
    agent: str
    run: Run
    category: str | None = None
    seeds: str | None = None  # scenarios with the same word here get the same seeds: attempts at the same thing


@dataclass(frozen=True)
class Target:
    """How much is enough: the number of traces in all, and the least number for each agent; or, instead, the number
    for each scenario."""

    traces: int = 2000
    per_agent: int = 0
    per_scenario: int | None = None

    def __post_init__(self) -> None:
        if self.traces < 0 or self.per_agent < 0 or (self.per_scenario or 0) < 0:
            raise UsageError("a target cannot be negative")


@dataclass
class Collection:
    """The state of a collection: what the store holds, and what this run has added to it."""

    traces: int = 0
    agents: dict[str, int] = field(default_factory=dict)
    added: int = 0
    verified: int = 0
    reward_sum: float = 0.0
    errors: int = 0  # of those added

    @property
    def mean_reward(self) -> float | None:
        """The mean reward of the verified traces that this run added."""
        return self.reward_sum / self.verified if self.verified else None


def collect(scenarios: Sequence[Scenario], target: Target, recorder: Recorder, **options: Any) -> Collection:
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
    progress: Callable[[Collection], object] | None = None,
) -> Collection:
    """Runs scenarios until the store holds enough traces of the collection `name`, and returns its state.

    Each run is one trace: a root span with the scenario's agent and category, and under it what the scenario records.
    Its seed depends on `seed`, the scenario and the attempt alone, so an interrupted collection ends up with the same
    traces. Raises UsageError from a scenario (a wrong call is not a failure of an agent) and for scenarios that cannot
    meet the target.
    """
    if not scenarios or len({scenario.name for scenario in scenarios}) != len(scenarios):
        raise UsageError("a collection needs scenarios, each with a name of its own")
    done = _attempts_done(recorder.store, name)
    collection = Collection()
    agenda = _Agenda(scenarios, target, done, collection)
    runner = _Runner(recorder, name, seed, collection, progress)

    async def work() -> None:
        while (job := agenda.next()) is not None:
            await runner.attempt(*job)

    workers = [asyncio.create_task(work()) for _ in range(max(1, concurrency))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await asyncio.to_thread(recorder.flush)
    return collection


class _Agenda:
    """What to run next: of the agent with the fewest traces, the scenario that ran least."""

    def __init__(
        self, scenarios: Sequence[Scenario], target: Target, done: dict[str, set[int]], collection: Collection
    ) -> None:
        self.scenarios, self.target = scenarios, target
        self.attempts = {scenario.name: set(done.get(scenario.name, ())) for scenario in scenarios}
        self.planned = Counter({scenario.agent: 0 for scenario in scenarios})
        for scenario in scenarios:
            self.planned[scenario.agent] += len(self.attempts[scenario.name])
        collection.agents = dict(self.planned)
        collection.traces = sum(self.planned.values())

    def next(self) -> tuple[Scenario, int] | None:
        if self.target.per_scenario is not None:
            least = min(self.scenarios, key=lambda scenario: len(self.attempts[scenario.name]))
            return self._take(least) if len(self.attempts[least.name]) < self.target.per_scenario else None
        agent = min(self.planned, key=lambda agent: self.planned[agent])
        if self.planned[agent] >= self.target.per_agent and sum(self.planned.values()) >= self.target.traces:
            return None
        own = [scenario for scenario in self.scenarios if scenario.agent == agent]
        return self._take(min(own, key=lambda scenario: len(self.attempts[scenario.name])))

    def _take(self, scenario: Scenario) -> tuple[Scenario, int]:
        attempts = self.attempts[scenario.name]
        attempt = next(number for number in range(len(attempts) + 1) if number not in attempts)
        attempts.add(attempt)
        self.planned[scenario.agent] += 1
        return scenario, attempt


class _Runner:
    """Carries out attempts and counts them."""

    def __init__(
        self,
        recorder: Recorder,
        name: str,
        seed: int,
        collection: Collection,
        progress: Callable[[Collection], object] | None,
    ) -> None:
        self.recorder, self.name, self.seed, self.collection, self.progress = recorder, name, seed, collection, progress

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
        reward: float | None = None
        try:
            with scope as span:
                try:
                    reward, parts = await self._run(scenario, number)
                except (UsageError, asyncio.CancelledError):
                    span.set(**{STOPPED: True})
                    raise
                span.reward = reward
                if reward is not None:
                    span.set(**{"agent_forge.reward.components": parts})
        except UsageError:
            raise
        except Exception:  # agents that fail are part of a collection: the span says how
            failed = True
        self._count(scenario, reward, failed)

    async def _run(self, scenario: Scenario, number: int) -> tuple[float | None, list[dict[str, Any]]]:
        seed = seed_of(self.seed, self.name, scenario.seeds or scenario.name, number)
        if inspect.iscoroutinefunction(scenario.run):
            verdict: Any = await scenario.run(self.recorder, seed)
        else:  # to_thread takes the context along, and with it the current span
            verdict = await asyncio.to_thread(scenario.run, self.recorder, seed)
        if verdict is None:
            return None, []
        if hasattr(verdict, "total"):
            return verdict.total, verdict.parts()
        checks = [verdict] if isinstance(verdict, Verification) else list(verdict)
        return reward_of(checks), components(checks)

    def _count(self, scenario: Scenario, reward: float | None, failed: bool) -> None:
        collection = self.collection
        collection.traces += 1
        collection.added += 1
        collection.agents[scenario.agent] += 1
        collection.errors += failed
        if reward is not None:
            collection.verified += 1
            collection.reward_sum += reward
        if self.progress is not None:
            self.progress(collection)


def seed_of(seed: int, collection: str, scenario: str, attempt: int) -> int:
    """The seed of one attempt: the same on every machine, different for every attempt."""
    digest = sha256(f"{seed}/{collection}/{scenario}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def attempts_in(store: Store, collection: str) -> Iterator[Span]:
    """The root spans of the complete attempts of a collection."""
    after: str | None = None
    while True:
        page = store.search(session=collection, kind="agent", limit=1000, after=after)
        for span in page:
            ended = span.end_ns is not None and span.parent_id is None
            if ended and SCENARIO in span.attributes and STOPPED not in span.attributes:
                yield span
        if (after := page.next) is None:
            return


def _attempts_done(store: Store, collection: str) -> dict[str, set[int]]:
    done: dict[str, set[int]] = {}
    for span in attempts_in(store, collection):
        done.setdefault(str(span.attributes[SCENARIO]), set()).add(int(span.attributes[ATTEMPT]))
    return done
