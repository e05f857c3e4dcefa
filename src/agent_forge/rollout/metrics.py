"""What is compared, and when a rollout goes on, waits and comes back."""

from __future__ import annotations

from dataclasses import dataclass

from agent_forge.config import option
from agent_forge.errors import UsageError

DAY_S = 86_400.0


@dataclass(frozen=True)
class RolloutMetric:
    """How a metric is compared: the sign that makes more better, the margin of the gain, and the factor that the
    baseline is multiplied by. Those with a tolerance are soft: they trip after several windows."""

    better: int
    margin: float = 0.0
    tolerance: float = 1.0
    proportion: bool = False

    @property
    def soft(self) -> bool:
        return self.tolerance != 1.0


# Latency is compared by how often the candidate exceeds 1.2 times the baseline's quantile (`sequential.exceedance`), so
# its tolerance is in the readings already.
METRICS: dict[str, RolloutMetric] = {
    "success": RolloutMetric(+1, margin=0.03, proportion=True),
    "reward": RolloutMetric(+1, margin=0.03),
    "tool_errors": RolloutMetric(-1, margin=0.03, proportion=True),
    "latency_p50": RolloutMetric(-1, tolerance=1.2, proportion=True),
    "latency_p95": RolloutMetric(-1, tolerance=1.2, proportion=True),
    "cost": RolloutMetric(-1, tolerance=1.1),
    "tokens": RolloutMetric(-1, tolerance=1.1),
}
QUANTILES = {"latency_p50": 0.5, "latency_p95": 0.95}


@dataclass(frozen=True)
class Guardrails:
    """When a rollout goes on, waits and comes back. Raises UsageError for values that cannot be used."""

    min_days: float = option(7.0, help="Minimum time per stage, in days", at_least=0)
    min_units: int = option(100, help="Minimum units per arm and stage", at_least=1)
    alpha: float = option(0.05, help="Probability of rolling back a candidate that is as good", above=0, at_most=0.4)
    margin: float | None = option(None, help="Margin of success, reward and tool errors [default: 0.03]", above=0)
    primary: str = option("success", help="The metric that gets most of alpha")
    watch: tuple[str, ...] = option(tuple(METRICS), help="Metrics to compare")
    require: tuple[str, ...] = option(("success",), help="Metrics that must be there for a stage to end")
    tuned_at: int = option(1_000, help="Units at which the bounds are tightest", at_least=10)
    coverage: float = option(0.8, help="Share of units that must have a required metric", at_least=0, at_most=1)
    stale_hours: float = option(48.0, help="Age of the latest unit, in hours, at which the data is stale", above=0)
    window_minutes: float = option(60.0, help="Length of the windows that trips look at, in minutes", above=0)
    votes: int = option(3, help="Windows that must show a soft trip", at_least=1)
    windows: int = option(5, help="Windows that are looked at for soft trips", at_least=1)

    def __post_init__(self) -> None:
        for name in (*self.watch, *self.require, self.primary):
            if name not in METRICS:
                raise UsageError(f"there is no metric {name!r}", fix=f"Choose from {', '.join(METRICS)}")
        if not {self.primary, *self.require} <= set(self.watch):
            raise UsageError("the primary and the required metrics must be watched", fix="Add them to `watch`")
        if not 0 < self.alpha <= 0.4 or self.votes > self.windows:
            raise UsageError("alpha must lie in (0, 0.4], and votes must not exceed windows")

    @property
    def window_s(self) -> float:
        return 60 * self.window_minutes

    def alpha_of(self, metric: str) -> float:
        """The metric's part of alpha: 60 % for the primary one, the rest in equal parts. They add up to alpha, so that
        a candidate that is as good in everything comes back with probability alpha at most."""
        others = len(self.watch) - 1
        if metric == self.primary:
            return self.alpha if not others else 0.6 * self.alpha
        return 0.4 * self.alpha / others

    def margin_of(self, metric: str) -> float:
        own = METRICS[metric].margin
        return self.margin if self.margin is not None and own else own
