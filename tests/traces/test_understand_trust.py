"""Trust: the Beta quantile against independent values, pooling, fading, bounds, exploration and calibration."""

from __future__ import annotations

import math
import random

import pytest
from understand_graphs import make

from agent_forge.errors import UsageError
from agent_forge.traces.beta import beta_cdf, beta_quantile
from agent_forge.traces.trust import DAY_S, TrustTable, replay

# -- the Beta distribution ------------------------------------------------------------------------------------------


def integral(x, a, b, steps=40_000):
    """The distribution function by Simpson's rule on t = x·u², which tames the pole at 0 for a < 1."""

    def density(u):
        t = x * u * u
        return t ** (a - 1) * (1 - t) ** (b - 1) * 2 * x * u if u else 0.0

    total = sum((4 if i % 2 else 2) * density(i / steps) for i in range(1, steps)) + density(1.0)
    return total / (3 * steps) * math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b))


@pytest.mark.parametrize("x", [0.03, 0.4, 0.9])
@pytest.mark.parametrize(("a", "b"), [(1, 1), (2, 5), (7.5, 1.5), (1.5, 20.25), (40, 60)])
def test_cdf_equals_numerical_integration(x, a, b):
    assert beta_cdf(x, a, b) == pytest.approx(integral(x, a, b), abs=1e-9)


@pytest.mark.parametrize("n", [1, 3, 10, 50])
def test_quantiles_with_a_closed_form(n):
    for p in (0.01, 0.05, 0.5, 0.975):
        assert beta_quantile(p, n, 1) == pytest.approx(p ** (1 / n), rel=1e-12)
        assert beta_quantile(p, 1, n) == pytest.approx(1 - (1 - p) ** (1 / n), rel=1e-10)
    assert beta_quantile(0.5, n, n) == pytest.approx(0.5, abs=1e-12)


def test_quantile_inverts_the_cdf_and_agrees_with_scipy():
    special = pytest.importorskip("scipy.special", reason="scipy is not installed: closed forms only")
    rng = random.Random(1)
    for _ in range(300):
        a, b, p = 10 ** rng.uniform(-0.3, 3.5), 10 ** rng.uniform(-0.3, 3.5), rng.uniform(0.001, 0.999)
        x = beta_quantile(p, a, b)
        assert beta_cdf(x, a, b) == pytest.approx(p, abs=1e-8)
        assert x == pytest.approx(special.betaincinv(a, b, p), abs=1e-9)
        assert beta_cdf(0.3, a, b) == pytest.approx(special.betainc(a, b, 0.3), abs=1e-10)


def test_the_edges_of_the_distribution():
    assert (beta_cdf(-1, 2, 2), beta_cdf(0, 2, 2), beta_cdf(1, 2, 2), beta_cdf(2, 2, 2)) == (0, 0, 1, 1)
    with pytest.raises(ValueError, match="> 0"):
        beta_cdf(0.5, 0, 1)


# -- beliefs --------------------------------------------------------------------------------------------------------


def filled(**options):
    table = TrustTable(half_life_s=None, **options)
    for i in range(40):
        table.observe("Explore", "haiku", "codebase_search", reward=1.0, time_s=i)
        table.observe("Explore", "haiku", "synthesis", reward=0.0, time_s=i)
    return table


def test_without_levels_it_is_the_textbook_posterior():
    table = TrustTable(half_life_s=None)
    for reward in [1, 1, 0, 1]:
        table.observe("A", "m", "c", reward=reward, time_s=0)
    belief = table.belief("A", "m", "c")
    assert (belief.a, belief.b, belief.count) == (4, 2, 4)  # Beta(1, 1) and nothing elsewhere
    assert table.belief().mean == pytest.approx(4 / 6)


def test_the_prior_comes_from_the_level_above_without_the_cells_own_evidence():
    table = filled(prior_strength=4)
    unseen = table.belief("Explore", "haiku", "refactoring")
    assert unseen.count == 0
    assert unseen.mean == pytest.approx(0.5, abs=0.01)  # between what it is good and bad at
    assert unseen.a + unseen.b == pytest.approx(4)
    search = table.belief("Explore", "haiku", "codebase_search")
    # the agent's other evidence is 40 failures: the prior is Beta(4·1/42.., …), then 40 successes
    assert search.a == pytest.approx(40 + 4 * 1 / 42)
    assert search.b == pytest.approx(4 * 41 / 42)
    other_agent = table.belief("Plan", "opus", "synthesis")
    assert other_agent.mean == pytest.approx(0.5, abs=0.01)


def test_old_evidence_fades_by_half_each_half_life():
    table = TrustTable(half_life_s=10 * DAY_S)
    for _ in range(8):
        table.observe("A", "m", "c", reward=1.0, time_s=0)
    assert table.belief("A", "m", "c").count == pytest.approx(8)
    table.now_s = 20 * DAY_S
    assert table.belief("A", "m", "c").count == pytest.approx(2)
    table.observe("A", "m", "c", reward=0.0, time_s=10 * DAY_S)  # arrives late: is faded, and does not turn time back
    assert table.belief("A", "m", "c").count == pytest.approx(2.5)
    assert table.now_s == 20 * DAY_S


def test_the_order_in_which_a_log_is_read_does_not_matter():
    rng = random.Random(5)
    log = [("A", "m", rng.choice("cd"), rng.random(), rng.uniform(0, 90 * DAY_S)) for _ in range(60)]
    tables = []
    for order in (log, sorted(log, key=lambda row: row[4]), log[::-1]):
        table = TrustTable()
        for agent, model, category, reward, time_s in order:
            table.observe(agent, model, category, reward=reward, time_s=time_s)
        tables.append(table.belief("A", "m", "c"))
    for other in tables[1:]:
        assert (other.a, other.b) == pytest.approx((tables[0].a, tables[0].b))


