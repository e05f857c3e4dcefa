"""Levels, paths, reduction and groups against brute force on random graphs."""

from __future__ import annotations

import itertools
from random import Random

import pytest
from many import in_one_test

from agent_forge.errors import PlanError
from agent_forge.plans import Plan, PlanFault, PlanInvalid, PlanLimits, Task, needless_edges, reduced, why

SEEDS = range(150)


def random_dag(seed: int, most: int = 9) -> Plan:
    random = Random(seed)
    names = [f"t{index}" for index in range(random.randint(1, most))]
    density = random.choice([0.1, 0.3, 0.7])
    tasks = [Task(name, depends_on=[b for b in names[:i] if random.random() < density]) for i, name in enumerate(names)]
    random.shuffle(tasks)
    return Plan(tasks)


def chains(plan: Plan) -> list[list[str]]:
    """Every path that starts at a task without dependencies and ends at one without dependents."""
    found: list[list[str]] = []
    growing = [[name] for name in plan.tasks if not plan.dependencies[name]]
    while growing:
        path = growing.pop()
        after = [name for name in plan.tasks if path[-1] in plan.dependencies[name]]
        growing.extend([*path, name] for name in after)
        if not after:
            found.append(path)
    return found


def reachable(edges: set[tuple[str, str]], names: list[str]) -> set[tuple[str, str]]:
    """Warshall's closure."""
    closed = set(edges)
    for middle, first, last in itertools.product(names, names, names):
        if (first, middle) in closed and (middle, last) in closed:
            closed.add((first, last))
    return closed


def edges_of(plan: Plan) -> set[tuple[str, str]]:
    return {(before, after) for after, needs in plan.dependencies.items() for before in needs}


@in_one_test(SEEDS)
def test_levels_order_and_critical_path_against_all_chains(seed: int) -> None:
    plan = random_dag(seed)
    random = Random(seed)
    durations = {name: random.choice([0, 1, 2.5, 7]) for name in plan.tasks}
    paths = chains(plan)
    longest = max(sum(durations[name] for name in path) for path in paths)
    assert plan.critical_path_length(durations) == pytest.approx(longest)
    chosen = plan.critical_path(durations)
    assert chosen in paths
    assert sum(durations[name] for name in chosen) == pytest.approx(longest)
    assert len(plan.levels()) == max(map(len, paths)) == len(plan.critical_path())
    for index, level in enumerate(plan.levels()):
        for name in level:
            assert index == max(path.index(name) for path in paths if name in path)
    assert plan.parallelism(durations) == pytest.approx(sum(durations.values()) / longest if longest else 1)
    place = {name: index for index, name in enumerate(plan.order())}
    assert sorted(place) == sorted(plan.tasks)
    assert all(place[before] < place[after] for before, after in edges_of(plan))
    assert all(plan.dependents[before].count(after) == 1 for before, after in edges_of(plan))


@in_one_test(SEEDS)
def test_ranks_are_the_longest_way_to_the_end(seed: int) -> None:
    plan = random_dag(seed)
    durations = {name: index + 0.5 for index, name in enumerate(plan.tasks)}
    for name, rank in plan.ranks(durations).items():
        tails = [path[path.index(name) :] for path in chains(plan) if name in path]
        assert rank == pytest.approx(max(sum(durations[each] for each in tail) for tail in tails))


@in_one_test(SEEDS)
def test_reduction_keeps_what_is_reachable_with_the_fewest_edges(seed: int) -> None:
    plan = random_dag(seed)
    names = list(plan.tasks)
    smaller = reduced(plan)
    assert reachable(edges_of(smaller), names) == reachable(edges_of(plan), names)
    for edge in edges_of(smaller):  # nothing more can go
        assert reachable(edges_of(smaller) - {edge}, names) != reachable(edges_of(plan), names)
    assert needless_edges(plan) == edges_of(plan) - edges_of(smaller)


def random_hierarchy(seed: int) -> list[Task]:
    random = Random(seed)
    names = [f"t{index}" for index in range(random.randint(2, 10))]
    parents = {name: random.choice([None, *names[:i]]) for i, name in enumerate(names)}
    tasks = [
        Task(name, depends_on=random.sample(names, random.choice([0, 0, 1, 2])), parent=parents[name]) for name in names
    ]
    return random.sample(tasks, len(tasks))


