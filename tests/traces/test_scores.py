"""Scores: every judge is heard once, the reward is their mean, and the credits of the agents add up to it."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest
from test_understand_credit import brute_force_shapley, random_work
from understand_graphs import TRACE, make, sid

from agent_forge.errors import UsageError
from agent_forge.traces import Recorder, Store, assemble, export_traces, import_file
from agent_forge.traces.performance import performance
from agent_forge.traces.scores import add_score, judged_agents, judged_rewards, roots, scores, trace_reward
from agent_forge.traces.trust import TrustTable
from agent_forge.traces.validate import validate_file


def team_run(**fields):
    """ada looked two things up, bob compared them; the plan was nobody's."""
    return [
        make("f", 0, 10, kind="run", **fields),
        make("e", 0, 1, "f", kind="plan"),
        make("a", 1, 4, "f", kind="task", agent="ada", category="search"),
        make("b", 1, 5, "f", kind="task", agent="ada", category="search"),
        make("c", 5, 9, "f", kind="task", links="ab", agent="bob", category="compare"),
    ]


@pytest.fixture
def judged(store):
    """A function that scores the stored team run and returns its trace."""
    store.add(team_run())

    def score(value, **options):
        add_score(store, store.trace(TRACE), value, **options)
        return store.trace(TRACE)

    return score


def test_each_judge_counts_once_and_the_reward_is_their_mean(judged, store):
    judged(0.0, by="ann")
    judged(1.0, by="ben")
    spans = judged(0.5, by="ann", components={"style": 0.25, "truth": 1}, comment="second thoughts")
    assert [(score.judge, score.value) for score in scores(spans)] == [("ben", 1.0), ("ann", 0.5)]
    assert scores(spans)[1].components == {"style": 0.25, "truth": 1.0}
    assert scores(spans)[1].comment == "second thoughts"
    assert trace_reward(spans) == assemble(spans).reward == 0.75
    assert [summary.reward for summary in store.traces(min_reward=0.75, max_reward=0.75)] == [0.75]
    assert len([span for span in spans if span.kind == "reward"]) == 3, "the first opinion stays as history"
    assert store.search(name="score").items[0].agent is None, "a judge is not the agent that acted"


def test_a_score_does_not_change_what_happened(judged, store):
    before = assemble(store.trace(TRACE)).to_json(outcome=1.0)
    after = assemble(judged(1.0)).to_json(outcome=1.0)
    for name in ("total_s", "work_s", "idle_s", "critical_path", "critical_path_s", "tools", "faults"):
        assert after[name] == before[name], name
    assert {name: share for name, share in after["credit"].items() if share} == {
        name: share for name, share in before["credit"].items() if share
    }
    assert [summary.end_ns for summary in store.traces()] == [10 * 10**9]


def test_judges_overrule_what_the_program_said_about_itself():
    spans = team_run(reward=1.0)
    assert trace_reward(spans) == 1.0
    store = Store.open(":memory:")
    store.add(spans)
    add_score(store, spans, 0.25, by="ann")
    assert trace_reward(store.trace(TRACE)) == 0.25
    assert [summary.reward for summary in store.traces()] == [0.25]


def test_every_agent_that_acted_is_judged_once(judged, store):
    judged(1.0)
    judged(0.0, by="ann")
    rows = {row.agent: row.to_json() for row in performance(store)}
    assert {agent: row["n"] for agent, row in rows.items()} == {"ada": 1, "bob": 1}
    assert {agent: row["mean_reward"] for agent, row in rows.items()} == {"ada": 0.5, "bob": 0.5}
    assert sum(row["credit"] for row in rows.values()) == pytest.approx(0.5)
    table = TrustTable(minimum=0.1)
    assert table.observe_store(store) == 2
    assert table.belief().count == pytest.approx(1.0), "one judged run is one observation, divided by credit"
    before = table.lower_bound("ada", None, "search")
    judged(1.0, by="ann")
    better = TrustTable(minimum=0.1)
    better.observe_store(store)
    assert better.lower_bound("ada", None, "search") > before


def test_a_score_of_a_span_reaches_only_those_who_acted_in_it(judged, store):
    spans = judged(1.0, span_id=sid("c"), by="ann")
    assert trace_reward(spans) is None, "one step is not the whole run"
    assert [(one.agent, one.share, one.reward) for one in judged_agents(spans)] == [("bob", 1.0, 1.0)]
    assert {row.agent: row.to_json()["n"] for row in performance(store)} == {"ada": 0, "bob": 1}
    assert [summary.reward for summary in store.traces()] == [None]


