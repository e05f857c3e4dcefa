"""Whom to trust next time: how well an agent with a model does at a category of work.

For each agent × model × category, and for the levels above it (agent × model, and everything), a reward r in [0, 1]
counts as r successes and 1 - r failures, whose weight halves every half-life. The belief about a cell is a Beta
distribution: its prior has the mean of the level above, *without the cell's own evidence* (which must not count
twice), and the weight of at most `prior_strength` observations.

Routing uses it with care: `lower_bound` (the true mean lies below it with probability `level` only) is None until there
is enough evidence, and `choose` reserves an explicit share of choices for exploration, so that a candidate that is
rarely chosen can still prove itself.

    >>> table = TrustTable(minimum=3)
    >>> for day in range(20):
    ...     table.observe("Explore", "haiku", "codebase_search", reward=1.0, time_s=day * 86_400.0)
    >>> table.lower_bound("Explore", "haiku", "codebase_search") > 0.8
    True
    >>> table.lower_bound("Plan", "opus", "codebase_search") is None
    True
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from agent_forge.errors import UsageError
from agent_forge.traces.beta import beta_quantile

if TYPE_CHECKING:
    from agent_forge.traces.span import Span
    from agent_forge.traces.stats import Aggregate
    from agent_forge.traces.store import Store

Cell = tuple[str | None, ...]  # (agent, model, category), (agent, model) or ()
Candidate = tuple[str | None, str | None]  # (agent, model)

DAY_S = 86_400.0


@dataclass(slots=True)
class _Evidence:
    """Weighted successes and failures as of `time_s`, to which older evidence has faded."""

    good: float = 0.0
    bad: float = 0.0
    time_s: float = -math.inf

    def at(self, time_s: float, half_life_s: float) -> tuple[float, float]:
        if self.time_s == -math.inf:
            return 0.0, 0.0
        fade = 0.5 ** (max(0.0, time_s - self.time_s) / half_life_s)
        return self.good * fade, self.bad * fade

    def add(self, good: float, bad: float, time_s: float, half_life_s: float) -> None:
        """Adds an observation. A late one (logs are merged) is faded to the present instead of turning time back."""
        late = 0.5 ** (max(0.0, self.time_s - time_s) / half_life_s)
        self.good, self.bad = self.at(time_s, half_life_s)
        self.time_s = max(self.time_s, time_s)
        self.good += late * good
        self.bad += late * bad


@dataclass(frozen=True, slots=True)
class Belief:
    """A Beta(a, b) distribution over the mean reward, and the (faded) count of observations of the cell itself."""

    a: float
    b: float
    count: float

    @property
    def mean(self) -> float:
        return self.a / (self.a + self.b)

    def quantile(self, p: float) -> float:
        return beta_quantile(p, self.a, self.b)


@dataclass(frozen=True, slots=True)
class Choice:
    """Who was chosen, and why: "bound" (best lower bound), "explore" (at random), or "order" (no evidence yet)."""

    candidate: tuple[str | None, str | None]
    reason: str
    lower_bound: float | None


@dataclass
class TrustTable:
    """Beliefs about agents, models and categories; see the module for the mathematics.

    With `half_life_s` None nothing fades; `minimum` is the (faded) count below which there is no lower bound; `level`
    is the probability that the true mean is below the bound; `explore` is the share of random choices.
    """

    half_life_s: float | None = 30 * DAY_S
    prior_strength: float = 4.0
    minimum: float = 10.0
    level: float = 0.05
    explore: float = 0.1
    now_s: float = -math.inf  # the latest time seen; beliefs are as of then
    _cells: dict[Cell, _Evidence] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.explore <= 1 or not 0 < self.level < 1 or self.prior_strength <= 0:
            raise UsageError("explore must lie in [0, 1], level in (0, 1), and prior_strength above 0")
        self._life = math.inf if self.half_life_s is None else self.half_life_s

    def observe(
        self, agent: str | None, model: str | None, category: str | None, *, reward: float, time_s: float
    ) -> None:
        """Counts one verified reward. Raises UsageError if it does not lie in [0, 1]."""
        if not 0 <= reward <= 1:
            raise UsageError(f"a reward must lie in [0, 1] to count as trust, not {reward}")
        self._count((agent, model, category), reward, 1 - reward, time_s)

    def _count(self, cell: Cell, good: float, bad: float, time_s: float) -> None:
        self.now_s = max(self.now_s, time_s)
        for level in ((), cell[:2], cell):
            self._cells.setdefault(level, _Evidence()).add(good, bad, time_s, self._life)

    def observe_spans(self, spans: Iterable[Span]) -> int:
        """Counts the spans of agents that have a reward in [0, 1]; returns their number.

        A reward span does not count if the span it judges has a reward itself: that would count it twice.
        """
        counted = rewarded(spans)
        for span in counted:
            assert span.reward is not None
            time_s = (span.end_ns or span.start_ns) / 1e9
            self.observe(span.agent, span.model, span.category, reward=span.reward, time_s=time_s)
        return len(counted)

    def observe_store(self, store: Store, *, until_s: float | None = None) -> int:
        """Counts the rewards of agents in a store, day by day from its rollups, and what judges said about them.
        Returns the number of rewards and of agents judged.

        A judged span is one observation, divided among the agents that acted in it: an agent's credit (its share times
        the reward) counts as success, the rest of its share as failure. Any other reward counts as given at noon of its
        day. Days more than ten half-lives back, whose weight is below a
        thousandth, are left out; so is a day's group whose rewards do not lie in [0, 1].
        """
        from agent_forge.traces.performance import BY, rated

        counted = 0
        for start_s in self._days(store, until_s):
            agents: dict[Any, list[Aggregate]] = {}
            for group in store.aggregate(BY, since=start_s, until=start_s + DAY_S):
                agents.setdefault(group.group["agent"], []).append(group)
            for agent, groups in agents.items():
                for group in rated(groups) if agent is not None else ():
                    if 0 <= group.reward_sum <= group.reward_n:
                        cell = (agent, group.group["model"], group.group["category"])
                        bad = group.reward_n - group.reward_sum
                        self._count(cell, group.reward_sum, bad, start_s + DAY_S / 2)
                        counted += group.reward_n
        for credit in store.credits(until=until_s):
            good = credit.share * credit.reward
            cell = (credit.agent, credit.model, credit.category)
            self._count(cell, good, credit.share - good, credit.start_ns / 1e9)
            counted += 1
        return counted

    def _days(self, store: Store, until_s: float | None) -> list[float]:
        """The starts of the days with spans, as far back as the half-life makes them count."""
        ticks = store.timeline(minutes=24 * 60, until=until_s)
        if not ticks:
            return []
        first = ticks[-1].start_ns / 1e9 - 10 * self._life
        return [tick.start_ns / 1e9 for tick in ticks if tick.start_ns / 1e9 >= first]

    def belief(self, agent: str | None = None, model: str | None = None, category: str | None = None) -> Belief:
        """The belief about a cell; without a category, about agent and model; without arguments, about everything."""
        line: list[Cell] = [()]
        if agent is not None or model is not None:
            line.append((agent, model))
        if category is not None:
            line.append((agent, model, category))
        return self._believe(line)

    def _believe(self, line: Sequence[Cell]) -> Belief:
        """Down the line of levels: a level's evidence from elsewhere becomes the prior of the next."""
        a = b = 1.0  # a uniform prior above all levels
        for cell, inner in pairwise(line):
            good, bad = self._counts(cell)
            inner_good, inner_bad = self._counts(inner)
            a, b = a + max(0.0, good - inner_good), b + max(0.0, bad - inner_bad)
            shrink = min(1.0, self.prior_strength / (a + b))
            a, b = a * shrink, b * shrink
        good, bad = self._counts(line[-1])
        return Belief(a + good, b + bad, good + bad)

    def _counts(self, cell: Cell) -> tuple[float, float]:
        evidence = self._cells.get(cell)
        return evidence.at(self.now_s, self._life) if evidence else (0.0, 0.0)

    def lower_bound(self, agent: str | None, model: str | None, category: str | None) -> float | None:
        """The lower credible bound of the mean reward; None while fewer than `minimum` observations count."""
        belief = self.belief(agent, model, category)
        return belief.quantile(self.level) if belief.count >= self.minimum else None

    def upper_bound(self, agent: str | None, model: str | None, category: str | None) -> float | None:
        """The upper credible bound of the mean reward; None while fewer than `minimum` observations count."""
        belief = self.belief(agent, model, category)
        return belief.quantile(1 - self.level) if belief.count >= self.minimum else None

    def standing(self, candidates: Sequence[Candidate], category: str | None) -> dict[Candidate, float | None]:
        """The lower bound of each candidate, as far as the counts tell them apart: one whose upper bound reaches the
        best lower bound may be as good as the best, and stands with it. None for those without enough evidence.

        >>> table = TrustTable(minimum=3)
        >>> for reward in (1.0, 1.0, 0.0, 1.0):
        ...     table.observe("Explore", "haiku", "search", reward=reward, time_s=0.0)
        ...     table.observe("Plan", "opus", "search", reward=1.0, time_s=0.0)
        >>> len(set(table.standing([("Explore", "haiku"), ("Plan", "opus")], "search").values()))
        1
        """
        bounds = {candidate: self.lower_bound(*candidate, category) for candidate in candidates}
        best = max((bound for bound in bounds.values() if bound is not None), default=None)
        for candidate, bound in bounds.items():
            upper = None if bound is None else self.upper_bound(*candidate, category)
            if upper is not None and best is not None and upper >= best:
                bounds[candidate] = best
        return bounds

    def choose(self, candidates: Sequence[Candidate], category: str | None, rng: random.Random) -> Choice:
        """Chooses one of several (agent, model).

        At random for the share `explore`; otherwise the best lower bound, the caller's order deciding between those
        that the counts do not tell apart, or the first candidate while none has a bound. Raises UsageError without
        candidates.
        """
        if not candidates:
            raise UsageError("there is no candidate to choose from")
        bounds = self.standing(candidates, category)
        if rng.random() < self.explore:
            drawn = candidates[rng.randrange(len(candidates))]
            return Choice(drawn, "explore", bounds[drawn])
        bounded = {candidate: bound for candidate, bound in bounds.items() if bound is not None}
        if not bounded:
            return Choice(candidates[0], "order", None)
        best = max(bounded, key=lambda candidate: bounded[candidate])
        return Choice(best, "bound", bounded[best])

    def rows(self) -> list[dict[str, Any]]:
        """One row per agent × model × category, those with the most evidence first."""
        rows = []
        for cell in self._cells:
            if len(cell) == 3:
                belief = self._believe([(), cell[:2], cell])
                rows.append(
                    {
                        "agent": cell[0],
                        "model": cell[1],
                        "category": cell[2],
                        "count": belief.count,
                        "mean": belief.mean,
                        "lower_bound": belief.quantile(self.level) if belief.count >= self.minimum else None,
                    }
                )
        return sorted(rows, key=lambda row: (-row["count"], str(row["agent"]), str(row["model"]), str(row["category"])))


