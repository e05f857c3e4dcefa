"""The drawings: layouts against what a layout must be, round ticks, labels apart, and nothing unescaped."""

from __future__ import annotations

import itertools
import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_forge.server.drawing.charts import (
    Line,
    bar_chart,
    line_chart,
    log_ticks,
    nice_ticks,
    pareto,
    sample,
    scatter_chart,
    spread,
    time_ticks,
)
from agent_forge.server.drawing.graph import Node, draw_graph
from agent_forge.server.drawing.layers import _nearest, crossings, layout
from agent_forge.server.drawing.wording import ago, count, duration, money, number, pretty, short, signed, size

HOSTILE = '"><script>alert(1)</script>'


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[str], list[tuple[str, str]]]:
    nodes = [f"n{n}" for n in range(draw(st.integers(1, 14)))]
    pairs = [(a, b) for a, b in itertools.combinations(nodes, 2)]
    return nodes, draw(st.lists(st.sampled_from(pairs), max_size=30)) if pairs else []


@settings(max_examples=25, deadline=None)
@given(graphs())
def test_a_layout_keeps_its_promises(graph: tuple[list[str], list[tuple[str, str]]]) -> None:
    nodes, edges = graph
    found = layout(nodes, edges)
    assert found.places.keys() == set(nodes)
    for source, target in edges:
        assert found.places[source][0] < found.places[target][0]  # every edge goes forward
        route = found.routes[source, target]
        assert [layer for layer, _ in route] == list(range(found.places[source][0], found.places[target][0] + 1))
        assert route[0] == found.places[source]
        assert route[-1] == found.places[target]
    for layer in range(found.layers):
        row = sorted(place for where, place in found.places.values() if where == layer)
        assert all(b - a >= 1 - 1e-9 for a, b in itertools.pairwise(row))  # none on another
    assert min(place for _, place in found.places.values()) >= -1e-9


def test_crossings_are_counted_and_taken_away() -> None:
    pairs = [("a", "z"), ("b", "y"), ("c", "x")]
    start = crossings([["a", "b", "c"], ["x", "y", "z"]], [{a: [b] for a, b in pairs}, {}])
    assert start == sum(1 for (_, p), (_, q) in itertools.combinations(pairs, 2) if p > q) == 3
    found = layout(["a", "b", "c", "x", "y", "z"], pairs)
    order = sorted("xyz", key=lambda name: found.places[name][1])
    assert sorted("abc", key=lambda name: found.places[name][1]) == [a for o in order for a, b in pairs if b == o]


def test_a_circle_is_drawn_without_its_edges() -> None:
    found = layout(["a", "b", "c"], [("a", "b"), ("b", "a"), ("a", "c"), ("c", "nobody"), ("c", "c")])
    assert set(found.places) == {"a", "b", "c"}
    assert ("a", "b") not in found.routes


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=5))
def test_places_are_the_nearest_that_keep_the_distance(wanted: list[int]) -> None:
    """Against brute force over a grid of halves."""
    gaps = [0.0, *[1.0] * (len(wanted) - 1)]
    found = _nearest([float(w) for w in wanted], gaps)
    assert all(b - a >= 1 - 1e-9 for a, b in itertools.pairwise(found))
    cost = sum((f - w) ** 2 for f, w in zip(found, wanted, strict=True))
    grid = [n / 2 for n in range(-8, 22)]
    best = min(
        sum((p - w) ** 2 for p, w in zip(places, wanted, strict=True))
        for places in itertools.combinations(grid, len(wanted))
        if all(b - a >= 1 for a, b in itertools.pairwise(places))
    ) if len(wanted) <= 3 else math.inf  # fmt: skip
    assert cost <= best + 1e-9


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e6))
def test_ticks_are_round_and_inside(low: float, wide: float) -> None:
    ticks = nice_ticks(low, low + wide)
    assert 1 <= len(ticks) <= 7
    assert all(low - wide * 1e-6 <= tick <= low + wide * (1 + 1e-6) for tick in ticks)
    steps = {round((b - a) / 10 ** math.floor(math.log10(b - a) + 1e-6), 3) for a, b in itertools.pairwise(ticks)}
    assert steps <= {1.0, 2.0, 5.0}


