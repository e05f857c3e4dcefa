"""The fallback chain: three attempts, each with a different strategy, then a person.

An attempt is accepted if it was verified (or, without checks, if it did not fail). Repeating an attempt is not a
strategy: no two attempts share one. Every attempt is a span that links to the attempts before it, with the reward of
its verification, so that trust learns from it.

    >>> import asyncio
    >>> async def weak(task, before):
    ...     raise TimeoutError("too slow")
    >>> async def strong(task, before):
    ...     return task.upper()
    >>> outcome = asyncio.run(with_fallback("shout", [Strategy("haiku", weak), Strategy("inline", strong)]))
    >>> outcome.state, outcome.result, [attempt.strategy for attempt in outcome.attempts]
    ('done', 'SHOUT', ['haiku', 'inline'])
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_forge.agents.assessment import Assessment, Check, Decision, decide, verify
from agent_forge.errors import UsageError
from agent_forge.traces.reward import Verification, components, reward_of

if TYPE_CHECKING:
    from agent_forge.traces.recorder import Recorder
    from agent_forge.traces.span import Span

TRIES = 3
ACCEPT = 0.5  # the minimum reward of an accepted attempt


@dataclass(frozen=True)
class Attempt:
    """One attempt: its strategy, its result or error, and the outcome of its verification."""

    strategy: str
    result: Any = None
    error: str | None = None
    looks: tuple[Verification, ...] = ()

    @property
    def reward(self) -> float | None:
        return reward_of(self.looks)


Work = Callable[[Any, Sequence[Attempt]], Awaitable[Any]]  # the task, and the attempts before
Person = Callable[[Any, Sequence[Attempt]], Awaitable[Any]]


@dataclass(frozen=True)
class Strategy:
    """A way to do a task: its name, the work, and the agent and model that do it (for the span and for trust)."""

    name: str
    work: Work
    agent: str | None = None
    model: str | None = None


@dataclass(frozen=True)
class Outcome:
    """How it ended: done (by an attempt), person (someone took over), declined (a person refused) or unresolved."""

    state: str
    result: Any = None
    attempts: tuple[Attempt, ...] = ()
    decision: Decision | None = None


@dataclass(frozen=True)
class Declined:
    """The answer of a person who refuses the work."""

    reason: str = ""


@dataclass
class Chain:
    """The settings of a chain of attempts; see `with_fallback`."""

    checks: Sequence[Check] = ()
    accept: float = ACCEPT
    person: Person | None = None
    recorder: Recorder | None = None
    category: str | None = None
    assessment: Assessment | None = None
    _spans: list[Span] = field(default_factory=list)

    async def run(self, task: Any, strategies: Sequence[Strategy]) -> Outcome:
        attempts: list[Attempt] = []
        for strategy in strategies:
            attempt = await self._try(strategy, task, attempts)
            attempts.append(attempt)
            if self._accepted(attempt):
                return Outcome("done", attempt.result, tuple(attempts))
        return await self._hand_over(task, attempts)

    async def _hand_over(self, task: Any, attempts: Sequence[Attempt]) -> Outcome:
        if self.person is None:
            return Outcome("unresolved", None, tuple(attempts))
        answer = await self.person(task, attempts)
        if isinstance(answer, Declined):
            return Outcome("declined", answer, tuple(attempts))
        return Outcome("person", answer, tuple(attempts))

    def _accepted(self, attempt: Attempt) -> bool:
        if attempt.error is not None:
            return False
        return not self.checks or (attempt.reward is not None and attempt.reward >= self.accept)

    async def _try(self, strategy: Strategy, task: Any, before: Sequence[Attempt]) -> Attempt:
        with self._scope(strategy, task) as span:
            try:
                result = await strategy.work(task, tuple(before))
            except Exception as error:
                attempt = Attempt(strategy.name, error=f"{type(error).__name__}: {error}")
            else:
                attempt = Attempt(strategy.name, result, looks=tuple(verify(result, self.checks)))
            if span is not None:
                self._describe(span, attempt)
        return attempt

    def _scope(self, strategy: Strategy, task: Any) -> Any:
        if self.recorder is None:
            return nullcontext(None)
        return self.recorder.span(
            f"try {strategy.name}",
            kind="agent",
            inputs=task,
            links=self._spans,
            agent=strategy.agent or strategy.name,
            model=strategy.model,
            category=self.category,
            assessment=self.assessment.to_json() if self.assessment else None,
        )

    def _describe(self, span: Span, attempt: Attempt) -> None:
        self._spans.append(span)
        span.outputs = attempt.result
        if attempt.error is not None:
            span.status, span.error = "error", attempt.error
        elif attempt.reward is not None:
            span.reward = attempt.reward
            span.status = "ok" if attempt.reward >= self.accept else "error"
            span.set(**{"agent_forge.reward.components": components(attempt.looks)})


async def with_fallback(task: Any, strategies: Sequence[Strategy], *, tries: int = TRIES, **options: Any) -> Outcome:
    """Tries the first `tries` strategies in order until one is accepted, then asks a person.

    Options are the fields of `Chain`: the `checks` of each result, the minimum reward to `accept` it, the `person` to
    ask (without one the outcome is "unresolved"), and a `recorder`. Raises UsageError without strategies, or for two of
    the same name.
    """
    names = [strategy.name for strategy in strategies]
    if not strategies or len(set(names)) != len(names):
        raise UsageError("a fallback chain needs strategies with different names")
    return await Chain(**options).run(task, strategies[:tries])


async def carry_out(
    task: Any,
    assessment: Assessment,
    *,
    inline: Strategy,
    delegates: Sequence[Strategy] = (),
    checkpoint: Callable[[Any], Awaitable[Any]] | None = None,
    **options: Any,
) -> Outcome:
    """The whole protocol: decide by the assessment, make a checkpoint if needed, do the work, verify, fall back.

    Inline work is delegated if it fails inline; delegated work is done inline if it fails. Work that needs a checkpoint
    or a person's consent does not start without it: if there is nobody to ask, the outcome is "unresolved" and nothing
    has been done.
    """
    decision = decide(assessment)
    person: Person | None = options.get("person")
    if decision.route == "ask":
        answer = await person(task, ()) if person is not None else None
        if person is None or isinstance(answer, Declined):
            return Outcome("unresolved" if person is None else "declined", answer, (), decision)
    if decision.route in ("ask", "checkpoint"):
        if checkpoint is None:
            return Outcome("unresolved", None, (), decision)
        await checkpoint(task)
    alone = decision.route == "inline" or not delegates or assessment.complexity == "low"
    order = [inline, *delegates] if alone else [*delegates[: TRIES - 1], inline]
    outcome = await with_fallback(task, order, assessment=assessment, **options)
    return Outcome(outcome.state, outcome.result, outcome.attempts, decision)
