"""Monitor: alert rules that catch the labelled incidents of some series and nothing else."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent_forge.tasks.family import Draft, Verdict, task_family

# metric: its usual values, those during an incident, and whether incidents are above the usual
_METRICS = {
    "cpu_percent": (20, 45, 70, 99, True),
    "latency_ms": (80, 160, 300, 900, True),
    "queue_length": (0, 15, 40, 200, True),
    "free_disk_gb": (60, 90, 2, 20, False),
    "requests_per_s": (200, 320, 5, 60, False),
    "error_percent": (0, 2, 8, 40, True),
}
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
SCHEMA = {
    "type": "object",
    "properties": {
        "rules": {
            "type": "array",
            "maxItems": 8,
            "items": {
                "type": "object",
                "properties": {
                    "metric": {"type": "string"},
                    "comparison": {"enum": list(_COMPARISONS)},
                    "threshold": {"type": "number"},
                    "minutes": {"type": "integer", "minimum": 1},
                },
                "required": ["metric", "comparison", "threshold", "minutes"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["rules"],
    "additionalProperties": False,
}


def check(answer: Mapping[str, Any], expected: Mapping[str, Any]) -> Verdict:
    """The F1 of the alarms; right if each incident raises one and no rule fires at any other minute."""
    series = expected["series"]
    unknown = sorted({rule["metric"] for rule in answer["rules"]} - series.keys())
    if unknown:
        return Verdict(0.0, f"there is no metric {unknown[0]!r}")
    caught: set[int] = set()
    false: list[str] = []
    for metric, values in series.items():
        fired = {minute for rule in answer["rules"] if rule["metric"] == metric for minute in fires(rule, values)}
        for place, incident in enumerate(expected["incidents"]):
            during = set(range(incident["start"], incident["end"] + 1)) if incident["metric"] == metric else set()
            caught |= {place} if fired & during else set()
            fired -= during
        false += [f"false alarm for {metric} at minute {alarm[0]}" for alarm in spans(fired)]
    missed = [incident for place, incident in enumerate(expected["incidents"]) if place not in caught]
    reasons = false + [f"no alert for {each['metric']} from minute {each['start']}" for each in missed]
    count = 2 * len(caught) + len(false) + len(missed)
    return Verdict(2 * len(caught) / count if count else 1.0, "; ".join(reasons))


def fires(rule: Mapping[str, Any], values: Sequence[float]) -> list[int]:
    """The minutes, counted from 0, at which a rule holds for as long as it has to.

    >>> fires({"comparison": ">", "threshold": 5, "minutes": 2}, [9, 1, 7, 8, 9])
    [3, 4]
    """
    holds = _COMPARISONS[rule["comparison"]]
    length, minutes = 0, []
    for minute, value in enumerate(values):
        length = length + 1 if holds(value, rule["threshold"]) else 0
        if length >= rule["minutes"]:
            minutes.append(minute)
    return minutes


def spans(minutes: set[int]) -> list[tuple[int, int]]:
    """Minutes one after the other as one alarm: its first and its last.

    >>> spans({3, 4, 7})
    [(3, 4), (7, 7)]
    """
    alarms: list[tuple[int, int]] = []
    for minute in sorted(minutes):
        if alarms and alarms[-1][1] == minute - 1:
            alarms[-1] = (alarms[-1][0], minute)
        else:
            alarms.append((minute, minute))
    return alarms


def solve(expected: Mapping[str, Any]) -> dict[str, Any]:
    """For each metric with incidents a threshold between these and the usual, and longer than any short peak."""
    rules = []
    for metric, values in expected["series"].items():
        incidents = [
            range(each["start"], each["end"] + 1) for each in expected["incidents"] if each["metric"] == metric
        ]
        if incidents:
            low, high, *_, above = _METRICS[metric]
            bad = [values[minute] for span in incidents for minute in span]
            threshold = (high + min(bad)) / 2 if above else (low + max(bad)) / 2
            shortest = min(len(span) for span in incidents)
            comparison = ">" if above else "<"
            rules.append({"metric": metric, "comparison": comparison, "threshold": threshold, "minutes": shortest})
    return {"rules": rules}


@task_family("monitor", check=check, solve=solve, schema=SCHEMA)
def monitor(rng: random.Random, level: float) -> Draft:
    """One metric with one incident at first; then three, with more and shorter incidents, and peaks that are none."""
    length = 8 + round(24 * level)
    series: dict[str, list[int]] = {}
    incidents: list[dict[str, Any]] = []
    for metric in rng.sample(list(_METRICS), 1 + round(2 * level)):
        low, high, bad_low, bad_high, _ = _METRICS[metric]
        values = [rng.randrange(low, high + 1) for _ in range(length)]
        shortest = rng.randrange(2, 4) if level < 0.4 else 3 + rng.randrange(2)
        minute = rng.randrange(1, 3)
        certain = True
        while minute + shortest + 2 < length:
            peak = not certain and rng.random() < 0.6 * level
            span = rng.randrange(1, shortest) if peak else shortest + rng.randrange(2)
            for place in range(minute, minute + span):
                values[place] = rng.randrange(bad_low, bad_high + 1)
            if not peak:
                incidents.append({"metric": metric, "start": minute, "end": minute + span - 1})
            certain = False
            minute += span + 2 + rng.randrange(5)
        series[metric] = values
    expected = {"series": series, "incidents": incidents}
    return Draft(_prompt(expected), expected)


def _prompt(expected: Mapping[str, Any]) -> str:
    series = "\n".join(f"{metric}: {' '.join(map(str, values))}" for metric, values in expected["series"].items())
    incidents = "\n".join(
        f"- {each['metric']}: minutes {each['start']} to {each['end']}" for each in expected["incidents"]
    )
    return (
        f"One value a minute, from minute 0:\n{series}\nIncidents:\n{incidents}\n"
        "Write alert rules that fire during each incident and at no other time. A rule fires once the metric has been "
        "above (>) or below (<) the threshold for so many minutes in a row. Answer as JSON: "
        '{"rules": [{"metric": "...", "comparison": ">", "threshold": 1, "minutes": 1}]}'
    )
