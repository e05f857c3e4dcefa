"""Deploy: steps that bring services and their database to new versions, and steps back, both run in a simulator."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent_forge.tasks.family import Draft, Verdict, task_family

_SERVICES = ("web", "api", "auth", "search", "mail", "billing", "queue", "reports")
DATABASE = "database"
_STEP = {
    "type": "object",
    "properties": {
        "action": {"enum": ["deploy", "stop", "start", "migrate", "backup"]},
        "target": {"type": "string"},
        "version": {"type": "integer"},
    },
    "required": ["action", "target"],
    "additionalProperties": False,
}
SCHEMA = {
    "type": "object",
    "properties": {
        "steps": {"type": "array", "items": _STEP, "maxItems": 30},
        "rollback": {"type": "array", "items": _STEP, "maxItems": 30},
    },
    "required": ["steps", "rollback"],
    "additionalProperties": False,
}
Step = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Deployment:
    """The state of the simulator: versions of the services and of the database, and which services are stopped."""

    versions: tuple[tuple[str, int], ...]
    stopped: frozenset[str] = frozenset()
    backup: bool = field(default=False, compare=False)  # a backup more is no other state

    def __getitem__(self, name: str) -> int:
        return dict(self.versions)[name]

    def with_version(self, name: str, version: int) -> Deployment:
        return replace(self, versions=tuple((key, version if key == name else old) for key, old in self.versions))


def check(answer: Mapping[str, Any], expected: Mapping[str, Any]) -> Verdict:
    """1 if the steps reach the goal and the rollback leads back from wherever they stop; half of it for the steps."""
    now, goal = _state(expected, "version"), _state(expected, "goal")
    states = [now]
    for place, step in enumerate(answer["steps"], 1):
        after = perform(expected, states[-1], step)
        if isinstance(after, str):
            return Verdict(0.0, f"step {place} ({_words(step)}): {after}")
        states.append(after)
    if states[-1] != goal:
        return Verdict(0.0, f"the steps do not reach the goal: {_difference(states[-1], goal)}")
    for place, reached in enumerate(states):
        state = reached
        for step in answer["rollback"]:
            after = state if _undone(state, step) else perform(expected, state, step)
            if isinstance(after, str):
                return Verdict(0.5, f"rollback after step {place} ({_words(step)}): {after}")
            state = after
        if state != now:
            return Verdict(0.5, f"rollback after step {place} does not lead back: {_difference(state, now)}")
    return Verdict(1.0)


def perform(expected: Mapping[str, Any], state: Deployment, step: Step) -> Deployment | str:
    """The state after a step, or why it fails: it cannot be done, or leaves a running service without its needs."""
    after = _changed(expected, state, step)
    return after if isinstance(after, str) else _fault(expected, after) or after


def _changed(expected: Mapping[str, Any], state: Deployment, step: Step) -> Deployment | str:
    action, target, version = step["action"], step["target"], step.get("version")
    if action == "backup":
        return replace(state, backup=True) if target == DATABASE else f"only the {DATABASE} has backups"
    if action == "migrate":
        if target != DATABASE or version is None or abs(version - state[DATABASE]) > 1:
            return f"the {DATABASE} goes one version up or down at a time"
        risky = max(version, state[DATABASE]) in expected["loses_data"] and version != state[DATABASE]
        return "there is no backup" if risky and not state.backup else state.with_version(DATABASE, int(version))
    service = expected["services"].get(target)
    if service is None:
        return f"there is no service {target}"
    if action == "deploy":
        if version not in (service["version"], service["goal"]):
            return f"there is no version {version} of {target}"
        return state.with_version(target, int(version))  # 2.0 is an integer in JSON
    if action == "stop" and service["always_up"]:
        return f"{target} may not be stopped"
    return replace(state, stopped=state.stopped | {target} if action == "stop" else state.stopped - {target})


def _fault(expected: Mapping[str, Any], state: Deployment) -> str | None:
    for name, service in expected["services"].items():
        if name not in state.stopped:
            for need, (low, high) in service["needs"][str(state[name])].items():
                if need in state.stopped:
                    return f"{name} needs {need}, which is stopped"
                if not low <= state[need] <= high:
                    return f"{name} {state[name]} needs {need} {low} to {high}, not {state[need]}"
    return None


def _undone(state: Deployment, step: Step) -> bool:
    """Whether a step of a rollback has nothing to do: it was never done, or is undone already."""
    known, target, version = dict(state.versions), step["target"], step.get("version")
    if target not in known:
        return False
    if step["action"] in ("deploy", "migrate"):
        return version is not None and known[target] <= version
    return bool(step["action"] != "backup" and (target in state.stopped) == (step["action"] == "stop"))


def _state(expected: Mapping[str, Any], which: str) -> Deployment:
    parts = {**expected["services"], DATABASE: expected[DATABASE]}
    return Deployment(tuple((name, part[which]) for name, part in sorted(parts.items())))


def _difference(state: Deployment, other: Deployment) -> str:
    wrong = [f"{name} is at {state[name]}, not {version}" for name, version in other.versions if state[name] != version]
    return "; ".join([*wrong, *(f"{name} is stopped" for name in sorted(state.stopped))])


def _words(step: Step) -> str:
    return " ".join(str(step[key]) for key in ("action", "target", "version") if key in step)


def solve(expected: Mapping[str, Any]) -> dict[str, Any]:
    """The fewest steps (breadth first), and their opposites in reverse order. Raises ValueError if there are none."""
    now, goal = _state(expected, "version"), _state(expected, "goal")
    options: list[Step] = [{"action": "backup", "target": DATABASE}] if expected["loses_data"] else []
    for version in range(now[DATABASE] + 1, goal[DATABASE] + 1):
        options.append({"action": "migrate", "target": DATABASE, "version": version})
    for name, service in expected["services"].items():
        if service["goal"] != service["version"]:
            options.append({"action": "deploy", "target": name, "version": service["goal"]})
        if not service["always_up"]:
            options += [{"action": action, "target": name} for action in ("stop", "start")]
    paths: dict[tuple[Deployment, bool], list[Step]] = {(now, False): []}
    waiting = deque([now])
    while waiting:
        state = waiting.popleft()
        steps = paths[state, state.backup]
        if state == goal:
            return {"steps": steps, "rollback": _opposites(now, steps)}
        for step in options:
            after = perform(expected, state, step)
            forward = step["action"] != "migrate" or step["version"] > state[DATABASE]
            if isinstance(after, Deployment) and forward and (after, after.backup) not in paths:
                paths[after, after.backup] = [*steps, step]
                waiting.append(after)
    raise ValueError("the goal cannot be reached")


def _opposites(now: Deployment, steps: Sequence[Step]) -> list[Step]:
    back: list[Step] = []
    for step in reversed(steps):
        if step["action"] == "deploy":
            back.append({**step, "version": now[step["target"]]})
        elif step["action"] == "migrate":
            back.append({**step, "version": step["version"] - 1})
        elif step["action"] != "backup":
            back.append({**step, "action": "start" if step["action"] == "stop" else "stop"})
    return back


@task_family("deploy", check=check, solve=solve, schema=SCHEMA)
def deploy(rng: random.Random, level: float) -> Draft:
    """One service at first; then up to four that need each other and a schema, and few of which may be stopped."""
    while True:
        expected = _draw(rng, level)
        if _fault(expected, _state(expected, "version")) or _fault(expected, _state(expected, "goal")):
            continue
        try:
            steps = solve(expected)["steps"]
        except ValueError:
            continue
        if len(steps) >= 1 + round(3 * level):
            return Draft(_prompt(expected), expected)


def _draw(rng: random.Random, level: float) -> dict[str, Any]:
    names = rng.sample(_SERVICES, 1 + round(3 * level))
    schema = rng.randrange(1, 9)
    goal_schema = schema + (rng.randrange(1, 3) if rng.random() < level else 0)
    versions = {name: rng.randrange(1, 30) for name in names}
    goals = {name: versions[name] + (1 if rng.random() < 0.8 or len(names) == 1 else 0) for name in names}
    services: dict[str, Any] = {}
    for place, name in enumerate(names):
        needs: dict[str, dict[str, list[int]]] = {}
        others = [(other, versions[other], goals[other]) for other in names[place + 1 :] if rng.random() < 0.6]
        if goal_schema > schema and rng.random() < 0.7:
            others.append((DATABASE, schema, goal_schema))
        for version in sorted({versions[name], goals[name]}):
            old = version == versions[name]
            # what is old may go with what is new for a while, and the other way round
            needs[str(version)] = {
                other: [low, high] if rng.random() < 0.5 or versions[name] == goals[name]
                else [low, max(low, high - 1)] if old else [min(high, low + 1), high]
                for other, low, high in others
            }  # fmt: skip
        always_up = rng.random() < 0.3 + 0.4 * level
        services[name] = {"version": versions[name], "goal": goals[name], "always_up": always_up, "needs": needs}
    new = range(schema + 1, goal_schema + 1)
    return {
        "services": services,
        DATABASE: {"version": schema, "goal": goal_schema},
        "loses_data": [version for version in new if rng.random() < 0.4],
    }


def _prompt(expected: Mapping[str, Any]) -> str:
    lines = []
    for name, service in expected["services"].items():
        goal = f"must become {service['goal']}" if service["goal"] != service["version"] else "stays"
        lines.append(
            f"- {name}: version {service['version']}, {goal}{', may never be stopped' if service['always_up'] else ''}"
        )
        for version, needs in service["needs"].items():
            ranges = [f"{other} {low}" + (f" to {high}" if high > low else "") for other, (low, high) in needs.items()]
            if ranges:
                lines.append(f"  {name} {version} needs {' and '.join(ranges)}")
    database = expected[DATABASE]
    if database["goal"] != database["version"]:
        lines.append(f"- {DATABASE}: version {database['version']}, must become {database['goal']}")
    for version in expected["loses_data"]:
        lines.append(f"  migrating it to {version}, or back from {version}, needs a backup first")
    return (
        "All services run.\n" + "\n".join(lines) + "\nSteps: deploy SERVICE VERSION, stop SERVICE, start SERVICE, "
        f"migrate {DATABASE} VERSION (one up or down at a time), backup {DATABASE}. After every step each running "
        "service must have what it needs, running and in a right version; in the end all run.\nAnswer with the steps, "
        "and with the rollback: steps back to the state now, from wherever the steps may stop; those with nothing to "
        'undo are skipped. As JSON: {"steps": [{"action": "deploy", "target": "...", "version": 2}], "rollback": [...]}'
    )
