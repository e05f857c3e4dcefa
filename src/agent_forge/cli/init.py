"""`agent-forge init`: a folder with tools, an agent and requests to try."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path

import click

from agent_forge.cli._output import echo
from agent_forge.errors import UsageError

FILES = ("tools.py", "agent.yaml", "scenarios.yaml", "README.md")


@click.command()
@click.argument("folder", default=".", type=click.Path(file_okay=False))
def command(folder: str) -> int:
    """Make FOLDER (default: this one) with tools of your own, an agent profile and requests to try.

    Existing files are never overwritten: if one is in the way, nothing is written.
    """
    place = Path(folder)
    taken = [name for name in FILES if (place / name).exists()]
    if taken:
        verb = "exists" if len(taken) == 1 else "exist"
        raise UsageError(f"{', '.join(taken)} {verb} already", where=str(place), fix="Name another folder")
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            text = (files("agent_forge.cli") / "starter" / name).read_text(encoding="utf-8")
            with (place / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(error.filename or place)) from error
    steps = [] if place.resolve() == Path.cwd() else [f"cd {shlex.quote(folder)}"]
    steps.append('agent-forge run "Get the price of tea" --tools tools.py')
    echo("Made " + ", ".join(FILES) + ". Now:\n  " + "\n  ".join(steps))
    return 0
