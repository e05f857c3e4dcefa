"""What a plan earns: by hand, and on random small graphs against execution and trying every match."""

from __future__ import annotations

import doctest
import hashlib
import itertools
import json
import random
from typing import Any

import pytest

from agent_forge.agents.planner.forged import tasks_of
from agent_forge.learning import plan_reward as plan_reward_module
from agent_forge.learning.plan_reward import plan_reward
from agent_forge.learning.rows import PlanRow, references
from agent_forge.plans import Plan
from agent_forge.tasks.simulated_tools import simulate

CITY = {"city": {"type": "string"}, "unit": {"enum": ["C", "F"], "default": "C"}}
MAIL = {"to": {"type": "string"}, "text": {"type": "string"}, "copies": {"type": "integer"}}


def function(name: str, properties: dict[str, Any], required: list[str], returns: list[str] | None = None) -> Any:
    schema = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "parameters": schema} | ({"returns": returns} if returns else {})


TOOLS = (
    function("weather", CITY, ["city"], ["temperature"]),
    function("mail", MAIL, ["to", "text"]),
    function("save", {}, []),
    function("close", {}, []),
)


def call(tool: str, *after: int, **args: Any) -> dict[str, Any]:
    return {"tool": tool, "args": args, "after": list(after)}


def ref(number: int, field: str | None = "temperature") -> dict[str, Any]:
    return {"ref": number, "field": field}


OSLO, ROME = call("weather", city="Oslo"), call("weather", city="Rome")
BOTH = PlanRow("1", "Weather in Oslo and Rome in F or C, 5 copies of it to Bob?", TOOLS, (OSLO, ROME))
MAILED = PlanRow("2", BOTH.request, TOOLS, (OSLO, ROME, call("mail", to="Bob", text=ref(1))))
NOTHING = PlanRow("3", "Who wrote Faust?", TOOLS)


@pytest.mark.parametrize(
    ("row", "calls", "reward"),
    [
        (BOTH, [OSLO, ROME], 1.0),
        (BOTH, [ROME, OSLO], 1.0),  # the order of calls
        (BOTH, [call("weather", unit="C", city="Oslo"), ROME], 1.0),  # a default written out
        (BOTH, [OSLO, call("weather", 1, city="Rome")], 0.5),  # in turn instead of side by side
        (BOTH, [OSLO, ROME, call("save")], 2 / 3),  # a call that nothing needs
        (BOTH, [OSLO, OSLO, ROME], 2 / 3),  # the same one twice
        (BOTH, [OSLO, ROME, call("save", 2)], 2 / 3 * 1 / 2),  # both
        (BOTH, [OSLO], 0.0),
        (BOTH, [], 0.0),
        (BOTH, [OSLO, OSLO], 0.0),
        (BOTH, [OSLO, call("weather", city="Bob")], 0.0),  # a wrong value
        (BOTH, [call("weather", city="Oslo", unit="F"), ROME], 0.0),
        (BOTH, [OSLO, ROME, call("weather", city="Bergen")], 0.0),  # a value that nobody gave
        (BOTH, [OSLO, ROME, call("mail", to="Bob", text=ref(4))], 0.0),  # refers ahead
        (BOTH, [OSLO, ROME, call("save", 3)], 0.0),  # waits for itself
        (BOTH, [OSLO, ROME, call("fly")], 0.0),  # a tool that is not there
        (BOTH, [OSLO, ROME, call("mail", to="Bob")], 0.0),  # a required value left out
        (BOTH, [OSLO, ROME, call("mail", to="Bob", text="Oslo", copies="5")], 0.0),  # a text for a number
        (MAILED, [OSLO, call("mail", text=ref(1), to="bob"), ROME], 1.0),  # the order of arguments and calls, case
        (MAILED, [ROME, OSLO, call("mail", to="Bob", text=ref(2))], 1.0),  # what is referred to, not its number
        (MAILED, [OSLO, ROME, call("mail", to="Bob", text=ref(2))], 0.0),
        (MAILED, [OSLO, ROME, call("mail", to="Bob", text=ref(1, None))], 0.0),
        (MAILED, [OSLO, ROME, call("mail", to="Bob", text=None)], 0.0),
        (NOTHING, [], 1.0),
        (NOTHING, [call("save")], 0.0),
    ],
)
def test_by_hand(row: PlanRow, calls: list[Any], reward: float) -> None:
    assert plan_reward(row, calls) == pytest.approx(reward)


def test_an_open_value_must_be_left_open() -> None:
    row = PlanRow("4", "Mail Bob.", TOOLS, (call("mail", to="Bob", text=None),))
    assert plan_reward(row, row.calls) == 1.0
    assert plan_reward(row, [call("mail", to="Bob", text="Bob")]) == 0.0


