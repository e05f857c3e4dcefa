"""`agent-forge agents`: the agent profiles, and how well they do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._options import (
    agent_option,
    home_option,
    json_option,
    model_option,
    open_store,
    roster_option,
    strategy_option,
    tools_option,
    workers_option,
)
from agent_forge.cli._output import echo, json_out, read_text
from agent_forge.errors import UsageError

if TYPE_CHECKING:
    from agent_forge.agents.profiles import AgentProfile
    from agent_forge.learning.exercises import AgentScores

folder_option = click.option(
    "--profiles", "folder", metavar="DIR", help="Folder of .yaml profiles to use instead of the built-in ones."
)


@click.group()
def command() -> None:
    """List and show the agent profiles, and run scenarios to see how an agent does."""


@command.command()
@roster_option
@folder_option
@json_option
def ls(roster: str | None, folder: str | None, as_json: bool) -> None:
    """List the agents of all rosters, or of one."""
    from agent_forge.agents.profiles import ROSTERS, load_profiles
    from agent_forge.agents.profiles import roster as profiles_of

    if folder is not None:
        rows = [(folder, profile) for profile in load_profiles(folder).values()]
    else:
        rows = [(name, p) for name in ROSTERS if roster in (None, name) for p in profiles_of(name).values()]
    if as_json:
        json_out({"agents": [{"roster": name, **_document(profile)} for name, profile in rows]})
        return
    width = max(len(profile.name) for _, profile in rows)
    for name, profile in rows:
        echo(f"{profile.name:<{width}}  {name}  {profile.description}  [{', '.join(profile.task_types)}]")


@command.command()
@click.argument("name")
@roster_option
@folder_option
@json_option
def show(name: str, roster: str | None, folder: str | None, as_json: bool) -> None:
    """Print the profile of agent NAME as YAML."""
    from agent_forge.agents.profiles import find_profile
    from agent_forge.config import dump

    profile = find_profile(name, _profiles(roster, folder))
    if as_json:
        json_out(_document(profile))
    else:
        echo(dump(profile).rstrip("\n"))


def _document(profile: AgentProfile) -> dict[str, Any]:
    """A profile as JSON, with the schema of its answers wherever that comes from."""
    from agent_forge.config import as_dict

    return {**as_dict(profile), "output_schema": as_dict(profile.answer_schema)}


@command.command(name="eval")
@click.option("--agents", default="all", show_default=True, metavar="NAMES", help="Agents, separated by commas.")
@roster_option
@folder_option
@click.option(
    "--scenarios", "path", metavar="FILE",
    help="YAML file of your own exercises, or of requests with what they lead to [default: the fixed exercises].",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), help="Draw fresh held-out exercises from this seed.")
@click.option("--per-agent", type=click.IntRange(min=1), default=18, show_default=True, help="Exercises per agent.")
@click.option("--turns", type=click.IntRange(min=1), default=1, show_default=True,
              help="Model calls per exercise; with more than one, agents may call their tools.")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(min=1), default=512, show_default=True,
              help="Tokens that a model may write per call.")  # fmt: skip
@click.option("--concurrency", type=click.IntRange(min=1), default=8, show_default=True,
              help="Number of answers written at the same time.")  # fmt: skip
@workers_option
@agent_option
@tools_option
@model_option
@strategy_option
@home_option
@json_option
def evaluate(path: str | None, as_json: bool, **options: Any) -> int:
    """Let agents do exercises, and score what they answer by executing it.

    --model is a model, or one of reference (right answers), random (right answers to other exercises) and copy (the
    prompt). An evaluation that was stopped goes on where it was. With a file of requests, calls and answers are
    compared instead, and the exit code is 1 if one differs.
    """
    if path is not None and not _has_exercises(path):
        names = ("agent", "tools", "model", "strategy", "home")
        return _requests(path, as_json, {name: options[name] for name in names})
    scores = _exercises(path, **{k: v for k, v in options.items() if k not in ("agent", "tools", "strategy")})
    if scores.errors:
        echo(f"{scores.errors} exercises could not be judged, the first: {scores.error}", err=True)
    if as_json:
        json_out(scores.to_dict())
        return 0
    width = max(len(name) for name in scores.agents)
    echo(f"{'agent':<{width}}  reward  ± error  correct   n")
    for name, one in scores.agents.items():
        echo(f"{name:<{width}}  {_figure(one.mean)}   {_figure(one.stderr)}    {_figure(one.correct)}  {one.n:>2}")
    echo(f"{'mean':<{width}}  {_figure(scores.mean)}            {_figure(scores.correct)}")
    echo(f"traces: agent-forge traces ls --session {scores.session!r}", err=True)
    return 0


def _figure(value: float | None) -> str:
    return "  –  " if value is None else f"{value:.3f}"


def _exercises(
    path: str | None, agents: str, roster: str | None, folder: str | None, seed: int | None, per_agent: int,
    model: str | None, turns: int, max_tokens: int, concurrency: int, workers: str | None, home: str | None,
) -> AgentScores:  # fmt: skip
    from agent_forge.learning.exercises import Examinee, evaluate_agents, exercises_for
    from agent_forge.tasks.fixed import load_exercises
    from agent_forge.terminal import ProgressDisplay
    from agent_forge.traces.recorder import Recorder

    if model is None:
        raise UsageError("there is no model", fix="Name one: --model reference, random, copy, smollm2 or URL#name")
    known = _profiles(roster or "genesis", folder)
    chosen = chosen_agents(agents, known)
    if path is None:
        work = exercises_for(chosen, per_agent, seed)
    else:
        own = load_exercises(path)
        names = {profile.name: profile for profile in chosen}
        work = [(names[agent], exercise) for agent, exercise in own if agent in names]
        if not work:
            raise UsageError("the file has no exercise for these agents", where=path)
    with open_store(home) as store, Recorder.from_settings(store) as recorder, ProgressDisplay() as display:

        def progress(state: Any) -> None:
            reward = "" if state.mean_reward is None else f"mean reward {state.mean_reward:.2f}"
            display.update("evaluate", state.traces, len(work), unit="exercises", detail=reward)

        examinee = Examinee(model, turns, max_tokens)
        options: dict[str, Any] = {"concurrency": concurrency, "progress": progress, "workers": workers}
        return evaluate_agents(work, examinee, recorder, **options)


def chosen_agents(names: str, known: dict[str, AgentProfile]) -> list[AgentProfile]:
    """The agents of a list of names; `all` is every one that has a task family. Raises UsageError."""
    from agent_forge.agents.profiles import find_profile

    if names == "all":
        return [profile for profile in known.values() if profile.family is not None]
    return [find_profile(name.strip(), known) for name in names.split(",")]


def _has_exercises(path: str) -> bool:
    return any(line.startswith("exercises:") for line in read_text(path).splitlines())


def _requests(path: str, as_json: bool, options: dict[str, Any]) -> int:
    from dataclasses import asdict

    from agent_forge.agents.scenarios import evaluate, load_scenarios

    results = []
    for result in evaluate(load_scenarios(path), **options):
        results.append(result)
        if not as_json:
            echo(f"{'FAILED' if result.faults else 'ok':<6}  {result.request}")
            for fault in result.faults:
                echo(f"        {fault}")
    passed = sum(not result.faults for result in results)
    if as_json:
        json_out({"passed": passed, "n": len(results), "scenarios": [asdict(result) for result in results]})
    else:
        echo(f"{passed} of {len(results)} as expected", err=True)
    return 0 if passed == len(results) else 1


def _profiles(roster: str | None, folder: str | None) -> dict[str, AgentProfile]:
    from agent_forge.agents.profiles import load_profiles
    from agent_forge.agents.profiles import roster as profiles_of

    if folder is not None:
        return load_profiles(folder)
    return profiles_of(roster) if roster is not None else {**profiles_of("genesis"), **profiles_of("default")}
