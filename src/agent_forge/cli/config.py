"""`agent-forge config`: the settings in force."""

from __future__ import annotations

import click

from agent_forge.cli._options import json_option
from agent_forge.cli._output import echo, json_out


@click.group()
def command() -> None:
    """Show the settings in force and where each comes from.

    The first source that sets a value wins: the command's option, the variable AGENT_FORGE_<KEY>, agent-forge.yaml in
    this folder, agent-forge/config.yaml in the system's configuration folder (~/.config), the default.
    """


@command.command()
@click.option("--origin", is_flag=True, help="Also show where each value comes from.")
@json_option
def show(origin: bool, as_json: bool) -> None:
    """Print the settings as YAML; with --json, an object of value and origin per setting."""
    from agent_forge.config import as_dict, dump
    from agent_forge.settings import resolve_settings
    from agent_forge.urls import without_credentials

    resolved = resolve_settings()
    values = {
        key: without_credentials(value) if isinstance(value, str) else value
        for key, value in as_dict(resolved.value).items()
    }
    if as_json:
        json_out({key: {"value": value, "origin": resolved.origins[key]} for key, value in values.items()})
    elif origin:
        for key, value in values.items():
            echo(f"{dump({key: value}).rstrip()}    # {resolved.origins[key]}")
    else:
        echo(dump(values).rstrip("\n"))