def test_a_call_that_must_wait_waits() -> None:
    row = PlanRow("5", "Save, save again and close.", TOOLS, (call("save"), call("save", 1), call("close", 2)))
    assert plan_reward(row, row.calls) == 1.0
    assert plan_reward(row, [call("save"), call("save"), call("close", 2)]) == 0.0
    assert plan_reward(row, [call("save"), call("save", 1), call("close", 1)]) == 0.0
    # of equal calls, the one that the last call waits for counts
    parallel = PlanRow("6", row.request, TOOLS, (call("save"), call("close", 1), call("save")))
    assert plan_reward(parallel, [call("save"), call("save"), call("close", 2)]) == 1.0


# -- brute force -------------------------------------------------------------------------------------------------------

SMALL = (
    function("get", {"x": {"enum": ["a", "b"]}}, ["x"], ["f", "g"]),
    function("use", {"y": {"type": "string"}}, ["y"], ["f"]),
    function("end", {}, []),
)


def random_calls(rng: random.Random) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for place in range(rng.randint(1, 4)):
        tool = rng.choice(("get", "use", "end")) if place else "get"
        named = [
            (n, f) for n, each in enumerate(calls, 1) for f in ("f", "g")[: {"get": 2, "use": 1}.get(each["tool"], 0)]
        ]
        args: dict[str, Any] = {"x": rng.choice("ab")} if tool == "get" else {}
        if tool == "use":
            args = {"y": ref(*rng.choice(named))}
        after = [n for n in range(1, place + 1) if rng.random() < 0.25]
        calls.append(call(tool, *after, **args))
    return calls


def changed(rng: random.Random, calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls in another order that their dependencies allow, some waits gone, some calls more."""
    calls = [*calls, *(call(rng.choice(("get", "end")), x=rng.choice("ab")) for _ in range(rng.choice((0, 0, 1))))]
    calls = [{**each, "args": {} if each["tool"] == "end" else each["args"]} for each in calls]
    order: list[int] = []
    while len(order) < len(calls):
        ready = [n for n in range(len(calls)) if n not in order and before(calls[n]) <= {o + 1 for o in order}]
        order.append(rng.choice(ready))
    number = {old + 1: new + 1 for new, old in enumerate(order)}
    result = []
    for old in order:
        args = {
            k: ref(number[v["ref"]], v["field"]) if isinstance(v, dict) else v for k, v in calls[old]["args"].items()
        }
        after = [number[n] for n in calls[old]["after"] if rng.random() < 0.9]
        result.append(call(calls[old]["tool"], *after, **args))
    return result


def before(each: dict[str, Any]) -> set[int]:
    return {*each["after"], *(one["ref"] for one in references(each["args"]))}


def paths(calls: list[dict[str, Any]]) -> set[tuple[int, ...]]:
    """Every chain of calls, each needing the one before it."""
    chains = {(n,) for n in range(1, len(calls) + 1)}
    while True:
        longer = {(n, *chain) for chain in chains for n in before(calls[chain[0] - 1])} | chains
        if longer == chains:
            return chains
        chains = longer


def executed(calls: list[dict[str, Any]], world: int) -> list[Any]:
    """The results in a world whose tools answer as they like, but always the same."""

    def tool(name: str) -> Any:
        def answer(**args: Any) -> dict[str, str]:
            text = json.dumps([world, name, args], sort_keys=True)
            return {field: hashlib.sha256(f"{text}{field}".encode()).hexdigest() for field in ("f", "g")}

        return answer

    results = simulate(Plan(tasks_of(calls, "")), {each["name"]: tool(each["name"]) for each in SMALL})
    return [results[f"s{n}"] for n in range(1, len(calls) + 1)]


def brute_force(needed: list[dict[str, Any]], calls: list[dict[str, Any]]) -> float:
    wanted, given, chains = executed(needed, 1), executed(calls, 1), paths(calls)
    for match in itertools.permutations(range(len(calls)), len(needed)):
        same = all(given[mine] == wanted[place] for place, mine in enumerate(match))
        if same and all(
            any(chain[0] == match[n - 1] + 1 and chain[-1] == match[place] + 1 for chain in chains)
            for place, each in enumerate(needed)
            for n in each["after"]
        ):
            return len(needed) / len(calls) * max(map(len, paths(needed))) / max(map(len, chains))
    return 0.0


def test_random_graphs_earn_what_execution_and_every_match_say() -> None:
    rng = random.Random(0)
    rewards = []
    for _ in range(300):
        needed = random_calls(rng)
        calls = changed(rng, needed) if rng.random() < 0.8 else random_calls(rng)
        row = PlanRow("", "a b", SMALL, tuple(needed))
        reward = plan_reward(row, calls)
        assert reward == pytest.approx(brute_force(needed, calls)), (needed, calls)
        rewards.append(reward)
    assert sum(reward == 0 for reward in rewards) > 30  # all kinds are there
    assert sum(0 < reward < 1 for reward in rewards) > 30
    assert sum(reward == 1 for reward in rewards) > 30


def test_the_example_holds() -> None:
    assert doctest.testmod(plan_reward_module).failed == 0
