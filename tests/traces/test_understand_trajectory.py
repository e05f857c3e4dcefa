"""Trajectories: the critical path equals brute force, and untidy traces are survived and named."""

from __future__ import annotations

import itertools
import json

import pytest
from understand_graphs import SECOND, TRACE, make, random_trace, sid

from agent_forge.errors import TraceError
from agent_forge.traces.span import Span
from agent_forge.traces.trajectory import assemble, waterfall


def codes(trajectory):
    return {fault.code for fault in trajectory.faults}


# -- brute force: the definition in the module's first lines, pair by pair, and every chain tried -------------------


def brute_force(spans):
    by_id = {span.span_id: span for span in spans}

    def line(span_id):
        found = []
        while span_id in by_id:
            found.append(span_id)
            span_id = by_id[span_id].parent_id
        return found

    children = {span_id: [s for s in by_id if by_id[s].parent_id == span_id] for span_id in [None, *by_id]}
    links = {(source, b) for b, span in by_id.items() for _, source in span.links}

    def by_the_clock(parent):
        group = children[parent]
        between = any(
            a != b and any(x in line(s) for x in [a]) and b in line(t) for a, b in itertools.permutations(group, 2)
            for s, t in links
        )  # fmt: skip
        run = parent is not None and by_id[parent].kind == "run" and {by_id[c].kind for c in group} == {"task"}
        return not between and not run

    before = {
        (x, y)
        for x, y in itertools.permutations(by_id, 2)
        if (x, y) in links
        or (by_id[x].parent_id == by_id[y].parent_id and by_id[x].end_ns <= by_id[y].start_ns
            and by_the_clock(by_id[x].parent_id))
    }  # fmt: skip
    leaves = [span_id for span_id in by_id if not children[span_id]]
    order = {(x, y) for x in leaves for y in leaves if any((a, b) in before for a in line(x) for b in line(y))}
    for k, i, j in itertools.product(leaves, repeat=3):
        if (i, k) in order and (k, j) in order:
            order.add((i, j))
    longest = 0
    for size in range(1, len(leaves) + 1):
        for chosen in itertools.combinations(leaves, size):
            if all((a, b) in order or (b, a) in order for a, b in itertools.combinations(chosen, 2)):
                longest = max(longest, sum(by_id[leaf].end_ns - by_id[leaf].start_ns for leaf in chosen))
    return longest / SECOND, order


@pytest.mark.parametrize("block", range(10))
def test_critical_path_equals_brute_force(block):
    for seed in range(block * 50, block * 50 + 50):
        spans = random_trace(seed)
        trajectory = assemble(spans)
        seconds, order = brute_force(spans)
        path = trajectory.critical_path
        assert trajectory.critical_path_s == pytest.approx(seconds), f"seed {seed}"
        assert all((a, b) in order for a, b in itertools.pairwise(path)), f"seed {seed}"
        weights = {span.span_id: span.duration_s for span in spans}
        assert sum(weights[span_id] for span_id in path) == pytest.approx(seconds), f"seed {seed}"


# -- what it says about tidy traces ---------------------------------------------------------------------------------


def diamond():
    return [
        make("r", 0, 10, kind="agent"),
        make("a", 0, 3, "r"),
        make("b", 0, 5, "r"),
        make("c", 5, 9, "r", links="ab"),
    ]


def test_parallel_work_is_not_chained():
    trajectory = assemble(diamond())
    assert trajectory.critical_path == [sid("b"), sid("c")]
    assert trajectory.critical_path_s == 9
    assert (trajectory.total_s, trajectory.work_s, trajectory.idle_s) == (10, 12, 1)
    assert trajectory.parallelism == pytest.approx(1.2)
    assert trajectory.parallelism_limit == pytest.approx(12 / 9)


def test_siblings_without_links_are_ordered_by_the_clock_except_the_tasks_of_a_run():
    loop = [make("r", 0, 9, kind="agent"), make("m", 0, 4, "r", kind="model"), make("t", 4, 9, "r")]
    assert assemble(loop).critical_path == [sid("m"), sid("t")]
    run = [make("r", 0, 9, kind="run"), make("m", 0, 4, "r", kind="task"), make("t", 4, 9, "r", kind="task")]
    assert assemble(run).critical_path == [sid("t")]


