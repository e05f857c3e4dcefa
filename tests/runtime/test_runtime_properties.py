"""Properties of every schedule, on random graphs in simulated time (so that they are exact)."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_plans import Lab, descendants, level_makespan, random_durations, random_plan

from agent_forge.runtime import Limits, ToolRules, execute, run_simulated, start

SEEDS = st.integers(0, 10**6)
FEW = settings(max_examples=25, deadline=None)


@FEW
@given(SEEDS, st.integers(1, 40))
def test_starts_exactly_when_the_last_input_is_there(seed: int, count: int) -> None:
    plan = random_plan(seed, count)
    durations = random_durations(plan, seed)
    lab = Lab(durations)
    result = run_simulated(execute(plan, lab))
    assert result.state == "done"
    for name, needs in plan.dependencies.items():
        ready = max((lab.spans[need][1] for need in needs), default=0.0)
        assert lab.spans[name][0] == pytest.approx(ready, abs=1e-9)
    assert result.wall_s == pytest.approx(plan.critical_path_length(durations), abs=1e-6)
    assert result.wall_s == pytest.approx(result.critical_path_s, abs=1e-6)
    assert result.wall_s <= level_makespan(plan, durations) + 1e-6


@FEW
@given(SEEDS, st.integers(1, 8))
def test_slots_are_never_exceeded_and_never_idle_while_work_is_ready(seed: int, slots: int) -> None:
    plan = random_plan(seed, 30)
    durations = random_durations(plan, seed)
    lab = Lab(durations)
    result = run_simulated(execute(plan, lab, concurrency=slots, durations=durations))
    assert result.state == "done"
    assert lab.most_at_once <= slots
    work, longest = sum(durations.values()), plan.critical_path_length(durations)
    # Graham's bound, which holds for every schedule that leaves no slot idle while a task is ready.
    assert result.wall_s <= work / slots + (1 - 1 / slots) * longest + 1e-6
    for name, needs in plan.dependencies.items():
        assert lab.spans[name][0] >= max((lab.spans[need][1] for need in needs), default=0.0) - 1e-9


@FEW
@given(SEEDS)
def test_limits_of_tools_are_never_exceeded(seed: int) -> None:
    rng = random.Random(seed)
    plan = random_plan(seed, 30, tools=3)
    durations = random_durations(plan, seed)
    limits = Limits(
        tools={
            f"tool{n}": ToolRules(concurrency=rng.randint(1, 3), rate=rng.choice([None, 1.0, 3.0])) for n in range(3)
        }
    )
    lab = Lab(durations)
    result = run_simulated(execute(plan, lab, limits=limits))
    assert result.state == "done"
    for tool, rules in limits.tools.items():
        spans = sorted(lab.spans[task.id] for task in plan if task.action == tool)
        for began, _ in spans:
            assert sum(1 for a, b in spans if a <= began < b) <= (rules.concurrency or 0)
            if rules.rate is not None:
                window = [a for a, _ in spans if began <= a < began + 1.0 - 1e-9]
                assert len(window) <= float(rules.rate)


@FEW
@given(SEEDS, st.sampled_from(["skip", "continue"]))
def test_a_failure_touches_exactly_its_descendants(seed: int, policy: str) -> None:
    plan = random_plan(seed, 25)
    rng = random.Random(seed)
    failing = frozenset(rng.sample(list(plan.leaves), 3))
    lab = Lab(random_durations(plan, seed), failing)
    result = run_simulated(execute(plan, lab, on_failure=policy))
    behind = descendants(plan, set(failing))
    skipped = {name for name, task in result.tasks.items() if task.state == "skipped"}
    if policy == "skip":
        first = {name for name in failing if name not in behind}
        behind = descendants(plan, first)
        assert skipped == behind
        assert {name for name, task in result.tasks.items() if task.state == "failed"} == failing - behind
    else:
        assert not skipped
        assert set(lab.calls) == set(plan.leaves)
    assert len(lab.calls) == len(set(lab.calls))
    assert all(result.tasks[name].state == "done" for name in set(plan.leaves) - behind - failing)


@FEW
@given(SEEDS, st.floats(0.0, 12.0), st.sampled_from([None, 2]))
def test_cancel_leaves_nothing_running(seed: int, after_s: float, slots: int | None) -> None:
    plan = random_plan(seed, 25)
    lab = Lab(random_durations(plan, seed))

    async def scenario() -> None:
        running = start(plan, lab, concurrency=slots)
        asyncio.get_running_loop().call_later(after_s, running.cancel)
        result = await running.result()
        assert not lab.running
        assert len(asyncio.all_tasks()) == 1
        whole = len(lab.ended) == len(plan)
        assert result.state == ("done" if whole else "cancelled")
        assert {name for name, task in result.tasks.items() if task.state == "done"} == set(lab.ended)
        assert all(task.state in ("done", "cancelled") for task in result.tasks.values())
        calls = len(lab.calls)
        await asyncio.sleep(100)
        assert len(lab.calls) == calls

    run_simulated(scenario())


@FEW
@given(SEEDS)
def test_streamed_in_any_order_it_gives_the_same_results(seed: int) -> None:
    plan = random_plan(seed, 20)
    durations = random_durations(plan, seed)
    rng = random.Random(seed)

    async def stream():
        for task in rng.sample(list(plan), len(plan)):
            await asyncio.sleep(rng.random())
            yield task

    lab = Lab(durations)
    result = run_simulated(execute(stream(), lab))
    whole = run_simulated(execute(plan, Lab(durations)))
    assert result.state == "done"
    assert result.results == whole.results
    assert result.plan is not None
    assert result.plan.dependencies.keys() == plan.dependencies.keys()
    for name, needs in plan.dependencies.items():
        assert lab.spans[name][0] >= max((lab.spans[need][1] for need in needs), default=0.0) - 1e-9


def test_critical_path_first_beats_first_come_on_eight_slots() -> None:
    ratios: dict[str, list[float]] = {"critical_path": [], "fifo": []}
    for seed in range(20):
        plan = random_plan(seed, 100)
        durations = random_durations(plan, seed)
        bound = max(plan.critical_path_length(durations), sum(durations.values()) / 8)
        for order, found in ratios.items():
            result = run_simulated(execute(plan, Lab(durations), concurrency=8, durations=durations, order=order))
            found.append(result.wall_s / bound)
    ours, theirs = (sum(found) / len(found) for found in ratios.values())
    assert ours <= 1.03
    assert ours < theirs
