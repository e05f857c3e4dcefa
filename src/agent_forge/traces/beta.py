"""The Beta distribution in plain Python: its distribution function and its quantiles.

The regularised incomplete beta function by its continued fraction (Abramowitz & Stegun 26.5.8, evaluated with Lentz's
method), the quantile by Newton's method inside a bisection. Accurate to about 1e-12, far
finer than any number of delegations can resolve.
"""

from __future__ import annotations

import math

_TINY = 1e-300


def beta_cdf(x: float, a: float, b: float) -> float:
    """P(X ≤ x) for X ~ Beta(a, b).

    >>> beta_cdf(0.25, 1, 1), round(beta_cdf(0.5, 2, 2), 12)
    (0.25, 0.5)
    """
    if not (a > 0 and b > 0):
        raise ValueError(f"Beta needs a, b > 0, not {a}, {b}")
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )  # fmt: skip
    if x < (a + 1) / (a + b + 2):  # where the fraction converges fast
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(1 - x, b, a) / b


def beta_quantile(p: float, a: float, b: float) -> float:
    """The x with P(X ≤ x) = p for X ~ Beta(a, b).

    >>> round(beta_quantile(0.05, 1, 1), 12)
    0.05
    """
    low, high, x = 0.0, 1.0, _start(p, a, b)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    for _ in range(200):
        gap = beta_cdf(x, a, b) - p
        low, high = (x, high) if gap < 0 else (low, x)
        density = math.exp(min(700.0, scale + (a - 1) * math.log(x) + (b - 1) * math.log1p(-x)))
        newton = x - gap / density if density else math.nan
        # Newton's step where it stays inside the bracket, else the middle: never worse than bisection.
        nearer = newton if low < newton < high else (low + high) / 2
        # After a step of a billionth the next one, being its square, would no longer be seen.
        if abs(nearer - x) <= (1e-9 if nearer == newton else 1e-15) * min(x, 1 - x) or nearer in (low, high):
            return nearer
        x = nearer
    return x


def _start(p: float, a: float, b: float) -> float:
    """About where the quantile is: that of a normal distribution (A&S 26.2.23) of the same mean and variance."""
    mean = a / (a + b)
    t = math.sqrt(-2 * math.log(max(_TINY, min(p, 1 - p))))
    z = t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)))
    x = mean + math.copysign(z, p - 0.5) * math.sqrt(mean * (1 - mean) / (a + b + 1))
    return x if 0 < x < 1 else mean


def _fraction(x: float, a: float, b: float) -> float:
    """The continued fraction 1/(1+ d1/(1+ d2/(1+ …))) of A&S 26.5.8."""
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            d = 1 / _away_from_zero(1 + step * d)
            c = _away_from_zero(1 + step / c)
            value *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
