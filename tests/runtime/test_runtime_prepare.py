"""Between the last input and the queue: identical calls, fan-out, approvals."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from runtime_plans import Lab, states

from agent_forge.plans import Task
from agent_forge.runtime import Limits, Retry, RunResult, ToolRules, execute, run_simulated, start


class Calls:
    def __init__(self, fail: int = 0) -> None:
        self.made: list[str] = []
        self.fail = fail
        self.at_once = self.most = 0

    async def __call__(self, task: Task, inputs: dict[str, Any]) -> Any:
        self.made.append(task.id)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(1)
        self.at_once -= 1
        if self.fail:
            self.fail -= 1
            raise ValueError("down")
        return dict(task.args)


def search(name: str, query: str = "otters", **more: Any) -> Task:
    return Task(name, action="search", args={"query": query}, **more)


# Identical calls


def test_identical_calls_are_made_once() -> None:
    calls = Calls()
    plan = [search("a"), search("b"), search("c", "seals"), search("d", depends_on=["c"]), Task("e", "{a}{b}{d}")]
    result = run_simulated(execute(plan, calls))
    assert result.state == "done"
    assert calls.made == ["a", "c", "d", "e"]
    assert result.tasks["b"].same_as == "a"
    assert result.tasks["b"].attempts == 0
    assert result.tasks["b"].result == {"query": "otters"}


def test_a_call_that_was_made_earlier_is_not_made_again() -> None:
    calls = Calls()
    plan = [search("a"), Task("b", depends_on=["a"]), Task("c", action="search", args={"query": "{a.query}"})]
    plan.append(Task("d", action="search", args={"query": "{c.query}"}))
    result = run_simulated(execute(plan, calls))
    assert calls.made == ["a", "b"]
    assert result.tasks["d"].same_as == "a"


@pytest.mark.parametrize(
    ("plan", "settings"),
    [
        ([search("a"), search("b")], {"memo": False}),
        ([search("a"), search("b")], {"limits": Limits(tools={"search": ToolRules(memo=False)})}),
        ([search("a"), search("b")], {"limits": Limits(tools={"search": ToolRules(side_effects=True)})}),
        ([search("a"), search("b", meta={"side_effects": True})], {}),
        ([search("a"), search("b", meta={"cache": False})], {}),
        ([Task("a", action="now"), Task("b", action="now")], {}),
        ([Task("a", args={"x": 1}), Task("b", args={"x": 1})], {}),
        ([Task("x", "1"), Task("y", "2"), search("a", depends_on=["x"]), search("b", depends_on=["y"])], {}),
    ],
    ids=["run", "tool", "tool effects", "task effects", "task", "no arguments", "no tool", "other inputs"],
)
def test_calls_that_are_not_identical_or_must_be_made_each_time(plan: list[Task], settings: dict[str, Any]) -> None:
    made: list[str] = []

    async def handler(task: Task, inputs: dict[str, Any]) -> str:
        made.append(task.id)
        await asyncio.sleep(1)
        return task.goal

    run_simulated(execute(plan, handler, **settings))
    assert {"a", "b"} <= set(made)


def test_the_failure_of_a_shared_call_is_shared() -> None:
    calls = Calls(fail=9)
    result = run_simulated(execute([search("a"), search("b"), search("c", depends_on=["b"])], calls))
    assert calls.made == ["a"]
    assert result.tasks["b"].state == "failed"
    assert result.tasks["b"].same_as == "a"
    assert result.tasks["c"].state == "skipped"


def test_when_the_one_that_calls_is_cancelled_another_takes_over() -> None:
    calls = Calls()

    async def scenario() -> RunResult:
        running = start([search("a"), search("b"), search("c")], calls)
        await asyncio.sleep(0.5)
        running.cancel_task("a")
        return await running.result()

    result = run_simulated(scenario())
    assert calls.made == ["a", "b"]
    assert [result.tasks[name].state for name in "abc"] == ["cancelled", "done", "done"]
    assert result.tasks["c"].same_as == "b"


# Fan-out


def test_a_task_is_carried_out_for_each_element() -> None:
    async def handler(task: Task, inputs: dict[str, Any]) -> Any:
        if task.id == "list":
            return {"cities": ["Rome", "Oslo", "Lima"]}
        await asyncio.sleep({"Rome": 3, "Oslo": 1, "Lima": 2}[inputs["item"]])
        return f"{task.goal} {task.args['city']} {task.id}"

    each = Task("each", "about {item}", action="look", args={"city": "{item}"}, for_each="{list.cities}")
    result = run_simulated(execute([Task("list"), each, Task("end", "{each[1]}")], handler_or_end(handler)))
    assert result.tasks["each"].result == [
        "about Rome Rome each[0]",
        "about Oslo Oslo each[1]",
        "about Lima Lima each[2]",
    ]
    assert result.tasks["end"].result == "about Oslo Oslo each[1]"
    assert result.tasks["each"].ended_s == pytest.approx(3.0)
    items = result.tasks["each"].items or []
    assert [item.ended_s for item in items] == pytest.approx([3, 1, 2])


def handler_or_end(handler: Any) -> Any:
    async def both(task: Task, inputs: dict[str, Any]) -> Any:
        return task.goal if task.id == "end" else await handler(task, inputs)

    return both


def fan(result_of_list: Any, fail: tuple[int, ...] = (), **settings: Any) -> RunResult:
    async def handler(task: Task, inputs: dict[str, Any]) -> Any:
        if task.id == "list":
            return result_of_list
        if task.id == "end":
            return inputs
        await asyncio.sleep(1)
        if inputs["item"] in fail:
            raise ValueError(f"{inputs['item']} fails")
        return inputs["item"] * 10

    limit = settings.pop("limit", None)
    each = Task("each", action="f", args={"x": "{item}"}, for_each="{list}", limit=limit)
    return run_simulated(execute([Task("list"), each, Task("end", depends_on=["each"])], handler, **settings))


def test_an_empty_list_is_done_at_once() -> None:
    assert fan([]).tasks["each"].result == []


@pytest.mark.parametrize(("value", "words"), [({"a": 1}, "dict"), ([1, 2, 3], "3 elements"), ("abc", "str")])
def test_no_list_or_too_long_a_list_fails_the_task(value: Any, words: str) -> None:
    result = fan(value, limit=2)
    assert result.tasks["each"].state == "failed"
    assert words in (result.tasks["each"].error or "")
    assert result.tasks["end"].state == "skipped"


def test_without_a_limit_there_is_still_a_bound() -> None:
    assert fan(list(range(5)), most_items=4).tasks["each"].state == "failed"


def test_elements_are_under_the_limits_and_shared() -> None:
    result = fan([1, 2, 3, 1], limits=Limits(tools={"f": ToolRules(concurrency=1)}))
    assert result.tasks["each"].result == [10, 20, 30, 10]
    assert result.wall_s == pytest.approx(3.0)
    assert (result.tasks["each"].items or [])[3].same_as == "each[0]"


def test_one_failed_element_fails_the_task_after_the_others_ended() -> None:
    result = fan([1, 2, 3], fail=(2,))
    task = result.tasks["each"]
    assert task.state == "failed"
    assert [item.state for item in task.items or []] == ["done", "failed", "done"]
    assert "1 of 3 elements" in (task.error or "")
    assert "2 fails" in (task.error or "")
    assert result.tasks["end"].state == "skipped"


def test_with_continue_a_failed_element_is_none() -> None:
    result = fan([1, 2, 3], fail=(2,), on_failure="continue")
    assert result.tasks["each"].result == [10, None, 30]
    assert fan([2, 2], fail=(2,), on_failure="continue").tasks["each"].state == "failed"


def test_fail_fast_stops_the_other_elements() -> None:
    result = fan([1, 2, 3], fail=(1,), on_failure="fail_fast", concurrency=1)
    assert result.state == "failed"
    assert result.usage.calls == 2
    assert result.tasks["end"].state == "cancelled"


def test_elements_are_retried_and_cancelled() -> None:
    result = fan([1, 2], fail=(1,), retry=Retry(3, first_s=0.1))
    assert [(item.state, item.attempts) for item in result.tasks["each"].items or []] == [("failed", 3), ("done", 1)]

    async def scenario() -> RunResult:
        lab = Lab({"each[0]": 50, "each[1]": 50})
        each = Task("each", args={"x": "{item}"}, for_each="{list}")
        running = start([Task("list"), each], lab, known={"list": [1, 2, 3]}, concurrency=2)
        await asyncio.sleep(1)
        running.cancel_task("each")
        result = await running.result()
        assert not lab.running
        return result

    cancelled = run_simulated(scenario()).tasks["each"]
    assert cancelled.state == "cancelled"
    assert [item.state for item in cancelled.items or []] == ["cancelled"] * 3


# Approvals


def test_an_approval_parks_only_its_own_branch() -> None:
    lab = Lab({})
    asked: list[tuple[str, Any]] = []

    async def approve(task: Task) -> bool:
        asked.append((task.id, task.args.get("to")))
        await asyncio.sleep(100)
        return task.id == "send"

    plan = [
        Task("who"),
        Task("send", args={"to": "{who}"}, meta={"approval": True}),
        Task("sent", depends_on=["send"]),
        Task("delete", meta={"approval": True}),
        Task("deleted", depends_on=["delete"]),
        Task("free"),
        Task("freer", depends_on=["free"]),
    ]
    result = run_simulated(execute(plan, lab, approve=approve))
    assert lab.spans["freer"][1] == pytest.approx(2.0)
    assert asked == [("delete", None), ("send", "result of who")]
    ended = states(result)
    assert ended["send"] == ended["sent"] == "done"
    assert ended["delete"] == "denied"
    assert ended["deleted"] == "skipped"
    assert result.state == "failed"


def test_without_anyone_to_ask_the_task_waits_and_so_does_the_run() -> None:
    plan = [Task("a", meta={"approval": True}), Task("b"), Task("c", depends_on=["a"])]
    result = run_simulated(execute(plan, Lab({})))
    assert {name: task.state for name, task in result.tasks.items()} == {"a": "waiting", "b": "done", "c": "skipped"}
    assert result.state == "waiting"
    assert "'a'" in (result.error or "")
    later = run_simulated(execute(plan, Lab({}), approve=lambda task: None))
    assert later.state == "waiting"


def test_an_approval_may_change_the_arguments() -> None:
    seen: dict[str, Any] = {}

    def handler(task: Task, inputs: dict[str, Any]) -> Any:
        seen[task.id] = dict(task.args)
        return task.id

    plan = [
        Task("a"),
        Task("b", action="send", args={"to": "{a}", "text": "hello"}),
        Task("c", action="send", args={"to": "x"}),
    ]
    limits = Limits(tools={"send": ToolRules(side_effects=True, approval=True)})
    answers: dict[str, Any] = {"b": {"text": "bye"}, "c": False}
    result = run_simulated(execute(plan, handler, limits=limits, approve=lambda task: answers[task.id]))
    assert seen == {"a": {}, "b": {"to": "a", "text": "bye"}}
    assert (result.tasks["b"].state, result.tasks["c"].state) == ("done", "denied")


def test_a_plain_function_may_approve_and_a_broken_one_fails_the_task() -> None:
    plan = [Task("a", meta={"approval": True})]
    assert run_simulated(execute(plan, Lab({}), approve=lambda task: True)).state == "done"

    def broken(task: Task) -> bool:
        raise RuntimeError("nobody there")

    result = run_simulated(execute(plan, Lab({}), approve=broken))
    assert result.tasks["a"].state == "failed"
    assert "nobody there" in (result.tasks["a"].error or "")


def test_a_run_that_waits_for_an_approval_can_be_cancelled() -> None:
    async def never(task: Task) -> bool:
        await asyncio.sleep(10**9)
        return True

    async def scenario() -> RunResult:
        running = start(
            [Task("a", meta={"approval": True}), Task("b", meta={"approval": True})], Lab({}), approve=never
        )
        await asyncio.sleep(1)
        running.cancel_task("b")
        await asyncio.sleep(1)
        running.cancel("enough")
        return await running.result()

    result = run_simulated(scenario())
    assert result.state == "cancelled"
    assert result.error == "enough"
    assert {task.state for task in result.tasks.values()} == {"cancelled"}


def test_a_callback_that_swallows_its_cancellation_cannot_hang_the_run() -> None:
    async def stubborn(task: Task) -> bool:
        for _ in range(3):
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                continue
        return True

    async def scenario() -> RunResult:
        running = start([Task("a", meta={"approval": True})], Lab({}), approve=stubborn, grace_s=2)
        await asyncio.sleep(1)
        running.cancel()
        result = await running.result()
        await asyncio.sleep(9000)
        return result

    result = run_simulated(scenario())
    assert result.state == "cancelled"
    assert result.wall_s == pytest.approx(3.0)
    assert result.warnings
