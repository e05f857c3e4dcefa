"""Alert rules replayed by string matching instead of counting, and rules that only look right."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from tasks_checking import LEVELS, exercises

from agent_forge.tasks import Exercise, family
from agent_forge.tasks.families.monitor import fires


def fired(rule: dict[str, Any], values: list[float]) -> list[int]:
    """Where a rule fires: the minutes that end a run of as many marks, as a regular expression sees them."""
    sign, level = rule["comparison"], rule["threshold"]
    marks = "".join(
        "x"
        if (value > level and ">" in sign) or (value < level and "<" in sign) or (value == level and "=" in sign)
        else "."
        for value in values
    )
    return [match.start() + rule["minutes"] - 1 for match in re.finditer(f"(?=x{{{rule['minutes']}}})", marks)]


def right(exercise: Exercise, rules: list[dict[str, Any]]) -> bool:
    """Every incident has an alert, and every minute with an alert belongs to an incident."""
    incidents = exercise.expected["incidents"]
    alerts = {(rule["metric"], m) for rule in rules for m in fired(rule, exercise.expected["series"][rule["metric"]])}
    inside = [{(each["metric"], m) for m in range(each["start"], each["end"] + 1)} for each in incidents]
    return all(alerts & each for each in inside) and alerts <= set().union(*inside)


def test_rules_fire_where_the_other_replay_says() -> None:
    rng = random.Random(1)
    for _ in range(300):
        values = [rng.randrange(5) for _ in range(rng.randrange(12))]
        rule = {
            "comparison": rng.choice(["<", ">", "<=", ">="]),
            "threshold": rng.randrange(5),
            "minutes": 1 + rng.randrange(4),
        }
        assert fires(rule, values) == fired(rule, values)


def test_the_checker_agrees_on_a_thousand_changed_answers() -> None:
    rng = random.Random(2)
    pool = list(exercises("monitor", 60))
    wrong = 0
    for _ in range(1700):
        exercise = rng.choice(pool)
        rules = exercise.solution()["rules"]
        rule = rng.choice(rules)
        roll = rng.randrange(5)
        if roll == 0:
            rules.remove(rule)
        elif roll == 1:
            rule["threshold"] = rng.choice([-1, 0, 10, 50, 100, 1000, rule["threshold"] * 1.3, rule["threshold"] * 0.7])
        elif roll == 2:
            rule["minutes"] = rng.randrange(1, 7)
        elif roll == 3:
            rule["comparison"] = rng.choice([sign for sign in ("<", ">", "<=", ">=") if sign != rule["comparison"]])
        else:
            rules.append({**rule, "threshold": rule["threshold"] + rng.randrange(-60, 60)})
        verdict = exercise.check({"rules": rules})
        assert verdict.correct == right(exercise, rules), (exercise.prompt, rules, verdict)
        assert verdict.correct or verdict.why
        wrong += not verdict.correct
    assert wrong > 1000


EXAMPLE = {
    "series": {"cpu_percent": [20, 90, 30, 80, 85, 95, 25, 20], "latency_ms": [90, 95, 99, 90, 90, 91, 95, 93]},
    "incidents": [{"metric": "cpu_percent", "start": 3, "end": 5}],
}


def rule(metric: str = "cpu_percent", comparison: str = ">", threshold: float = 50, minutes: int = 2) -> dict[str, Any]:
    return {"metric": metric, "comparison": comparison, "threshold": threshold, "minutes": minutes}


@pytest.mark.parametrize(
    ("rules", "score"),
    [
        ([rule()], 1),
        ([rule(minutes=3, threshold=79.5)], 1),
        ([rule(comparison=">=", threshold=80)], 1),
        ([rule(threshold=94, minutes=1)], 1),  # late, but during the incident
        ([rule(), rule(threshold=60), rule("latency_ms", threshold=500)], 1),
        ([rule(minutes=1)], 2 / 3),  # the short peak is no incident
        ([rule(threshold=-1, minutes=1)], 0.5),  # fires all the time: not one long alert that happens to be right
        ([rule(comparison="<", minutes=1)], 0),
        ([rule(minutes=4)], 0),
        ([rule(threshold=80)], 1),  # 85 and 95
        ([rule(threshold=85)], 0),
        ([rule("latency_ms", minutes=1)], 0),
        ([rule(), rule("latency_ms", minutes=1)], 2 / 3),
        ([rule("memory")], 0),
        ([], 0),
    ],
)
def test_rules(rules: list[Any], score: float) -> None:
    verdict = family("monitor").check({"rules": rules}, EXAMPLE)
    assert verdict.score == pytest.approx(score), verdict
    assert verdict.correct or verdict.why


def test_series_grow() -> None:
    sizes = [len(family("monitor").make(3, level).prompt) for level in LEVELS]
    assert sizes == sorted(sizes)
    assert sizes[-1] > 1.5 * sizes[0]
