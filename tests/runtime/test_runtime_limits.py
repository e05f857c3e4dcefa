from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from runtime_plans import Lab, states

from agent_forge.errors import UsageError
from agent_forge.plans import Task
from agent_forge.runtime import Budget, Limits, Rate, Retry, ToolRules, execute, run_simulated, spend, start


def starts(lab: Lab) -> list[float]:
    return sorted(began for began, _ in lab.spans.values())


def test_a_rate_is_kept_in_every_window() -> None:
    lab = Lab({f"t{n}": 0.01 for n in range(10)})
    plan = [Task(f"t{n}", action="api") for n in range(10)]
    result = run_simulated(execute(plan, lab, limits=Limits(tools={"api": ToolRules(rate=Rate(2, 1.0))})))
    assert result.state == "done"
    assert starts(lab) == pytest.approx([0, 0, 1, 1, 2, 2, 3, 3, 4, 4])


def test_a_slow_tool_does_not_hold_up_another() -> None:
    lab = Lab({f"{tool}{n}": 1.0 for tool in "ab" for n in range(4)})
    plan = [Task(f"{tool}{n}", action=tool) for tool in "ab" for n in range(4)]
    result = run_simulated(execute(plan, lab, limits=Limits(tools={"a": ToolRules(concurrency=1)})))
    assert max(lab.spans[f"b{n}"][1] for n in range(4)) == pytest.approx(1.0)
    assert result.wall_s == pytest.approx(4.0)


def test_rules_for_every_other_tool() -> None:
    lab = Lab({f"t{n}": 1.0 for n in range(6)})
    plan = [Task(f"t{n}", action="x" if n % 2 else "y") for n in range(6)]
    rules = {"*": ToolRules(concurrency=1), "y": ToolRules()}
    result = run_simulated(execute(plan, lab, limits=Limits(tools=rules)))
    assert result.wall_s == pytest.approx(3.0)
    assert [lab.spans[f"t{n}"][0] for n in (0, 2, 4)] == [0, 0, 0]


def test_a_job_that_is_cancelled_while_it_is_held_passes_its_place_on() -> None:
    lab = Lab({})
    plan = [Task(f"t{n}", action="x") for n in range(4)]

    async def scenario() -> dict[str, str]:
        running = start(plan, lab, limits=Limits(tools={"x": ToolRules(concurrency=1)}))
        await asyncio.sleep(0.5)
        running.cancel_task("t1")
        running.cancel_task("t2")
        return states(await running.result())

    assert run_simulated(scenario()) == {"t0": "done", "t1": "cancelled", "t2": "cancelled", "t3": "done"}


def test_the_longest_work_goes_first_when_slots_are_short() -> None:
    plan = [Task("short1"), Task("short2"), Task("long"), Task("tail", depends_on=["long"])]
    lab = Lab({"short1": 1, "short2": 1, "long": 1, "tail": 5})
    result = run_simulated(execute(plan, lab, concurrency=1, durations=lab.durations))
    assert lab.calls[:2] == ["long", "tail"]
    assert result.state == "done"


def test_estimates_of_tasks_and_tools_count_too() -> None:
    lab = Lab({})
    run_simulated(execute([Task("a", meta={"est_s": 1}), Task("b", meta={"est_s": 9})], lab, concurrency=1))
    assert lab.calls == ["b", "a"]
    lab = Lab({})
    run_simulated(execute([Task("a"), Task("b", action="big")], lab, concurrency=1, durations={"big": 4, "a": 1}))
    assert lab.calls == ["b", "a"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rate(0),
        lambda: Rate.of(-1),
        lambda: Limits(concurrency=0),
        lambda: ToolRules(concurrency=0),
        lambda: Retry(0),
        lambda: Retry(2, jitter=2.0),
        lambda: Budget(tokens=-1),
    ],
)
def test_impossible_limits_are_refused(make: Any) -> None:
    with pytest.raises(UsageError):
        make()


# Retries


class Flaky:
    def __init__(self, failures: int, error: type[Exception] = ValueError) -> None:
        self.left = failures
        self.error = error
        self.at: list[float] = []

    async def __call__(self, task: Task, inputs: dict[str, Any]) -> str:
        self.at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0)
        if self.left:
            self.left -= 1
            raise self.error("not yet")
        return "at last"


def test_retries_back_off_exponentially() -> None:
    flaky = Flaky(3)
    result = run_simulated(execute([Task("a")], flaky, retry=Retry(5, first_s=1.0, jitter=0.0)))
    assert result.tasks["a"].result == "at last"
    assert result.tasks["a"].attempts == 4
    assert flaky.at == pytest.approx([0, 1, 3, 7])
    assert result.usage.calls == 4


def test_the_last_failure_counts_when_all_attempts_fail() -> None:
    flaky = Flaky(99)
    result = run_simulated(execute([Task("a")], flaky, retry=Retry(3, first_s=0.1)))
    assert result.tasks["a"].state == "failed"
    assert len(flaky.at) == 3


def test_only_the_named_errors_are_retried() -> None:
    flaky = Flaky(1, KeyError)
    assert run_simulated(execute([Task("a")], flaky, retry=Retry(3, on=(ValueError,)))).tasks["a"].state == "failed"
    assert len(flaky.at) == 1


def test_jitter_is_bounded_and_repeats_with_the_seed() -> None:
    retry = Retry(6, first_s=1.0, factor=2.0, longest_s=4.0, jitter=0.5)
    delays = retry.delays(random.Random(7))
    assert delays == retry.delays(random.Random(7)) != retry.delays(random.Random(8))
    for delay, plain in zip(delays, [1, 2, 4, 4, 4], strict=True):
        assert 0.5 * plain <= delay <= 1.5 * plain
    ended = [
        run_simulated(execute([Task("a")], Flaky(3), retry=Retry(4), seed=seed)).tasks["a"].ended_s
        for seed in (1, 1, 2)
    ]
    assert ended[0] == ended[1] != ended[2]


