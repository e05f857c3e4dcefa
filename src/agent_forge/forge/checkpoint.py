"""A checkpoint: a model as a folder in the Hugging Face layout, plus `card.json`.

The folder is named by the digest of its content, so two equal models are one checkpoint, and a changed byte shows. The
card says where the model came from (phase, resolved configuration, digests of its inputs and data, seed) and what was
measured on it. The digest covers every file but the card, because figures such as latency differ between two runs that
make the same model; the card has a digest of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent_forge._version import __version__
from agent_forge.errors import CheckpointError
from agent_forge.files import sync_folder

CARD = "card.json"
FORMAT = 1
MAX_HEADER = 100 << 20  # the limit that the safetensors library itself keeps
BYTES_OF = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}


@dataclass(frozen=True)
class Metric:
    """A measured figure. There is no way to make one without a value: what was not measured is not in the card."""

    value: float
    stderr: float | None = None
    n: int | None = None
    how: str = ""


@dataclass(frozen=True)
class Card:
    """Where a model came from and what was measured on it."""

    phase: str
    config: Mapping[str, Any]
    inputs: tuple[str, ...] = ()  # digests of the checkpoints it was made from
    data: Mapping[str, str] = field(default_factory=dict)  # name of a data set: digest of the rows that were used
    seed: int | None = None
    architecture: str | None = None
    parameters: int | None = None
    tokenizer: str | None = None  # digest of tokenizer.json
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    notes: str = ""
    format: int = FORMAT
    made_by: str = f"agent-forge {__version__}"

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False, sort_keys=True, allow_nan=False)

    @staticmethod
    def from_json(text: str, where: str) -> Card:
        try:
            fields = json.loads(text)
            fields["inputs"] = tuple(fields["inputs"])
            fields["metrics"] = {name: Metric(**metric) for name, metric in fields["metrics"].items()}
            return Card(**fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"the card cannot be read: {error}", where=where) from error


@dataclass(frozen=True)
class Checkpoint:
    """A finished checkpoint on disk."""

    digest: str
    path: Path
    card: Card

    @property
    def name(self) -> str:
        return f"{self.card.phase}-{self.digest[:12]}"

    def bytes(self) -> int:
        """The size of everything in the folder."""
        return sum(file.stat().st_size for file in files_of(self.path))


@contextmanager
def staging(models: Path) -> Iterator[Path]:
    """An empty folder beside the finished checkpoints, gone after the block unless `finish` renamed it."""
    models.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".making-", dir=models))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def finish(folder: Path, card: Card, models: Path) -> Checkpoint:
    """Turns a staged folder into a checkpoint under `models`: completes the card, syncs, renames. Atomic.

    Raises CheckpointError if the folder holds no sound model.
    """
    card = _completed(folder, card)
    (folder / CARD).write_text(card.to_json(), encoding="utf-8")
    digest = digest_of(folder)
    for file in files_of(folder):
        with open(file, "rb") as handle:
            os.fsync(handle.fileno())
    checkpoint = Checkpoint(digest, models / f"{card.phase}-{digest[:12]}", card)
    if checkpoint.path.exists():  # the same model was made before; its card stands
        return load(checkpoint.path)
    folder.rename(checkpoint.path)
    sync_folder(models)
    return checkpoint


def load(path: str | os.PathLike[str], digest: str | None = None) -> Checkpoint:
    """Opens a checkpoint folder, or any Hugging Face model folder (its card is then made from what it holds).

    Raises CheckpointError if it is not a sound model folder, or if `digest` is given and the bytes do not match it.
    """
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise CheckpointError("there is no config.json: this is not a model folder", where=str(folder))
    found = digest_of(folder)
    if digest is not None and found != digest:
        raise CheckpointError(
            f"the bytes do not match the digest: expected {digest[:12]}, found {found[:12]}",
            where=str(folder),
            fix="the checkpoint was changed or damaged: make it again",
        )
    card_file = folder / CARD
    if card_file.is_file():
        card = Card.from_json(card_file.read_text(encoding="utf-8"), str(card_file))
    else:
        card = _completed(folder, Card(phase="imported", config={}))
    return Checkpoint(found, folder, card)


def files_of(folder: Path) -> list[Path]:
    """The files of a checkpoint, in a fixed order. Links are refused: their target is not part of the checkpoint."""
    found = sorted(path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())
    for path in found:
        if path.is_symlink():
            raise CheckpointError("a checkpoint holds plain files only, this is a link", where=str(path))
    return found


def digest_of(folder: Path) -> str:
    """The SHA-256 over the names and contents of all files but the card."""
    total = hashlib.sha256()
    for file in files_of(folder):
        name = file.relative_to(folder).as_posix()
        if name != CARD:
            total.update(f"{file_digest(file)}  {name}\n".encode())
    return total.hexdigest()


def file_digest(file: Path) -> str:
    digest = hashlib.sha256()
    with open(file, "rb") as handle:
        while chunk := handle.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _completed(folder: Path, card: Card) -> Card:
    """Fills in what can be read off the files: architecture, parameter count, tokenizer digest."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"config.json cannot be read: {error}", where=str(folder)) from error
    architectures = config.get("architectures") or [None]
    tokenizer = folder / "tokenizer.json"
    return Card(
        **{
            **{name: getattr(card, name) for name in card.__dataclass_fields__},
            "architecture": architectures[0],
            "parameters": count_parameters(folder),
            "tokenizer": file_digest(tokenizer) if tokenizer.is_file() else None,
        }
    )


def count_parameters(folder: Path) -> int:
    """The number of stored weights, from the safetensors headers alone (tied weights are stored once)."""
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise CheckpointError("there are no safetensors weights (pickled weights are never read)", where=str(folder))
    return sum(_elements(header) for shard in shards for header in read_header(shard).values())


def read_header(file: Path) -> dict[str, dict[str, Any]]:
    """The tensors of a safetensors file, checked against its size: {name: {dtype, shape, data_offsets}}."""
    size = file.stat().st_size
    try:
        with open(file, "rb") as handle:
            (length,) = struct.unpack("<Q", handle.read(8))
            if length > min(MAX_HEADER, size - 8):
                raise ValueError("the header is longer than the file")
            header = json.loads(handle.read(length))
        header.pop("__metadata__", None)
        _check_offsets(header, size - 8 - length)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"not a sound safetensors file: {error}", where=str(file)) from error
    return header


def _check_offsets(header: dict[str, dict[str, Any]], room: int) -> None:
    end = 0
    for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = tensor["data_offsets"]
        if start != end or stop < start:
            raise ValueError(f"the bytes of {name!r} overlap or leave a gap")
        width = BYTES_OF.get(tensor["dtype"])
        if width is not None and stop - start != width * _elements(tensor):
            raise ValueError(f"{name!r} has {stop - start} bytes, its shape and type need {width * _elements(tensor)}")
        end = stop
    if end != room:
        raise ValueError(f"the tensors take {end} bytes, the file holds {room}")


def _elements(tensor: dict[str, Any]) -> int:
    count = 1
    for length in tensor["shape"]:
        count *= int(length)
    return count