def test_a_link_to_a_container_waits_for_everything_inside_it():
    spans = [
        make("r", 0, 20, kind="agent"),
        make("p", 0, 8, "r", kind="task"),
        make("x", 0, 2, "p"),
        make("y", 0, 8, "p"),
        make("q", 8, 12, "r", kind="task", links="p"),
        make("z", 8, 12, "q"),
    ]
    assert assemble(spans).critical_path == [sid("y"), sid("z")]


def test_totals_take_what_the_outermost_span_states_and_stay_none_when_nothing_was_measured():
    spans = diamond()
    assert (assemble(spans).cost, assemble(spans).input_tokens) == (None, None)
    spans[1].cost, spans[2].cost, spans[2].input_tokens = 0.25, 0.5, 7
    assert assemble(spans).cost == 0.75
    spans[0].cost = 1.0  # the agent states its whole cost: its parts are not added again
    assert assemble(spans).cost == 1.0
    assert assemble(spans).input_tokens == 7


@pytest.mark.parametrize(
    ("statuses", "success"),
    [(("ok",), True), (("error",), False), (("unset",), None), (("ok", "unset"), None), (("ok", "error"), False)],
)
def test_success_comes_from_the_roots_and_is_no_reward(statuses, success):
    trajectory = assemble([make(f"r{i}", i, i + 1, status=status) for i, status in enumerate(statuses)])
    assert (trajectory.success, trajectory.reward, trajectory.credit()) == (success, None, {})


def test_reward_comes_from_the_roots_or_else_from_reward_spans():
    spans = diamond()
    assert assemble(spans).reward is None
    spans.append(make("v", 10, 10, "r", kind="reward", reward=0.25))
    assert assemble(spans).reward == 0.25
    spans[0].reward = 0.75
    assert assemble(spans).reward == 0.75
    assert assemble(spans).to_json()["outcome_from"] == "reward"


def test_a_span_that_only_contains_its_judgement_is_still_the_work():
    spans = [
        make("r", 0, 9, kind="agent"),
        make("m", 0, 4, "r", kind="model"),
        make("v", 4, 4, "m", kind="reward", reward=1.0),
    ]
    assert assemble(spans).critical_path == [sid("m")]
    assert assemble(spans).credit("uniform", outcome=1.0) == {sid("r"): 0, sid("m"): 1.0, sid("v"): 0}
    graded = [*spans, make("g", 5, 9, "r", kind="reward", reward=1.0)]  # a grader that takes time is work in the run
    assert assemble(graded).critical_path == [sid("m"), sid("g")]


def test_tool_sequence():
    spans = [*diamond(), make("m", 9, 10, "r", kind="model")]
    spans[1].attributes["gen_ai.tool.name"] = "search"
    assert assemble(spans).tools == ["search", "b", "c"]


def test_json_document():
    document = json.loads(json.dumps(assemble(diamond()).to_json(outcome=1.0)))
    assert document["critical_path"] == [sid("b"), sid("c")]
    assert document["total_s"] == 10
    assert [row["name"] for row in document["spans"]] == ["a", "b", "r", "c"]
    assert sum(document["credit"].values()) == pytest.approx(document["outcome"])
    assert set(document["credit"]) == {span.span_id for span in diamond()}
    assert assemble(diamond()).to_json("uniform", outcome=3.0)["outcome_from"] == "given"


def test_a_session_of_several_traces():
    spans = [make("a", 0, 2, session="s"), make("b", 3, 7, session="s")]
    spans[1].trace_id = "2" * 32
    spans[1].links = [(TRACE, sid("a"))]
    trajectory = assemble(spans)
    assert trajectory.critical_path == [sid("a"), sid("b")]
    assert trajectory.to_json()["traces"] == [TRACE, "2" * 32]
    assert not trajectory.faults


# -- untidy traces --------------------------------------------------------------------------------------------------


def test_nothing_to_assemble():
    with pytest.raises(TraceError, match="no spans"):
        assemble([])


