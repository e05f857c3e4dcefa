"""Collections: they reach their target, keep failures as they come, and go on where they were interrupted."""

from __future__ import annotations

import asyncio
import random

import pytest

from agent_forge.errors import UsageError
from agent_forge.traces.collect import Scenario, Target, acollect, collect, seed_of
from agent_forge.traces.dataset import balanced
from agent_forge.traces.recorder import Recorder
from agent_forge.traces.reward import exit_code, grader
from agent_forge.traces.store import Store
from agent_forge.traces.validate import validate_spans


def flaky(chance):
    async def run(recorder, seed):
        with recorder.span("step", kind="tool", inputs={"seed": seed}):
            await asyncio.sleep(0)
            return exit_code(0 if random.Random(seed).random() < chance else 1)

    return run


def blocking(recorder, seed):
    with recorder.span("step", kind="tool"):
        return [grader((seed % 100) / 100), exit_code(0)]


def breaking(recorder, seed):
    raise RuntimeError(f"seed {seed}")


def unverified(recorder, seed):
    return None


@pytest.fixture
def recorder(tmp_path):
    with Recorder(Store.open(tmp_path)) as found:
        yield found


SCENARIOS = [
    Scenario("easy", "Explore", flaky(0.9), "search"),
    Scenario("hard", "Explore", flaky(0.3), "synthesis"),
    Scenario("plain", "Plan", blocking),
    Scenario("broken", "Build", breaking),
]


def test_a_target_is_met_exactly_with_a_minimum_for_each_agent(recorder):
    done = collect(SCENARIOS, Target(traces=20, per_agent=5), recorder)
    assert (done.traces, done.added) == (20, 20)
    assert done.agents == {"Explore": 7, "Plan": 7, "Build": 6}
    assert recorder.store.count() == 7 * 2 + 7 * 2 + 6
    few = collect(SCENARIOS, Target(traces=0, per_agent=10), recorder)
    assert (few.traces, few.added) == (30, 10)
    assert set(few.agents.values()) == {10}


def test_failures_are_kept_at_their_natural_rate_and_only_sampling_balances(recorder):
    done = collect([SCENARIOS[0]], Target(traces=60), recorder)
    traces = list(recorder.store.each_trace())
    assert len(traces) == 60
    sample = balanced(traces)
    assert sample.natural_rate == pytest.approx(done.mean_reward)
    assert 0.75 < sample.natural_rate < 1
    assert sample.successes == sample.failures == round(60 * (1 - sample.natural_rate))


def test_an_agent_that_raises_is_a_recorded_failure(recorder):
    done = collect([SCENARIOS[3]], Target(traces=3), recorder)
    assert (done.traces, done.errors, done.mean_reward) == (3, 3, None)
    spans = list(recorder.store.search())
    assert {span.status for span in spans} == {"error"}
    assert all(span.error.startswith("RuntimeError: seed") and span.reward is None for span in spans)


def test_nothing_verified_stays_unknown(recorder):
    done = collect([Scenario("quiet", "A", unverified)], Target(traces=2), recorder)
    assert done.mean_reward is None
    assert {span.reward for span in recorder.store.search()} == {None}


def test_what_is_collected_is_valid(recorder):
    collect(SCENARIOS, Target(traces=8), recorder)
    spans = [span.to_dict() for trace in recorder.store.each_trace() for span in trace]
    assert validate_spans(enumerate(spans, 1)) == []
    rewarded = [span for span in spans if span.get("reward") is not None and span["agent"] == "Plan"]
    assert len(rewarded[0]["attributes"]["agent_forge.reward.components"]) == 2


def test_an_interrupted_collection_goes_on_and_ends_the_same(tmp_path):
    def attempts(store):
        return sorted(
            (s.attributes["agent_forge.scenario"], s.attributes["agent_forge.attempt"], s.reward)
            for s in store.search(kind="agent", limit=1000)
        )

    def interrupted(standing):
        if standing.added == 5:
            raise KeyboardInterrupt

    with Recorder(Store.open(tmp_path / "a")) as first:
        with pytest.raises(KeyboardInterrupt):
            collect(SCENARIOS[:2], Target(traces=16), first, concurrency=1, progress=interrupted)
        assert len(attempts(first.store)) == 5
        done = collect(SCENARIOS[:2], Target(traces=16), first)
        assert (done.traces, done.added) == (16, 11)
        assert collect(SCENARIOS[:2], Target(traces=16), first).added == 0
        with Recorder(Store.open(tmp_path / "b")) as second:
            collect(SCENARIOS[:2], Target(traces=16), second, concurrency=8)
            assert attempts(first.store) == attempts(second.store)


def test_collections_do_not_count_each_others_traces(recorder):
    collect(SCENARIOS[:1], Target(traces=3), recorder, name="one")
    assert collect(SCENARIOS[:1], Target(traces=3), recorder, name="two").added == 3


def test_progress_is_told(recorder):
    seen = []
    collect(SCENARIOS[:1], Target(traces=4), recorder, progress=lambda standing: seen.append(standing.traces))
    assert seen == [1, 2, 3, 4]


def test_a_wrong_call_is_not_an_agents_failure(recorder):
    def wrong(recorder, seed):
        raise UsageError("no such tool")

    with pytest.raises(UsageError, match="no such tool"):
        collect([Scenario("w", "A", wrong)], Target(traces=50), recorder)
    with pytest.raises(UsageError, match="needs scenarios"):
        asyncio.run(acollect([], Target(), recorder))
    with pytest.raises(UsageError, match="name of its own"):
        collect([SCENARIOS[0], SCENARIOS[0]], Target(), recorder)
    with pytest.raises(UsageError, match="negative"):
        Target(traces=-1)


def test_seeds_are_stable_and_differ():
    assert seed_of(0, "c", "s", 1) == seed_of(0, "c", "s", 1)
    assert len({seed_of(0, "c", s, n) for s in "ab" for n in range(50)}) == 100
