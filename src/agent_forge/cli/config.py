"""`agent-forge config`: the settings in force."""

from __future__ import annotations

import click

from agent_forge.cli._app import json_option, json_out


@click.group()
def command() -> None:
    """The settings in force and where each comes from.

    In this order: an option of the command, the variable AGENT_FORGE_<KEY>, agent-forge.yaml in this folder,
    agent-forge/config.yaml in the system's folder of settings (~/.config), the default.
    """


@command.command()
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@json_option
def show(origin: bool, as_json: bool) -> None:
    """Print the settings as YAML, or with --json as an object of value and origin."""
    from agent_forge.config import as_dict, dump
    from agent_forge.settings import resolve_settings

    resolved = resolve_settings()
    values = as_dict(resolved.value)
    if as_json:
        json_out({key: {"value": value, "origin": resolved.origins[key]} for key, value in values.items()})
    elif origin:
        for key, value in values.items():
            click.echo(f"{dump({key: value}).rstrip()}    # {resolved.origins[key]}")
    else:
        click.echo(dump(resolved.value), nl=False)
