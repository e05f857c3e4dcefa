"""`agent-forge bench`: the benchmarks of a source checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from agent_forge.config import nearest
from agent_forge.errors import UsageError


def _folder() -> Path | None:
    folder = Path(__file__).resolve().parents[3] / "benchmarks"
    return folder if folder.is_dir() else None


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("name", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(name: str | None, arguments: tuple[str, ...]) -> int:
    """Run the benchmark NAME, or list them. Further ARGUMENTS go to the benchmark (--quick, --help)."""
    folder = _folder()
    if folder is None:
        raise UsageError(
            "the benchmarks are not part of the installed package", fix="clone the repository and run them there"
        )
    names = sorted(path.stem for path in folder.glob("[a-z]*.py"))
    if name is None:
        for found in names:
            click.echo(found)
        return 0
    if name not in names:
        near = nearest(name, names)
        raise UsageError(
            f"no benchmark {name!r}", fix=f"did you mean {near!r}?" if near else "`agent-forge bench` lists them"
        )
    return subprocess.run([sys.executable, str(folder / f"{name}.py"), *arguments], check=False).returncode