def inside(tasks: list[Task], name: str) -> set[str]:
    """The leaves of a task, straight from the definition."""
    children = [task.id for task in tasks if task.parent == name]
    return {leaf for child in children for leaf in inside(tasks, child)} if children else {name}


@in_one_test(range(600))
def test_groups_mean_their_leaves(seed: int) -> None:
    """The order between leaves is that of: every leaf of a group waits for every leaf of what the group waits for."""
    tasks = random_hierarchy(seed)
    stated = {
        (b, a)
        for task in tasks
        for other in task.depends_on
        for a in inside(tasks, task.id)
        for b in inside(tasks, other)
    }
    leaves = sorted({leaf for task in tasks for leaf in inside(tasks, task.id)})
    wanted = reachable(stated, leaves)
    cyclic = any((leaf, leaf) in wanted for leaf in leaves)
    if cyclic:
        with pytest.raises(PlanInvalid) as refused:
            Plan(tasks)
        assert set(refused.value.codes) == {"cycle"}
        return
    plan = Plan(tasks)
    assert sorted(plan.leaves) == leaves == sorted(plan.dependencies)
    assert reachable(edges_of(plan), leaves) == wanted
    assert edges_of(plan) <= stated
    assert all(set(plan.leaves_of(task.id)) == inside(tasks, task.id) for task in tasks)
    assert reachable(edges_of(reduced(plan)), leaves) == wanted


def test_every_fault_is_reported_at_once() -> None:
    with pytest.raises(PlanInvalid) as refused:
        Plan(
            [
                Task("a", depends_on=["b"]),
                Task("b", depends_on=["a"]),
                Task("c", depends_on=["nowhere"]),
                Task("c"),
                Task(""),
                Task("d", limit=0),
                Task("e", parent="no group"),
            ]
        )
    found = {(fault.code, fault.task) for fault in refused.value.errors}
    assert found == {
        ("cycle", "a"),
        ("unknown_dependency", "c"),
        ("duplicate_id", "c"),
        ("malformed", None),
        ("malformed", "d"),
        ("unknown_dependency", "e"),
    }


def test_a_cycle_names_its_path_and_only_its_path() -> None:
    tasks = [
        Task("x", depends_on=["a"]),
        Task("a", depends_on=["c"]),
        Task("b", depends_on=["a"]),
        Task("c", depends_on=["b"]),
    ]
    with pytest.raises(PlanInvalid, match="a → c → b → a") as refused:
        Plan([*tasks, Task("p", depends_on=["q"]), Task("q", depends_on=["p"]), Task("self", depends_on=["self"])])
    assert [fault.message for fault in refused.value.errors] == [
        "tasks wait for each other: a → c → b → a",
        "tasks wait for each other: p → q → p",
        "tasks wait for each other: self → self",
    ]


def test_an_empty_plan_is_refused() -> None:
    with pytest.raises(PlanInvalid) as refused:
        Plan([])
    assert refused.value.errors == [PlanFault("empty_plan", "the plan has no task")]


@pytest.mark.parametrize(
    ("limits", "tasks"),
    [
        (PlanLimits(tasks=2), [Task("a"), Task("b"), Task("c")]),
        (PlanLimits(edges=1), [Task("a"), Task("b", depends_on=["a"]), Task("c", depends_on=["a"])]),
        (PlanLimits(references=1), [Task("a"), Task("b", "{a} {a}")]),
        (PlanLimits(depth=1), [Task("a"), Task("b", parent="a"), Task("c", parent="b")]),
        (PlanLimits(nesting=2), [Task("a", args={"x": [[1]]})]),
        (
            PlanLimits(edges=3),
            [Task("g"), Task("h", depends_on=["g"]), *(Task(f"{p}{i}", parent=p) for p in "gh" for i in "12")],
        ),
    ],
)
def test_beyond_a_limit_it_is_too_large(limits: PlanLimits, tasks: list[Task]) -> None:
    with pytest.raises(PlanInvalid) as refused:
        Plan(tasks, limits=limits)
    assert refused.value.codes == ["too_large"]
    Plan(tasks)


