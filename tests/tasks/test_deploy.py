"""Deployment plans in the simulator, and beside it a second one that was written from the rules of the prompt."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Mapping
from typing import Any

import pytest
from tasks_checking import LEVELS, exercises

from agent_forge.tasks import Exercise, family


def read(prompt: str) -> dict[str, Any]:
    """The world as the prompt tells it: versions, goals, needs, what may never be stopped, what needs a backup."""
    world: dict[str, Any] = {"now": {}, "goal": {}, "fixed": set(), "needs": {}, "backup": set()}
    for name, version, rest in re.findall(r"^- (\w+): version (\d+), (.*)$", prompt, re.MULTILINE):
        goal = re.search(r"must become (\d+)", rest)
        world["now"][name], world["goal"][name] = int(version), int(goal[1] if goal else version)
        if "never be stopped" in rest:
            world["fixed"].add(name)
    for name, version, needs in re.findall(r"^  (\w+) (\d+) needs (.*)$", prompt, re.MULTILINE):
        world["needs"][name, int(version)] = [
            (other, int(low), int(high or low)) for other, low, high in re.findall(r"(\w+) (\d+)(?: to (\d+))?", needs)
        ]
    world["backup"] = {int(version) for version in re.findall(r"back from (\d+)", prompt)}
    return world


def walk(world: Mapping[str, Any], state: dict[str, Any], steps: list[dict[str, Any]], back: bool = False) -> bool:
    """Changes the state step by step; False at the first that breaks a rule."""
    for step in steps:
        action, name, version = step["action"], step["target"], step.get("version")
        versions, down = state["versions"], state["down"]
        if name not in versions and not (action == "backup" and name == "database"):
            return False
        if back and (
            (action in ("deploy", "migrate") and version is not None and versions[name] <= version)
            or (action == "start" and name not in down)
            or (action == "stop" and name in down)
        ):
            continue
        if action == "backup":
            if name != "database":
                return False
            state["saved"] = True
        elif action in ("start", "stop"):
            if name == "database" or (action == "stop" and name in world["fixed"]):
                return False
            (down.discard if action == "start" else down.add)(name)
        else:
            if (action == "migrate") != (name == "database"):
                return False
            possible = (
                range(versions[name] - 1, versions[name] + 2)
                if action == "migrate"
                else (world["now"][name], world["goal"][name])
            )
            if version not in possible:
                return False
            crossed = max(version, versions[name])
            if action == "migrate" and version != versions[name] and crossed in world["backup"] and not state["saved"]:
                return False
            versions[name] = version
        for (other, at), needs in world["needs"].items():
            if other not in down and versions[other] == at:
                for need, low, high in needs:
                    if need in down or not low <= versions[need] <= high:
                        return False
    return True


def right(exercise: Exercise, answer: Mapping[str, Any]) -> bool:
    world = read(exercise.prompt)
    for stop in range(len(answer["steps"]) + 1):
        state: dict[str, Any] = {"versions": dict(world["now"]), "down": set(), "saved": False}
        if not walk(world, state, answer["steps"][:stop]):
            return False
        if stop == len(answer["steps"]) and (state["versions"] != world["goal"] or state["down"]):
            return False
        if not walk(world, state, answer["rollback"], back=True) or state["versions"] != world["now"] or state["down"]:
            return False
    return True


def altered(answer: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A step left out, exchanged, repeated elsewhere, or with another action, target or version."""
    answer = copy.deepcopy(answer)
    steps = answer[rng.choice(("steps", "rollback"))]
    place = rng.randrange(len(steps))
    step = steps[place]
    roll = rng.randrange(5)
    if roll == 0:
        steps.pop(place)
    elif roll == 1:
        steps.insert(rng.randrange(len(steps)), steps.pop(place))
    elif roll == 2:
        step["version"] = step.get("version", 1) + rng.choice((-1, 1, 2))
    elif roll == 3:
        step["target"] = rng.choice(["web", "database", "api", "nothing"])
    else:
        step["action"] = rng.choice(["deploy", "stop", "start", "migrate", "backup"])
    return answer


