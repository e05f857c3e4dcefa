"""Where the tensors of a merge come from: a model folder (mapped, never loaded whole), or tensors held in memory.

Headers and config.json are read when a model is opened, and checked against the size of the files; a tensor's bytes
only when it is merged.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from agent_forge.errors import CheckpointError
from agent_forge.forge.checkpoint import BYTES_OF, read_header

FLOATS = ("F64", "F32", "F16", "BF16")
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Spec:
    """A tensor without its numbers."""

    dtype: str  # safetensors' name: BF16, F32, …
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total

    @property
    def bytes(self) -> int:
        return self.elements * BYTES_OF[self.dtype]


@runtime_checkable
class Opened(Protocol):
    """A model whose tensors can be had one by one."""

    name: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Spec]
    folder: Path | None

    def bytes_of(self, tensor: str) -> memoryview:
        """The tensor's numbers as they are stored."""
        ...


@dataclass
class Folder:
    """A model folder in the Hugging Face layout, one file or sharded."""

    name: str
    folder: Path | None
    config: Mapping[str, Any]
    tensors: Mapping[str, Spec] = field(default_factory=dict)
    places: dict[str, tuple[Path, int, int]] = field(default_factory=dict)  # tensor: file, first byte, end
    maps: dict[Path, memoryview] = field(default_factory=dict)

    def bytes_of(self, tensor: str) -> memoryview:
        file, start, end = self.places[tensor]
        if file not in self.maps:
            self.maps[file] = _mapped(file)
        data = self.maps[file][start:end]
        if start % BYTES_OF[self.tensors[tensor].dtype]:  # a file whose header is not padded
            return memoryview(bytearray(data))
        return data

    def identity(self) -> list[tuple[str, int, int]]:
        """What changes when a file of the model does: name, size and time of change."""
        files = sorted({file for file, _, _ in self.places.values()})
        return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


SPACER = 2 << 20  # bytes
ALIKE = 1 << 28


class _Apart(mmap.mmap):
    """A mapped file with some unused addresses before it.

    Models of one size may otherwise lie a power of two apart (268 MB are mapped to 2^28 addresses). Processors that
    tell the lines of their cache apart by a few bits of the address then take the same place in two models for one,
    and a merge takes up to twice as long.
    """

    spacer: mmap.mmap
    place: int


_living: weakref.WeakSet[_Apart] = weakref.WeakSet()


def _mapped(file: Path) -> memoryview:
    # a private mapping, because ctypes and torch take the address of writable buffers only; nothing writes to it
    tried = []  # keeps its addresses until another place is found
    with open(file, "rb") as handle:
        for times in (1, 17, 65, 257):  # a small one may fit into a gap elsewhere
            spacer = mmap.mmap(-1, times * SPACER)
            mapped = _Apart(handle.fileno(), 0, access=mmap.ACCESS_COPY)
            mapped.spacer, mapped.place = spacer, ctypes.addressof(ctypes.c_char.from_buffer(mapped)) % ALIKE
            if mapped.place not in [other.place for other in _living]:
                break
            tried.append(mapped)
    _living.add(mapped)
    if hasattr(mmap, "MADV_SEQUENTIAL"):
        mapped.madvise(mmap.MADV_SEQUENTIAL)
    return memoryview(mapped)


@dataclass
class Held:
    """A model held in memory: torch tensors by name, on any device. The evolution merges these."""

    name: str
    config: Mapping[str, Any]
    values: Mapping[str, Any]
    folder: Path | None = None

    def __post_init__(self) -> None:
        found: dict[str, Spec] = {}
        for tensor, value in self.values.items():
            if str(value.dtype) not in TORCH_NAMES:
                raise CheckpointError(f"{tensor} is of type {value.dtype}", where=self.name)
            found[tensor] = Spec(TORCH_NAMES[str(value.dtype)], tuple(value.shape))
        self.tensors: Mapping[str, Spec] = found

    def bytes_of(self, tensor: str) -> memoryview:
        import torch

        value = self.values[tensor].detach().cpu().contiguous()
        data: Any = value.reshape(-1).view(torch.uint8).numpy()
        return memoryview(data)


TORCH_NAMES = {
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.int64": "I64",
    "torch.int32": "I32",
    "torch.int16": "I16",
    "torch.int8": "I8",
    "torch.uint8": "U8",
    "torch.bool": "BOOL",
}


def open_folder(reference: str, beside: Path | None = None) -> Folder:
    """Opens a model by its path (also relative to `beside`) or its name in the Hugging Face cache.

    Raises CheckpointError for a folder that holds no sound model: no config.json, no safetensors, a file that is
    shorter or longer than its header says, an index that names what is not there.
    """
    folder = find_folder(reference, beside)
    config = read_json(folder / "config.json")
    return _opened(reference, folder, config, _shards(folder))


def open_file(file: Path) -> Folder:
    """A safetensors file by itself, as an adapter has it. Raises CheckpointError."""
    if not file.is_file():
        raise CheckpointError("there is no such file", where=str(file))
    return _opened(str(file), None, {}, [file])


def _opened(name: str, folder: Path | None, config: Mapping[str, Any], files: list[Path]) -> Folder:
    tensors: dict[str, Spec] = {}
    opened = Folder(name, folder, config, tensors)
    for file in files:
        start = _data_start(file)
        for tensor, entry in read_header(file).items():
            if tensor in tensors:
                raise CheckpointError(f"{tensor} stands in two files", where=str(file.parent))
            if entry["dtype"] not in BYTES_OF:
                raise CheckpointError(f"{tensor} is of type {entry['dtype']}, which is not known", where=str(file))
            first, end = entry["data_offsets"]
            tensors[tensor] = Spec(entry["dtype"], tuple(entry["shape"]))
            opened.places[tensor] = (file, start + first, start + end)
    return opened


def find_folder(reference: str, beside: Path | None = None) -> Path:
    """The folder that a model reference means. Raises CheckpointError; nothing is downloaded."""
    path = Path(reference).expanduser()
    tried = [path] if beside is None or path.is_absolute() else [path, beside / path]
    name, _, revision = reference.partition("@")
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    repository = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{name.replace('/', '--')}"
    reference_file = repository / "refs" / (revision or "main")
    if reference_file.is_file():
        revision = reference_file.read_text(encoding="utf-8").strip()
    if revision:
        tried.append(repository / "snapshots" / revision)
    found = next((folder for folder in tried if (folder / "config.json").is_file()), None)
    if found is None:
        raise CheckpointError(
            f"there is no model folder {reference!r}: no config.json in it",
            fix="give the path of a folder with config.json and *.safetensors; nothing is downloaded",
        )
    return found


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises CheckpointError."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot be read: {error}", where=str(file)) from error
    if not isinstance(found, dict):
        raise CheckpointError("is not a JSON object", where=str(file))
    return found


def _shards(folder: Path) -> list[Path]:
    """The files that hold the weights: those of the index, else every safetensors file."""
    if (folder / INDEX).is_file():
        weight_map = read_json(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError("has no weight_map", where=str(folder / INDEX))
        shards = [folder / str(name) for name in dict.fromkeys(weight_map.values())]
        for shard in shards:
            if not shard.is_file() or shard.parent != folder:
                raise CheckpointError(f"the index names {shard.name}, which is not there", where=str(folder))
        return shards
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise CheckpointError("there are no safetensors weights (pickled weights are never read)", where=str(folder))
    return shards


def _data_start(shard: Path) -> int:
    with open(shard, "rb") as handle:
        return 8 + int.from_bytes(handle.read(8), "little")
