"""Who deserves the credit: an outcome shared out over the spans that led to it.

Credit goes to the leaves of a trace (the spans that did the work; a span that only contains others gets 0, and so does
a reward span). **Conservation**: the credits of all spans add up to the outcome, whatever the strategy.

| strategy | who gets it |
|---|---|
| uniform | every leaf the same: what Agent Lightning does |
| discounted | γ^(N-1-i) for the i-th of N leaves to end, scaled to the outcome: later is nearer the outcome |
| last_before_failure | all of it to the last leaf that ended before the first failure: a baseline |
| reuse | by how many later leaves used a leaf's result (linked, or its text appears in their input) |
| shapley | the Shapley value of a game on the dependency graph, see `DependencyGame` |

    >>> credit([], 1.0, "uniform")
    {}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from agent_forge.errors import UsageError
from agent_forge.traces.dependencies import dependencies, targets, workers
from agent_forge.traces.graph import SpanGraph
from agent_forge.traces.shapley import DependencyGame, shapley_values

if TYPE_CHECKING:
    from agent_forge.traces.span import Span


class Credits(dict[str, float]):
    """The credit of each span id.

    `error_bound` is 0 for exact credits; otherwise no credit is further than that from its true value, with
    probability 0.95 for all of them together. `samples` is the number of orders of the spans drawn (0 if exact).
    """

    error_bound: float = 0.0
    samples: int = 0


def credit(spans: Iterable[Span] | SpanGraph, outcome: float, strategy: str = "shapley", **options: Any) -> Credits:
    """Shares `outcome` out over the spans. Raises UsageError for an unknown strategy.

    Pass a failure as a negative outcome (the credit is then blame); with an outcome of 0 there is nothing to share.
    Options: `gamma` for discounted; `samples` and `seed` for shapley.
    """
    if strategy not in STRATEGIES:
        raise UsageError(f"there is no credit strategy {strategy!r}", fix=f"Choose one of {', '.join(STRATEGIES)}")
    graph = spans if isinstance(spans, SpanGraph) else SpanGraph(spans)
    shares = STRATEGIES[strategy](graph, outcome, **options)
    credits = Credits(dict.fromkeys(graph.spans, 0.0))
    credits.update(shares)
    credits.error_bound, credits.samples = shares.error_bound, shares.samples
    return credits


def credit_by(spans: Iterable[Span] | SpanGraph, credits: dict[str, float], attribute: str) -> dict[str, float]:
    """Sums credits by `agent`, `model`, `category` …: the leaf's, or that of the nearest span around it with one."""
    graph = spans if isinstance(spans, SpanGraph) else SpanGraph(spans)
    totals: dict[str, float] = {}
    for leaf in graph.leaves:
        owners = (getattr(graph.spans[span_id], attribute) for span_id in (leaf, *graph.ancestors(leaf)))
        owner = next((owner for owner in owners if owner is not None), None)
        if owner is not None:
            totals[str(owner)] = totals.get(str(owner), 0.0) + credits.get(leaf, 0.0)
    return totals


# -- the simple strategies ---------------------------------------------------------------------------------------------


def _scaled(weights: dict[str, float], outcome: float) -> Credits:
    total = sum(weights.values())
    if total == 0:  # nothing distinguishes the leaves
        weights, total = dict.fromkeys(weights, 1.0), float(len(weights))
    return Credits({leaf: outcome * weight / total for leaf, weight in weights.items()})


def _uniform(graph: SpanGraph, outcome: float) -> Credits:
    return _scaled(dict.fromkeys(workers(graph), 1.0), outcome)


def _discounted(graph: SpanGraph, outcome: float, gamma: float = 0.9) -> Credits:
    if not 0 < gamma <= 1:
        raise UsageError(f"gamma must lie in (0, 1], not {gamma}")
    leaves = workers(graph)
    return _scaled({leaf: gamma ** (len(leaves) - 1 - i) for i, leaf in enumerate(leaves)}, outcome)


def _last_before_failure(graph: SpanGraph, outcome: float) -> Credits:
    leaves = workers(graph)
    failed = [leaf for leaf in leaves if graph.spans[leaf].status == "error"]
    blamed: str | None = leaves[-1] if leaves else None
    if failed:
        first = min(failed, key=lambda leaf: (graph.spans[leaf].start_ns, leaf))
        before = [leaf for leaf in leaves if graph.end_ns(leaf) <= graph.spans[first].start_ns and leaf != first]
        blamed = before[-1] if before else first
    return Credits({leaf: outcome if leaf == blamed else 0.0 for leaf in leaves})


def _reuse(graph: SpanGraph, outcome: float) -> Credits:
    sources = dependencies(graph)
    used: dict[str, float] = dict.fromkeys(workers(graph), 0.0)
    for before in sources.values():
        for source in before:
            if source in used:
                used[source] += 1
    for leaf in targets(graph, sources, outcome):
        used[leaf] += 1  # the outcome itself uses it
    return _scaled(used, outcome)


def _shapley(graph: SpanGraph, outcome: float, samples: int | None = None, seed: int = 0) -> Credits:
    game = DependencyGame(graph, outcome)
    if not game.players:
        return Credits()
    if game.decomposes and samples is None:
        shares, bound, drawn = game.closed_form(), 0.0, 0
    else:
        shares, bound, drawn = shapley_values(len(game.players), game.value, walk=game.walk, samples=samples, seed=seed)
    credits = Credits({leaf: outcome * share for leaf, share in zip(game.players, shares, strict=True)})
    credits.error_bound, credits.samples = abs(outcome) * bound, drawn
    return credits


STRATEGIES: dict[str, Callable[..., Credits]] = {
    "uniform": _uniform,
    "discounted": _discounted,
    "last_before_failure": _last_before_failure,
    "reuse": _reuse,
    "shapley": _shapley,
}