def test_ticks_of_other_axes() -> None:
    assert time_ticks(1_000_000_000, 1_000_000_000 + 86_400)[0] % 3600 == 0
    assert log_ticks(1.0, 1000.0) == [1.0, 10.0, 100.0, 1000.0]
    assert log_ticks(3.1, 3.2) == [3.1]
    assert nice_ticks(2, 2) == [2]


def test_thinning_keeps_the_peaks() -> None:
    points = [(float(x), 0.0) for x in range(10_000)]
    points[4321] = (4321.0, 99.0)
    points[77] = (77.0, -5.0)
    kept = sample(points)
    assert len(kept) <= 800
    assert {(4321.0, 99.0), (77.0, -5.0)} <= set(kept)
    assert kept == sorted(kept)


def test_labels_do_not_lie_on_each_other() -> None:
    found = sorted(spread([(0.0, 5.0), (1.0, 5.0), (2.0, 6.0), (3.0, 40.0)]))
    assert all(b - a >= 12 for a, b in itertools.pairwise(found))
    assert pareto([(3, 3), (1, 5), (2, 5), (4, 1)]) == [(1, 5), (3, 3), (4, 1)]


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)


LONG = [Line(HOSTILE, [(0, 1), (1, 2)], [0.1, None]), Line("b", [(0, 2), (1, 2)])]
DOTS = [Line(HOSTILE, [(1, 1), (10, 2)], labels=[HOSTILE], links=["/a", "/b"])]
BOXES = [Node("a", HOSTILE, HOSTILE, HOSTILE, "/x", title=HOSTILE), Node("b", "b", progress=0.5)]
TIMED = {"window": (0.0, 120.0), "x_label": "t", "x_text": str, "step": 60, "name": HOSTILE}


@pytest.mark.parametrize(
    "svg",
    [
        draw_graph(BOXES, [("a", "b")]),
        line_chart(LONG, x_label=HOSTILE, y_label="y"),
        scatter_chart(DOTS, x_label="x", y_label=HOSTILE, log_x=True, front=[(1, 1), (10, 2)]),
        bar_chart([(0.0, 3, 1), (60.0, 5, 0)], y_label=HOSTILE, **TIMED),
    ],
)
def test_pictures_are_well_formed_and_escaped(svg: str) -> None:
    root = parsed(svg)
    assert root.tag == "svg"
    assert not list(root.iter("script"))
    assert "alert(1)" in "".join(root.itertext()) + str(root.attrib)  # it is there, as text


def test_many_nodes_become_squares_and_too_many_nothing() -> None:
    nodes = [Node(str(n), f"task {n}") for n in range(150)]
    svg = draw_graph(nodes, [(str(n), str(n + 1)) for n in range(149)])
    assert not list(parsed(svg).iter("text"))
    assert draw_graph([Node(str(n), "x") for n in range(2_001)], []) == ""
    assert draw_graph([], []) == ""
    assert line_chart([Line("a", [])], x_label="x", y_label="y") == ""
    assert line_chart([Line("a", [(0, math.nan)])], x_label="x", y_label="y") == ""
    assert scatter_chart([], x_label="x", y_label="y") == ""
    assert bar_chart([], window=(0, 1), x_label="x", y_label="y", x_text=str, step=1, name="n") == ""


def test_a_deep_plan_goes_down_and_a_wide_one_across() -> None:
    deep = draw_graph([Node(str(n), "x") for n in range(5)], [(str(n), str(n + 1)) for n in range(4)])
    wide = draw_graph([Node(str(n), "x") for n in range(5)], [])
    assert float(parsed(deep).attrib["height"]) > float(parsed(deep).attrib["width"])
    assert "data-wide" not in deep + wide


def test_words_for_what_was_not_measured_and_what_is_extreme() -> None:
    assert {number(None), duration(None), size(None), count(None), money(None), signed(None), ago(None, 0)} == {"–"}
    assert number(math.nan) == duration(math.inf) == "–"
    assert (number(1.5e9 + 0.5), number(0.00001)) == ("1.50e+09", "1.00e-05")
    assert (duration(-2), size(3e13), count(12_345)) == ("−2 s", "30 TB", "12.3 k")
    assert (ago(0.0, 70 * 86_400.0), duration(3_600)) == ("1970-01-01", "1 h")
    assert pretty("x" * 30, 10).startswith("x" * 10 + "\n… 20 more")
    assert short("a\n b") == "a b"
