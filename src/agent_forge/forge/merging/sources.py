"""Where the tensors of a merge come from: a model folder (mapped, never loaded whole), or tensors in memory.

Headers and config.json are read when a model is opened, and checked against the size of the files. The bytes of a
tensor are read only when it is merged.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from agent_forge.errors import CheckpointError
from agent_forge.inference.loading import read_json, weight_files
from agent_forge.inference.safetensors_file import BYTES_OF, read_header

FLOATS = ("F64", "F32", "F16", "BF16")
TORCH_DTYPES = {  # safetensors' names of the types, and torch's
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


@dataclass(frozen=True)
class Spec:
    """The type and shape of a tensor."""

    dtype: str  # safetensors' name: BF16, F32, …
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * BYTES_OF[self.dtype]


@runtime_checkable
class TensorSource(Protocol):
    """A model whose tensors can be read one by one."""

    name: str
    folder: Path | None

    @property
    def config(self) -> Mapping[str, Any]: ...

    @property
    def tensors(self) -> Mapping[str, Spec]: ...

    def bytes_of(self, tensor: str) -> memoryview:
        """The elements of a tensor, as they are stored."""
        ...


@dataclass
class ModelFolder:
    """A model folder in the Hugging Face layout, in one file or sharded."""

    name: str
    folder: Path | None
    config: Mapping[str, Any]
    tensors: Mapping[str, Spec] = field(default_factory=dict)
    places: dict[str, tuple[Path, int, int]] = field(default_factory=dict)  # tensor: file, first byte, end
    maps: dict[Path, memoryview] = field(default_factory=dict)

    def bytes_of(self, tensor: str) -> memoryview:
        file, start, end = self.places[tensor]
        if file not in self.maps:
            self.maps[file] = map_file(file)
        data = self.maps[file][start:end]
        if start % BYTES_OF[self.tensors[tensor].dtype]:  # a header without padding leaves the tensors unaligned
            return memoryview(bytearray(data))
        return data

    def identity(self) -> list[tuple[str, int, int]]:
        """Name, size and modification time of every file: what changes when the model does."""
        files = sorted({file for file, _, _ in self.places.values()})
        return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


@dataclass
class ModelInMemory:
    """A model in memory: torch tensors by name, on any device."""

    name: str
    config: Mapping[str, Any]
    values: Mapping[str, Any]
    folder: Path | None = None

    def __post_init__(self) -> None:
        codes = {f"torch.{name}": code for code, name in TORCH_DTYPES.items()}
        specs: dict[str, Spec] = {}
        for tensor, value in self.values.items():
            if str(value.dtype) not in codes:
                raise CheckpointError(f"{tensor} has the unsupported type {value.dtype}", where=self.name)
            specs[tensor] = Spec(codes[str(value.dtype)], tuple(value.shape))
        self.tensors: Mapping[str, Spec] = specs

    def bytes_of(self, tensor: str) -> memoryview:
        return stored_bytes(self.values[tensor])


def stored_bytes(tensor: Any) -> memoryview:
    """The elements of a torch tensor, as safetensors stores them."""
    import torch

    data: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(data)


# --- mapped files ----------------------------------------------------------------------------------------------------

SPACER = 2 << 20  # bytes
ALIAS = 1 << 28  # addresses this far apart may share a cache line


class _SpacedMap(mmap.mmap):
    """A mapped file with unused addresses before it.

    Two models of one size may otherwise be mapped a power of two apart (268 MB take 2^28 addresses). Caches that tell
    lines apart by a few address bits then confuse the same element of both, and a merge takes up to twice as long.
    """

    spacer: mmap.mmap
    offset: int  # of its address, modulo ALIAS


_open_maps: weakref.WeakSet[_SpacedMap] = weakref.WeakSet()


def map_file(file: Path) -> memoryview:
    """The bytes of a file, mapped at an address that does not alias those of the files mapped before."""
    rejected = []  # holds on to its addresses until another place is found
    with open(file, "rb") as handle:
        for count in (1, 17, 65, 257):  # a small spacer may itself fit into a gap elsewhere
            spacer = mmap.mmap(-1, count * SPACER)
            # copy on write, since ctypes and torch take addresses of writable buffers only; nothing is written
            mapped = _SpacedMap(handle.fileno(), 0, access=mmap.ACCESS_COPY)
            mapped.spacer, mapped.offset = spacer, ctypes.addressof(ctypes.c_char.from_buffer(mapped)) % ALIAS
            if mapped.offset not in [other.offset for other in _open_maps]:
                break
            rejected.append(mapped)
    _open_maps.add(mapped)
    if hasattr(mmap, "MADV_SEQUENTIAL"):
        mapped.madvise(mmap.MADV_SEQUENTIAL)
    return memoryview(mapped)


# --- opening ---------------------------------------------------------------------------------------------------------


def open_folder(reference: str, beside: Path | None = None) -> ModelFolder:
    """Opens a model by its path (also relative to `beside`) or by its name in the Hugging Face cache.

    Raises CheckpointError for a folder without config.json or safetensors, for a file that is shorter or longer than
    its header says, and for an index that names a missing file.
    """
    folder = find_folder(reference, beside)
    return _open(reference, folder, read_json(folder / "config.json"), weight_files(folder))


def _open(name: str, folder: Path | None, config: Mapping[str, Any], files: list[Path]) -> ModelFolder:
    tensors: dict[str, Spec] = {}
    model = ModelFolder(name, folder, config, tensors)
    for file in files:
        with open(file, "rb") as handle:
            data_start = 8 + int.from_bytes(handle.read(8), "little")
        for tensor, entry in read_header(file).items():
            if tensor in tensors:
                raise CheckpointError(f"{tensor} is in two files", where=str(file.parent))
            if entry["dtype"] not in BYTES_OF:
                raise CheckpointError(f"{tensor} has the unknown type {entry['dtype']}", where=str(file))
            first, end = entry["data_offsets"]
            tensors[tensor] = Spec(entry["dtype"], tuple(entry["shape"]))
            model.places[tensor] = (file, data_start + first, data_start + end)
    return model


def find_folder(reference: str, beside: Path | None = None) -> Path:
    """The folder that a model reference means. Raises CheckpointError; nothing is downloaded."""
    path = Path(reference).expanduser()
    candidates = [path] if beside is None or path.is_absolute() else [path, beside / path]
    name, _, revision = reference.partition("@")
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    repository = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{name.replace('/', '--')}"
    branch = repository / "refs" / (revision or "main")
    if branch.is_file():
        revision = branch.read_text(encoding="utf-8").strip()
    if revision:
        candidates.append(repository / "snapshots" / revision)
    for folder in candidates:
        if (folder / "config.json").is_file():
            return folder
    raise CheckpointError(
        f"no model folder {reference!r} with a config.json",
        fix="Give the path of a folder with config.json and *.safetensors; nothing is downloaded",
    )
