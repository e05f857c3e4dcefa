"""Rewards: a table of answers for each agent, and what must hold for every answer."""

from __future__ import annotations

import json
import random
from functools import cache
from statistics import fmean, median
from typing import Any

import pytest

from agent_forge.errors import AgentForgeError, ConfigError, UsageError
from agent_forge.learning.exercises import solver
from agent_forge.rewards import (
    EXERCISE,
    RewardProfile,
    RewardWeights,
    reward_profile,
    reward_profiles,
    score,
    score_record,
    score_result,
    score_trace,
)
from agent_forge.rewards.profiles import COMPONENTS
from agent_forge.rewards.reward import judged
from agent_forge.rewards.safety import forbidden, leaks, unsupported
from agent_forge.tasks import Draft, Exercise, Family, Verdict, families, family
from agent_forge.traces.span import Span
from agent_forge.traces.turns import turns
from agent_forge.traces.validate import validate_spans

AGENTS = sorted(set(reward_profiles()) - {"default", "plus-minus-one"})
SANDBOXED = ("qa", "builder")  # their checkers start processes
FAST = {"latency_s": 1.0, "tokens": 300, "calls": 0}


@cache
def exercise_of(agent: str) -> tuple[Exercise, Any]:
    exercise = family(agent).make(seed=3, level=0.5)
    return exercise, exercise.solution()


def text_of(answer: Any) -> str:
    return answer if isinstance(answer, str) else json.dumps(answer)


def with_text(value: Any, extra: str) -> Any:
    """The answer with something appended to its first longer text."""
    if isinstance(value, str):
        return value + extra, True
    done = False
    if isinstance(value, dict):
        ordered = sorted(value, key=lambda key: -len(value[key]) if isinstance(value[key], str) else 0)
        copy: Any = dict(value)
    elif isinstance(value, list):
        ordered, copy = list(range(len(value))), list(value)
    else:
        return value, False
    for key in ordered:
        copy[key], done = with_text(value[key], extra)
        if done:
            break
    return copy, done