@pytest.mark.parametrize("block", range(4))
def test_the_credits_of_agents_are_the_shapley_values_of_their_leaves(block):
    """Against brute force over all orders, on 200 random graphs: and they add up to the reward."""
    for seed in range(block * 50, block * 50 + 50):
        rng = random.Random(seed)
        spans = random_work(seed)
        for span in spans[1:]:
            span.agent = rng.choice(["ada", "bob", "eve", None])
        reward = rng.choice([1.0, 0.8, 0.3, 0.0])
        store = Store.open(":memory:")
        store.add(spans)
        add_score(store, spans, reward, by="ann")
        found = judged_agents(store.trace(TRACE))
        failed = any(span.status == "error" for span in spans[1:])
        sign = -1.0 if failed and reward < 0.5 else 1.0
        expected: dict[str, float] = {}
        for span_id, share in brute_force_shapley(spans, sign).items():
            agent = next(span.agent for span in spans if span.span_id == span_id)
            if agent is not None:
                expected[agent] = expected.get(agent, 0.0) + sign * share
        total = sum(expected.values())
        assert {one.agent for one in found} == set(expected), f"seed {seed}"
        for one in found:
            assert one.share == pytest.approx(expected[one.agent] / (total or 1.0), abs=1e-9), f"seed {seed}"
        if total > 1e-9:
            assert sum(one.share * one.reward for one in found) == pytest.approx(reward, abs=1e-9)


def test_nothing_is_credited_where_nobody_gave_a_reward():
    trajectory = assemble(team_run())
    document = json.loads(json.dumps(trajectory.to_json()))
    assert (document["reward"], document["outcome"], document["outcome_from"]) == (None, None, None)
    assert document["credit"] == trajectory.credit() == {}
    assert judged_agents(team_run()) == []


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        (1.5, {}, "from 0"),
        (float("nan"), {}, "from 0"),
        ("good", {}, "from 0"),
        (1, {"span_id": "ffff"}, "no span 'ffff'"),
        (1, {"span_id": "0"}, "several spans"),
        (1, {"by": " "}, "name of a judge"),
        (1, {"by": "a\nb"}, "name of a judge"),
        (1, {"components": {"style": 2}}, "the component 'style'"),
    ],
)
def test_bad_scores_are_refused_and_nothing_is_stored(judged, store, value, options, message):
    with pytest.raises(UsageError, match=message):
        judged(value, **options)
    assert store.count() == 5


def test_spans_that_come_after_the_score_share_its_credit(store):
    spans = team_run()
    store.add(spans[:4])
    add_score(store, store.trace(TRACE), 1.0)
    assert {one.agent for one in store.credits()} == {"ada"}
    store.add(spans[4:])
    assert {one.agent for one in store.credits()} == {"ada", "bob"}
    assert sum(one.share for one in store.credits()) == pytest.approx(1.0)


def test_scores_travel_with_their_trace(judged, tmp_path: Path):
    spans = judged(0.25, by="ann", components={"style": 0.5}, span_id=sid("a"))
    spans = judged(1.0, by="ben")
    for kind, name in (("jsonl", "spans.jsonl"), ("otlp", "spans.json")):
        export_traces([spans], kind, str(tmp_path / name))
        assert list(validate_file(str(tmp_path / name))) == []
        with Store.open(tmp_path / kind) as other:
            import_file(other, str(tmp_path / name))
            assert scores(other.trace(TRACE)) == scores(spans)
            assert [summary.reward for summary in other.traces()] == [1.0]
            assert sum(one.share * one.reward for one in other.credits()) == pytest.approx(1.25)


def test_deleted_traces_take_their_credits_along(judged, store):
    judged(1.0)
    assert len(store.credits()) == 2
    store.delete(before=10**12)
    assert store.credits() == []
    assert performance(store) == []


def test_windows_choose_judged_traces_by_their_start(judged, store):
    judged(1.0)
    assert store.credits(since=1) == []
    assert len(store.credits(until=1)) == 2


def test_a_store_of_version_3_can_be_judged(tmp_path: Path):
    packed = Path(__file__).parent / "fixtures" / "stores" / "version-3.db.gz"
    (tmp_path / "traces.db").write_bytes(gzip.decompress(packed.read_bytes()))
    with Store.open(tmp_path) as store:
        before = {summary.name: summary.reward for summary in store.traces()}
        assert before == {"question": None, "graded": 0.75}
        assert store.credits() == []
        [trace] = [summary.trace_id for summary in store.traces() if summary.name == "question"]
        add_score(store, store.trace(trace), 1.0)
        assert {row.agent: row.to_json()["n"] for row in performance(store)} == {"default": 1, "Explore": 1}
        assert store.check() == []
    with Store.open(tmp_path) as store:
        assert [(one.agent, one.share) for one in store.credits()] == [("default", pytest.approx(1.0))]


def test_the_program_s_own_reward_spans_count_as_before():
    recorder = Recorder(Store.open(":memory:"))
    with recorder.span("work", "agent", agent="ada") as span:
        pass
    recorder.reward(0.5, span)
    recorder.flush()
    spans = recorder.store.trace(span.trace_id)
    assert trace_reward(spans) == 0.5
    assert judged_rewards(spans) == {}
    assert roots(spans)[0].span_id == span.span_id
    recorder.close()
