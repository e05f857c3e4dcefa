"""How well each agent does: the same figures from the store's rollups and from the spans, and the sentence."""

from __future__ import annotations

import random

import pytest
from understand_graphs import make

from agent_forge.traces.performance import aggregate_spans, performance
from agent_forge.traces.store import Store
from agent_forge.traces.trust import DAY_S, TrustTable

DAY = 86_400


def delegations(count=200, seed=3):
    rng = random.Random(seed)
    truth = {"codebase_search": 0.94, "synthesis": 0.61, None: 0.7}
    spans = []
    for i in range(count):
        agent, category = rng.choice(["Explore", "Plan"]), rng.choice(list(truth))
        start = 1_760_000_000 + i * 3600
        span = make(f"{i:x}", start, start + rng.randint(1, 30), kind="agent", agent=agent, category=category,
                    model=rng.choice(["haiku", "opus"]), status=rng.choice(["ok", "error"]))  # fmt: skip
        span.trace_id = f"{i + 1:032x}"
        span.reward = (
            None if rng.random() < 0.2 else round(rng.betavariate(8 * truth[category], 8 * (1 - truth[category])), 3)
        )
        span.cost, span.input_tokens = rng.choice([(None, None), (0.25, 100)])
        spans.append(span)
    return spans


def test_the_sentence_that_was_asked_for():
    spans = [
        make(f"a{i}", i, i + 1, kind="agent", agent="Explore", category="codebase_search", reward=0.94)
        for i in range(26)
    ]
    spans += [
        make(f"b{i}", i, i + 1, kind="agent", agent="Explore", category="synthesis", reward=0.61) for i in range(15)
    ]
    spans += [make(f"c{i}", i, i + 1, kind="tool", agent="Explore") for i in range(9)]
    (row,) = performance(spans)
    assert row.words() == "Explore: mean reward 0.82 (n=41), best at codebase_search 0.94, worst at synthesis 0.61"


def test_other_sentences():
    def words(*spans):
        return [row.words() for row in performance(spans)]

    assert words(make("a", 0, 1, agent="Plan", status="error")) == ["Plan: no verified reward yet (1 span, 1 failed)"]
    assert words(make("a", 0, 1, agent="Plan", reward=0.5)) == ["Plan: mean reward 0.50 (n=1)"]
    assert words(make("a", 0, 1, agent="Plan", reward=0.5, category="code")) == [
        "Plan: mean reward 0.50 (n=1), at code 0.50"
    ]
    assert words(make("a", 0, 1)) == []


def test_the_store_and_the_spans_give_the_same(tmp_path):
    spans = delegations()
    store = Store.open(tmp_path)
    store.add(spans)
    assert same([row.to_json() for row in performance(store)], [row.to_json() for row in performance(spans)])
    rewards = [span.reward for span in spans if span.agent == "Explore" and span.reward is not None]
    explore = next(row for row in performance(store) if row.agent == "Explore")
    assert explore.rating.count == len(rewards)
    assert explore.rating.mean == pytest.approx(sum(rewards) / len(rewards))
    mean = sum(rewards) / len(rewards)
    variance = sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)
    assert explore.rating.error == pytest.approx((variance / len(rewards)) ** 0.5)
    window = performance(store, since=float(1_760_000_000 + 50 * 3600), until=float(1_760_000_000 + 100 * 3600))
    assert sum(row.spans for row in window) == 50
    store.close()


def same(a, b):
    """Equal but for rounding, in nested JSON."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == pytest.approx(b) if isinstance(a, float) else a == b


def test_a_judgement_does_not_count_beside_what_it_judged():
    work = make("w", 0, 5, kind="agent", agent="A", category="code", reward=0.8)
    judgement = make("j", 5, 5, "w", kind="reward", agent="A", reward=0.8)
    (row,) = performance([work, judgement])
    assert (row.rating.count, row.spans) == (1, 1)
    work.reward = None
    (row,) = performance([work, judgement])
    assert row.rating.count == 1


def test_unmeasured_is_none_and_unfinished_is_left_out():
    (row,) = performance([make("a", 0, 4, agent="A"), make("b", 0, None, agent="A")])
    assert (row.spans, row.mean_s, row.cost, row.input_tokens, row.rating) == (1, 4, None, None, None)
    assert row.to_json()["mean_reward"] is None
    assert aggregate_spans([make("b", 0, None)]) == []


def test_trust_from_the_stores_rollups_is_near_trust_from_the_spans(tmp_path):
    spans = delegations(400)
    store = Store.open(tmp_path)
    store.add(spans)
    by_span, by_day = TrustTable(), TrustTable()
    assert by_span.observe_spans(spans) == by_day.observe_store(store)
    by_span.now_s = by_day.now_s = max(by_span.now_s, by_day.now_s)
    for row in by_span.rows():
        belief = by_day._believe([(), (row["agent"], row["model"]), (row["agent"], row["model"], row["category"])])
        assert belief.mean == pytest.approx(row["mean"], abs=0.01)  # half a day of a half-life of thirty
        assert belief.count == pytest.approx(row["count"], rel=0.02)
    store.close()


def test_trust_from_a_store_leaves_out_what_has_faded_and_what_is_no_share(tmp_path):
    store = Store.open(tmp_path)
    assert TrustTable().observe_store(store) == 0
    old = make("0a", 1000, 1001, kind="agent", agent="A", reward=1.0)
    new = make("0b", 1000 + 400 * DAY, 1001 + 400 * DAY, kind="agent", agent="A", reward=1.0)
    odd = make("0c", 1000 + 400 * DAY, 1001 + 400 * DAY, kind="agent", agent="B", reward=-3.0)
    nobody = make("0d", 1000 + 400 * DAY, 1001 + 400 * DAY, reward=1.0)
    store.add([old, new, odd, nobody])
    assert TrustTable(half_life_s=30 * DAY_S).observe_store(store) == 1
    assert TrustTable(half_life_s=None).observe_store(store) == 2
    store.close()