def test_an_endless_supply_of_tasks_is_cut_short() -> None:
    endless = (Task(f"t{number}") for number in itertools.count())
    with pytest.raises(PlanInvalid, match="more than 100 tasks"):
        Plan(endless, limits=PlanLimits(tasks=100))


@pytest.mark.parametrize(
    "task",
    [
        Task(7),  # type: ignore[arg-type]
        Task("a\nb"),
        Task(" a"),
        Task("x" * 300),
        Task("a", goal=None),  # type: ignore[arg-type]
        Task("a", goal="\ud800"),
        Task("a", action=""),
        Task("a", action=3),  # type: ignore[arg-type]
        Task("a", args={"x": float("nan")}),
        Task("a", args={"x": object()}),
        Task("a", args={"x": {1: 2}}),
        Task("a", args={"x": 10**400}),
        Task("a", args={"x": ["\ud800"]}),
        Task("a", meta={"x": {1, 2}}),
        Task("a", limit=True),
        Task("a", limit=10**10),
        Task("a", parent=["b"]),  # type: ignore[arg-type]
        Task("a", depends_on=[["b"]]),  # type: ignore[list-item]
        Task("a", for_each="rows"),
        Task("a", for_each="{s1} and {s2}"),
        "a task?",
    ],
)
def test_what_is_not_a_task_is_malformed(task: Task) -> None:
    with pytest.raises(PlanInvalid) as refused:
        Plan([task, Task("other")])
    assert set(refused.value.codes) == {"malformed"}


def test_durations_must_be_there_and_be_durations() -> None:
    plan = Plan([Task("a"), Task("b")])
    with pytest.raises(PlanError, match="there is no duration for task 'b'"):
        plan.critical_path({"a": 1})
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(PlanError, match="the duration of task 'a'"):
            plan.critical_path_length({"a": wrong, "b": 1})


def test_why_an_edge_is_there() -> None:
    plan = Plan(
        [
            Task("g"),
            Task("a", parent="g"),
            Task("b", args={"rows": ["{a.rows[0]}", "{g}"]}, depends_on=["a", "g"]),
            Task("h", depends_on=["b"]),
            Task("c", parent="h"),
        ]
    )
    assert [(reason.kind, reason.names, reason.place) for reason in why(plan, "a", "b")] == [
        ("reference", "a", "args.rows[0]"),
        ("reference", "g", "args.rows[1]"),
        ("stated", "a", "depends_on"),
        ("stated", "g", "depends_on"),
    ]
    assert [str(reason) for reason in why(plan, "b", "c")] == ["h states that it depends on b"]
    assert why(plan, "a", "c") == why(plan, "b", "a") == why(plan, "a", "nobody") == []


def test_reduction_keeps_data_and_drops_what_a_reference_says_already() -> None:
    plan = Plan([Task("a"), Task("b", "{a}", depends_on=["a"]), Task("c", args={"x": "{a}"}, depends_on=["b", "a"])])
    smaller = reduced(plan)
    assert [task.depends_on for task in smaller] == [(), (), ("b",)]
    assert smaller.dependencies["c"] == ("b", "a")


def test_plans_compare_by_their_tasks_and_show_themselves() -> None:
    plan = Plan([Task(name) for name in "abcdef"])
    assert plan == Plan([Task(name) for name in "abcdef"])
    assert plan != Plan([Task("a")])
    assert len({plan, Plan(list(plan))}) == 1
    assert repr(plan) == "Plan(6 tasks: a, b, c, d, e, …)"
    assert "a" in plan
    assert plan["a"] == Task("a")
    assert plan.depth("a") == 0
    assert plan.children("a") == ()
    with pytest.raises(KeyError):
        plan.leaves_of("z")


def test_a_refusal_survives_being_sent_to_another_process() -> None:
    import pickle

    with pytest.raises(PlanInvalid) as refused:
        Plan([Task(f"t{number}", depends_on=["x"]) for number in range(9)])
    again = pickle.loads(pickle.dumps(refused.value))
    assert again.errors == refused.value.errors
    assert str(again).endswith("and 4 more")
