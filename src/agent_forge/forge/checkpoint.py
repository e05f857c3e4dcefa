"""A checkpoint: a model as a folder in the Hugging Face layout, plus `card.json`.

The folder is named by the digest of its content, so two equal models are one checkpoint, and a changed byte shows. The
card says where the model came from (phase, resolved configuration, digests of its inputs and data, seed) and what was
measured on it. The digest covers every file but the card, because figures such as latency differ between two runs that
make the same model; the card has a digest of its own.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from agent_forge._version import __version__
from agent_forge.errors import CheckpointError
from agent_forge.files import sync_folder

CARD = "card.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer.xz")  # the first found stands for it
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # of a phase or pipeline: it becomes part of folder names
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
    tokenizer: str | None = None  # digest of its file
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    notes: str = ""
    format: int = FORMAT
    made_by: str = f"agent-forge {__version__}"

    def to_json(self) -> str:
        """The card as text. Raises CheckpointError for a figure that is not finite: it was not measured."""
        try:
            return json.dumps(asdict(self), indent=2, ensure_ascii=False, sort_keys=True, allow_nan=False)
        except ValueError as error:
            raise CheckpointError(f"the card cannot be written: {error}", where=self.phase) from error

    @staticmethod
    def from_json(text: str, where: str) -> Card:
        try:
            fields = json.loads(text, parse_constant=_refuse_constant)
            if fields["format"] > FORMAT:
                raise ValueError(f"its format is {fields['format']}, and this program knows formats up to {FORMAT}")
            fields["inputs"] = tuple(fields["inputs"])
            fields["metrics"] = {name: Metric(**metric) for name, metric in fields["metrics"].items()}
            return Card(**fields)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"the card cannot be read: {error}", where=where) from error


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a measured figure")


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

    A model that was made before gets the new card; a damaged one of that name is replaced. Raises CheckpointError if
    the folder holds no sound model.
    """
    if not NAME.fullmatch(card.phase):
        raise CheckpointError(f"{card.phase!r} cannot be part of a folder's name", fix="use letters, digits, . _ and -")
    card = completed(folder, card)
    (folder / CARD).write_text(card.to_json(), encoding="utf-8")
    digest = digest_of(folder)
    for file in files_of(folder):
        with open(file, "rb") as handle:
            os.fsync(handle.fileno())
    target = models / f"{card.phase}-{digest[:12]}"
    try:
        folder.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        _take_place(folder, target, digest)
    sync_folder(models)
    return Checkpoint(digest, target, card)


def _take_place(folder: Path, target: Path, digest: str) -> None:
    """There is a folder of that name: the same model, or what damage has left of it."""
    if _digest_or_none(target) == digest:
        (folder / CARD).replace(target / CARD)
        return
    damaged = Path(tempfile.mkdtemp(prefix=".making-", dir=target.parent))
    target.rename(damaged / "damaged")
    folder.rename(target)
    shutil.rmtree(damaged, ignore_errors=True)


def _digest_or_none(folder: Path) -> str | None:
    try:
        return digest_of(folder)
    except (CheckpointError, OSError):
        return None


def load(path: str | os.PathLike[str], digest: str | None = None) -> Checkpoint:
    """Opens a checkpoint folder, or any Hugging Face model folder (its card is then made from what it holds).

    Raises CheckpointError if it is not a sound model folder, if its card says something else than its files, or if
    `digest` is given and the bytes do not match it.
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
    known = (folder / CARD).is_file()
    return Checkpoint(found, folder, _card(folder) if known else completed(folder, Card(phase="imported", config={})))


def _card(folder: Path) -> Card:
    """The card of a folder, which must agree with what the files say themselves."""
    file = folder / CARD
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"the card cannot be read: {error}", where=str(file)) from error
    card = Card.from_json(text, str(file))
    found = completed(folder, card)
    for name in READ_OFF:
        said, is_ = getattr(card, name), getattr(found, name)
        if said != is_:
            raise CheckpointError(f"the card says {name} {said!r}, and the files {is_!r}", where=str(file))
    return card


def files_of(folder: Path) -> list[Path]:
    """The files of a checkpoint, in a fixed order. Links are refused, since their target is not part of the checkpoint,
    and so are pipes and devices, which reading would wait for."""
    found = sorted(path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())
    for path in found:
        if path.is_symlink():
            raise CheckpointError(
                "a checkpoint holds plain files only, this is a link",
                where=str(path),
                fix="copy the folder with `cp -rL` and use the copy",
            )
        if not path.is_file():
            raise CheckpointError("a checkpoint holds plain files only", where=str(path), fix="remove it")
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


READ_OFF = ("architecture", "parameters", "tokenizer")


def completed(folder: Path, card: Card) -> Card:
    """Fills in what can be read off the files: architecture, parameter count, tokenizer digest."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"config.json cannot be read: {error}", where=str(folder)) from error
    architectures = config.get("architectures") if isinstance(config, dict) else None
    if not (isinstance(architectures, list) and architectures and isinstance(architectures[0], str)):
        raise CheckpointError("config.json names no architecture", where=str(folder))
    tokenizer = next((folder / name for name in TOKENIZERS if (folder / name).is_file()), None)
    return replace(
        card,
        architecture=architectures[0],
        parameters=count_parameters(folder),
        tokenizer=None if tokenizer is None else file_digest(tokenizer),
    )


