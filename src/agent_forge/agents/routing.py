"""Assigns tasks to agents (after HALO, arXiv 2505.13516): logic rules first, then capability by learned trust and load.

    rules       all conditions of a rule must match the task; highest priority first; the first whose agent is free wins
    capability  among the agents that list the task's type and have its required skills, the one with the largest
                trust × (1 − load), where trust that was never measured counts as ½
    queue       if those agents are up but at capacity, the task waits, first come first served
    fallback    if nothing matches, or every match is down, the agents of the fallback chain, in order

Every answer has an explanation. An agent that fails five times in a row gets no tasks for a minute (CircuitBreaker).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from agent_forge.agents.breaker import CircuitBreaker
from agent_forge.config import nearest
from agent_forge.errors import AgentForgeError, UsageError

if TYPE_CHECKING:
    from agent_forge.agents.profiles import AgentProfile
    from agent_forge.plans import Task

T = TypeVar("T")
UNMEASURED = 0.5  # the trust of an agent without rewards: it neither leads nor is shut out
_COST_ORDER = {"cheap": 0, "medium": 1, "expensive": 2}


class Trust(Protocol):
    """The trust in an agent for a category of tasks: a number in [0, 1], or None if nothing was measured."""

    def __call__(self, agent: str, category: str) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Rule:
    """If all facts in `when` hold, the task goes to `agent`. A list of values matches any of them.

    A fact that the task does not have never matches. `because` goes into the explanation.
    """

    name: str
    when: Mapping[str, Any]
    agent: str
    priority: int = 0
    because: str = ""

    def matches(self, facts: Mapping[str, Any]) -> bool:
        return all(key in facts and _matches(facts[key], value) for key, value in self.when.items())


def _matches(fact: Any, value: Any) -> bool:
    return fact in value if isinstance(value, list | tuple | set | frozenset) else bool(fact == value)


@dataclass(frozen=True, slots=True)
class Assigned:
    """The task goes to `agent`."""

    agent: str
    explanation: str
    rule: str | None = None
    trust: float | None = None


@dataclass(frozen=True, slots=True)
class Queued:
    """Every suitable agent is at capacity; `position`, from 1, is among the tasks that wait for the same agents."""

    position: int
    agents: tuple[str, ...]
    explanation: str


@dataclass(frozen=True, slots=True)
class Unroutable:
    """No agent can do it: `code` is no_agents, unknown_task_type, all_down or queue_full."""

    code: str
    explanation: str
    retry_s: float | None = None


RoutingAnswer = Assigned | Queued | Unroutable


class RoutingError(AgentForgeError):
    """A task that no agent can take; `answer` says why."""

    def __init__(self, answer: Unroutable) -> None:
        super().__init__(answer.explanation)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Routed(Generic[T]):
    """The result of a task, the agent that did it, and the agents that failed before."""

    result: T
    assigned: Assigned
    tried: tuple[str, ...] = ()


@dataclass(slots=True)
class _Agent:
    profile: AgentProfile
    breaker: CircuitBreaker
    load: int = 0

    @property
    def is_up(self) -> bool:
        return self.breaker.state != "open"

    @property
    def is_free(self) -> bool:
        return self.load < self.profile.max_concurrent and self.breaker.is_free

    @property
    def share(self) -> float:
        return self.load / self.profile.max_concurrent

    @property
    def condition(self) -> str:
        if not self.is_up:
            return f"down for another {self.breaker.retry_s:.0f} s after {self.breaker.failures} failures"
        if self.load >= self.profile.max_concurrent:
            return f"full ({self.load} of {self.profile.max_concurrent})"
        return "free" if self.is_free else "being probed"


@dataclass(slots=True, eq=False)
class _Waiter:
    facts: Mapping[str, Any]
    exclude: tuple[str, ...]
    agents: frozenset[str]
    assignment: asyncio.Future[Assigned]


@dataclass(frozen=True, slots=True)
class _Wait:
    """Agents that are up but at capacity, and the state of each."""

    agents: tuple[str, ...]
    reason: str


@dataclass(slots=True)
class _Candidate:
    agent: _Agent
    reason: str
    rule: str | None = None
    trust: float | None = None


class Router:
    """Assigns tasks to agents.

    >>> from agent_forge.agents.profiles import AgentProfile
    >>> router = Router([AgentProfile(name="ada", task_types=("research",)), AgentProfile(name="bob")],
    ...                 rules=[Rule("sums go to bob", {"task_type": "math"}, "bob", priority=5)])
    >>> router.decide({"task_type": "math"}).agent, router.decide({"task_type": "research"}).agent
    ('bob', 'ada')
    >>> router.decide({"task_type": "cooking"}).code
    'unknown_task_type'

    A task is a plan's Task (its action and meta are the facts) or a mapping of facts. `trust` is how routing learns.
    `clock` is for tests. A router belongs to one event loop.
    """

    def __init__(
        self,
        profiles: Iterable[AgentProfile],
        rules: Iterable[Rule] = (),
        *,
        trust: Trust | None = None,
        fallback: Sequence[str] = (),
        failures: int = 5,
        cooldown_s: float = 60.0,
        most_queued: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._agents: dict[str, _Agent] = {}
        for profile in profiles:
            if profile.name in self._agents:
                raise UsageError(f"there are two agents named {profile.name!r}")
            self._agents[profile.name] = _Agent(profile, CircuitBreaker(failures, cooldown_s, clock))
        self.rules = sorted(rules, key=lambda rule: -rule.priority)  # stable: equal priorities keep their order
        self.fallback = tuple(fallback)
        self.trust = trust
        self.most_queued = most_queued
        self._queue: deque[_Waiter] = deque()
        self._check_names()

    def _check_names(self) -> None:
        names = [(f"rule {rule.name!r}", rule.agent) for rule in self.rules]
        names += [("the fallback chain", name) for name in self.fallback]
        for where, name in names:
            if name not in self._agents:
                closest = nearest(name, self._agents)
                fix = f"Did you mean {closest!r}?" if closest else f"The agents are {', '.join(self._agents) or 'none'}"
                raise UsageError(f"there is no agent {name!r}", where=where, fix=fix)

    # -- deciding --------------------------------------------------------------------------------------------------

    def decide(self, task: Task | Mapping[str, Any]) -> RoutingAnswer:
        """The agent that would get the task now. Nothing is reserved."""
        return self._placed(self._choose(facts_of(task), ()))

    def _placed(self, choice: Assigned | _Wait | Unroutable) -> RoutingAnswer:
        """The choice as an answer; a task that must wait gets its position in the queue."""
        if not isinstance(choice, _Wait):
            return choice
        if len(self._queue) >= self.most_queued:
            return Unroutable("queue_full", f"{self.most_queued} tasks are already waiting: {choice.reason}")
        position = 1 + sum(not waiter.agents.isdisjoint(choice.agents) for waiter in self._queue)
        return Queued(position, choice.agents, f"waits at position {position}: {choice.reason}")

    def _choose(self, facts: Mapping[str, Any], exclude: Sequence[str]) -> Assigned | _Wait | Unroutable:
        if not self._agents:
            return Unroutable("no_agents", "no agents are registered")
        matched = self._matched(facts, exclude)
        choice = self._first_free(matched)
        if choice is not None:
            return choice
        if matched:
            names = dict.fromkeys(candidate.agent.profile.name for candidate in matched)
            reason = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} down"
        else:
            reason = f"no agent is known for {facts.get('task_type', 'a task without a type')!r}"
        spare = [_Candidate(self._agents[name], f"fallback: {reason}") for name in self.fallback if name not in exclude]
        return self._first_free(spare) or self._unroutable(facts, [*matched, *spare])

    def _matched(self, facts: Mapping[str, Any], exclude: Sequence[str]) -> list[_Candidate]:
        """The agents named by rules, then those capable by their profile, best first."""
        by_rule = []
        for rule in self.rules:
            if rule.agent not in exclude and rule.matches(facts):
                because = f": {rule.because}" if rule.because else ""
                reason = f"rule {rule.name!r} (priority {rule.priority}){because}"
                by_rule.append(_Candidate(self._agents[rule.agent], reason, rule.name))
        return [*by_rule, *self._capable(facts, exclude)]

    def _capable(self, facts: Mapping[str, Any], exclude: Sequence[str]) -> list[_Candidate]:
        kind = facts.get("task_type")
        skills = set(facts.get("required_skills") or ())
        agents = [
            agent
            for name, agent in self._agents.items()
            if name not in exclude and kind in agent.profile.task_types and skills <= set(agent.profile.skills)
        ]
        trusts = {a.profile.name: self.trust(a.profile.name, str(kind)) if self.trust else None for a in agents}

        def rank(agent: _Agent) -> tuple[float, float, int]:
            trust = trusts[agent.profile.name]
            worth = (UNMEASURED if trust is None else trust) * (1 - agent.share)
            return -worth, agent.share, _COST_ORDER[agent.profile.cost_tier]

        candidates = []
        for agent in sorted(agents, key=rank):
            trust = trusts[agent.profile.name]
            measured = "not measured" if trust is None else f"{trust:.2f}"
            load = f"load {agent.load}/{agent.profile.max_concurrent}"
            reason = f"capability match for {kind!r} among {len(agents)}: trust {measured}, {load}"
            candidates.append(_Candidate(agent, reason, trust=trust))
        return candidates

    def _first_free(self, candidates: list[_Candidate]) -> Assigned | _Wait | None:
        """The first free candidate, or those to wait for if some are at least up; None if all are down."""
        busy: dict[str, str] = {}
        for candidate in candidates:
            name = candidate.agent.profile.name
            if candidate.agent.is_free:
                reason = f"{candidate.reason} ({'; '.join(busy.values())})" if busy else candidate.reason
                return Assigned(name, reason, candidate.rule, candidate.trust)
            busy[name] = f"{name} is {candidate.agent.condition}"
        up = tuple(dict.fromkeys(c.agent.profile.name for c in candidates if c.agent.is_up))
        return _Wait(up, "; ".join(busy.values())) if up else None

    def _unroutable(self, facts: Mapping[str, Any], candidates: list[_Candidate]) -> Unroutable:
        if not candidates:
            kinds = sorted({kind for agent in self._agents.values() for kind in agent.profile.task_types})
            task = f"the task type {facts['task_type']!r}" if "task_type" in facts else "a task without a task type"
            return Unroutable("unknown_task_type", f"no rule and no agent fits {task}; known: {', '.join(kinds)}")
        waits = {c.agent.profile.name: c.agent.breaker.retry_s for c in candidates}
        down = ", ".join(f"{name} for {wait:.0f} s" for name, wait in waits.items())
        return Unroutable("all_down", f"every suitable agent is down: {down}", min(waits.values()))

    # -- working ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def slot(
        self,
        task: Task | Mapping[str, Any],
        *,
        exclude: Sequence[str] = (),
        on_queued: Callable[[Queued], None] | None = None,
    ) -> AsyncIterator[Assigned]:
        """Holds a slot of an agent for the block; waits while all are at capacity.

        An exception in the block counts as a failure of the agent, a cancellation does not. Raises RoutingError.
        """
        assigned = await self._acquire(facts_of(task), tuple(exclude), on_queued)
        success: bool | None = None
        try:
            yield assigned
            success = True
        except Exception:
            success = False
            raise
        finally:
            self._release(assigned.agent, success)

    async def run(self, task: Task | Mapping[str, Any], call: Callable[[str], Awaitable[T]]) -> Routed[T]:
        """Awaits `call(agent)`; if it fails, tries the next suitable agent. Raises the last error if all fail.

        Raises RoutingError if there was no agent to try.
        """
        tried: list[str] = []
        failure: Exception | None = None
        while True:
            try:
                assigned = await self._acquire(facts_of(task), tuple(tried), None)
            except RoutingError as error:
                if failure is None:
                    raise
                raise failure from error
            success: bool | None = None
            try:
                result = await call(assigned.agent)
                success = True
                return Routed(result, assigned, tuple(tried))
            except Exception as error:
                success = False
                failure = error
                tried.append(assigned.agent)
            finally:
                self._release(assigned.agent, success)

    async def _acquire(
        self, facts: Mapping[str, Any], exclude: tuple[str, ...], on_queued: Callable[[Queued], None] | None
    ) -> Assigned:
        self._serve_queue()
        answer = self._placed(self._choose(facts, exclude))
        if isinstance(answer, Unroutable):
            raise RoutingError(answer)
        if isinstance(answer, Assigned):
            self._reserve(answer.agent)
            return answer
        if on_queued is not None:
            on_queued(answer)
        waiter = _Waiter(facts, exclude, frozenset(answer.agents), asyncio.get_running_loop().create_future())
        self._queue.append(waiter)
        try:
            return await waiter.assignment
        except asyncio.CancelledError:
            if waiter.assignment.cancelled():
                self._queue.remove(waiter)
            elif waiter.assignment.exception() is None:  # assigned at the very moment of the cancellation
                self._release(waiter.assignment.result().agent, None)
            raise

    def _reserve(self, name: str) -> None:
        agent = self._agents[name]
        agent.load += 1
        agent.breaker.begin()

    def _release(self, name: str, success: bool | None) -> None:
        agent = self._agents[name]
        agent.load -= 1
        agent.breaker.record(success)
        self._serve_queue()

    def _serve_queue(self) -> None:
        """Assigns free agents to waiting tasks, in order; fails tasks whose agents are all down."""
        for waiter in list(self._queue):
            agents = self._agents.values()
            if all(agent.is_up and not agent.is_free for agent in agents):
                return  # the usual case: the first in the queue took what was free
            choice = self._choose(waiter.facts, waiter.exclude)
            if isinstance(choice, _Wait) or waiter.assignment.done():
                continue
            self._queue.remove(waiter)
            if isinstance(choice, Assigned):
                self._reserve(choice.agent)
                waiter.assignment.set_result(choice)
            else:
                waiter.assignment.set_exception(RoutingError(choice))

    # -- state -----------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """The number of waiting tasks."""
        return len(self._queue)

    def state(self) -> dict[str, dict[str, Any]]:
        """The load, limit and circuit breaker state of each agent."""
        return {
            name: {"load": agent.load, "limit": agent.profile.max_concurrent, "breaker": agent.breaker.state}
            for name, agent in self._agents.items()
        }


def facts_of(task: Task | Mapping[str, Any]) -> Mapping[str, Any]:
    """The facts of a task for rules: its action and its meta (task_type, required_skills, …)."""
    if isinstance(task, Mapping):
        return task
    action = {} if task.action is None else {"action": task.action}
    return {**action, **task.meta}
