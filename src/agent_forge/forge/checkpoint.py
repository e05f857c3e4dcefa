"""A checkpoint: a model as a folder in the Hugging Face layout, plus `card.json`.

The folder is named by the digest of its content: equal models are one checkpoint, and a changed byte shows. The card
says where the model came from (phase, resolved configuration, digests of its inputs and data, seed) and what was
measured on it. The digest covers every file but the card, because figures such as latency differ between runs that make
the same model; the card has a digest of its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from agent_forge._version import __version__
from agent_forge.errors import CheckpointError
from agent_forge.files import sync_folder
from agent_forge.inference.loading import read_json
from agent_forge.inference.policy import verify_policy
from agent_forge.inference.safetensors_file import elements, read_header
from agent_forge.model_files import CARD, POLICY, digest_of, files_of, tokenizer_digest

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # of a phase or pipeline: part of folder names
FORMAT = 1


@dataclass(frozen=True)
class Metric:
    """A measured figure. It always has a value: what was not measured is not in the card."""

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
    data: Mapping[str, str] = field(default_factory=dict)  # by name of a data set: digest of the rows used
    seed: int | None = None
    architecture: str | None = None
    parameters: int | None = None
    tokenizer: str | None = None  # digest of its file
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    notes: str = ""
    format: int = FORMAT
    made_by: str = f"agent-forge {__version__}"

    def to_json(self) -> str:
        """The card as JSON text. Raises CheckpointError for a figure that is not finite."""
        try:
            return json.dumps(asdict(self), indent=2, ensure_ascii=False, sort_keys=True, allow_nan=False)
        except ValueError as error:
            raise CheckpointError(f"the card cannot be written: {error}", where=self.phase) from error

    @staticmethod
    def from_json(text: str, where: str) -> Card:
        try:
            fields = json.loads(text, parse_constant=_refuse_constant)
            if fields["format"] > FORMAT:
                raise ValueError(f"its format is {fields['format']}, and this version reads formats up to {FORMAT}")
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
        """The size of all files in the folder."""
        return sum(file.stat().st_size for file in files_of(self.path))


@contextmanager
def staging(models: Path) -> Iterator[Path]:
    """An empty folder beside the finished checkpoints; removed after the block unless `finish` renamed it."""
    models.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".making-", dir=models))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def finish(folder: Path, card: Card, models: Path) -> Checkpoint:
    """Turns a staged folder into a checkpoint under `models`, atomically: completes the card, then `settle`.

    Raises CheckpointError if the folder does not hold a sound model.
    """
    if not NAME.fullmatch(card.phase):
        raise CheckpointError(f"{card.phase!r} cannot be part of a folder's name", fix="Use letters, digits, . _ and -")
    card = completed(folder, card)
    if not ((folder / CARD).is_file() and _card(folder) == card):  # one by `write_card` has the size that it reports
        (folder / CARD).write_text(card.to_json(), encoding="utf-8")
    digest = digest_of(folder)
    target = models / f"{card.phase}-{digest[:12]}"
    settle(folder, target, digest)
    return Checkpoint(digest, target, card)


def settle(folder: Path, target: Path, digest: str) -> None:
    """Syncs a complete folder and gives it its name. Where that is taken by the same model, it gets the new card; a
    damaged one is replaced."""
    for file in files_of(folder):
        with open(file, "rb") as handle:
            os.fsync(handle.fileno())
    try:
        folder.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        _replace(target, folder, digest)
    sync_folder(target.parent)


def write_card(folder: Path, card_for: Callable[[int], Card]) -> int:
    """Writes the card of a folder whose figures depend on the size of the folder, the card itself included.

    Returns that size. The text never becomes shorter, so this ends: what it lost is made up for by blanks.
    """
    file = folder / CARD
    file.unlink(missing_ok=True)
    size, length = sum(path.stat().st_size for path in files_of(folder)), 0
    while True:
        text = completed(folder, card_for(size)).to_json().encode()
        length = max(length, len(text))
        file.write_bytes(text.ljust(length))
        total = sum(path.stat().st_size for path in files_of(folder))
        if total == size:
            return size
        size = total


def _replace(target: Path, folder: Path, digest: str) -> None:
    """Where `target` exists: it is the same model, which gets the new card, or a damaged one, which is replaced."""
    try:
        sound = digest_of(target) == digest
    except (CheckpointError, OSError):
        sound = False
    if sound:
        if (folder / CARD).is_file():
            (folder / CARD).replace(target / CARD)
        return
    damaged = Path(tempfile.mkdtemp(prefix=".making-", dir=target.parent))
    target.rename(damaged / "damaged")
    folder.rename(target)
    shutil.rmtree(damaged, ignore_errors=True)


def load(path: str | os.PathLike[str], digest: str | None = None) -> Checkpoint:
    """Opens a checkpoint folder, or any Hugging Face model folder (its card is then derived from its files).

    Raises CheckpointError if it is not a sound model folder, if the card contradicts the files, or if the bytes do not
    match `digest`; for a policy also if its base, tokenizer or template is not the one it was made for.
    """
    folder = Path(path)
    if not is_model(folder):
        raise CheckpointError("this is not a model folder: it has no config.json", where=str(folder))
    actual = digest_of(folder)
    if digest is not None and actual != digest:
        raise CheckpointError(
            f"the bytes do not match the digest: expected {digest[:12]}, found {actual[:12]}",
            where=str(folder),
            fix="Make the checkpoint again: it was changed or damaged",
        )
    if (folder / POLICY).is_file():
        verify_policy(folder)
    has_card = (folder / CARD).is_file()
    card = _card(folder) if has_card else completed(folder, Card(phase="imported", config={}))
    return Checkpoint(actual, folder, card)


def _card(folder: Path) -> Card:
    """The card of a folder. Raises CheckpointError if it contradicts the files."""
    file = folder / CARD
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"the card cannot be read: {error}", where=str(file)) from error
    card = Card.from_json(text, str(file))
    derived = completed(folder, card)
    for name in DERIVED:
        claim, actual = getattr(card, name), getattr(derived, name)
        if claim != actual:
            raise CheckpointError(f"the card says {name} {claim!r}, and the files {actual!r}", where=str(file))
    return card


def is_model(folder: Path) -> bool:
    """Whether a folder holds a model, or a policy that is an adapter to one."""
    return any((folder / name).is_file() for name in ("config.json", POLICY))


DERIVED = ("architecture", "parameters", "tokenizer")


def completed(folder: Path, card: Card) -> Card:
    """Fills in what the files themselves say: architecture, parameter count, tokenizer digest."""
    if not (folder / "config.json").is_file():  # an adapter: the rest is its base's
        weights = sum(
            elements(tensor) for file in folder.glob("*.safetensors") for tensor in read_header(file).values()
        )
        return replace(card, parameters=weights)
    architectures = read_json(folder / "config.json").get("architectures")
    if not (isinstance(architectures, list) and architectures and isinstance(architectures[0], str)):
        raise CheckpointError("config.json names no architecture", where=str(folder))
    return replace(
        card,
        architecture=architectures[0],
        parameters=count_parameters(folder),
        tokenizer=tokenizer_digest(folder),
    )


def count_parameters(folder: Path) -> int:
    """The number of weights, from the headers alone (tied weights are stored once).

    A packed model stores several weights per byte, and its configuration gives the sizes of the matrices. In a
    compressed model every container begins with its shape.
    """
    shards, config = sorted(folder.glob("*.safetensors")), read_json(folder / "config.json")
    if not shards:
        raise CheckpointError("there are no safetensors weights (pickled weights are never read)", where=str(folder))
    try:
        storage = dict(config.get("quantization_config") or {})  # empty for a dense model
        matrices = {**storage.get("matrices", {}), **storage.get("embeddings", {})}
        packed = {name: int(entry["rows"]) * int(entry["columns"]) for name, entry in matrices.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"config.json cannot be read: {error}", where=str(folder)) from error
    if storage.get("quant_method") == "agent_forge_codecs":
        return sum(map(_compressed_weights, shards))
    total = sum(packed.values())
    for shard in shards:
        for name, tensor in read_header(shard).items():
            owner, _, part = name.rpartition(".")
            if owner not in packed or part not in ("packed", "scales"):
                total += elements(tensor)
    return total


CONTAINER_HEAD = 1 << 16  # bytes that are enough to read a container's shape


def _compressed_weights(shard: Path) -> int:
    """The weights of all containers in a file; other tensors (masks, positions) count by their elements."""
    from agent_forge.forge.compression.container import MAGIC, weights_of

    header, total = read_header(shard), 0
    with open(shard, "rb") as handle:
        (length,) = struct.unpack("<Q", handle.read(8))
        for tensor in header.values():
            start, stop = tensor["data_offsets"]
            handle.seek(8 + length + start)
            data = handle.read(min(CONTAINER_HEAD, stop - start))
            is_container = tensor["dtype"] == "U8" and data[: len(MAGIC)] == MAGIC
            total += weights_of(data) if is_container else elements(tensor)
    return total
