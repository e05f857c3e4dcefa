"""Plan scores: against hand-worked cases and brute force."""

from __future__ import annotations

import itertools
import random

import pytest

from agent_forge.tasks.plan_score import Graph, f1, longest_path, match_texts, match_tools, score


def test_the_same_graph_is_perfect() -> None:
    graph = Graph(("find the film", "date of it", "compare dates"), frozenset({(0, 1), (1, 2)}))
    found = score(graph, graph)
    assert (found.node_f1, found.edge_f1, found.exact, found.regret) == (1, 1, 1, 1)


def test_missing_steps_cost_recall_and_shorten_the_path() -> None:
    gold = Graph(("alpha", "beta", "gamma"), frozenset({(0, 1), (1, 2)}))
    found = score(Graph(("alpha", "beta"), frozenset({(0, 1)})), gold)
    assert found.node_f1 == pytest.approx(0.8)
    assert found.edge_f1 == pytest.approx(2 / 3)
    assert found.regret == pytest.approx(2 / 3)
    assert found.exact == 0


def test_a_chain_where_gold_is_parallel_has_regret() -> None:
    gold = Graph(("alpha", "beta"), frozenset())
    assert score(Graph(("alpha", "beta"), frozenset({(0, 1)})), gold).regret == 2
    assert score(Graph(("alpha", "beta"), frozenset({(0, 1)})), gold, durations=(3, 1)).regret == pytest.approx(4 / 3)


def test_tools_match_by_name_each_once() -> None:
    assert match_tools(("a", "a", "b"), ("b", "a")) == {0: 1, 2: 0}


def test_references_do_not_count_as_words() -> None:
    assert match_texts(["date of birth of {s1}"], ["when #1 gave birth to a date"]) == {0: 0}
    assert match_texts(["{s1}, {s2}"], ["#1 , #2"]) == {0: 0}
    assert match_texts(["alpha"], ["omega"]) == {}


def test_two_empty_sets_agree() -> None:
    assert f1(0, 0, 0) == 1


def test_longest_path_against_all_orders() -> None:
    rng = random.Random(5)
    for _ in range(100):
        size = rng.randint(1, 6)
        edges = frozenset(pair for pair in itertools.combinations(range(size), 2) if rng.random() < 0.4)
        times = [rng.randint(1, 9) for _ in range(size)]
        chains = [
            chain
            for length in range(1, size + 1)
            for chain in itertools.combinations(range(size), length)
            if all(pair in edges for pair in itertools.pairwise(chain))
        ]
        assert longest_path(edges, times) == max(sum(times[i] for i in chain) for chain in chains)
