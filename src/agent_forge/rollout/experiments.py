"""A/B experiments: two or more variants side by side, on the buckets, exposures and bounds of rollouts.

The first variant is the control. Intervals hold at all times, so a report may be read every day. Where units came with
a covariate (`expose(…, covariate=…)`), outcomes are adjusted for it (CUPED: Deng, Xu, Kohavi and Walker 2013), which
narrows the intervals by what the past explains.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agent_forge.errors import StoreError, UsageError
from agent_forge.rollout.bucketing import choose_variant
from agent_forge.rollout.readings import Exposed, unit_means
from agent_forge.rollout.rollouts import NAME, Rollouts
from agent_forge.rollout.sequential import Moments, compare, ratio_mismatch_p

MISMATCH_P = 1e-3
# metric: whether more is better
BETTER = {"success": 1, "reward": 1, "tool_errors": -1, "latency": -1, "cost": -1, "tokens": -1}
PROPORTIONS = ("success", "tool_errors")


@dataclass(frozen=True)
class Experiment:
    """Variants with their weights, the control first; the metric to decide by, and those that must not become worse."""

    name: str
    variants: Mapping[str, float]
    metric: str = "success"
    guardrails: tuple[str, ...] = ("tool_errors", "latency", "cost")
    alpha: float = 0.05
    min_units: int = 100  # per variant, before there is a verdict

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise UsageError(f"{self.name[:100]!r} is not a valid name", fix="Use letters, digits, _ . and -")
        if len(self.variants) < 2 or any(not 0 < weight < math.inf for weight in self.variants.values()):
            raise UsageError("an experiment needs two or more variants with positive weights")
        for metric in (self.metric, *self.guardrails):
            if metric not in BETTER:
                raise UsageError(f"there is no metric {metric!r}", fix=f"Choose from {', '.join(BETTER)}")
        if not 0 < self.alpha < 0.5:
            raise UsageError(f"alpha is {self.alpha}", fix="It must lie between 0 and 0.5")

    @property
    def control(self) -> str:
        return next(iter(self.variants))

    def variant(self, unit: str) -> str:
        return choose_variant(self.name, unit, self.variants)


@dataclass(frozen=True)
class Effect:
    """A variant against the control on one metric: means per unit, the difference with its interval, the difference
    relative to the control, and in standard deviations (Cohen's d). `cuped` is the share of the variance that the
    covariate explained; None where there was none."""

    variant: str
    metric: str
    n: tuple[int, int]
    mean: float
    control: float
    difference: float
    lower: float
    upper: float
    relative: float | None
    size: float | None
    cuped: float | None
    verdict: str  # better, worse, open


@dataclass(frozen=True)
class ExperimentReport:
    """What an experiment shows. `units` that were in two variants are in none of the figures."""

    name: str
    units: Mapping[str, int]
    mixed: int
    mismatch_p: float | None
    effects: tuple[Effect, ...]
    verdict: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def analyse(experiment: Experiment, runs: Sequence[Exposed]) -> ExperimentReport:
    """The report of an experiment from its exposed runs (`TraceReadings.exposed`). A pure function."""
    variants: dict[str, set[str]] = {}
    for run in runs:
        if run.arm in experiment.variants:
            variants.setdefault(run.unit, set()).add(run.arm)
    mixed = {unit for unit, arms in variants.items() if len(arms) > 1}
    arms = {
        name: unit_means([run for run in runs if run.arm == name and run.unit not in mixed])
        for name in experiment.variants
    }
    covariates = {run.unit: run.covariate for run in runs if run.covariate is not None}
    counts = {name: len(units) for name, units in arms.items()}
    mismatch = ratio_mismatch_p(counts, dict(experiment.variants))
    effects = tuple(
        effect
        for metric in dict.fromkeys((experiment.metric, *experiment.guardrails))
        for name in list(experiment.variants)[1:]
        if (effect := _effect(experiment, name, metric, arms, covariates)) is not None
    )
    verdict = _verdict(experiment, counts, mismatch, effects)
    return ExperimentReport(experiment.name, counts, len(mixed), mismatch, effects, verdict)


def _effect(
    experiment: Experiment,
    variant: str,
    metric: str,
    arms: Mapping[str, Mapping[str, Mapping[str, float]]],
    covariates: Mapping[str, float],
) -> Effect | None:
    values = [
        {unit: each[metric] for unit, each in arms[name].items() if metric in each}
        for name in (variant, experiment.control)
    ]
    adjusted, explained = _cuped(values, covariates)
    first, second = (Moments.of(each) for each in adjusted)
    difference = compare([(first, second)], proportion=metric in PROPORTIONS and explained is None)
    if difference is None:
        return None
    alpha = experiment.alpha / 2 / (len(experiment.variants) - 1)  # two sides, and every variant against the control
    lower, upper = difference.lower(alpha), difference.upper(alpha)
    sign = BETTER[metric]
    verdict = (
        "better" if sign * lower > 0 and sign * upper > 0 else "worse" if sign * lower < 0 > sign * upper else "open"
    )
    control = Moments.of(values[1].values())
    spread = math.sqrt((first.m2 + second.m2) / (first.n + second.n - 2))
    return Effect(
        variant,
        metric,
        (first.n, second.n),
        Moments.of(values[0].values()).mean,
        control.mean,
        difference.value,
        lower,
        upper,
        difference.value / control.mean if control.mean else None,
        difference.value / spread if spread else None,
        explained,
        verdict,
    )


def _cuped(
    values: Sequence[Mapping[str, float]], covariates: Mapping[str, float]
) -> tuple[list[list[float]], float | None]:
    """The outcomes of both arms minus what a covariate from before predicts, if every unit has one."""
    plain = [list(each.values()) for each in values]
    if any(unit not in covariates for each in values for unit in each) or min(map(len, plain)) < 2:
        return plain, None
    pasts = [[covariates[unit] for unit in each] for each in values]
    whole = Moments.of(past for arm in pasts for past in arm).mean
    # theta from the deviations within the arms, so that the difference between them does not count as explained
    cross = spread = total = 0.0
    for outcomes, past in zip(plain, pasts, strict=True):
        y, x = Moments.of(outcomes), Moments.of(past)
        cross += math.fsum((a - y.mean) * (b - x.mean) for a, b in zip(outcomes, past, strict=True))
        spread, total = spread + x.m2, total + y.m2
    if not spread or not total:
        return plain, None
    theta = cross / spread
    adjusted = [
        [y - theta * (x - whole) for y, x in zip(*pair, strict=True)] for pair in zip(plain, pasts, strict=True)
    ]
    return adjusted, cross**2 / (spread * total)


def _verdict(
    experiment: Experiment, counts: Mapping[str, int], mismatch: float | None, effects: Sequence[Effect]
) -> str:
    if mismatch is not None and mismatch < MISMATCH_P:
        return f"invalid: the variants do not get their shares of the units (p = {mismatch:.1g})"
    if min(counts.values()) < experiment.min_units:
        return f"open: {min(counts.values())} units in the smallest variant, {experiment.min_units} needed"
    hurt = [f"{effect.variant} harms {effect.metric}" for effect in effects
            if effect.verdict == "worse" and effect.metric != experiment.metric]  # fmt: skip
    decided = {effect.variant: effect for effect in effects if effect.metric == experiment.metric}
    harmful = {effect.variant for effect in effects if effect.verdict == "worse"}
    winners = [name for name, effect in decided.items() if effect.verdict == "better" and name not in harmful]
    if winners:
        best = max(winners, key=lambda name: BETTER[experiment.metric] * decided[name].difference)
        return f"{best} is better on {experiment.metric}"
    worse = [f"{name} is worse on {experiment.metric}" for name, effect in decided.items() if effect.verdict == "worse"]
    return "; ".join([*worse, *hurt]) or f"open: no difference on {experiment.metric} is shown yet"


# --- storing ----------------------------------------------------------------------------------------------------------


def create_experiment(rollouts: Rollouts, experiment: Experiment) -> None:
    """Stores an experiment, from now on to be asked for by name. Raises UsageError if the name is taken."""
    with rollouts.db.write() as cursor:
        for table in ("experiments", "rollouts"):
            if cursor.execute(f"SELECT 1 FROM {table} WHERE name = ?", (experiment.name,)).fetchone():  # noqa: S608
                raise UsageError(f"the name {experiment.name!r} is taken", fix="Choose another one")
        cursor.execute(
            "INSERT INTO experiments (name, state, document) VALUES (?, 'running', ?)",
            (experiment.name, json.dumps({**asdict(experiment), "variants": list(experiment.variants.items())})),
        )


def experiments(rollouts: Rollouts) -> dict[str, tuple[Experiment, str]]:
    """Every experiment and its state (running or stopped), the latest first."""
    with rollouts.db.read() as cursor:
        rows = cursor.execute("SELECT name, state, document FROM experiments ORDER BY id DESC").fetchall()
    return {name: (_loaded(name, document, rollouts.where), state) for name, state, document in rows}


def stop_experiment(rollouts: Rollouts, name: str) -> None:
    """From now on everyone gets the current policy. Raises UsageError for an unknown name."""
    with rollouts.db.write() as cursor:
        if not cursor.execute("SELECT 1 FROM experiments WHERE name = ?", (name,)).fetchone():
            raise UsageError(f"there is no experiment {name!r}", fix="`agent-forge rollout experiment ls` lists them")
        cursor.execute("UPDATE experiments SET state = 'stopped' WHERE name = ?", (name,))


def _loaded(name: str, text: str, where: str) -> Experiment:
    try:
        document = json.loads(text)
        variants, guardrails = dict(document.pop("variants")), tuple(document.pop("guardrails"))
        return Experiment(variants=variants, guardrails=guardrails, **document)
    except (ValueError, TypeError, KeyError, UsageError) as error:
        raise StoreError(f"the experiment {name!r} is damaged: {error}", where=where) from error


# --- picture ----------------------------------------------------------------------------------------------------------


def picture(report: ExperimentReport) -> str:
    """The effects with their intervals, one line each, as SVG. Each metric has its own scale around zero."""
    rows, width, left, right = report.effects, 640, 230, 120
    height = 24 * len(rows) + 36
    middle, half = (left + width - right) / 2, (width - right - left) / 2
    scale: dict[str, float] = {}
    for effect in rows:
        scale[effect.metric] = max(scale.get(effect.metric, 0.0), abs(effect.lower), abs(effect.upper)) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' font-family="sans-serif" font-size="12" role="img" aria-label="Effects of {_escape(report.name)}">',
        f'<line x1="{middle}" x2="{middle}" y1="8" y2="{height - 24}" stroke="currentColor" stroke-dasharray="3 3"/>',
    ]
    for place, effect in enumerate(rows):
        y = 20 + 24 * place
        low, at, high = (
            middle + half * value / scale[effect.metric] for value in (effect.lower, effect.difference, effect.upper)
        )
        colour = {"better": "#2a7", "worse": "#c33"}.get(effect.verdict, "#777")
        parts += [
            f'<text x="4" y="{y + 4}" fill="currentColor">{_escape(effect.variant[:18])} · {effect.metric}</text>',
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>',
            f'<circle cx="{at:.1f}" cy="{y}" r="4" fill="{colour}"/>',
            f'<text x="{width - right + 8}" y="{y + 4}" fill="currentColor">{effect.difference:+.4g}</text>',
        ]
    parts.append(f'<text x="4" y="{height - 8}" fill="currentColor">{_escape(report.verdict)}</text></svg>')
    return "\n".join(parts)


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
