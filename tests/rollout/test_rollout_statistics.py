"""Buckets and bounds, against closed forms, brute force and simulation."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import random
import subprocess
import sys
from statistics import NormalDist, mean, variance

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_forge.rollout import Moments, bucket, choose_variant, compare
from agent_forge.rollout.sequential import (
    chi_squared_tail,
    exceedance,
    ratio_mismatch_p,
    surplus_p,
    width,
)

texts = st.text("ab:7é漢\ud800", max_size=8)


@given(texts, texts)
@settings(max_examples=30)
def test_a_bucket_is_the_first_53_bits_of_a_digest(experiment: str, unit: str) -> None:
    whole = hashlib.sha256(f"{len(experiment)}:{experiment}:{unit}".encode("utf-8", "surrogatepass")).hexdigest()
    assert bucket(experiment, unit) * 2**53 == int(whole, 16) >> (256 - 53)
    assert 0 <= bucket(experiment, unit) < 1


def test_buckets_are_the_same_in_another_process_whatever_its_hash_seed() -> None:
    code = "from agent_forge.rollout import bucket; print([bucket('e', i) for i in range(5)])"
    seeded = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], env=seeded, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([bucket("e", i) for i in range(5)])
    assert bucket("e", 0) == 0.8300603960692927  # a change would give every user another arm


@pytest.mark.untraced
def test_shares_hold_and_experiments_are_independent() -> None:
    units = [f"user-{number}" for number in range(100_000)]
    first, second = ([bucket(name, unit) for unit in units] for name in ("one", "two"))
    for share in (0.01, 0.1, 0.5, 0.9):
        assert abs(sum(place < share for place in first) / len(units) - share) < 0.005
    both = sum(a < 0.1 and b < 0.1 for a, b in zip(first, second, strict=True)) / len(units)
    assert both == pytest.approx(0.01, abs=0.002)
    # two experiments whose names and units run together are different experiments
    assert bucket("a", "b:c") != bucket("a:b", "c")


def test_variants_follow_their_weights() -> None:
    weights = {"off": 0.0, "control": 1.0, "short": 1.0, "long": 2.0}
    chosen = [choose_variant("e", unit, weights) for unit in range(8_000)]
    assert "off" not in chosen
    for name, share in (("control", 0.25), ("short", 0.25), ("long", 0.5)):
        assert chosen.count(name) / len(chosen) == pytest.approx(share, abs=0.02)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20), st.integers(0, 20))
@settings(max_examples=25)
def test_moments_equal_those_of_the_standard_library(values: list[float], cut: int) -> None:
    whole = Moments.of(values[:cut]) + Moments.of(values[cut:])
    assert whole.n == len(values)
    assert whole.mean == pytest.approx(mean(values), abs=1e-6)
    assert whole.variance == pytest.approx(variance(values), rel=1e-6, abs=1e-6)


def _exact_width(alpha: float, size: float, tuned_at: float) -> float:
    """The boundary of the one-sided mixture itself, by bisection: the x where the mixture martingale reaches 1 / alpha.
    The width in the package is Howard et al.'s closed form above it."""
    tail = math.log(1 / (2 * alpha))
    rho = tuned_at / (2 * tail + math.log(1 + 2 * tail))

    def log_martingale(x: float) -> float:
        z = x / math.sqrt(size + rho)
        return math.log(2) + math.log(rho / (size + rho)) / 2 + z * z / 2 + math.log(NormalDist().cdf(z))

    low, high = 0.0, 100 * math.sqrt(size)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if log_martingale(middle) < math.log(1 / alpha) else (low, middle)
    return high / math.sqrt(size)


@pytest.mark.parametrize("alpha", [0.05, 0.03, 0.003])
@pytest.mark.parametrize("size", [20, 300, 1_000, 10_000])
def test_the_bound_is_just_above_that_of_the_mixture(alpha: float, size: float) -> None:
    exact = _exact_width(alpha, size, 1_000)
    assert exact <= width(alpha, size) <= 1.02 * exact


