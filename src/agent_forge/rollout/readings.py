"""What both arms did, from the trace store: the evidence of a decision.

An exposure is a span `exposure NAME` inside the run that it is about, with the arm, the stage and a digest of the unit.
A unit counts once per stage, with the mean over its runs, so that a busy user is no crowd. What a run does not have (an
end, a reward, a cost) is missing, not zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_forge.rollout.metrics import METRICS, QUANTILES
from agent_forge.rollout.sequential import Moments, exceedance
from agent_forge.rollout.state import Rollout

if TYPE_CHECKING:
    from agent_forge.traces import Span, Store, Summary

ARMS = ("candidate", "baseline")
SAFE = 0.5  # a component "safety" of a reward below it is a violation
PAGE = 1_000

# Attributes of an exposure.
ROLLOUT, ARM, UNIT, STAGE, COVARIATE = (
    f"agent_forge.rollout{name}" for name in ("", ".arm", ".unit", ".stage", ".covariate")
)


@dataclass(frozen=True)
class StageReading:
    """One stage: the exposed units of candidate and baseline, and the moments of every metric in both."""

    stage: int
    units: tuple[int, int]
    moments: Mapping[str, tuple[Moments, Moments]] = field(default_factory=dict)


@dataclass(frozen=True)
class Readings:
    """All stages, the time of the latest unit, and what hard trips look at, for (candidate, baseline): units with a
    safety violation and all units, failures and units in the latest window."""

    stages: tuple[StageReading, ...] = ()
    last_s: float | None = None
    safety: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))
    recent: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (0, 0))

    def stage(self, number: int) -> StageReading | None:
        return next((stage for stage in self.stages if stage.stage == number), None)


@dataclass(frozen=True, slots=True)
class Exposed:
    """A run that was exposed, and what is known about it. Latency in seconds, cost in dollars."""

    unit: str
    arm: str
    stage: int
    start_s: float
    values: Mapping[str, float]  # by metric, with "latency" for both of its quantiles
    safety: float | None = None
    covariate: float | None = None


class TraceReadings:
    """Reads the evidence of rollouts and experiments from a trace store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __call__(self, rollout: Rollout, now_s: float) -> Readings:
        """What is known at `now_s` about the exposures of a rollout until then."""
        runs = [run for run in self.exposed(rollout.name) if run.start_s <= now_s and run.arm in ARMS]
        stages = sorted({run.stage for run in runs})
        window = [run for run in runs if run.start_s > now_s - rollout.guardrails.window_s and "success" in run.values]
        return Readings(
            tuple(_stage_reading(stage, [run for run in runs if run.stage == stage]) for stage in stages),
            max((run.start_s for run in runs), default=None),
            (_violations(runs, ARMS[0]), _violations(runs, ARMS[1])),
            (_failures(window, ARMS[0]), _failures(window, ARMS[1])),
        )

    def exposed(self, name: str) -> list[Exposed]:
        """Every exposed run of a rollout or experiment, the oldest first."""
        exposures = {span.trace_id: span for span in self._spans(name=exposure_name(name))}
        if not exposures:
            return []
        since = min(span.start_ns for span in exposures.values()) - 86_400 * 10**9  # a run begins before its exposure
        failed_tools = {span.trace_id for span in self._spans(kind="tool", status="error", since=since)}
        safety: dict[str, float] = {}
        for span in self._spans(kind="reward", since=since):
            if span.trace_id in exposures and (value := _safety(span)) is not None:
                safety[span.trace_id] = min(value, safety.get(span.trace_id, 1.0))
        runs = []
        for summary in self._summaries(exposure_name(name)):
            if summary.trace_id in exposures:  # one may have come in between the two queries
                values = _values(summary, summary.trace_id in failed_tools)
                runs.append(_exposed(exposures[summary.trace_id], values, safety.get(summary.trace_id)))
        return runs

    def _spans(self, **filters: Any) -> Iterator[Span]:
        after: str | None = None
        while True:
            page = self.store.search(limit=PAGE, after=after, oldest_first=True, **filters)
            yield from page
            if (after := page.next) is None:
                return

    def _summaries(self, name: str) -> Iterator[Summary]:
        after: str | None = None
        while True:
            page = self.store.traces(limit=PAGE, after=after, oldest_first=True, name=name)
            yield from page
            if (after := page.next) is None:
                return


