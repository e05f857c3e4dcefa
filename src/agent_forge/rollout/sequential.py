"""Comparing two arms as often as one likes: means, their difference, and bounds that hold at all times at once.

The bounds are those of the one-sided normal mixture (Robbins 1970; Howard, Ramdas, McAuliffe and Sekhon 2021, "Time-
uniform, nonparametric, nonasymptotic confidence sequences", section 3.2) with estimated variances, which makes them
asymptotic (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2021): a sum S of v centred observations of variance 1 stays
below

    sqrt(2 (v + rho) log(sqrt((v + rho) / rho) / (2 alpha) + 1))        for all v, with probability at least 1 - alpha.

So a controller may look every minute and stop when it likes. `rho` decides where the bound is tightest, not whether it
holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

TUNED_AT = 1_000.0  # effective number of observations at which the bound is tightest


@dataclass(frozen=True, slots=True)
class Moments:
    """Number, mean and sum of squared deviations of some observations.

    >>> Moments.of([1.0, 2.0, 3.0]).variance
    1.0
    >>> Moments.of([1.0, 2.0]) + Moments.of([3.0]) == Moments.of([1.0, 2.0, 3.0])
    True
    """

    n: int = 0
    mean: float = 0.0
    m2: float = 0.0

    @classmethod
    def of(cls, values: Iterable[float]) -> Moments:
        values = list(values)
        if not values:
            return cls()
        mean = math.fsum(values) / len(values)
        return cls(len(values), mean, math.fsum((value - mean) ** 2 for value in values))

    @classmethod
    def of_count(cls, successes: float, n: int) -> Moments:
        """The moments of n zeros and ones."""
        if n == 0:
            return cls()
        mean = successes / n
        return cls(n, mean, n * mean * (1 - mean))

    @property
    def variance(self) -> float:
        return self.m2 / (self.n - 1) if self.n > 1 else 0.0

    def __add__(self, other: Moments) -> Moments:
        if not self.n or not other.n:
            return self if self.n else other
        n, gap = self.n + other.n, other.mean - self.mean
        mean = self.mean + gap * other.n / n
        return Moments(n, mean, self.m2 + other.m2 + gap * gap * self.n * other.n / n)

    def scaled(self, factor: float) -> Moments:
        return Moments(self.n, self.mean * factor, self.m2 * factor * factor)


@dataclass(frozen=True, slots=True)
class Difference:
    """An estimated difference, its standard error, and the effective number of observations behind it."""

    value: float
    error: float
    size: float
    tuned_at: float = TUNED_AT

    def lower(self, alpha: float) -> float:
        """The true difference lies below it, at any time, with probability `alpha` at most."""
        return self.value - self.error * width(alpha, self.size, self.tuned_at)

    def upper(self, alpha: float) -> float:
        return self.value + self.error * width(alpha, self.size, self.tuned_at)


def width(alpha: float, size: float, tuned_at: float = TUNED_AT) -> float:
    """How many standard errors the bound is away after `size` observations; 1.64 to 1.96 would be the number for a
    single look.

    >>> round(width(0.05, 1_000), 2), round(width(0.05, 100), 2)
    (2.78, 3.68)
    """
    if not 0 < alpha < 0.5:
        raise ValueError(f"alpha must lie between 0 and 0.5, not {alpha}")
    tail = math.log(1 / (2 * alpha))
    rho = tuned_at / (2 * tail + math.log(1 + 2 * tail))  # Howard et al., proposition 3, for one side
    spread = (size + rho) / rho
    return math.sqrt(2 * (size + rho) * math.log(math.sqrt(spread) / (2 * alpha) + 1) / size)


def compare(
    strata: Iterable[tuple[Moments, Moments]], *, proportion: bool = False, tuned_at: float = TUNED_AT
) -> Difference | None:
    """Mean of the first arm minus mean of the second, within strata; None where no stratum has both.

    Each stage of a rollout is a stratum: pooled over stages, a success rate that drifts while the share grows would
    look like a difference (Simpson's paradox). Strata are weighted by n1 n2 / (n1 + n2), which does not depend on
    outcomes. Of the variance, an arm gets its own or the pooled one, whichever is larger: three equal values are no
    certainty. For a `proportion` it is at least that of a rate with half a success and half a failure more.
    """
    total = size = variance = 0.0
    for first, second in strata:
        n = first.n + second.n
        if first.n < 2 or second.n < 2:
            continue
        pooled = (first.m2 + second.m2) / (n - 2)
        if proportion:
            rate = (first.mean * first.n + second.mean * second.n + 0.5) / (n + 1)
            pooled = max(pooled, rate * (1 - rate))
        weight = first.n * second.n / n
        size += weight
        total += weight * (first.mean - second.mean)
        variance += weight**2 * (max(first.variance, pooled) / first.n + max(second.variance, pooled) / second.n)
    if not size:
        return None
    return Difference(total / size, math.sqrt(variance) / size, size, tuned_at)


def exceedance(first: list[float], second: list[float], quantile: float, factor: float) -> tuple[Moments, Moments]:
    """How often the first arm exceeds `factor` times a quantile of the second, and how often the second its own.

    The quantile of the first arm is larger than `factor` times that of the second exactly where the first share is the
    larger one, and a difference of shares has the bounds above.
    """
    if not first or not second:
        return Moments(), Moments()
    ordered = sorted(second)
    limit = factor * ordered[min(len(ordered) - 1, math.ceil(quantile * len(ordered)) - 1)]
    above = sum(value > limit for value in first)
    return Moments.of_count(above, len(first)), Moments.of_count((1 - quantile) * len(second), len(second))


def surplus_p(first: int, first_n: int, second: int, second_n: int) -> float:
    """Fisher's exact test: how probable so many failures, or more, in the first arm would be if both failed alike.

    >>> round(surplus_p(3, 3, 0, 3), 6)  # 1 in 20 ways to place 3 failures
    0.05
    """
    n, failures = first_n + second_n, first + second
    whole = _log_choose(n, failures)
    terms = (
        math.exp(_log_choose(first_n, k) + _log_choose(second_n, failures - k) - whole)
        for k in range(first, min(first_n, failures) + 1)
        if failures - k <= second_n
    )
    return min(1.0, math.fsum(terms))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def ratio_mismatch_p(counts: dict[str, int], weights: dict[str, float]) -> float | None:
    """The p-value of the sample-ratio-mismatch check: Pearson's chi-squared test of the counts against the weights.

    >>> round(ratio_mismatch_p({"a": 4_900, "b": 5_100}, {"a": 1, "b": 1}), 4)
    0.0455
    """
    n, whole = sum(counts.values()), sum(weights.values())
    expected = {name: n * weight / whole for name, weight in weights.items() if weight > 0}
    if not n or len(expected) < 2:
        return None
    statistic = sum((counts.get(name, 0) - mean) ** 2 / mean for name, mean in expected.items())
    return chi_squared_tail(statistic, len(expected) - 1)


def chi_squared_tail(value: float, degrees: int) -> float:
    """P(X > value) for chi-squared X: in closed form, by the recurrence over the degrees of freedom (A&S 26.4.8)."""
    half = value / 2
    if degrees % 2:
        tail = 2 * (1 - NormalDist().cdf(math.sqrt(value)))
        term, start = math.sqrt(half / math.pi) * 2 * math.exp(-half), 1
    else:
        tail, term, start = math.exp(-half), half * math.exp(-half), 2
    for k in range(start, degrees, 2):
        tail += term
        term *= value / (k + 2)
    return min(1.0, tail)