def test_a_task_that_waits_for_its_next_attempt_holds_no_slot() -> None:
    flaky = Flaky(1)

    async def handler(task: Task, inputs: dict[str, Any]) -> Any:
        if task.id == "flaky":
            return await flaky(task, inputs)
        await asyncio.sleep(2)
        return None

    plan = [Task("flaky", meta={"est_s": 9}), Task("other")]
    result = run_simulated(execute(plan, handler, concurrency=1, retry=Retry(2, first_s=1.0, jitter=0)))
    assert result.tasks["other"].started_s == pytest.approx(0.0, abs=1e-6)
    assert result.tasks["flaky"].state == "done"


def test_a_timeout_is_retried_and_meta_says_how_often() -> None:
    lab = Lab({"a": 10.0})
    result = run_simulated(execute([Task("a", meta={"retries": 2, "timeout_s": 1})], lab))
    assert result.tasks["a"].state == "timed_out"
    assert result.tasks["a"].attempts == 3


def test_a_side_effect_is_not_retried_unless_the_task_says_so() -> None:
    for meta, attempts in (({"side_effects": True}, 1), ({"side_effects": True, "retries": 1}, 2)):
        result = run_simulated(execute([Task("a", meta=meta)], Flaky(99), retry=Retry(5, first_s=0.1)))
        assert result.tasks["a"].attempts == attempts
    rules = Limits(tools={"pay": ToolRules(side_effects=True), "look": ToolRules(retry=Retry(2, first_s=0.1))})
    plan = [Task("a", action="pay"), Task("b", action="look")]
    result = run_simulated(execute(plan, Flaky(99), retry=Retry(5, first_s=0.1), limits=rules))
    assert (result.tasks["a"].attempts, result.tasks["b"].attempts) == (1, 2)


# Budgets


def test_calls_run_out_gracefully() -> None:
    lab = Lab({})
    plan = [Task(f"t{n}") for n in range(5)] + [Task("after", depends_on=["t4"])]
    result = run_simulated(execute(plan, lab, budget=Budget(calls=3), concurrency=1))
    assert result.state == "over_budget"
    assert result.usage.calls == 3
    assert result.counts() == {"done": 3, "not_started": 3}
    assert result.error == "the budget of 3 calls is used up"


def test_tokens_are_reserved_before_a_task_starts() -> None:
    running = 0

    async def handler(task: Task, inputs: dict[str, Any]) -> None:
        nonlocal running
        running += 1
        assert running <= 2, "three at once could use 1,200 tokens"
        await asyncio.sleep(1)
        spend(tokens=100, cost=0.5)
        running -= 1

    plan = [Task(f"t{n}", meta={"est_tokens": 400}) for n in range(9)]
    result = run_simulated(execute(plan, handler, budget=Budget(tokens=1000)))
    # After 6 or 7 tasks of 100 real tokens another estimate of 400 would not fit.
    assert result.state == "over_budget"
    assert result.usage.tokens == 700
    assert result.usage.cost == pytest.approx(3.5)
    assert result.counts() == {"done": 7, "not_started": 2}
    assert "1000 tokens" in (result.tasks["t8"].error or "")


def test_money_runs_out_and_running_tasks_are_not_cut_short() -> None:
    async def handler(task: Task, inputs: dict[str, Any]) -> None:
        await asyncio.sleep(1)
        spend(cost=0.6)

    plan = [Task(f"t{n}") for n in range(4)]
    result = run_simulated(execute(plan, handler, budget=Budget(cost=1.0), concurrency=1))
    assert result.counts() == {"done": 2, "not_started": 2}
    assert result.state == "over_budget"
    plan = [Task(f"t{n}") for n in range(4)]
    result = run_simulated(execute(plan, handler, budget=Budget(cost=1.0, task_cost=0.4), concurrency=1))
    assert result.counts() == {"done": 1, "not_started": 3} or result.usage.cost == pytest.approx(1.2)


def test_wall_time_stops_what_runs() -> None:
    lab = Lab({"a": 1.0, "b": 100.0, "c": 1.0})
    plan = [Task("a"), Task("b", depends_on=["a"]), Task("c", depends_on=["b"])]
    result = run_simulated(execute(plan, lab, budget=Budget(wall_s=5.0)))
    assert result.state == "timed_out"
    assert result.wall_s == pytest.approx(5.0)
    assert states(result) == {"a": "done", "b": "cancelled", "c": "not_started"}
    assert not lab.running


def test_a_task_that_cannot_end_in_time_is_not_started() -> None:
    lab = Lab({"a": 3.0})
    plan = [Task("a"), Task("b", depends_on=["a"], meta={"est_s": 4})]
    result = run_simulated(execute(plan, lab, budget=Budget(wall_s=5.0)))
    assert result.tasks["b"].state == "not_started"
    assert lab.calls == ["a"]
    assert "4 s" in (result.tasks["b"].error or "")


def test_spending_outside_of_a_run_does_nothing() -> None:
    spend(tokens=5)


def test_what_a_task_used_is_in_its_result() -> None:
    async def handler(task: Task, inputs: dict[str, Any]) -> None:
        spend(tokens=3)
        spend(tokens=4, cost=0.1)

    result = run_simulated(execute([Task("a"), Task("b")], handler))
    usage = result.tasks["a"].usage
    assert usage is not None
    assert usage.tokens == 7
    assert result.usage.tokens == 14
    assert result.usage.cost == pytest.approx(0.2)
