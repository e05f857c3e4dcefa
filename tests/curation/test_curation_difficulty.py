"""Difficulty: measured first, monotone when estimated, explained always."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_forge.curation import difficulty, estimate, features, fit, measure
from agent_forge.curation.difficulties import FEATURES, WEIGHTS, failure_ranks, stratum_of
from agent_forge.errors import UsageError


def test_a_measured_pass_rate_comes_before_a_label_and_a_label_before_the_estimate() -> None:
    assert difficulty({"task": "x", "difficulty": "easy", "pass_rate": 0.1}).basis == "pass_rate"
    assert difficulty({"task": "x", "difficulty": "Easy"}).stratum == "easy"
    assert difficulty({"task": "x", "meta": {"pass_rate": 0.9}}).stratum == "easy"
    assert difficulty({"task": "x", "difficulty": "spicy"}).basis == "structure"
    assert difficulty({"task": "x", "difficulty": "easy"}, by="structure").basis == "structure"
    with pytest.raises(UsageError, match="no difficulty by 'guess'"):
        difficulty({}, by="guess")


def test_measuring_asks_the_policy_k_times() -> None:
    calls: list[int] = []

    def policy(row: dict[str, object], sample: int) -> bool:
        calls.append(sample)
        return sample < 2

    result = measure({"task": "x"}, policy, samples=8)
    assert (result.pass_rate, result.stratum, calls) == (0.25, "hard", list(range(8)))
    assert "0.25" in result.explain()
    with pytest.raises(UsageError):
        measure({}, policy, samples=0)


def test_features_read_rows_of_any_shape() -> None:
    graph = {
        "input": "Book a trip, but only if it costs at most 300",
        "target": {
            "nodes": [{"id": "1", "action": "find"}, {"id": "2", "action": "pay"}, {"id": "3", "action": "pay"}],
            "edges": [["1", "2"], ["2", "3"]],
        },
    }
    values = features(graph)
    assert (values["steps"], values["tools"], values["depth"], values["quantities"]) == (3, 2, 3, 1)
    assert values["constraints"] >= 3
    chat = {
        "messages": [
            {"role": "user", "content": "Do 2 things"},
            {"role": "assistant", "content": "1. a\n2. b", "tool_calls": [{}, {}]},
        ]
    }
    assert (features(chat)["steps"], features(chat)["tools"]) == (2, 2)
    assert features({"question": "q", "equation": "+ * 1 2 3"})["steps"] == 2
    assert features({"task": "t", "reasoning_steps": 4, "tools": ["a"]})["steps"] == 4
    cycle = {"target": {"nodes": [{"id": "1"}, {"id": "2"}], "edges": [["1", "2"], ["2", "1"]]}}
    assert features(cycle)["depth"] == 2


@given(st.sampled_from(FEATURES), st.floats(0, 10), st.dictionaries(st.sampled_from(FEATURES), st.floats(0, 20)))
def test_more_of_a_feature_never_makes_a_row_easier(name: str, more: float, some: dict[str, float]) -> None:
    values = dict.fromkeys(FEATURES, 1.0) | some
    raised = values | {name: values[name] + more}
    before, after = (WEIGHTS.rank(sum(WEIGHTS.contributions(v).values())) for v in (values, raised))
    assert after >= before


def test_the_estimate_says_what_it_rests_on() -> None:
    short = estimate({"question": "2 + 2?", "answer": "4"})
    long = estimate(
        {
            "question": "If Ann must buy 3 apples, 4 pears and 5 plums before 6, " * 8,
            "answer": "first " * 200,
            "steps": ["s"] * 9,
        }
    )
    assert long.score is not None
    assert short.score is not None
    assert long.score > short.score
    assert long.because
    assert list(long.because.values()) == sorted(long.because.values(), reverse=True)
    assert "harder than" in long.explain()
    assert "own label" in difficulty({"difficulty": "hard"}).explain()


def test_the_shipped_weights_are_fitted_and_not_negative() -> None:
    assert all(weight >= 0 for weight in WEIGHTS.weight.values())
    assert sum(weight > 0 for weight in WEIGHTS.weight.values()) >= 3
    assert list(WEIGHTS.quantiles) == sorted(WEIGHTS.quantiles)
    assert WEIGHTS.rank(-1) == 0
    assert WEIGHTS.rank(1e9) == 1


def test_a_fit_recovers_what_makes_rows_fail_and_refuses_the_wrong_sign() -> None:
    rng = random.Random(2)
    rows = []
    for _ in range(400):
        values = {name: rng.random() * 4 for name in FEATURES}
        rate = max(0.0, min(1.0, 1 - 0.2 * values["steps"] - 0.05 * values["tools"] + 0.1 * values["depth"]))
        rows.append((values, rate, "toy"))
    weights = fit(rows, fitted_on="toy")
    assert weights.weight["steps"] == max(weights.weight.values())
    assert weights.weight["depth"] == 0
    assert weights.fitted_on == "toy"
    with pytest.raises(UsageError, match="fewer than two"):
        fit(rows[:1], fitted_on="one")


def test_ranks_and_strata() -> None:
    assert failure_ranks([0.5, 0.5, 0.1]) == [0.25, 0.25, 1.0]
    assert [stratum_of(rate) for rate in (0.71, 0.7, 0.3, 0.29)] == ["easy", "medium", "medium", "hard"]


ODD = [
    {"messages": [{"role": "assistant", "content": "x", "tool_calls": 5}, None, 3]},
    {"messages": None, "steps": -5, "tools": "hammer"},
    {"plan": {"nodes": 5}},
    {"plan": {"nodes": {"a": {"id": "a"}}, "edges": {"a": "b"}}},
    {"plan": {"nodes": [{"id": "a"}, {"name": "b"}, 7], "edges": [["a"], {"from": "a", "to": "b"}, [["a"], "b"]]}},
    {"target": {"nodes": [{"id": 1, "action": {"tool": "x"}}, {"id": 2}], "edges": [[1, 2]]}},
    {},
]


@pytest.mark.parametrize("row", ODD, ids=range(len(ODD)))
def test_a_row_of_another_shape_gets_an_estimate_all_the_same(row: dict[str, object]) -> None:
    assert difficulty(row).basis == "structure"
    assert features(ODD[5])["depth"] == 2
