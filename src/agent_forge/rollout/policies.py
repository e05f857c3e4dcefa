"""What a policy is made of: how to notice that the one that serves is not the one that was rolled out.

A policy is a name: a planner or strategy of `agents/`, the URL of an endpoint, or a model folder. Only a folder can
change behind its name; its fingerprint says what must not.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from agent_forge.files import file_digest

FolderOf = Callable[[str], Path | None]  # the folder of a registered model, which `cli` and `server` look up
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer.xz", "vocab.json")


def fingerprint(policy: str, folder_of: FolderOf | None = None) -> dict[str, Any]:
    """The folder of a policy and digests of its manifest, base, tokenizer and template; empty if it has no folder."""
    folder = Path(policy).expanduser()
    if not (folder / "config.json").is_file():
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
    card = folder / "card.json"
    tokenizer = next((folder / name for name in TOKENIZERS if (folder / name).is_file()), None)
    files = sorted((file.name, file.stat().st_size) for file in folder.glob("*") if file.is_file())
    manifest = [files, *(_digest(folder / name) for name in ("card.json", "config.json"))]
    return {
        "manifest": hashlib.sha256(json.dumps(manifest).encode()).hexdigest(),
        "base": _read(card).get("inputs"),
        "tokenizer": None if tokenizer is None else _digest(tokenizer),
        "template": _template(folder),
    }


def _template(folder: Path) -> str | None:
    if (own := _digest(folder / "chat_template.jinja")) is not None:
        return own
    text = _read(folder / "tokenizer_config.json").get("chat_template")
    return None if text is None else hashlib.sha256(json.dumps(text).encode()).hexdigest()


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _digest(path: Path) -> str | None:
    try:
        stat = path.stat()
        return _digest_of(os.fspath(path), stat.st_mtime_ns, stat.st_size)
    except OSError:
        return None


@lru_cache(maxsize=256)
def _digest_of(path: str, mtime_ns: int, size: int) -> str:
    """The digest of a file, read once as long as it is not written to: a request must not wait for it."""
    return file_digest(Path(path))
