"""What a policy is made of: how to notice that the one that serves is not the one that was rolled out.

A policy is a name: a planner or strategy of `agents/`, the URL of an endpoint, a model folder, or a trained policy of
the registry (an adapter with its manifest). Only a folder can change behind its name; its fingerprint says what must
not. It is cheap enough for every request; whoever loads the folder checks every byte (`inference.policy`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agent_forge.model_files import (
    CARD,
    POLICY,
    base_folder,
    known_digest,
    read_object,
    template_digest,
    tokenizer_digest,
)

FolderOf = Callable[[str], Path | None]  # the folder of a registered model, which `cli` and `server` look up


def fingerprint(policy: str, folder_of: FolderOf | None = None) -> dict[str, Any]:
    """The folder of a policy and digests of its manifest, base, tokenizer and template; empty if it has no folder."""
    folder = Path(policy).expanduser()
    if not any((folder / name).is_file() for name in ("config.json", POLICY)):
        found = folder_of(policy) if folder_of is not None and "://" not in policy else None
        if found is None:
            return {}
        folder = found
    return {"folder": str(folder.resolve()), **_parts(folder)}


def changes(recorded: Mapping[str, Any]) -> list[str]:
    """The parts that differ from a fingerprint that was recorded earlier; empty where it had no folder."""
    folder = recorded.get("folder")
    if folder is None:
        return []
    now = _parts(Path(folder))
    return [name for name in now if now[name] != recorded.get(name)]


def _parts(folder: Path) -> dict[str, Any]:
    """Of a policy that is an adapter, tokenizer and template are those of its base."""
    base = base_folder(folder)
    about = base or folder
    return {
        "manifest": _manifest(folder),
        "base": read_object(folder / CARD).get("inputs") if base is None else _manifest(base),
        "tokenizer": tokenizer_digest(about, known_digest),
        "template": template_digest(about),
    }


def _manifest(folder: Path) -> str:
    """Names and sizes of all files, and what is in the small ones that say what they are."""
    files = sorted((file.name, file.stat().st_size) for file in folder.glob("*") if file.is_file())
    said = [folder / name for name in (CARD, "config.json", POLICY)]
    digests = [known_digest(file) if file.is_file() else None for file in said]
    manifest = [files, *(digests if digests[-1] else digests[:-1])]  # as before there were manifests of policies
    return hashlib.sha256(json.dumps(manifest).encode()).hexdigest()