def rewarded(spans: Iterable[Span]) -> list[Span]:
    """The spans of agents whose rewards count for trust, each reward once."""
    valid = [span for span in spans if span.agent is not None and span.reward is not None and 0 <= span.reward <= 1]
    judged = {(span.trace_id, span.span_id) for span in valid}
    return [span for span in valid if span.kind != "reward" or (span.trace_id, span.parent_id) not in judged]


# -- calibration -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bin:
    """One row of a reliability table: predictions in [low, high), and the rewards observed after them."""

    low: float
    high: float
    count: int
    predicted: float
    observed: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """The quality of the predictions on a replayed log, each made before its reward was seen.

    `brier` is the mean squared error; `brier_reference` that of always predicting the mean so far; `error` the expected
    calibration error: the mean distance between predicted and observed over the bins, weighted by their counts.
    """

    count: int
    brier: float | None
    brier_reference: float | None
    error: float | None
    reliability: tuple[Bin, ...]


def replay(spans: Iterable[Span], table: TrustTable | None = None, bins: int = 10) -> Calibration:
    """Replays a log in order of time: predicts each reward, then observes it. Changes `table`."""
    table = table or TrustTable()
    pairs, reference = [], []
    for span in sorted(rewarded(spans), key=lambda span: span.end_ns or span.start_ns):
        assert span.reward is not None
        table.now_s = max(table.now_s, (span.end_ns or span.start_ns) / 1e9)
        pairs.append((table.belief(span.agent, span.model, span.category).mean, span.reward))
        reference.append((table.belief().mean, span.reward))
        table.observe_spans([span])
    rows = _reliability(pairs, bins)
    gap = sum(row.count * abs(row.predicted - row.observed) for row in rows)
    return Calibration(len(pairs), _brier(pairs), _brier(reference), gap / len(pairs) if pairs else None, rows)


def _brier(pairs: list[tuple[float, float]]) -> float | None:
    return sum((predicted - seen) ** 2 for predicted, seen in pairs) / len(pairs) if pairs else None


def _reliability(pairs: list[tuple[float, float]], bins: int) -> tuple[Bin, ...]:
    groups: dict[int, list[tuple[float, float]]] = {}
    for predicted, seen in pairs:
        groups.setdefault(min(bins - 1, int(predicted * bins)), []).append((predicted, seen))
    return tuple(
        Bin(
            place / bins,
            (place + 1) / bins,
            len(group),
            sum(predicted for predicted, _ in group) / len(group),
            sum(seen for _, seen in group) / len(group),
        )
        for place, group in sorted(groups.items())
    )
