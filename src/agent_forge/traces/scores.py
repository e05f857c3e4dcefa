"""Scores that judges give afterwards: a person, a checker function, a model.

A score is a reward span inside the span that it judges (by default the outermost one), with the name of the judge.
Spans never change, so a judge who changes their mind adds another score; **the latest score of a judge counts**, and
the earlier ones stay in the trace as its history. **The reward of a judged span is the mean over its judges.** What a
program itself recorded as the reward of a span counts only as long as nobody has judged it.

A judged span is one observation of the agents that acted in it. `judged_agents` divides it by credit: the share of an
agent times the reward is its credit, and the credits add up to the reward.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_forge.errors import UsageError
from agent_forge.traces.conventions import REWARD_NAME, REWARD_VALUE
from agent_forge.traces.span import ATTEMPT, ROLLOUT, Span, rollout_of

if TYPE_CHECKING:
    from agent_forge.traces.graph import SpanGraph
    from agent_forge.traces.store import Store

JUDGE = "agent_forge.judge"
_SCORED_NS = "agent_forge.scored_ns"
_COMMENT = "agent_forge.comment"
COMPONENTS = "agent_forge.reward.components"
USER = "user"  # the judge where none is named
LONGEST_NAME = 100
MOST_CREDITED = 1_500  # spans up to which Shapley values are computed; in longer traces all leaves share equally


@dataclass(frozen=True, slots=True)
class Judgement:
    """The opinion of one judge about one span."""

    span_id: str  # what was judged
    judge: str
    value: float
    scored_ns: int
    components: Mapping[str, float] = field(default_factory=dict)
    comment: str | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object without the fields that are empty."""
        data = {"span_id": self.span_id, "judge": self.judge, "value": self.value,
                "components": dict(self.components), "comment": self.comment}  # fmt: skip
        return {name: value for name, value in data.items() if value not in (None, {})}


def add_score(
    store: Store,
    spans: Sequence[Span],
    value: float,
    *,
    span_id: str | None = None,
    by: str = USER,
    components: Mapping[str, float] | None = None,
    comment: str | None = None,
    links: Sequence[tuple[str, str]] = (),
) -> Span:
    """Stores a score of a trace (all its `spans`), or of one of its spans, and returns the reward span.

    `components` are aspects of the judgement, each in [0, 1] like the score itself; `links` name the spans that led to
    it, such as the call of a judging model. Raises UsageError, with nothing stored, for values out of range or a span
    that is not in the trace.
    """
    judged = _judged(spans, span_id)
    judge = by.strip()
    if not judge or len(judge) > LONGEST_NAME or not judge.isprintable():
        raise UsageError(f"{by[:LONGEST_NAME]!r} is not the name of a judge", fix="Use 1 to 100 printable characters")
    parts = [
        {"name": name, "value": _unit(part, f"the component {name!r}")} for name, part in (components or {}).items()
    ]
    now = time.time_ns()
    reward, (rollout, attempt) = _unit(value, "a score"), rollout_of(judged)
    attributes: dict[str, Any] = {ROLLOUT: rollout, ATTEMPT: attempt, REWARD_NAME: judge, REWARD_VALUE: reward}
    attributes |= {JUDGE: judge, _SCORED_NS: now}
    if parts:
        attributes[COMPONENTS] = parts
    if comment:
        attributes[_COMMENT] = comment
    # It stands at the end of what it judges: a score given a week later does not make the trace a week long.
    at_ns = judged.end_ns if judged.end_ns is not None else now
    span = Span(
        judged.trace_id, os.urandom(8).hex(), "score", "reward", judged.span_id, at_ns, at_ns, "ok",
        attributes=attributes, links=list(links), session=judged.session, category=judged.category,
        reward=reward,
    )  # fmt: skip
    store.add([span])
    return span


def score_document(store: Store, span: Span) -> dict[str, Any]:
    """What is known after a score was stored: the score, the scores of the trace that count, its reward, and the credit
    of each agent that acted in what was judged."""
    spans = store.trace(span.trace_id)
    credit: dict[str, float] = {}
    for one in judged_agents(spans):
        if one.span_id == span.parent_id:
            credit[one.agent] = credit.get(one.agent, 0.0) + one.share * one.reward
    return {
        "trace_id": span.trace_id,
        "span_id": span.parent_id,
        "judge": span.attributes[JUDGE],
        "value": span.reward,
        "reward": trace_reward(spans),
        "scores": [judgement.to_json() for judgement in scores(spans)],
        "credit": credit,
    }


def _judged(spans: Sequence[Span], span_id: str | None) -> Span:
    if not spans:
        raise UsageError("there is no trace to judge", fix="`agent-forge traces ls` lists the traces")
    if span_id is None:
        return roots(spans)[0]
    matches = [span for span in spans if span.span_id.startswith(span_id.lower()) and span.kind != "reward"]
    if len(matches) != 1 or not span_id:
        what = "has several spans that begin with" if matches else "has no span"
        fix = f"`agent-forge traces show {spans[0].trace_id} --json` lists them"
        raise UsageError(f"the trace {what} {span_id[:40]!r}", fix=fix)
    return matches[0]


def _unit(value: Any, what: str) -> float:
    number = isinstance(value, (int, float)) and math.isfinite(value)  # True and False are 1 and 0
    if not number or not 0 <= value <= 1:
        raise UsageError(f"{what} must be a number from 0 (bad) to 1 (good), not {str(value)[:40]!r}")
    return float(value)


