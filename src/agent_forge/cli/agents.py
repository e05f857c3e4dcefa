"""`agent-forge agents`: the agent profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agent_forge.cli._options import json_option
from agent_forge.cli._output import echo, json_out

if TYPE_CHECKING:
    from agent_forge.agents.profiles import AgentProfile

folder_option = click.option(
    "--profiles", "folder", metavar="DIR", help="Folder of .yaml profiles to use instead of the built-in ones."
)


@click.group()
def command() -> None:
    """List and show the agent profiles: task types, skills, model and tools of each agent."""


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


def _profiles(folder: str | None) -> dict[str, AgentProfile]:
    from agent_forge.agents.profiles import builtin_profiles, load_profiles

    return builtin_profiles() if folder is None else load_profiles(folder)