@pytest.mark.parametrize(
    ("spans", "code", "path"),
    [
        ([make("a", 0, 2, parent="lost")], "missing_parent", "a"),
        ([make("a", 0, 2, parent="b"), make("b", 0, 3, parent="a")], "parent_cycle", "b"),
        ([make("a", 0, 2, parent="a")], "parent_cycle", "a"),
        ([make("a", 0, None), make("b", 0, 4, links="c"), make("c", 0, 1)], "unfinished", "cb"),
        ([make("a", 5, 2), make("b", 6, 7)], "negative_duration", "b"),
        ([make("r", 2, 4), make("a", 1, 3, "r")], "outside_parent", "a"),
        ([make("a", 0, 2, links="z")], "dangling_link", "a"),
        ([make("r", 0, 4), make("a", 0, 2, "r", links="r")], "containment_link", "a"),
        ([make("a", 0, 2, links="a")], "containment_link", "a"),
        ([make("a", 0, 2, links="b"), make("b", 3, 6, links="a")], "link_cycle", "ab"),
        ([make("a", 0, 3), make("b", 2, 6, links="a")], "overlapping_link", "ab"),
        ([make("a", 0, 3), make("a", 1, 6)], "duplicate_span", "a"),
    ],
)
def test_faults_are_named_and_survived(spans, code, path):
    trajectory = assemble(spans)
    assert trajectory.critical_path == [sid(name) for name in path]
    assert code in codes(trajectory)
    assert json.dumps(trajectory.to_json())


def test_a_cycle_through_containers_is_broken_without_losing_the_other_links():
    spans = [
        make("p", 0, 5, kind="task", links="y"),
        make("x", 0, 5, "p"),
        make("q", 0, 5, kind="task"),
        make("y", 0, 5, "q", links="x"),
        make("z", 6, 8, links="q"),
    ]
    trajectory = assemble(spans)
    assert "link_cycle" in codes(trajectory)
    assert trajectory.critical_path[-1] == sid("z")


def test_when_the_clock_contradicts_the_links_the_links_are_believed():
    spans = [
        make("p", 0, 9, kind="agent"),
        make("x", 0, 2, "p", links="q"),  # says it used q, which used y: but ran before y by its own clock
        make("y", 3, 6, "p"),
        make("q", 6, 7, links="y"),
    ]
    trajectory = assemble(spans)
    assert trajectory.critical_path == [sid("y"), sid("q"), sid("x")]
    assert "contradicting_clock" in codes(trajectory)


def test_links_into_other_traces_are_no_fault():
    span = make("a", 0, 1)
    span.links = [("9" * 32, "9" * 16)]
    assert not assemble([span]).faults


def test_large_traces_take_linear_time():
    spans = [make("r", 0, 16_000, kind="agent")]
    spans += [
        Span(TRACE, f"{i:016x}", "t", kind="tool", parent_id=sid("r"), start_ns=i * SECOND, end_ns=(i + 1) * SECOND)
        for i in range(8_000)
    ]
    assert assemble(spans).critical_path_s == 8_000


# -- waterfall ------------------------------------------------------------------------------------------------------


def test_waterfall_shows_nesting_time_and_the_critical_path():
    spans = diamond()
    spans[1].status, spans[2].agent = "error", "Explore"
    text = waterfall(assemble(spans), width=80, credit={sid("c"): 0.5})
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["r", "a", "b", "c"]
    assert "✗" in lines[1]
    assert "(Explore)" in lines[2]
    assert "█" in lines[3]
    assert "+0.500" in lines[3]
    assert "█" not in lines[1]
    assert "critical path 9.000 s: b → c" in text
    assert all(len(line) <= 80 for line in lines)


def test_waterfall_of_one_unfinished_moment():
    text = waterfall(assemble([make("name-that-is-longer-than-the-column-allows-for-sure", 5, None)]), width=40)
    assert "…" in text
    assert "~" in text
    assert "outcome not recorded" not in text


def test_names_of_other_programs_cannot_repaint_the_terminal():
    assert "\x1b" not in waterfall(assemble([make("a\x1b[2J", 0, 1, agent="x\x07")]))


def test_a_waterfall_of_many_spans_and_of_wide_letters_stays_readable() -> None:
    trace = "1" * 32
    spans = [
        Span(
            trace,
            f"{n + 1:016x}",
            "検索する" if n % 2 else f"step {n}",
            "tool",
            start_ns=n * 1000,
            end_ns=n * 1000 + 900,
        )
        for n in range(40)
    ]
    *rows, _, _, path = waterfall(assemble(spans), 80).splitlines()
    from rich.cells import cell_len

    assert {cell_len(row) for row in rows} == {cell_len(rows[0])}
    assert "… 28 more …" in path
    assert path.count("→") == 12