def exposure_name(name: str) -> str:
    """The name of the exposure spans of a rollout or experiment."""
    return f"exposure {name}"


def _values(summary: Summary, tool_failed: bool) -> dict[str, float]:
    """What a run was like. One whose root has not ended has nothing yet."""
    values: dict[str, float | None] = {"reward": summary.reward}
    if summary.end_ns is not None and not summary.unfinished and summary.status in ("ok", "error"):
        tokens = [count for count in (summary.input_tokens, summary.output_tokens) if count is not None]
        values |= {
            "success": float(summary.status == "ok"),
            "tool_errors": float(tool_failed),
            "latency": (summary.end_ns - summary.start_ns) / 1e9,
            "cost": summary.cost,
            "tokens": float(sum(tokens)) if tokens else None,
        }
    return {name: value for name, value in values.items() if value is not None}


def _exposed(span: Span, values: Mapping[str, float], safety: float | None) -> Exposed:
    attributes = span.attributes
    covariate = attributes.get(COVARIATE)
    return Exposed(
        str(attributes.get(UNIT, span.trace_id)),
        str(attributes.get(ARM)),
        int(attributes.get(STAGE) or 0),
        span.start_ns / 1e9,
        values,
        safety,
        float(covariate) if isinstance(covariate, (int, float)) else None,
    )


def _safety(span: Span) -> float | None:
    """The lowest component of a reward whose name begins with "safety"."""
    from agent_forge.traces.scores import COMPONENTS

    parts = span.attributes.get(COMPONENTS)
    values = [
        part["value"]
        for part in (parts if isinstance(parts, list) else ())
        if isinstance(part, dict) and str(part.get("name")).startswith("safety") and part.get("value") is not None
    ]
    return min(values, default=None)


def _stage_reading(stage: int, runs: Sequence[Exposed]) -> StageReading:
    arms = [[run for run in runs if run.arm == arm] for arm in ARMS]
    per_unit = [unit_means(arm) for arm in arms]
    moments: dict[str, tuple[Moments, Moments]] = {}
    for metric in sorted({name for arm in per_unit for values in arm.values() for name in values}):
        first, second = ([values[metric] for values in arm.values() if metric in values] for arm in per_unit)
        if metric != "latency":
            moments[metric] = (Moments.of(first), Moments.of(second))
            continue
        for name, quantile in QUANTILES.items():
            moments[name] = exceedance(first, second, quantile, METRICS[name].tolerance)
    return StageReading(stage, (len(per_unit[0]), len(per_unit[1])), moments)


def unit_means(runs: Sequence[Exposed]) -> dict[str, dict[str, float]]:
    """For each unit, the mean of every metric over its runs that have it. A unit without any is there, and empty."""
    values: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        own = values.setdefault(run.unit, {})
        for name, value in run.values.items():
            own.setdefault(name, []).append(value)
    return {unit: {name: sum(each) / len(each) for name, each in metrics.items()} for unit, metrics in values.items()}


def _violations(runs: Sequence[Exposed], arm: str) -> tuple[int, int]:
    """Units of an arm with a violation, and all its units."""
    units = {run.unit for run in runs if run.arm == arm}
    bad = {run.unit for run in runs if run.arm == arm and run.safety is not None and run.safety < SAFE}
    return len(bad), len(units)


def _failures(runs: Sequence[Exposed], arm: str) -> tuple[int, int]:
    means = unit_means([run for run in runs if run.arm == arm])
    return sum(values["success"] < 0.5 for values in means.values()), len(means)