def roots(spans: Iterable[Span]) -> list[Span]:
    """The outermost spans of a trace, in order of start; reward spans only if there are no others."""
    ordered = sorted(spans, key=lambda span: (span.start_ns, span.span_id))
    ids = {span.span_id for span in ordered}
    outermost = [span for span in ordered if span.parent_id not in ids]
    return [span for span in outermost if span.kind != "reward"] or outermost or ordered[:1]


def scores(spans: Iterable[Span]) -> list[Judgement]:
    """The scores that count: the latest of each judge for each span, oldest first."""
    latest: dict[tuple[str, str], Judgement] = {}
    given = (score for span in spans if (score := _score(span)) is not None)
    for score in sorted(given, key=lambda score: score.scored_ns):
        latest.pop((score.span_id, score.judge), None)
        latest[score.span_id, score.judge] = score
    return list(latest.values())


def is_score(span: Span) -> bool:
    """Whether a judge gave this reward; false for one that the program recorded itself."""
    return span.kind == "reward" and span.reward is not None and isinstance(span.attributes.get(JUDGE), str)


def _score(span: Span) -> Judgement | None:
    if not is_score(span) or span.parent_id is None:
        return None
    assert span.reward is not None
    parts, scored_ns = span.attributes.get(COMPONENTS), span.attributes.get(_SCORED_NS)
    named = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return Judgement(
        span.parent_id,
        span.attributes[JUDGE],
        span.reward,
        scored_ns if isinstance(scored_ns, int) else span.start_ns,
        {str(part.get("name")): part.get("value", math.nan) for part in named},
        span.attributes.get(_COMMENT),
    )


def judged_rewards(spans: Iterable[Span]) -> dict[str, float]:
    """The reward of each judged span: the mean over its judges."""
    values: dict[str, list[float]] = {}
    for score in scores(spans):
        values.setdefault(score.span_id, []).append(score.value)
    return {span_id: sum(given) / len(given) for span_id, given in values.items()}


def trace_reward(spans: Sequence[Span]) -> float | None:
    """The reward of a trace: the mean over the judges of its outermost spans; if nobody judged them, the mean of their
    own rewards; without those, of the reward spans that the program recorded. None if nothing was verified."""
    outermost, judged = roots(spans), judged_rewards(spans)
    by_judges = [judged[span.span_id] for span in outermost if span.span_id in judged]
    own = [span.reward for span in outermost if span.reward is not None and not is_score(span)]
    recorded = [span.reward for span in spans if span.kind == "reward" and not is_score(span)]
    for rewards in (by_judges, own, [reward for reward in recorded if reward is not None]):
        if rewards:
            return sum(rewards) / len(rewards)
    return None


class JudgedAgent(NamedTuple):
    """What a judged span says about an agent that acted in it. Its credit is `share` × `reward`."""

    span_id: str
    agent: str
    model: str | None
    category: str | None
    share: float
    reward: float


def judged_agents(spans: Sequence[Span]) -> list[JudgedAgent]:
    """The agents that acted in each judged span of a trace, with their shares of the credit.

    The shares are Shapley values on the dependency graph, scaled so that those of the agents add up to 1 (leaves
    without an agent, such as planning for a team, get nothing). Where a run that was judged badly has failed leaves,
    they are shares of the blame.
    """
    rewards = judged_rewards(spans)
    if not rewards:
        return []
    from agent_forge.traces.graph import SpanGraph

    whole = SpanGraph(spans)
    outermost = roots(spans)[0].span_id
    agents: list[JudgedAgent] = []
    for span_id, reward in rewards.items():
        if span_id in whole.spans:
            # A score of the trace stands at its first root, and is about all roots that it may have.
            inside = whole if span_id == outermost else SpanGraph(_inside(whole, span_id))
            totals: dict[tuple[str, str | None, str | None], float] = {}
            for leaf, share in _shares(inside, reward).items():
                if (owner := _owner(whole, leaf)) is not None:
                    totals[owner] = totals.get(owner, 0.0) + share
            whole_share = sum(totals.values()) or 1.0  # 0 if nothing came of what the agents did
            agents += [JudgedAgent(span_id, *owner, share / whole_share, reward) for owner, share in totals.items()]
    return agents


def _inside(graph: SpanGraph, span_id: str) -> list[Span]:
    return [span for name, span in graph.spans.items() if name == span_id or span_id in graph.ancestors(name)]


def _shares(graph: SpanGraph, reward: float) -> Mapping[str, float]:
    """The share of each leaf; those of leaves that did work add up to 1."""
    from agent_forge.traces.credit import credit
    from agent_forge.traces.dependencies import workers

    leaves = workers(graph)
    failed = any(graph.spans[leaf].status == "error" for leaf in leaves)
    outcome = -1.0 if failed and reward < 0.5 else 1.0
    strategy = "shapley" if len(graph.spans) <= MOST_CREDITED else "uniform"
    shares = credit(graph, outcome, strategy)
    if not any(shares.values()):  # a success of leaves that all failed
        shares = credit(graph, outcome, "uniform")
    return {leaf: outcome * shares[leaf] for leaf in leaves}


def _owner(graph: SpanGraph, leaf: str) -> tuple[str, str | None, str | None] | None:
    """The agent of a leaf, its model and the category: those of the outermost span around the leaf that the agent did;
    a category may also stand on a span inside it."""
    around = [graph.spans[span_id] for span_id in (leaf, *graph.ancestors(leaf))]
    first = next((place for place, span in enumerate(around) if span.agent is not None), None)
    if first is None:
        return None
    agent = around[first].agent
    last = first
    while last + 1 < len(around) and around[last + 1].agent == agent:
        last += 1
    category = next((span.category for span in around[: last + 1] if span.category is not None), None)
    return str(agent), around[last].model, category
