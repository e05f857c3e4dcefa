"""Rewards of steps become advantages of model calls along the dependency graph: by hand, and against brute force."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_forge.errors import UsageError
from agent_forge.learning.step_credit import call_advantages, call_returns
from agent_forge.traces.span import Span

TRACE = "1" * 32


def span(name: str, at: int, *uses: str, parent: str | None = "run", kind: str = "model", **fields) -> Span:
    links = [(TRACE, use.rjust(16, "0")) for use in uses]
    outer = None if parent is None else parent.rjust(16, "0")
    return Span(TRACE, name.rjust(16, "0"), name, kind, outer, at, at + 1, "ok", links=links, **fields)


def run(*parts: Span, reward: float | None = None) -> list[Span]:
    whole = Span(TRACE, "run".rjust(16, "0"), "run", "run", None, 0, 100, "ok", reward=reward)
    return [whole, *parts]


def named(figures: dict[str, float]) -> dict[str, float]:
    return {name.lstrip("0"): value for name, value in figures.items()}


def test_a_call_is_judged_by_what_used_its_result_and_not_by_its_neighbour():
    """a -> tool x (reward 1), b -> tool y (reward 0), both -> c. The run as a whole got nothing."""
    spans = run(
        span("a", 1),
        span("x", 2, "a", kind="tool", reward=1.0),
        span("b", 3),
        span("y", 4, "b", kind="tool", reward=0.0),
        span("c", 5, "x", "y", reward=0.25),
    )
    assert named(call_returns(spans)) == {"a": 1.25, "b": 0.25, "c": 0.25}
    assert named(call_returns(spans, discount=0.5)) == {"a": 0.5 + 0.25 * 0.25, "b": 0.25 * 0.25, "c": 0.25}


def test_the_reward_of_the_run_belongs_to_what_its_result_came_from():
    """d is a detour that nothing used but the end of the run is c's: with `results` stated, d gets nothing."""
    parts = (span("a", 1), span("d", 2), span("c", 3, "a"))
    spans = run(*parts, reward=2.0)
    spans[0].links.append((TRACE, "c".rjust(16, "0")))
    assert named(call_returns(spans)) == {"a": 2.0, "d": 0.0, "c": 2.0}


def test_the_reward_of_a_task_belongs_to_its_parts():
    spans = run(
        span("t", 1, kind="task", reward=1.0),
        span("a", 2, parent="t"),
        span("b", 3, "a", parent="t"),
        span("c", 4, "t"),
    )
    assert named(call_returns(spans)) == {"a": 1.0, "b": 1.0, "c": 0.0}


def test_advantages_compare_the_same_call_of_the_group():
    """Both runs choose the right first step; only the second differs: so only it has an advantage."""
    good = run(span("a", 1, reward=1.0), span("b", 2, reward=1.0))
    bad = run(span("a", 1, reward=1.0), span("b", 2, reward=0.0))
    lonely = run(span("a", 1, reward=5.0), span("b", 2, reward=0.0), span("c", 3, reward=1.0))
    advantages = [named(each) for each in call_advantages([good, bad, lonely], [0, 0, 1], scale=False)]
    assert advantages == [{"a": 0.0, "b": 0.5}, {"a": 0.0, "b": -0.5}, {"a": 0.0, "b": 0.0, "c": 0.0}]
    assert call_advantages([run()], [0]) == [{}]
    with pytest.raises(UsageError, match="every run needs one"):
        call_advantages([good], [])


@given(st.integers(0, 10_000))
def test_returns_are_the_sum_over_all_paths_ends(seed):
    """Brute force on random graphs: every pair, by trying all chains of links."""
    rng = random.Random(seed)
    names = "abcde"[: rng.randint(1, 5)]
    uses = {b: [a for a in names[:i] if rng.random() < 0.4] for i, b in enumerate(names)}
    rewards = {name: rng.choice([None, 0.5, 2.0]) for name in names}
    spans = run(*(span(name, 2 * i + 1, *uses[name], reward=rewards[name]) for i, name in enumerate(names)))
    discount = rng.random()

    def distance(a: str, b: str) -> int | None:
        if a == b:
            return 0
        for length in range(len(names)):
            for between in itertools.permutations(names, length):
                chain = (a, *between, b)
                if all(x in uses[y] for x, y in itertools.pairwise(chain)):
                    return length + 1
        return None

    for a, value in named(call_returns(spans, discount=discount)).items():
        far = {b: distance(a, b) for b in names}
        expected = sum((rewards[b] or 0.0) * discount ** far[b] for b in names if far[b] is not None)
        assert value == pytest.approx(expected)
