"""Models at a URL: an S3 or Google Cloud bucket, a network share, whatever fsspec speaks. Needs fsspec.

URL/files/SHA-256         every file once, however many models have it
URL/models/DIGEST.json    a manifest: the names, sizes and SHA-256 of the files of one model, written after all of them

A model exists when its manifest does, so an upload that was cut off is never seen as one; repeating it sends only what
is missing. A manifest must add up to the digest in its name, and every file is checked against the manifest when it
is fetched.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from agent_forge.errors import AgentForgeError, CheckpointError, MissingExtraError, StoreError, UsageError
from agent_forge.files import file_digest
from agent_forge.forge import checkpoint as checkpoints
from agent_forge.forge.checkpoint import Checkpoint
from agent_forge.forge.progress import Tell, silent
from agent_forge.model_files import CARD, combined_digest, files_of
from agent_forge.platforms import lock

# Where an object appears when its upload is complete, not before; renaming would copy it. Elsewhere it is renamed.
OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "r2")
CHUNK = 1 << 22
FORMAT = 1


@dataclass(frozen=True)
class StoredFile:
    name: str  # relative to the folder of the model, with slashes
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """A model in the store."""

    digest: str
    phase: str
    parameters: int | None
    created_s: float
    files: tuple[StoredFile, ...]  # in the order in which the digest covers them
    format: int = FORMAT

    @property
    def size(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def name(self) -> str:
        """The name of its folder among the models of a home folder."""
        return f"{self.phase}-{self.digest[:12]}"

    @staticmethod
    def read(data: bytes, digest: str, where: str) -> Manifest:
        """Raises CheckpointError for a manifest that does not add up to `digest` or names files outside its folder."""
        try:
            document = json.loads(data)
            files = tuple(StoredFile(**file) for file in document.pop("files"))
            manifest = Manifest(**document, files=files)
            if manifest.format > FORMAT:
                raise ValueError(f"its format is {manifest.format}, and this version reads formats up to {FORMAT}")
            if manifest.digest != digest or _digest(files) != digest:
                raise ValueError("it does not add up to the digest in its name")
            if not checkpoints.NAME.fullmatch(manifest.phase):
                raise ValueError(f"{manifest.phase!r} is not the name of a phase")
            for file in files:
                path = PurePosixPath(file.name)
                if (
                    path.is_absolute()
                    or ".." in path.parts
                    or re.search(r"[\\:\0]", file.name)
                    or path == PurePosixPath()
                ):
                    raise ValueError(f"{file.name!r} is not the name of a file in the model's folder")
                if not re.fullmatch(r"[0-9a-f]{64}", file.sha256):
                    raise ValueError(f"{file.sha256!r} is not a SHA-256")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"the manifest cannot be used: {error}", where=where) from error
        return manifest


class ModelStore:
    """Models by digest at a URL, e.g. s3://bucket/models, gcs://bucket, file:///mnt/share or memory://name.

    Credentials and endpoints are those of the file system's own package (for S3, s3fs: the AWS variables and files).
    """

    def __init__(self, url: str) -> None:
        """Raises UsageError for a URL that cannot be used, and MissingExtraError. Nothing is contacted yet."""
        try:
            fsspec: Any = import_module("fsspec.core")
        except ImportError as error:
            raise MissingExtraError("a model store at a URL", "scale") from error
        parts = urlsplit(url)
        if not parts.scheme or "://" not in url:
            fix = "Write s3://bucket/models, gcs://bucket/models, file:///folder or memory://name"
            raise UsageError(f"{url!r} is not the URL of a model store", fix=fix)
        self.where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"  # without a password
        try:
            self._fs, root = fsspec.url_to_fs(url, use_listings_cache=False)
        except ImportError as error:  # which says `Install s3fs to access S3`
            raise UsageError(
                f"{parts.scheme}:// needs a package of its own", where=self.where, fix=str(error)
            ) from error
        except ValueError as error:
            raise UsageError(f"the model store cannot be used: {error}", where=self.where) from error
        self._root = root.rstrip("/")
        self._renames = parts.scheme not in OBJECT_STORES

    def ls(self) -> list[Manifest]:
        """All models, newest first. Raises StoreError, CheckpointError."""
        with self._reached():
            self._fs.invalidate_cache()
            try:
                paths = self._fs.ls(f"{self._root}/models", detail=False)
            except FileNotFoundError:
                return []
        names = [PurePosixPath(path).name for path in paths]
        digests = [name.removesuffix(".json") for name in names if re.fullmatch(r"[0-9a-f]{64}\.json", name)]
        manifests = [manifest for digest in digests if (manifest := self.manifest(digest)) is not None]
        return sorted(manifests, key=lambda one: (-one.created_s, one.digest))

    def find(self, name: str) -> Manifest:
        """The model whose digest, or `phase-digest`, starts with `name`. Raises UsageError if there is not just one."""
        if re.fullmatch(r"[0-9a-f]{64}", name):
            matches = [manifest] if (manifest := self.manifest(name)) is not None else []
        else:
            phase, _, prefix = name.rpartition("-")
            matches = [
                one for one in self.ls() if prefix and one.digest.startswith(prefix) and phase in ("", one.phase)
            ]
        if len(matches) == 1:
            return matches[0]
        what = f"{len(matches)} models start with {name!r}" if matches else f"there is no model {name!r}"
        raise UsageError(what, where=self.where, fix="`agent-forge models ls --remote` lists them")

    def manifest(self, digest: str) -> Manifest | None:
        """The manifest of a model, or None. Raises StoreError, CheckpointError."""
        path = f"{self._root}/models/{digest}.json"
        with self._reached():
            try:
                data = self._fs.cat_file(path)
            except FileNotFoundError:
                return None
        return Manifest.read(data, digest, f"{self.where}/models/{digest}.json")

    def has(self, checkpoint: Checkpoint) -> bool:
        """Whether the store has this model with this card."""
        manifest = self.manifest(checkpoint.digest)
        return manifest is not None and _has_card(checkpoint.path, manifest)

    def push(self, checkpoint: Checkpoint, tell: Tell = silent) -> int:
        """Sends a model: files that the store does not have, then the manifest. Returns the bytes that were sent.

        Repeating it does no harm. Raises CheckpointError if the folder is not what its digest says, and StoreError.
        """
        folder = checkpoint.path
        files = tuple(
            StoredFile(path.relative_to(folder).as_posix(), file_digest(path), path.stat().st_size)
            for path in files_of(folder)
        )
        if _digest(files) != checkpoint.digest:
            fix = "Make the checkpoint again: it was changed or damaged"
            raise CheckpointError("the bytes do not match the digest", where=str(folder), fix=fix)
        card = checkpoint.card
        manifest = Manifest(checkpoint.digest, card.phase, card.parameters, time.time(), files)
        sent = done = 0
        with self._reached():
            for file in files:
                target = f"{self._root}/files/{file.sha256}"
                if self._size(target) != file.bytes:
                    self._put(folder / file.name, target)
                    sent += file.bytes
                done += file.bytes
                tell(stage="push", done=done, total=manifest.size)
            text = json.dumps(asdict(manifest), indent=1).encode()
            self._put(text, f"{self._root}/models/{manifest.digest}.json")
        return sent

    def pull(self, name: str, models: Path, tell: Tell = silent) -> Checkpoint:
        """Fetches a model into a folder of `models`, where it is then found without the store.

        Every byte is checked before the folder gets its name. A pull that was cut off is continued by the next one.
        Raises UsageError, CheckpointError, StoreError.
        """
        manifest = self.find(name)
        target, partial = models / manifest.name, models / f".making-{manifest.digest[:32]}"
        models.mkdir(parents=True, exist_ok=True)
        with open(models / f"{partial.name}.lock", "a") as guard:  # of two pulls, the second waits and finds the folder
            lock(guard.fileno(), wait=True)
            with suppress(CheckpointError, OSError):
                checkpoint = checkpoints.load(target, manifest.digest)
                if _has_card(target, manifest):
                    return checkpoint
                for each in {file.name for file in manifest.files} - {CARD}:  # all but the card is here
                    (partial / each).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(target / each, partial / each)
            done = 0
            for file in manifest.files:
                self._fetch(file, partial / file.name)
                done += file.bytes
                tell(stage="pull", done=done, total=manifest.size)
            expected = {partial / file.name for file in manifest.files}
            for path in files_of(partial):
                if path not in expected:  # of an older manifest
                    path.unlink()
            card = checkpoints.load(partial, manifest.digest).card
            checkpoints.settle(partial, target, manifest.digest)
            shutil.rmtree(partial, ignore_errors=True)  # where the same model, with another card, had the name
        return Checkpoint(manifest.digest, target, card)

    def verify(self, name: str) -> Manifest:
        """Reads every byte of a stored model. Raises CheckpointError if one is not what the manifest says."""
        manifest = self.find(name)
        for file in manifest.files:
            total = hashlib.sha256()
            with self._reached(), self._opened(file) as remote:
                while chunk := remote.read(CHUNK):
                    total.update(chunk)
            if total.hexdigest() != file.sha256:
                raise self._damaged(file)
        return manifest

    def _fetch(self, file: StoredFile, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        begun = target.stat().st_size if target.is_file() else 0
        for start in [begun, 0] if 0 < begun <= file.bytes else [0]:
            if start < file.bytes or not target.is_file():
                with self._reached(), self._opened(file) as remote, open(target, "ab" if start else "wb") as local:
                    remote.seek(start)
                    shutil.copyfileobj(remote, local, CHUNK)
            if file_digest(target) == file.sha256:
                return
        raise self._damaged(file)

    @contextmanager
    def _opened(self, file: StoredFile) -> Iterator[Any]:
        try:
            remote = self._fs.open(f"{self._root}/files/{file.sha256}", "rb")
        except FileNotFoundError:
            raise self._damaged(file) from None
        with remote:
            yield remote

    def _damaged(self, file: StoredFile) -> CheckpointError:
        where = f"{self.where}/files/{file.sha256}"
        fix = "Remove it there and push the model again from where it is sound"
        return CheckpointError(f"{file.name} of the stored model is missing or damaged", where=where, fix=fix)

    def _size(self, path: str) -> int | None:
        try:
            return int(self._fs.info(path)["size"])
        except FileNotFoundError:
            return None

    def _put(self, source: Path | bytes, target: str) -> None:
        """Writes an object that appears whole or not at all."""
        part = f"{target}.{uuid.uuid4().hex}.part" if self._renames else target
        if self._renames:
            self._fs.makedirs(part.rpartition("/")[0], exist_ok=True)
        try:
            if isinstance(source, bytes):
                self._fs.pipe_file(part, source)
            else:
                self._fs.put_file(os.fspath(source), part)
            if self._renames:
                self._fs.mv(part, target)
        except BaseException:
            if self._renames:
                with suppress(Exception):
                    self._fs.rm_file(part)
            raise

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Every file system has its own exceptions for what is away or refused."""
        try:
            yield
        except AgentForgeError:
            raise
        except Exception as error:
            why = str(error).strip() or type(error).__name__
            raise StoreError(f"the model store cannot be used: {why}", where=self.where) from error


def _digest(files: Sequence[StoredFile]) -> str:
    return combined_digest((file.name, file.sha256) for file in files if file.name != CARD)


def _has_card(folder: Path, manifest: Manifest) -> bool:
    """Whether the card of a folder is the one in the manifest."""
    stored = next((file.sha256 for file in manifest.files if file.name == CARD), None)
    card = folder / CARD
    return stored == (file_digest(card) if card.is_file() else None)