def test_no_bound_below_the_minimum_count():
    table = TrustTable(half_life_s=None, minimum=10)
    bounds = []
    for i in range(12):
        bounds.append(table.lower_bound("A", "m", "c"))
        table.observe("A", "m", "c", reward=1.0, time_s=i)
    assert bounds[:10] == [None] * 10
    assert bounds[10] == pytest.approx(0.05 ** (1 / 11))  # Beta(11, 1)
    assert bounds[11] > bounds[10]


def test_the_bound_covers_the_true_mean_about_as_often_as_it_says():
    rng = random.Random(11)
    below = 0
    for _ in range(400):
        mean = rng.random()
        table = TrustTable(half_life_s=None, minimum=1, level=0.1)
        for i in range(30):
            table.observe("A", "m", "c", reward=float(rng.random() < mean), time_s=i)
        below += mean < table.lower_bound("A", "m", "c")
    assert 20 <= below <= 62  # 40 expected, sd 6: a uniform prior is the truth here, so the level is exact


def test_rewards_out_of_range_are_refused_and_settings_checked():
    with pytest.raises(UsageError, match=r"\[0, 1\]"):
        TrustTable().observe("A", "m", "c", reward=1.5, time_s=0)
    with pytest.raises(UsageError, match="explore"):
        TrustTable(explore=2)


# -- choosing -------------------------------------------------------------------------------------------------------


def test_choose_takes_the_best_bound_and_explores_its_share():
    table = filled(explore=0.2)
    for i in range(40):
        table.observe("Plan", "opus", "synthesis", reward=0.9, time_s=i)
    rng = random.Random(0)
    candidates = [("Explore", "haiku"), ("Plan", "opus"), ("New", None)]
    choices = [table.choose(candidates, "synthesis", rng) for _ in range(100)]
    assert {choice.candidate for choice in choices if choice.reason == "bound"} == {("Plan", "opus")}
    explored = [choice for choice in choices if choice.reason == "explore"]
    assert 10 <= len(explored) <= 30
    assert {choice.candidate for choice in explored} == set(candidates)
    again = random.Random(0)
    assert choices == [table.choose(candidates, "synthesis", again) for _ in range(100)]


def test_choose_keeps_the_callers_order_while_nothing_is_known():
    choice = TrustTable(explore=0).choose([("B", None), ("A", None)], "x", random.Random(0))
    assert (choice.candidate, choice.reason, choice.lower_bound) == (("B", None), "order", None)
    with pytest.raises(UsageError, match="no candidate"):
        TrustTable().choose([], "x", random.Random(0))


# -- spans and calibration ------------------------------------------------------------------------------------------


def delegations(count, seed=0):
    rng = random.Random(seed)
    truth = {("Explore", "search"): 0.9, ("Explore", "synthesis"): 0.4, ("Plan", "search"): 0.6}
    spans = []
    for i in range(count):
        (agent, category), mean = rng.choice(list(truth.items()))
        spans.append(
            make(i, i * 3600, i * 3600 + 60, kind="agent", agent=agent, model="m", category=category,
                 reward=float(rng.random() < mean))
        )  # fmt: skip
    return spans


def test_only_verified_rewards_of_agents_count():
    spans = delegations(5)
    spans[0].reward, spans[1].agent, spans[2].reward = None, None, 7.0
    table = TrustTable()
    assert table.observe_spans(spans) == 2
    assert sum(row["count"] for row in table.rows()) == pytest.approx(2, abs=0.01)


def test_rows_keep_uncategorised_work_apart():
    table = TrustTable(half_life_s=None, minimum=2)
    for i in range(3):
        table.observe("A", "m", None, reward=1.0, time_s=i)
        table.observe("A", "m", "c", reward=0.0, time_s=i)
    rows = {row["category"]: row for row in table.rows()}
    assert (rows[None]["count"], rows["c"]["count"]) == (3, 3)
    assert rows[None]["mean"] > 0.5 > rows["c"]["mean"]
    assert rows["c"]["lower_bound"] is not None


def test_replay_predicts_before_it_sees_and_beats_the_plain_mean():
    result = replay(delegations(900))
    assert result.count == 900
    assert result.brier < result.brier_reference
    noise = (0.9 * 0.1 + 0.4 * 0.6 + 0.6 * 0.4) / 3  # no forecast can do better than the true chances
    assert noise - 0.02 < result.brier < noise + 0.02
    assert result.error < 0.06
    assert sum(row.count for row in result.reliability) == 900
    for row in result.reliability:
        if row.count > 100:
            assert row.low <= row.predicted < row.high + 1e-9
            assert abs(row.predicted - row.observed) < 0.12


def test_replay_by_hand():
    spans = [make(i, i, i + 1, agent="A", model="m", category="c", reward=reward) for i, reward in enumerate([1, 1, 0])]
    result = replay(spans, TrustTable(half_life_s=None))
    # predictions 1/2, 2/3, 3/4 before rewards 1, 1, 0 (the prior stays Beta(1, 1): there is no other evidence)
    assert result.brier == pytest.approx((1 / 4 + 1 / 9 + 9 / 16) / 3)
    assert result.brier == pytest.approx(result.brier_reference)


def test_replay_of_nothing():
    result = replay([make("a", 0, 1)])
    assert (result.count, result.brier, result.error, result.reliability) == (0, None, None, ())
