"""`agent-forge agents`: the agent profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._options import (
    agent_option,
    home_option,
    json_option,
    model_option,
    strategy_option,
    tools_option,
)
from agent_forge.cli._output import echo, json_out

if TYPE_CHECKING:
    from agent_forge.agents.profiles import AgentProfile

folder_option = click.option(
    "--profiles", "folder", metavar="DIR", help="Folder of .yaml profiles to use instead of the built-in ones."
)


@click.group()
def command() -> None:
    """List and show the agent profiles, and run scenarios to see how an agent does."""


@command.command()
@folder_option
@json_option
def ls(folder: str | None, as_json: bool) -> None:
    """List the agents."""
    from agent_forge.config import as_dict

    profiles = _profiles(folder)
    if as_json:
        json_out({"agents": [as_dict(profile) for profile in profiles.values()]})
        return
    width = max(len(name) for name in profiles)
    for name, profile in profiles.items():
        echo(f"{name:<{width}}  {profile.description}  [{', '.join(profile.task_types)}]")


@command.command()
@click.argument("name")
@folder_option
@json_option
def show(name: str, folder: str | None, as_json: bool) -> None:
    """Print the profile of agent NAME as YAML."""
    from agent_forge.agents.profiles import find_profile
    from agent_forge.config import as_dict, dump

    profile = find_profile(name, _profiles(folder))
    if as_json:
        json_out(as_dict(profile))
    else:
        echo(dump(profile).rstrip("\n"))


@command.command(name="eval")
@click.option(
    "--scenarios", "path", required=True, metavar="FILE", help="YAML file of requests with what they lead to."
)
@agent_option
@tools_option
@model_option
@strategy_option
@home_option
@json_option
def evaluate(path: str, as_json: bool, **options: Any) -> int:
    """Run the requests of a scenario file and compare calls and answers. Exits with 1 if one differs."""
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


def _profiles(folder: str | None) -> dict[str, AgentProfile]:
    from agent_forge.agents.profiles import builtin_profiles, load_profiles

    return builtin_profiles() if folder is None else load_profiles(folder)
