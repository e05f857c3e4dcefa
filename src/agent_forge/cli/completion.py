"""`agent-forge completion`: completion scripts for bash, zsh and fish."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a completion script for SHELL.

    For bash: agent-forge completion bash >> ~/.bashrc
    """
    from click.shell_completion import get_completion_class

    from agent_forge.cli._app import app

    completion = get_completion_class(shell)
    assert completion is not None  # click has these three
    click.echo(completion(app, {}, "agent-forge", "_AGENT_FORGE_COMPLETE").source())
