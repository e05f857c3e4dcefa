"""`agent-forge agents`: the agent profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agent_forge.cli._app import json_option, json_out

if TYPE_CHECKING:
    from agent_forge.agents.profiles import AgentProfile

folder_option = click.option(
    "--profiles", "folder", metavar="DIR", help="Profiles from this folder's .yaml files instead of the built-in ones."
)


@click.group()
def command() -> None:
    """Who can be given a task: profiles with task types, skills, model and tools."""


@command.command()
@folder_option
@json_option
def ls(folder: str | None, as_json: bool) -> None:
    """List the agents."""
    profiles = _profiles(folder)
    if as_json:
        json_out({"agents": [_row(profile) for profile in profiles.values()]})
        return
    width = max(len(name) for name in profiles)
    for name, profile in profiles.items():
        click.echo(f"{name:<{width}}  {profile.description}  [{', '.join(profile.task_types)}]")


@command.command()
@click.argument("name")
@folder_option
@json_option
def show(name: str, folder: str | None, as_json: bool) -> None:
    """Print one agent's profile as YAML."""
    from agent_forge.agents.profiles import find_profile
    from agent_forge.config import dump

    profile = find_profile(name, _profiles(folder))
    if as_json:
        json_out(_row(profile))
    else:
        click.echo(dump(profile), nl=False)


def _profiles(folder: str | None) -> dict[str, AgentProfile]:
    from agent_forge.agents.profiles import builtin_profiles, load_profiles

    return builtin_profiles() if folder is None else load_profiles(folder)


def _row(profile: AgentProfile) -> object:
    from agent_forge.config import as_dict

    return as_dict(profile)