@pytest.mark.parametrize("agent", AGENTS)
def test_the_table_of_an_agent(agent: str) -> None:
    exercise, right = exercise_of(agent)
    stuffing = " ".join(sorted(set(exercise.prompt.split()), key=str.lower)[:60])
    answers = {
        "perfect": right,
        "good": f"Here is my answer:\n{text_of(right)}" if family(agent).schema is not None else right,
        "wrong": solver("random", family(agent), exercise).text,
        "empty": "",
        "malformed": text_of(right)[: len(text_of(right)) // 2],
        "stuffed": with_text(right, " " + stuffing)[0],
        "leaking": with_text(right, " Write to jo.miller@corp.io or call (555) 123-4567.")[0],
        "copied": exercise.prompt,
    }
    rewards = {name: score(agent, answer, exercise, FAST) for name, answer in answers.items()}
    rewards["slow"] = score(agent, right, exercise, {**FAST, "latency_s": 1e4})
    total = {name: reward.total for name, reward in rewards.items()}
    weights = reward_profile(agent).weights
    assert total["perfect"] == pytest.approx(1.0), rewards["perfect"].why
    assert total["slow"] == pytest.approx(1 - weights.efficiency)
    assert total["perfect"] >= total["good"] > total["wrong"] > total["empty"]
    assert total["empty"] <= 0.1
    assert total["malformed"] < total["good"] - 0.2
    assert total["stuffed"] <= total["perfect"]
    assert total["leaking"] <= 0.2
    assert "cap" in rewards["leaking"].components
    assert total["copied"] <= 0.35
    for reward in rewards.values():
        assert 0 <= reward.total <= 1
        assert set(reward.components) == {*COMPONENTS, "cap"}
        assert all(0 <= value <= 1 for value in reward.components.values())
        assert sum(reward.weights.values()) == pytest.approx(1)
        if not reward.correct:
            assert reward.components["efficiency"] == 0
            assert reward.why


def test_every_agent_of_the_roster_has_a_family_and_a_profile_of_its_own() -> None:
    from agent_forge.agents.profiles import roster

    profiles = roster("genesis")
    assert sorted(profiles) == AGENTS
    assert len(AGENTS) == 15
    for name, profile in profiles.items():
        weights = reward_profile(profile.reward or "").weights
        assert profile.family in families()
        assert 0.5 <= weights.correctness <= 0.6, name
        assert weights.format == 0.2
        assert 0.1 <= weights.efficiency <= 0.15
        assert 0.1 <= weights.safety <= 0.15


@pytest.mark.parametrize("agent", AGENTS)
def test_the_reward_rises_with_correctness(agent: str) -> None:
    (exercise, right), rules = exercise_of(agent), reward_profile(agent)
    for facts in ({}, FAST, {"latency_s": 1e4}):
        totals = [
            judged(rules, family(agent), Verdict(step / 10), right, exercise.expected, facts).total
            for step in range(11)
        ]
        assert totals == sorted(totals)
        assert totals[0] < totals[-1]


@pytest.mark.parametrize("agent", AGENTS)
def test_a_random_answer_is_far_below_real_ones_and_stuffing_never_pays(agent: str) -> None:
    real, drawn = [], []
    for seed in range(2 if agent in SANDBOXED else 8):
        exercise = family(agent).make(seed=seed, level=0.6)
        right, other = exercise.solution(), solver("random", family(agent), exercise).text
        real.append(score(agent, f"So:\n```json\n{text_of(right)}\n```" if seed % 2 else right, exercise, FAST).total)
        drawn.append(score(agent, other, exercise, FAST).total)
        for honest in (right, json.loads(other) if family(agent).schema is not None else other)[seed % 2 :]:
            stuffed = with_text(honest, " best leading quality solution " + exercise.prompt[:200])[0]
            assert score(agent, stuffed, exercise, FAST).total <= score(agent, honest, exercise, FAST).total + 1e-9
    assert fmean(drawn) < median(real) - 0.2


def test_what_stands_around_the_answer_counts_too() -> None:
    for agent, words in (("finance", "Mail me at jo.miller@corp.io:"), ("hr", "She is 45 and married:")):
        exercise, right = exercise_of(agent)
        assert score(agent, f"{words}\n{json.dumps(right)}", exercise, FAST).total <= 0.2
        assert score(agent, f"Here you are:\n{json.dumps(right)}", exercise, FAST).total == pytest.approx(0.9)


def test_nothing_measured_costs_a_right_answer_nothing_and_gives_a_wrong_one_nothing() -> None:
    exercise = family("finance").make(seed=1)
    right = score("finance", exercise.solution(), exercise.expected)
    assert right.total == pytest.approx(1.0)
    assert right.weights["efficiency"] == 0
    wrong = {**exercise.solution(), "total": "1", "outstanding": "2"}
    assert score("finance", wrong, exercise.expected).total == score("finance", wrong, exercise.expected, FAST).total


@pytest.mark.parametrize(
    ("metadata", "efficiency"),
    [
        ({"latency_s": 30}, 1.0),
        ({"latency_ms": 75_000}, 0.5),
        ({"tokens_used": 8000}, 0.0),
        ({"tokens": 10, "calls": 20}, 0.5),
        ({"latency_s": 10, "tokens": 5000, "calls": 3}, 0.5),
    ],
)
def test_efficiency_is_the_worst_of_what_was_measured(metadata: dict[str, Any], efficiency: float) -> None:
    exercise = family("finance").make(seed=1)
    reward = score("finance", exercise.solution(), exercise, metadata)
    assert reward.components["efficiency"] == pytest.approx(efficiency)
    assert reward.total == pytest.approx(0.9 + 0.1 * efficiency)


def test_personal_data_is_leaked_unless_the_task_asks_for_it() -> None:
    assert leaks({"email": "jo@corp.io"}, '{"contact": "JO@corp.io"}') == []
    assert leaks({"email": "jo@corp.io"}, "Call Jo.") == ["EMAIL jo@corp.io"]
    assert leaks({"a": ["card 4111 1111 1111 1111"]}, "4111-1111-1111-1111") == []
    assert leaks({"card": 4111111111111111}, "") == ["CARD 4111111111111111"]
    assert leaks("nothing here, order 1730764800", "") == []
    assert forbidden({"years": 4, "note": "She is married."})
    assert not forbidden({"years": 4, "note": "Knows SQL and payroll."})


@pytest.mark.parametrize(
    ("text", "invented"),
    [
        ("Revenue of 1,200 is up by 20 percent from 1,000.", []),
        ("Together that makes 2,200 in the two years.", []),
        ("Revenue of 1,350 is up by 35 percent again.", ["1350", "35"]),
        ("This was confirmed by Angela Morgan in person.", ["Angela Morgan"]),
        ("This was confirmed by Maria Lopez in person.", []),
        ("She said “sales were never this good before” to us.", ["“sales were never this good before”"]),
        ("She said “Sales grew in both regions” to us.", []),
        ("Here are the 3 steps to take next.", []),
        ("The Seven Best Ideas Of Angela Morgan", []),  # a title: capitals do not mark names
        ("4711", []),  # a field, which the checker judges
    ],
)
def test_claims_need_support(text: str, invented: list[str]) -> None:
    source = "Maria Lopez: sales grew in both regions. Revenue 1000 in 2025, 1200 in 2026."
    assert unsupported({"text": text}, source, ("numbers", "names", "quotations")) == invented


def test_invented_quotations_cost_half_each_and_two_are_capped() -> None:
    notes = Family("notes", lambda rng, level: Draft("", {}), lambda answer, expected: Verdict(1.0), None, {})
    rules = RewardProfile("texts", claims=("quotations",))
    note = "As the auditor said, “the books are in perfect order”."

    def rewarded(*texts: str, **facts: Any) -> Any:
        return score(rules, {"notes": texts}, {}, {"prompt": "Audit the books.", **facts}, family=notes)

    assert rewarded(note).components["safety"] == 0.5
    assert rewarded(note, note).components["safety"] == 0
    assert rewarded(note, note).total == rewarded(note, note).components["cap"] == rules.safety_cap
    assert "no support for “the books" in rewarded(note).why
    assert rewarded(note, note, observations=["The books are in perfect order."]).total == pytest.approx(1.0)
    assert score(rules, {"notes": [note, note]}, {}, family=notes).total == pytest.approx(1.0)  # no prompt to compare


def test_the_reward_of_the_original() -> None:
    exercise = family("finance").make(seed=1)
    right, wrong = exercise.solution(), {**exercise.solution(), "total": "0"}

    def total(answer: Any, **facts: Any) -> float:
        return score("plus-minus-one", answer, exercise, facts).total

    assert total(wrong) == -0.5
    assert total(wrong, turns=2, latency_s=1.0) == pytest.approx(-0.35)
    assert total(right, turns=4, latency_s=9, tool_errors=2) == pytest.approx(0.6)
    assert total(right, turns=1, latency_s=1.0) == 1.0
    assert total(wrong, tool_errors=50) == -1.0


def span(reward: float | None, parts: list[dict[str, Any]]) -> dict[str, Any]:
    fields = {"trace_id": "1" * 32, "span_id": "2" * 16, "name": "a", "kind": "agent", "agent": "qa", "status": "ok"}
    return {**fields, "start_ns": 0, "end_ns": 1, "reward": reward,
            "attributes": {"agent_forge.reward.components": parts}}  # fmt: skip


def test_the_trace_validator_knows_caps_and_floors() -> None:
    exercise = family("finance").make(seed=1)
    answers = [exercise.solution(), "", {**exercise.solution(), "total": "0"}, "jo@corp.io"]
    rewards = [score("finance", answer, exercise) for answer in answers]
    rewards += [score("plus-minus-one", answer, exercise, {"tool_errors": 9}) for answer in answers]
    for reward in rewards:
        assert validate_spans([(1, span(reward.total, reward.parts()))]) == []
        for off in (reward.total + 0.01, reward.total - 0.01, None):
            (fault,) = validate_spans([(1, span(off, reward.parts()))])
            assert fault.code == "reward_components"
    aspects = [{"name": "style", "value": 0.2}, {"name": "cap", "value": 0.1}]
    assert validate_spans([(1, span(0.9, aspects))]) == []


def run_of(exercise: Exercise, answer: str) -> list[Span]:
    trace = "1" * 32
    root = Span(trace, "a" * 16, "finance", "agent", None, 0, 2 * 10**9, "ok", agent="finance",
                inputs={"request": exercise.prompt}, outputs={"answer": answer, "state": "done"},
                attributes={EXERCISE: {"family": exercise.family, "seed": exercise.seed, "level": exercise.level,
                                       "held_out": exercise.held_out}})  # fmt: skip
    messages = {"messages": [{"role": "user", "content": exercise.prompt}]}
    call = {"text": "", "tool_calls": [{"id": "c", "name": "calculator", "arguments": {"expression": "1+1"}}]}
    first = Span(trace, "b" * 16, "chat m", "model", "a" * 16, 1, 5, "ok", model="m", inputs=messages, outputs=call,
                 input_tokens=100, output_tokens=20)  # fmt: skip
    tool = Span(trace, "c" * 16, "calculator", "tool", "a" * 16, 6, 7, "ok", outputs={"result": 2})
    last = Span(trace, "d" * 16, "chat m", "model", "a" * 16, 8, 9, "ok", model="m", inputs=messages,
                outputs={"text": answer}, input_tokens=120, output_tokens=30)  # fmt: skip
    return [root, first, tool, last]


def test_a_stored_trace_and_the_record_of_the_original_score_alike() -> None:
    exercise = family("finance").make(seed=4, level=0.7)
    for answer in (json.dumps(exercise.solution()), '{"total": 1}'):
        spans = run_of(exercise, answer)
        (record,) = turns([spans])
        assert record["final_result"] == answer
        assert [(turn["action"], turn["tool_output"]) for turn in record["turns"]] == [
            ("calculator", {"result": 2}),
            ("answer", None),
        ]
        stored, from_record = score_trace(spans), score_record(json.loads(json.dumps(record)))
        assert stored.total == from_record.total == score("finance", answer, exercise, FAST).total
        assert score_trace(spans, "plus-minus-one").total == (1.0 if stored.correct else pytest.approx(-0.4))


def test_a_record_without_what_was_expected_is_believed() -> None:
    record = {"agent": "finance", "turns": [], "final_result": '{"total": 1}', "correct": True, "done": True}
    assert score_record(record).components["correctness"] == 1.0
    assert score_record({**record, "correct": False}).components["correctness"] == 0.0
    for wrong in ({"agent": "finance"}, {**record, "correct": None}):
        with pytest.raises(UsageError):
            score_record(wrong)
    with pytest.raises(UsageError, match="what was expected"):
        score_trace([Span("1" * 32, "a" * 16, "x", "agent", None, 0, 1, "ok", agent="finance")])


def test_the_result_of_an_agent_is_scored() -> None:
    from agent_forge.agents import Agent
    from agent_forge.agents.profiles import roster
    from agent_forge.learning.exercises import GivenAnswer

    exercise = family("finance").make(seed=2)
    agent = Agent(roster("genesis")["finance"], [], GivenAnswer("m", json.dumps(exercise.solution())), record=False)
    assert score_result("finance", agent.run(exercise.prompt), exercise).total == pytest.approx(1.0)
    silent = Agent(roster("genesis")["finance"], [], GivenAnswer("m", "I do not know."), record=False)
    assert score_result("finance", silent.run(exercise.prompt), exercise).total <= 0.1


def test_wrong_profiles_are_refused(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="sum to 1"):
        RewardWeights(0.9, 0.2, 0.1, 0.1)
    with pytest.raises(UsageError, match="Did you mean 'finance'"):
        score("finanse", "", {})
    with pytest.raises(UsageError, match="no task family"):
        score("default", "", {})
    (tmp_path / "own.yaml").write_text("family: finance\nweights: {correctness: 0.7}\n", encoding="utf-8")
    with pytest.raises(AgentForgeError, match="sum to 1"):
        reward_profile(tmp_path / "own.yaml")
    (tmp_path / "own.yaml").write_text("family: finance\nweights: {correctness: 0.5, safety: 0.2}\n", encoding="utf-8")
    assert reward_profile(tmp_path / "own.yaml").weights == RewardWeights(0.5, 0.2, 0.1, 0.2)


def test_answers_at_random_stay_in_range() -> None:
    rng = random.Random(5)
    for _ in range(60):
        exercise = family("finance").make(seed=rng.randrange(10**6), level=rng.random())
        text = json.dumps(exercise.solution())
        cut = rng.randrange(len(text))
        answer = rng.choice([text[:cut], text[cut:], text.replace('"', "'"), text + text, "[" + text + "]", text])
        reward = score(
            "finance", answer, exercise, {"tokens": rng.randrange(10**4), "latency_s": rng.expovariate(0.02)}
        )
        assert 0 <= reward.total <= 1
        assert reward.total <= reward.components["cap"]
