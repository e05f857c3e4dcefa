"""The decision: hold, promote or roll back, from what both arms did at the same time.

Every metric is a *gain*, oriented so that more is better, with bounds that hold at all times (`sequential`):

- the candidate comes back as soon as the upper bound of a gain lies below 0: it is worse, however little;
- it goes on when the lower bound of every gain lies above minus its margin: it is at most that much worse. The margin
  is how much uncertainty is accepted, not how much loss.

What is missing, stale or thin holds. A hard trip (safety, a burst of errors) acts at once; a metric with a tolerance
(latency, cost, tokens) must be beyond it in `votes` of the last `windows` windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_forge.rollout.metrics import DAY_S, METRICS, QUANTILES, Guardrails
from agent_forge.rollout.readings import Readings
from agent_forge.rollout.sequential import Difference, Moments, compare, surplus_p, width
from agent_forge.rollout.state import Rollout, RolloutDecision

BURST_P = 1e-6  # of a burst of errors by chance, per look: a thousand looks make one in a thousand
BURST_UNITS = 10  # failures of the candidate in a window below which there is no burst
MISMATCH_ALPHA = 1e-3  # of the check that both arms get their share of the units


def decide(rollout: Rollout, readings: Readings, now_s: float) -> RolloutDecision:
    """What to do with a rollout now. A pure function: the same state, readings and time give the same decision."""
    rails = rollout.guardrails
    gains = {name: gain for name in rails.watch if (gain := _gain(name, readings, rails)) is not None}
    figures = _figures(rollout, readings, gains)
    soft = tuple(
        name
        for name, gain in gains.items()
        if METRICS[name].soft and gain.upper(rails.alpha_of(name)) < 0 and _is_enough(name, readings, rails)
    )
    votes = _voted(rollout, now_s, soft)

    def decision(action: str, why: str) -> RolloutDecision:
        return RolloutDecision(now_s, action, why, figures, votes)

    if (trip := _hard_trip(readings)) is not None:
        return decision("rollback", trip)
    for name, gain in gains.items():
        alpha = rails.alpha_of(name)
        if not METRICS[name].soft and gain.upper(alpha) < 0 and _is_enough(name, readings, rails):
            return decision("rollback", f"{name} is worse: {_words(gain, alpha)}")
    for name in soft:
        count = sum(name in tripped for tripped in votes.values())
        if count >= rails.votes:
            return decision("rollback", f"{name} is beyond its tolerance in {count} of {len(votes)} windows")
    if rollout.state != "running":
        return decision("hold", f"the rollout is {rollout.state}")
    waiting = _waiting(rollout, readings, gains, now_s)
    if waiting is not None:
        return decision("hold", waiting)
    proof = "; ".join(f"{name} {_words(gain, rails.alpha_of(name))}" for name, gain in gains.items())
    return decision("promote", f"not worse beyond the margins: {proof}")


def _gain(metric: str, readings: Readings, rails: Guardrails) -> Difference | None:
    rule = METRICS[metric]
    strata = []
    for stage in readings.stages:
        candidate, baseline = stage.moments.get(metric, (Moments(), Moments()))
        if metric not in QUANTILES:
            baseline = baseline.scaled(rule.tolerance)
        strata.append((candidate, baseline) if rule.better > 0 else (baseline, candidate))
    return compare(strata, proportion=rule.proportion, tuned_at=rails.tuned_at)


def _is_enough(metric: str, readings: Readings, rails: Guardrails) -> bool:
    """Whether both arms have enough units over all stages for the normal approximation. A tenth of the units that a
    stage needs will do to come back: waiting longer would help nobody."""
    arms = [sum(stage.moments[metric][arm].n for stage in readings.stages if metric in stage.moments) for arm in (0, 1)]
    return min(arms) >= max(20, rails.min_units // 10)


def _hard_trip(readings: Readings) -> str | None:
    """Safety and bursts of errors. One violation is enough where the baseline has fewer for its units: here a false
    alarm is cheaper than a second violation."""
    (bad, n), (base_bad, base_n) = readings.safety
    if bad and bad * max(1, base_n) > base_bad * n:
        return f"safety: {bad} violations in {n} units, baseline {base_bad} in {base_n}"
    (failed, n), (base_failed, base_n) = readings.recent
    if failed >= BURST_UNITS and base_n and failed * base_n > base_failed * n:
        p = surplus_p(failed, n, base_failed, base_n)
        if p < BURST_P:
            return (
                f"a burst of errors: {failed} of {n} failed in the last window, baseline {base_failed} of {base_n}"
                f" (p = {p:.1g})"
            )
    return None


def _waiting(rollout: Rollout, readings: Readings, gains: Mapping[str, Difference], now_s: float) -> str | None:
    """What a promotion still waits for, or None."""
    rails, stage = rollout.guardrails, readings.stage(rollout.stage)
    if rollout.share == 0:  # nobody has the candidate yet: there is nothing to compare, only time to wait for
        return None if _elapsed(rollout, now_s) >= rails.min_days * DAY_S else _time_left(rollout, now_s)
    if readings.last_s is None:
        return "there is no data"
    if stage is None or min(stage.units) < rails.min_units:
        units = stage.units if stage is not None else (0, 0)
        return f"thin data: {units[0]} and {units[1]} units in this stage, {rails.min_units} needed in each arm"
    if now_s - readings.last_s > 3_600 * rails.stale_hours:
        return f"stale data: the latest unit is {(now_s - readings.last_s) / 3600:.1f} hours old"
    if (why := _mismatch(rollout.share, stage.units)) is not None:
        return why
    for name in rails.watch:
        counts = [moments.n for moments in stage.moments.get(name, (Moments(), Moments()))]
        shares = [count / units for count, units in zip(counts, stage.units, strict=True)]
        if name in rails.require and min(shares) < rails.coverage:
            return f"{name} is missing: {shares[0]:.0%} and {shares[1]:.0%} of the units have it"
        if max(counts) and (name not in gains or min(counts) < rails.min_units):
            return f"{name} is thin: {counts[0]} and {counts[1]} units have it, {rails.min_units} needed in each arm"
    if _elapsed(rollout, now_s) < rails.min_days * DAY_S:
        return _time_left(rollout, now_s)
    for name, gain in gains.items():
        alpha, margin = rails.alpha_of(name), rails.margin_of(name)
        if gain.lower(alpha) <= -margin:
            return f"{name} is not yet shown to be within its margin of {margin:g}: {_words(gain, alpha)}"
    return None


def _elapsed(rollout: Rollout, now_s: float) -> float:
    return 0.0 if rollout.entered_s is None else now_s - rollout.entered_s


def _time_left(rollout: Rollout, now_s: float) -> str:
    days = rollout.guardrails.min_days - _elapsed(rollout, now_s) / DAY_S
    return f"the stage has {days:.1f} of {rollout.guardrails.min_days:g} days to go"


def _mismatch(share: float, units: Sequence[int]) -> str | None:
    """Whether the arms do not get their shares of the units: then something filters one of them, and no comparison
    holds. The bound is a sequential one as well."""
    n = sum(units)
    if not n or not 0 < share < 1:
        return None
    gap, error = units[0] / n - share, (share * (1 - share) / n) ** 0.5
    if abs(gap) <= error * width(MISMATCH_ALPHA / 2, n):
        return None
    return f"the arms do not get their shares: {units[0]} of {n} units have the candidate, expected {share:.1%}"


def _voted(rollout: Rollout, now_s: float, soft: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The soft trips of the last windows with this one. A second look in a window replaces the first one."""
    votes = {window: tuple(names) for window, names in rollout.votes.items()}
    votes[str(int(now_s // rollout.guardrails.window_s))] = soft
    latest = sorted(votes, key=int)[-rollout.guardrails.windows :]
    return {window: votes[window] for window in latest}


def _words(gain: Difference, alpha: float) -> str:
    return f"gain {gain.value:+.4f}, between {gain.lower(alpha):+.4f} and {gain.upper(alpha):+.4f}"


def _figures(rollout: Rollout, readings: Readings, gains: Mapping[str, Difference]) -> dict[str, Any]:
    """The figures of a decision: per metric the means of both arms, the gain and its bounds."""
    rails, stage = rollout.guardrails, readings.stage(rollout.stage)
    figures: dict[str, Any] = {"stage": rollout.stage, "share": rollout.share}
    figures["units"] = dict(zip(("candidate", "baseline"), stage.units if stage else (0, 0), strict=True))
    for name, gain in gains.items():
        alpha = rails.alpha_of(name)
        pairs = [one.moments[name] for one in readings.stages if name in one.moments]
        arms = [sum((pair[arm] for pair in pairs), Moments()) for arm in (0, 1)]
        figures[name] = {
            "candidate": arms[0].mean, "baseline": arms[1].mean, "n": [arms[0].n, arms[1].n], "gain": gain.value,
            "lower": gain.lower(alpha), "upper": gain.upper(alpha), "margin": rails.margin_of(name), "alpha": alpha,
        }  # fmt: skip
    if any(count for count, _ in readings.safety):
        figures["safety"] = {"candidate": list(readings.safety[0]), "baseline": list(readings.safety[1])}
    return figures
