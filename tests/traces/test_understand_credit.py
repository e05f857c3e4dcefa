"""Credit: conserved by every strategy, equal to brute force on 500 random graphs, and it finds a planted bottleneck."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from understand_graphs import make, random_trace, sid

from agent_forge.errors import UsageError
from agent_forge.traces.credit import STRATEGIES, credit, credit_by
from agent_forge.traces.dependencies import dependencies
from agent_forge.traces.graph import SpanGraph
from agent_forge.traces.shapley import DependencyGame, shapley_values

ANSWERS = ["the very same answer", "another long answer", None, "ok"]


def random_work(seed: int):
    """Up to 7 leaves under one root, with links, failures, interchangeable results and texts that reappear."""
    rng = random.Random(seed)
    names = "abcdefg"[: rng.randint(2, 7)]
    root = make("r", 0, 100, kind="agent")
    spans = []
    for number, name in enumerate(names):
        links = [earlier for earlier in names[:number] if rng.random() < 0.4]
        span = make(name, 10 * number, 10 * number + rng.randint(1, 9), "r", links=links)
        span.status = "error" if rng.random() < 0.15 else "ok"
        span.outputs = rng.choice([*ANSWERS, f"a result of {name}: {rng.random()}"])
        quoted = [other.outputs for other in spans if rng.random() < 0.2 and other.outputs]
        span.inputs = {"prompt": " and ".join(quoted)} if quoted else None
        spans.append(span)
    return [root, *spans]


def used(spans):
    """Who used whose result, straight from the words: linked, or the text stands in the input."""
    leaves = [span for span in spans if span.parent_id]
    return {
        b.span_id: [
            a.span_id
            for a in leaves
            if (a.trace_id, a.span_id) in b.links
            or (a.outputs and len(a.outputs) >= 12 and b.inputs and a.outputs in b.inputs["prompt"]
                and a.end_ns <= b.start_ns and a is not b)
        ]
        for b in leaves
    }  # fmt: skip


def goals(spans, sources, outcome):
    leaves = [span for span in spans if span.parent_id]
    if outcome < 0 and any(span.status == "error" for span in leaves):
        return [span.span_id for span in leaves if span.status == "error"]
    ends = [span for span in leaves if all(span.span_id not in before for before in sources.values())]
    return [span.span_id for span in ends if span.status != "error"] or [span.span_id for span in ends]


def brute_force_shapley(spans, outcome):
    """The average over all orders of what each leaf adds, with the value worked out by recursion."""
    by_id = {span.span_id: span for span in spans if span.parent_id}
    sources = used(spans)
    ends = goals(spans, sources, outcome)
    hopeless = all(by_id[end].status == "error" for end in ends)

    def counts(span_id):
        return outcome < 0 or hopeless or by_id[span_id].status != "error"

    def same(a, b):
        x, y = by_id[a].outputs, by_id[b].outputs
        return a == b or (x == y and x is not None and len(x) >= 12)

    def stands(span_id, coalition):
        return span_id in coalition and all(
            any(same(a, b) and counts(b) and stands(b, coalition) for b in sources[span_id])
            for a in sources[span_id]
            if counts(a)
        )

    def value(coalition):
        return outcome * sum(stands(end, coalition) for end in ends) / len(ends)

    total = dict.fromkeys(by_id, 0.0)
    known: dict[frozenset, float] = {}
    for order in itertools.permutations(by_id):
        coalition, before = frozenset(), 0.0
        for span_id in order:
            coalition |= {span_id}
            if coalition not in known:
                known[coalition] = value(coalition)
            total[span_id] += known[coalition] - before
            before = known[coalition]
    return {span_id: amount / math.factorial(len(by_id)) for span_id, amount in total.items()}


@pytest.mark.parametrize("block", range(10))
def test_shapley_equals_brute_force(block):
    for seed in range(block * 50, block * 50 + 50):
        spans = random_work(seed)
        outcome = random.Random(seed).choice([1.0, 0.7, -1.0])
        expected = brute_force_shapley(spans, outcome)
        found = credit(spans, outcome, "shapley")
        assert found.error_bound == 0
        for span_id, amount in expected.items():
            assert found[span_id] == pytest.approx(amount, abs=1e-9), f"seed {seed}"


@pytest.mark.parametrize("block", range(10))
def test_the_other_strategies_equal_their_definitions(block):
    for seed in range(block * 50, block * 50 + 50):
        spans, outcome = random_work(seed), random.Random(seed).choice([1.0, -1.0])
        leaves = sorted((span for span in spans if span.parent_id), key=lambda span: span.end_ns)
        assert credit(spans, outcome, "uniform")[leaves[0].span_id] == pytest.approx(outcome / len(leaves))

        weights = [0.5 ** (len(leaves) - 1 - i) for i in range(len(leaves))]
        for span, weight in zip(leaves, weights, strict=True):
            assert credit(spans, outcome, "discounted", gamma=0.5)[span.span_id] == pytest.approx(
                outcome * weight / sum(weights)
            )

        failed = [i for i, span in enumerate(leaves) if span.status == "error"]
        blamed = leaves[max(0, failed[0] - 1)] if failed else leaves[-1]
        assert credit(spans, outcome, "last_before_failure")[blamed.span_id] == outcome

        sources = used(spans)
        ends = goals(spans, sources, outcome)
        counts = {
            span.span_id: sum(span.span_id in before for before in sources.values()) + (span.span_id in ends)
            for span in leaves
        }
        for span in leaves:
            expected = outcome * counts[span.span_id] / sum(counts.values())
            assert credit(spans, outcome, "reuse")[span.span_id] == pytest.approx(expected), f"seed {seed}"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_credits_add_up_to_the_outcome(strategy):
    for seed in range(200):
        outcome = random.Random(seed).uniform(-2, 2)
        spans = random_trace(seed) if seed % 2 else random_work(seed)
        credits = credit(spans, outcome, strategy)
        assert sum(credits.values()) == pytest.approx(outcome), f"seed {seed}"
        assert set(credits) == {span.span_id for span in spans}


@pytest.mark.parametrize("strategy", ["reuse", "shapley"])
def test_a_planted_bottleneck_is_found(strategy):
    """A bad early search is used by five workers; two unrelated steps run meanwhile, one of them last."""
    spans = [make("r", 0, 50, kind="agent"), make("bad", 0, 2, "r"), make("x", 0, 9, "r")]
    spans += [make(f"w{i}", 3, 5 + i, "r", links=["bad"], status="error") for i in range(5)]
    spans += [make("y", 45, 50, "r", links=["x"])]
    blame = credit(spans, -1.0, strategy)
    assert min(blame, key=blame.get) == sid("bad")
    assert credit(spans, -1.0, "last_before_failure")[sid("x")] == 0
    assert credit(spans, -1.0, "shapley")[sid("y")] == 0


def test_a_dead_end_and_a_failed_try_get_nothing_when_the_root_says_what_its_result_was_made_of():
    spans = [
        make("r", 0, 9, kind="agent", links=["c"]),
        make("a", 0, 1, "r", status="error"),
        make("b", 1, 2, "r"),
        make("c", 3, 4, "r", links=["a", "b"]),
        make("unused", 3, 8, "r"),
    ]
    assert credit(spans, 1.0) == {sid("r"): 0, sid("a"): 0, sid("b"): 0.5, sid("c"): 0.5, sid("unused"): 0}
    assert credit(spans, 1.0).samples == 0


def test_interchangeable_results_share_what_one_alone_would_have():
    spans = [
        make("r", 0, 9, kind="agent"),
        make("a", 0, 1, "r", outputs="the very same answer"),
        make("b", 0, 1, "r", outputs="the very same answer"),
        make("c", 3, 4, "r", links=["a", "b"]),
    ]
    assert credit(spans, 1.0)[sid("c")] == pytest.approx(2 / 3)
    assert credit(spans, 1.0)[sid("a")] == pytest.approx(1 / 6)


def test_a_link_between_containers_reaches_their_leaves():
    spans = [
        make("p", 0, 5, kind="task"),
        make("x", 0, 2, "p"),
        make("y", 3, 5, "p", links=["x"]),
        make("q", 6, 9, kind="task", links=["p"]),
        make("z", 6, 9, "q"),
    ]
    sources = dependencies(SpanGraph(spans))
    assert sources == {sid("x"): [], sid("y"): [sid("x")], sid("z"): [sid("y")]}


def test_a_text_that_reappears_is_a_dependency_but_never_against_the_links():
    spans = [
        make("a", 0, 1, outputs={"found": ["line 12 of config.py"]}),
        make("b", 2, 3, inputs=["read line 12 of config.py"], outputs="ok"),
        make("c", 4, 5, inputs="ok"),
    ]
    assert dependencies(SpanGraph(spans)) == {sid("a"): [], sid("b"): [sid("a")], sid("c"): []}
    spans[0].links = [(spans[1].trace_id, sid("b"))]  # by the links a came after b: the text closes no circle
    assert dependencies(SpanGraph(spans))[sid("b")] == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_judging_a_result_is_not_using_it(strategy):
    spans = [
        make("r", 0, 9, kind="agent"),
        make("a", 0, 1, "r", outputs="the answer in full"),
        make("g", 2, 3, "r", links=["a"], kind="reward", reward=1.0, inputs="grade: the answer in full"),
    ]
    assert credit(spans, 1.0, strategy) == {sid("r"): 0, sid("a"): 1.0, sid("g"): 0}


# -- sampling -------------------------------------------------------------------------------------------------------


def glove_game(coalition):
    """Player 0 has the left glove, the eleven others have right ones: φ₀ = 11/12, the others 1/132."""
    return float(coalition & 1 and coalition > 1)


def test_sampled_values_lie_within_their_bound_and_add_up():
    values, bound, drawn = shapley_values(12, glove_game, seed=3)
    assert (drawn, values) == (2000, shapley_values(12, glove_game, seed=3)[0])
    assert sum(values) == pytest.approx(1)
    assert abs(values[0] - 11 / 12) <= bound
    assert all(abs(value - 1 / 132) <= bound for value in values[1:])


def test_the_bound_holds_in_far_more_than_95_of_100_draws():
    exact, _, _ = shapley_values(6, lambda s: float(s & 1 and s > 1))
    misses = 0
    for seed in range(100):
        values, bound, _ = shapley_values(6, lambda s: float(s & 1 and s > 1), samples=50, seed=seed)
        misses += any(abs(a - b) > bound for a, b in zip(values, exact, strict=True))
    assert misses <= 5


def test_large_graphs_with_alternatives_are_sampled_and_walk_agrees_with_value():
    spans = [make("r", 0, 99, kind="agent")]
    spans += [make(f"a{i}", 0, 1, "r", outputs="the very same answer") for i in range(6)]
    spans += [make(f"b{i}", 2, 3, "r", links=[f"a{j}" for j in range(6)]) for i in range(8)]
    graph = SpanGraph(spans)
    game = DependencyGame(graph, 1.0)
    assert not game.decomposes
    order = random.Random(0).sample(range(len(game.players)), len(game.players))
    masks = itertools.accumulate(order, lambda mask, player: mask | 1 << player, initial=0)
    assert game.walk(order) == [game.value(mask) for mask in masks]
    credits = credit(graph, 1.0)
    assert credits.samples == 2000
    assert 0 < credits.error_bound < 0.05
    # closed form: eight games "b and any of six a": φ_b = ∫ 1-(1-t)^6 dt = 6/7, the rest shared by the six
    assert abs(credits[sid("b0")] - (6 / 7) / 8) <= credits.error_bound
    assert abs(credits[sid("a0")] - (1 / 7) / 6) <= credits.error_bound


def test_pure_dependency_graphs_are_exact_at_any_size_and_agree_with_sampling():
    spans = [make("r", 0, 99, kind="agent")]
    spans += [make(f"s{i}", 2 * i, 2 * i + 1, "r", links=[f"s{j}" for j in range(max(0, i - 2), i)]) for i in range(30)]
    exact, sampled = credit(spans, 1.0), credit(spans, 1.0, samples=400)
    assert exact.error_bound == 0
    assert all(abs(exact[span_id] - sampled[span_id]) <= sampled.error_bound for span_id in exact)


# -- edges ----------------------------------------------------------------------------------------------------------


def test_credit_by_agent_takes_the_nearest_span_that_names_one():
    spans = [
        make("r", 0, 9, kind="agent", agent="Plan"),
        make("e", 0, 5, "r", kind="agent", agent="Explore"),
        make("t", 0, 5, "e"),
        make("u", 6, 9, "r"),
    ]
    assert credit_by(spans, credit(spans, 1.0, "uniform"), "agent") == {"Explore": 0.5, "Plan": 0.5}
    assert credit_by(spans, credit(spans, 1.0), "category") == {}


def test_no_spans_only_rewards_and_wrong_options():
    assert all(credit([], 1.0, strategy) == {} for strategy in STRATEGIES)
    assert credit([make("v", 0, 1, kind="reward")], 1.0) == {sid("v"): 0.0}
    with pytest.raises(UsageError, match="uniform"):
        credit([], 1.0, "karma")
    with pytest.raises(UsageError, match="gamma"):
        credit([make("a", 0, 1)], 1.0, "discounted", gamma=0)
