"""`agent-forge bench`: the benchmarks of a source checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from agent_forge.config import nearest
from agent_forge.errors import UsageError


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("name", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(name: str | None, arguments: tuple[str, ...]) -> int:
    """Run benchmark NAME, or list the benchmarks. ARGUMENTS go to the benchmark (--quick, --help)."""
    folder = Path(__file__).resolve().parents[3] / "benchmarks"
    if not folder.is_dir():
        raise UsageError("the installed package has no benchmarks", fix="Clone the repository and run them there")
    names = sorted(path.stem for path in folder.glob("[a-z]*.py"))
    if name is None:
        click.echo("\n".join(names))
        return 0
    if name not in names:
        closest = nearest(name, names)
        fix = f"Did you mean {closest!r}?" if closest else "`agent-forge bench` lists them"
        raise UsageError(f"there is no benchmark {name!r}", fix=fix)
    return subprocess.run([sys.executable, str(folder / f"{name}.py"), *arguments], check=False).returncode