def count_parameters(folder: Path) -> int:
    """How many weights the model has, from its headers alone (tied weights are stored once).

    A packed model stores several in a byte; its configuration says how large the matrices are. In a compressed one
    every container begins with its shape.
    """
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise CheckpointError("there are no safetensors weights (pickled weights are never read)", where=str(folder))
    about = _quantization(folder)
    if about.get("quant_method") == "agent_forge_codecs":
        return sum(map(_compressed_weights, shards))
    packed = _packed_sizes(about, folder)
    total = sum(packed.values())
    for shard in shards:
        for name, tensor in read_header(shard).items():
            owner, _, part = name.rpartition(".")
            if owner not in packed or part not in ("packed", "scales"):
                total += _elements(tensor)
    return total


CONTAINER_HEAD = 1 << 16


def _compressed_weights(shard: Path) -> int:
    """The weights of all containers in a file; what is not a container (a mask, positions) counts as it is."""
    from agent_forge.forge.compression.container import MAGIC, weights_of

    header, total = read_header(shard), 0
    with open(shard, "rb") as handle:
        (length,) = struct.unpack("<Q", handle.read(8))
        for tensor in header.values():
            start, stop = tensor["data_offsets"]
            handle.seek(8 + length + start)
            data = handle.read(min(CONTAINER_HEAD, stop - start))
            held = tensor["dtype"] == "U8" and data[: len(MAGIC)] == MAGIC
            total += weights_of(data) if held else _elements(tensor)
    return total


def _quantization(folder: Path) -> dict[str, Any]:
    """What the configuration says of how the weights are stored; nothing for a dense model."""
    try:
        return dict(json.loads((folder / "config.json").read_text(encoding="utf-8")).get("quantization_config") or {})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"config.json cannot be read: {error}", where=str(folder)) from error


def _packed_sizes(about: dict[str, Any], folder: Path) -> dict[str, int]:
    """The weights of each packed matrix or table, by the name of its module; none in a dense model."""
    try:
        entries = {**about.get("matrices", {}), **about.get("embeddings", {})}
        return {name: int(entry["rows"]) * int(entry["columns"]) for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"config.json cannot be read: {error}", where=str(folder)) from error


def read_header(file: Path) -> dict[str, dict[str, Any]]:
    """The tensors of a safetensors file, checked against its size: {name: {dtype, shape, data_offsets}}."""
    size = file.stat().st_size
    try:
        with open(file, "rb") as handle:
            (length,) = struct.unpack("<Q", handle.read(8))
            if length > min(MAX_HEADER, size - 8):
                raise ValueError("the header is longer than the file")
            header = json.loads(handle.read(length), object_pairs_hook=_unique)
        header.pop("__metadata__", None)
        _check_offsets(header, size - 8 - length)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"not a sound safetensors file: {error}", where=str(file)) from error
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a name stands in the header twice")
    return found


def _check_offsets(header: dict[str, dict[str, Any]], room: int) -> None:
    end = 0
    for name, tensor in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, stop = tensor["data_offsets"]
        numbers = (start, stop, *tensor["shape"])
        if len(numbers) > 66 or not all(isinstance(number, int) and 0 <= number < 1 << 63 for number in numbers):
            raise ValueError(f"the offsets or the shape of {name!r} are not sizes")
        if start != end or stop < start:
            raise ValueError(f"the bytes of {name!r} overlap or leave a gap")
        width = BYTES_OF.get(tensor["dtype"])
        if width is not None and stop - start != width * _elements(tensor):
            raise ValueError(f"{name!r} has {stop - start} bytes, its shape and type need {width * _elements(tensor)}")
        end = stop
    if end != room:
        raise ValueError(f"the tensors take {end} bytes, the file holds {room}")


def _elements(tensor: dict[str, Any]) -> int:
    return math.prod(tensor["shape"])