@pytest.mark.untraced
def test_the_bound_is_crossed_as_rarely_as_it_says_at_any_time() -> None:
    """Random walks, looked at after every step: a fixed-horizon bound is crossed by about half of them."""
    alpha, steps, rng = 0.1, 600, random.Random(5)
    limits = [width(alpha, size, 100) * math.sqrt(size) for size in range(1, steps + 1)]
    naive = [NormalDist().inv_cdf(1 - alpha) * math.sqrt(size) for size in range(1, steps + 1)]
    crossed, fooled = 0, 0
    for _ in range(300):
        walk = list(itertools.accumulate(rng.gauss(0, 1) for _ in range(steps)))
        crossed += any(place > limit for place, limit in zip(walk, limits, strict=True))
        fooled += any(place > limit for place, limit in zip(walk, naive, strict=True))
    assert crossed / 300 <= alpha
    assert fooled / 300 > 3 * alpha


def test_pooling_over_stages_would_see_a_difference_where_there_is_none() -> None:
    """Both arms succeed alike, more in the stage in which the candidate has more units."""
    strata = [
        (Moments.of_count(60, 100), Moments.of_count(540, 900)),
        (Moments.of_count(450, 500), Moments.of_count(450, 500)),
    ]
    together = compare([(strata[0][0] + strata[1][0], strata[0][1] + strata[1][1])])
    apart = compare(strata, proportion=True)
    assert together is not None
    assert apart is not None
    assert together.value > 0.1
    assert apart.value == pytest.approx(0)
    assert compare([]) is None
    assert compare([(Moments.of([1.0]), Moments.of([2.0]))]) is None  # one observation has no variance


def test_one_stratum_is_the_two_sample_error() -> None:
    first, second = [0.1, 0.5, 0.9, 0.3], [0.2, 0.8, 0.4, 0.9, 0.1]
    pooled = (3 * variance(first) + 4 * variance(second)) / 7
    error = math.sqrt(max(pooled, variance(first)) / 4 + max(pooled, variance(second)) / 5)
    difference = compare([(Moments.of(first), Moments.of(second))])
    assert difference is not None
    assert difference.value == pytest.approx(mean(first) - mean(second))
    assert difference.error == pytest.approx(error)
    assert difference.lower(0.05) < difference.value < difference.upper(0.05)


@given(st.integers(0, 6), st.integers(0, 6))
@settings(max_examples=30)
def test_a_surplus_of_failures_is_as_probable_as_counting_says(first: int, second: int) -> None:
    """Brute force over all ways to place the failures."""
    places, failures = range(12), first + second
    ways = list(itertools.combinations(places, failures))
    as_many = sum(sum(place < 6 for place in way) >= first for way in ways)
    assert surplus_p(first, 6, second, 6) == pytest.approx(as_many / len(ways))


def test_exceedance_finds_the_larger_quantile() -> None:
    rng = random.Random(2)
    base = [rng.lognormvariate(0, 0.5) for _ in range(4_000)]
    for factor, slower in ((1.0, False), (1.1, False), (1.4, True)):
        candidate = [factor * rng.lognormvariate(0, 0.5) for _ in range(4_000)]
        above, own = exceedance(candidate, base, 0.95, 1.2)
        assert (above.mean > own.mean) == slower
    assert exceedance([], [1.0], 0.5, 1.2)[0].n == 0


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7])
def test_the_tail_of_chi_squared_equals_its_integral(degrees: int) -> None:
    def density(x: float) -> float:
        return x ** (degrees / 2 - 1) * math.exp(-x / 2) / (2 ** (degrees / 2) * math.gamma(degrees / 2))

    step = 0.01
    integral = sum(density(4 + (place + 0.5) * step) for place in range(10_000)) * step
    assert chi_squared_tail(4, degrees) == pytest.approx(integral, rel=1e-4)


def test_a_ratio_mismatch_is_seen_and_chance_is_not() -> None:
    assert (ratio_mismatch_p({"a": 5_000, "b": 5_400}, {"a": 1, "b": 1}) or 1) < 0.001
    assert (ratio_mismatch_p({"a": 1_010, "b": 8_990}, {"a": 0.1, "b": 0.9}) or 0) > 0.5
    assert ratio_mismatch_p({}, {"a": 1, "b": 1}) is None
