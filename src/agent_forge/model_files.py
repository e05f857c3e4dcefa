"""The files of a model folder, and the digests by which a changed one shows."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from agent_forge.errors import CheckpointError
from agent_forge.files import file_digest

CARD = "card.json"  # where a model came from (`forge.checkpoint`)
POLICY = "policy.json"  # the manifest of a policy (`inference.policy`)
THOUGHTS = "thoughts"  # the folder of what a model thinks with (`forge.thoughts.folder`)
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer.xz")  # the first present counts


def files_of(folder: Path) -> list[Path]:
    """The files of a checkpoint, in a fixed order. Raises CheckpointError for links, whose targets are not part of the
    checkpoint, and for pipes and devices, which would block reading."""
    files = sorted(path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())
    for path in files:
        if path.is_symlink():
            fix = "Copy the folder with `cp -rL` and use the copy"
            raise CheckpointError("a checkpoint holds plain files only, this is a link", where=str(path), fix=fix)
        if not path.is_file():
            raise CheckpointError("a checkpoint holds plain files only", where=str(path), fix="Remove it")
    return files


def digest_of(folder: Path, but: Collection[str] = (CARD,), file_digest: Callable[[Path], str] = file_digest) -> str:
    """The SHA-256 over the names and contents of all files but these."""
    names = ((file, file.relative_to(folder).as_posix()) for file in files_of(folder))
    return combined_digest((name, file_digest(file)) for file, name in names if name not in but)


def combined_digest(files: Iterable[tuple[str, str]]) -> str:
    """The digest of a folder from the names and digests of its files, in the order of `files_of`."""
    total = hashlib.sha256()
    for name, digest in files:
        total.update(f"{digest}  {name}\n".encode())
    return total.hexdigest()


def tokenizer_digest(folder: Path, file_digest: Callable[[Path], str] = file_digest) -> str | None:
    """The digest of the tokenizer's file; None without one."""
    file = next((folder / name for name in TOKENIZERS if (folder / name).is_file()), None)
    return None if file is None else file_digest(file)


def template_digest(folder: Path) -> str | None:
    """The digest of the chat template, whichever file holds it; None without one."""
    if (file := folder / "chat_template.jinja").is_file():
        return known_digest(file)
    text = read_object(folder / "tokenizer_config.json").get("chat_template")
    return None if text is None else hashlib.sha256(json.dumps(text).encode()).hexdigest()


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none."""
    try:
        document = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def known_digest(file: Path) -> str:
    """The digest of a file, read once as long as it is not written to: a request must not wait for it."""
    stat = file.stat()
    return _known(os.fspath(file), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4096)
def _known(path: str, mtime_ns: int, size: int) -> str:
    return file_digest(Path(path))


def base_folder(folder: Path) -> Path | None:
    """The folder of the base of a policy that is an adapter, also after both were moved; None for a whole model."""
    base = read_object(folder / POLICY).get("base")
    if (folder / "config.json").is_file() or not isinstance(base, dict):
        return None
    named = Path(str(base.get("folder")))
    return named if named.is_dir() else folder.parent / named.name