def test_the_checker_agrees_with_the_rules_on_a_thousand_changed_answers() -> None:
    rng = random.Random(3)
    pool = [(exercise, exercise.solution()) for exercise in exercises("deploy", 60)]
    wrong = 0
    for _ in range(1400):
        exercise, solution = rng.choice(pool)
        answer = altered(solution, rng)
        verdict = exercise.check(answer)
        assert verdict.correct == right(exercise, answer), (exercise.prompt, answer, verdict)
        assert verdict.correct or verdict.why
        wrong += not verdict.correct
    assert wrong > 1000


def test_solutions_are_right_by_the_rules() -> None:
    for exercise in exercises("deploy", 60):
        assert right(exercise, exercise.solution()), exercise.prompt


WORLD = {
    "services": {
        "web": {"version": 1, "goal": 2, "always_up": True, "needs": {"1": {}, "2": {"api": [5, 5]}}},
        "api": {
            "version": 4,
            "goal": 5,
            "always_up": False,
            "needs": {"4": {"database": [1, 1]}, "5": {"database": [2, 2]}},
        },
    },
    "database": {"version": 1, "goal": 2},
    "loses_data": [2],
}
BACKUP, MIGRATE, BACK = (
    {"action": "backup", "target": "database"},
    {"action": "migrate", "target": "database", "version": 2},
    {"action": "migrate", "target": "database", "version": 1},
)
STOP, START = {"action": "stop", "target": "api"}, {"action": "start", "target": "api"}


def at(name: str, version: float) -> dict[str, Any]:
    return {"action": "deploy", "target": name, "version": version}


FORWARD = [BACKUP, STOP, MIGRATE, at("api", 5), START, at("web", 2)]
BACKWARD = [at("web", 1), STOP, at("api", 4), BACK, START]


@pytest.mark.parametrize(
    ("steps", "rollback", "score", "why"),
    [
        (FORWARD, BACKWARD, 1, ""),
        ([STOP, BACKUP, at("api", 5), MIGRATE, START, at("web", 2)], BACKWARD, 1, ""),  # another order
        ([BACKUP, *FORWARD, at("web", 2)], [*BACKWARD, BACKUP], 1, ""),  # what changes nothing harms nothing
        ([*FORWARD[:3], at("api", 5.0), START, at("web", 2)], BACKWARD, 1, ""),  # an integer in JSON
        ([STOP, MIGRATE, at("api", 5), START, at("web", 2)], BACKWARD, 0, "no backup"),
        ([BACKUP, MIGRATE, at("api", 5), at("web", 2)], BACKWARD, 0, "api 4 needs database 1 to 1, not 2"),
        ([BACKUP, STOP, MIGRATE, at("api", 5), at("web", 2), START], BACKWARD, 0, "needs api, which is stopped"),
        ([BACKUP, STOP, MIGRATE, at("api", 5), at("web", 2)], BACKWARD, 0, "needs api, which is stopped"),
        (FORWARD[:-1], BACKWARD, 0, "web is at 1, not 2"),
        (FORWARD[:-2], BACKWARD, 0, "api is stopped"),
        ([*FORWARD, {"action": "stop", "target": "web"}], BACKWARD, 0, "may not be stopped"),
        ([*FORWARD, at("shop", 2)], BACKWARD, 0, "no service shop"),
        ([*FORWARD, at("web", 3)], BACKWARD, 0, "no version 3"),
        ([], [], 0, "do not reach the goal"),
        (FORWARD, [], 0.5, "does not lead back"),
        (FORWARD, FORWARD[::-1], 0.5, "rollback"),
        (FORWARD, BACKWARD[:-1], 0.5, "api is stopped"),
        (FORWARD, BACKWARD[1:], 0.5, "needs api, which is stopped"),
        (FORWARD, [at("web", 1), STOP, BACK, START], 0.5, "api 5 needs database 2"),
    ],
)
def test_plans(steps: list[Any], rollback: list[Any], score: float, why: str) -> None:
    verdict = family("deploy").check({"steps": steps, "rollback": rollback}, WORLD)
    assert verdict.score == score, verdict
    assert why in verdict.why


def test_plans_get_longer() -> None:
    lengths = [
        sum(len(family("deploy").make(seed, level).solution()["steps"]) for seed in range(25)) for level in LEVELS
    ]
    assert lengths == sorted(lengths)
    assert lengths[-1] > 3 * lengths[0]
