"""`agent-forge config`: the settings in force."""

from __future__ import annotations

import click

from agent_forge.cli._app import json_option, json_out


@click.group()
def command() -> None:
    """The settings in force and where each comes from."""


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
            click.echo(f"{key}: {value if value is not None else '-'}    # {resolved.origins[key]}")
    else:
        click.echo(dump(resolved.value), nl=False)
