"""How well each agent does, in figures and in words.

    Explore: mean reward 0.82 (n=41), best at codebase_search 0.94, worst at synthesis 0.61

The figures come from the store's rollups, so a million spans cost milliseconds; the spans of a delegation log are
summed directly. Only verified rewards count. A reward span usually repeats the reward of the span that it judges, so
its reward counts only for agents whose own spans have none. A trace or span that judges scored afterwards counts once
for each agent that acted in it (see `scores`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_forge.traces.stats import Aggregate

if TYPE_CHECKING:
    from agent_forge.traces.span import Span
    from agent_forge.traces.store import Credit, Store

BY = ("agent", "model", "category", "kind")


@dataclass(frozen=True)
class Rating:
    """Rewards of a group: their number, mean, and its standard error (None below two)."""

    name: str | None
    count: int
    mean: float
    error: float | None


@dataclass(frozen=True)
class Performance:
    """The figures of one agent; None where nothing was measured."""

    agent: str
    spans: int
    errors: int
    mean_s: float
    cost: float | None
    input_tokens: int | None
    output_tokens: int | None
    rating: Rating | None
    credit: float | None  # earned in the spans that judges scored: its shares of their rewards
    categories: tuple[Rating, ...]  # the best first
    models: tuple[Rating, ...]

    def words(self) -> str:
        """One line for people."""
        if self.rating is None:
            spans = f"{self.spans} span{'s' * (self.spans != 1)}"
            return f"{self.agent}: no verified reward yet ({spans}, {self.errors} failed)"
        text = f"{self.agent}: mean reward {self.rating.mean:.2f} (n={self.rating.count})"
        named = [rating for rating in self.categories if rating.name is not None]
        if len(named) == 1:
            text += f", at {named[0].name} {named[0].mean:.2f}"
        elif named:
            best, worst = named[0], named[-1]
            text += f", best at {best.name} {best.mean:.2f}, worst at {worst.name} {worst.mean:.2f}"
        return text

    def to_json(self) -> dict[str, Any]:
        return {
            "agent": self.agent,
            "spans": self.spans,
            "errors": self.errors,
            "mean_s": self.mean_s,
            "cost": self.cost,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "n": self.rating.count if self.rating else 0,
            "mean_reward": self.rating.mean if self.rating else None,
            "reward_se": self.rating.error if self.rating else None,
            "credit": self.credit,
            "categories": [_rating_json("category", rating) for rating in self.categories],
            "models": [_rating_json("model", rating) for rating in self.models],
            "words": self.words(),
        }


def _rating_json(what: str, rating: Rating) -> dict[str, Any]:
    return {what: rating.name, "n": rating.count, "mean_reward": rating.mean, "reward_se": rating.error}


def performance(source: Store | Iterable[Span], **window: Any) -> list[Performance]:
    """How each agent did, the most active first. `window` takes `since` and `until`, for a store."""
    from agent_forge.traces.store import Store

    groups = source.aggregate(BY, **window) if isinstance(source, Store) else aggregate_spans(source, BY)
    agents: dict[str, tuple[list[Aggregate], list[Credit]]] = {}
    for group in groups:
        if group.group["agent"] is not None:
            agents.setdefault(str(group.group["agent"]), ([], []))[0].append(group)
    for credit in source.credits(**window) if isinstance(source, Store) else ():
        if credit.agent in agents:
            agents[credit.agent][1].append(credit)
    rows = [_performance(agent, groups, credits) for agent, (groups, credits) in agents.items()]
    return sorted(rows, key=lambda row: (-(row.rating.count if row.rating else 0), -row.spans, row.agent))


def _performance(agent: str, groups: Sequence[Aggregate], credits: Sequence[Credit]) -> Performance:
    judged = rated(groups)
    work = [group for group in groups if group.group["kind"] != "reward"] or list(groups)
    spans = sum(group.spans for group in work)
    models = [group for group in work if group.group["kind"] == "model"]  # other kinds repeat what their calls used
    tokens = [group for group in models if group.tokens_n] or [group for group in work if group.tokens_n]
    costs = [group for group in models if group.cost_n] or [group for group in work if group.cost_n]
    return Performance(
        agent,
        spans,
        sum(group.errors for group in work),
        sum(group.duration_s for group in work) / spans,
        sum(group.cost for group in costs) if costs else None,
        sum(group.input_tokens for group in tokens) if tokens else None,
        sum(group.output_tokens for group in tokens) if tokens else None,
        _rating(agent, judged, credits),
        sum(credit.share * credit.reward for credit in credits) if credits else None,
        _ratings("category", judged, credits),
        _ratings("model", judged, credits),
    )


def rated(groups: Iterable[Aggregate]) -> list[Aggregate]:
    """The groups whose rewards count: spans that were rewarded themselves, otherwise the reward spans."""
    with_rewards = [group for group in groups if group.reward_n]
    return [group for group in with_rewards if group.group["kind"] != "reward"] or with_rewards


def _ratings(by: str, groups: Sequence[Aggregate], credits: Sequence[Credit]) -> tuple[Rating, ...]:
    names = {group.group[by] for group in groups} | {getattr(credit, by) for credit in credits}
    ratings = []
    for name in sorted(names, key=str):
        own = [group for group in groups if group.group[by] == name]
        ratings.append(_rating(name, own, [credit for credit in credits if getattr(credit, by) == name]))
    return tuple(sorted((rating for rating in ratings if rating), key=lambda rating: -rating.mean))


def _rating(name: str | None, groups: Sequence[Aggregate], credits: Sequence[Credit]) -> Rating | None:
    # An agent may have acted in several categories of one judged span, which still is one judgement.
    judged: Collection[float] = {(credit.trace_id, credit.span_id): credit.reward for credit in credits}.values()
    count = sum(group.reward_n for group in groups) + len(judged)
    if not count:
        return None
    total = sum(group.reward_sum for group in groups) + sum(judged)
    squares = sum(group.reward_sumsq for group in groups) + sum(reward**2 for reward in judged)
    spread = max(squares - total**2 / count, 0.0)
    error = math.sqrt(spread / (count - 1) / count) if count > 1 else None
    return Rating(name, count, total / count, error)


def aggregate_spans(spans: Iterable[Span], by: Sequence[str] = BY) -> list[Aggregate]:
    """What `Store.aggregate` returns, from finished spans in memory."""
    sums: dict[tuple[Any, ...], list[float]] = {}
    for span in spans:
        if span.end_ns is None:
            continue
        row = sums.setdefault(tuple(getattr(span, name) for name in by), [0.0] * 11)
        tokens = span.input_tokens is not None or span.output_tokens is not None
        added = (
            1, span.status == "error", (span.end_ns - span.start_ns) / 1e9, tokens, span.input_tokens or 0,
            span.output_tokens or 0, span.cost is not None, span.cost or 0.0, span.reward is not None,
            span.reward or 0.0, (span.reward or 0.0) ** 2,
        )  # fmt: skip
        for place, value in enumerate(added):
            row[place] += value
    aggregates = []
    for key, row in sums.items():
        spans_n, errors, seconds, tokens_n, tokens_in, tokens_out, cost_n, cost, rewards, total, squares = row
        aggregates.append(Aggregate(
            dict(zip(by, key, strict=True)), int(spans_n), int(errors), seconds, int(tokens_n), int(tokens_in),
            int(tokens_out), int(cost_n), cost, int(rewards), total, squares,
        ))  # fmt: skip
    return aggregates
