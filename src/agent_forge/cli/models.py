"""`agent-forge models`: the checkpoints in the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from agent_forge.cli._app import home_option, json_option, json_out
from agent_forge.errors import CheckpointError

if TYPE_CHECKING:
    from agent_forge.forge.registry import Entry


@click.group()
def command() -> None:
    """The checkpoints in the registry."""


@command.command()
@click.option("--phase", help="Only those that the phase of this name in its pipeline made: base.")
@home_option
@json_option
def ls(phase: str | None, home: str | None, as_json: bool) -> None:
    """List the checkpoints, the newest first."""
    from agent_forge.forge.registry import Registry

    entries = Registry(home).ls(phase)
    if as_json:
        json_out([_document(entry) for entry in entries])
        return
    if not entries and phase is not None:
        click.echo(f"no phase of the name {phase!r} made a checkpoint", err=True)
    elif not entries:
        click.echo("no checkpoints yet: `agent-forge forge run nano` makes some", err=True)
    for entry in entries:
        size = f"{entry.bytes / 1e6:8.1f} MB"
        click.echo(
            f"{entry.digest[:12]}  {entry.phase:12s} {entry.parameters or 0:>12,} parameters {size}  {entry.path}"
        )


@command.command()
@click.argument("digest")
@home_option
@json_option
def show(digest: str, home: str | None, as_json: bool) -> None:
    """Show where a checkpoint came from and what was measured on it."""
    from agent_forge.config import dump
    from agent_forge.forge.registry import Registry

    entry = Registry(home).find(digest)
    document = {**_document(entry), "card": dict(entry.card)}
    if as_json:
        json_out(document)
    else:
        click.echo(dump(document), nl=False)


@command.command()
@click.argument("digest")
@home_option
@json_option
def verify(digest: str, home: str | None, as_json: bool) -> int:
    """Read every byte of a checkpoint and compare with its digest; exits 1 on a difference."""
    from agent_forge.forge.registry import Registry

    try:
        checkpoint = Registry(home).load(digest)
    except CheckpointError as error:
        if not as_json:
            raise
        json_out({"ok": False, "error": str(error)})
        return 1
    if as_json:
        json_out({"ok": True, "digest": checkpoint.digest, "bytes": checkpoint.bytes()})
    else:
        click.echo(f"{checkpoint.digest[:12]} is sound: {checkpoint.bytes():,} bytes")
    return 0


@command.command()
@click.option("--apply", is_flag=True, help="Really remove; without it, only say what would be removed.")
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Keep this many of the newest checkpoints, of any age.",
)
@home_option
@json_option
def gc(apply: bool, keep: int, home: str | None, as_json: bool) -> None:
    """Remove old sessions and the checkpoints that nothing points to.

    Completed sessions go after 30 days, failed ones after 7, the oldest beyond 100; never a running one, and never a
    checkpoint that a kept session, a pin or another kept checkpoint points to.
    """
    from agent_forge.forge.cleanup import CleanupPolicy
    from agent_forge.forge.registry import Registry

    found = Registry(home).gc(CleanupPolicy(keep=keep), dry=not apply)
    if as_json:
        json_out(
            {
                "removed": apply,
                "sessions": list(found.sessions),
                "checkpoints": list(found.checkpoints),
                "bytes": found.bytes,
            }
        )
        return
    verb = "removed" if apply else "would remove"
    click.echo(
        f"{verb} {len(found.sessions)} sessions and {len(found.checkpoints)} checkpoints, {found.bytes / 1e6:.1f} MB"
    )
    if not apply and (found.sessions or found.checkpoints):
        click.echo("`agent-forge models gc --apply` does it", err=True)


def _document(entry: Entry) -> dict[str, Any]:
    return {
        "digest": entry.digest,
        "path": str(entry.path),
        "phase": entry.phase,
        "parameters": entry.parameters,
        "bytes": entry.bytes,
        "parents": list(entry.parents),
        "created_s": entry.created_s,
    }
