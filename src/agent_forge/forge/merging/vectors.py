"""Task vectors, x_i - x_0, as things of their own: taken out as a LoRA, put back, and compared for interference."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from agent_forge.errors import CheckpointError, UsageError
from agent_forge.files import atomic_write
from agent_forge.forge.merging.engine import MergeReport, merge
from agent_forge.forge.merging.recipe import parse_recipe
from agent_forge.forge.merging.sources import FLOATS, Folder, Opened, Spec, open_folder, read_json
from agent_forge.forge.merging.vocabulary import as_floats

Array = Any
PREFIX = "base_model.model."  # how PEFT begins the names in an adapter


# --- interference ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interference:
    """How the task vectors of a tensor (or of all) stand to each other.

    `conflict` is the share of elements, among those that at least two vectors move, in which two of them move it in
    opposite directions; `cosine` is the mean over the pairs; `norms` are |x_i - x_0| / |x_0|.
    """

    name: str
    conflict: float | None
    cosine: float | None
    norms: tuple[float, ...]
    elements: int


@dataclass
class _Counts:
    """Sums that add up over tensors."""

    moved: int
    against: int
    products: Array  # <v_i, v_j>
    base: float  # |x_0|^2
    elements: int

    def __add__(self, other: _Counts) -> _Counts:
        return _Counts(
            self.moved + other.moved,
            self.against + other.against,
            self.products + other.products,
            self.base + other.base,
            self.elements + other.elements,
        )

    def named(self, name: str) -> Interference:
        norms = np.sqrt(np.diag(self.products))
        pairs = list(combinations(range(len(norms)), 2))
        cosines = [self.products[i, j] / (norms[i] * norms[j]) for i, j in pairs if norms[i] > 0 and norms[j] > 0]
        size = self.base**0.5
        return Interference(
            name,
            self.against / self.moved if self.moved else None,
            float(np.mean(cosines)) if cosines else None,
            tuple(float(norm / size) if size else 0.0 for norm in norms),
            self.elements,
        )


def interference(
    base: str, models: Sequence[str], density: float = 1.0, beside: Path | None = None
) -> list[Interference]:
    """How far the task vectors of `models` contradict each other, tensor by tensor; the last row is all of them.

    With a `density` below 1 only the largest |x| of each vector count, as after the trimming of TIES.
    Raises UsageError for fewer than two models, CheckpointError for tensors that do not fit.
    """
    if len(models) < 2:
        raise UsageError("interference is between two models or more")
    opened = [open_folder(name, beside) for name in (base, *models)]
    rows, whole = [], _Counts(0, 0, np.zeros((len(models), len(models))), 0.0, 0)
    for tensor, spec in opened[0].tensors.items():
        if spec.dtype not in FLOATS:
            continue
        counts = _counts([_flat(model, tensor, spec) for model in opened], density)
        rows.append(counts.named(tensor))
        whole = whole + counts
    return [*rows, whole.named("all")]


def _flat(model: Opened, tensor: str, spec: Spec) -> Array:
    found = model.tensors.get(tensor)
    if found is None or found.shape != spec.shape:
        raise CheckpointError(f"{tensor} is missing or of another shape", where=model.name)
    return as_floats(model.bytes_of(tensor), found).reshape(-1)


def _counts(tensors: Sequence[Array], density: float, chunk: int = 1 << 20) -> _Counts:
    """A stretch at a time, so that a large tensor takes no more room than a small one."""
    count, n = len(tensors) - 1, tensors[0].size
    least = [_threshold(tensor, tensors[0], density) for tensor in tensors[1:]]
    moved = against = 0
    products, size = np.zeros((count, count)), 0.0
    for start in range(0, n, chunk):
        zero = tensors[0][start : start + chunk].astype(np.float64)
        vectors = np.stack([tensor[start : start + chunk].astype(np.float64) - zero for tensor in tensors[1:]])
        vectors[np.abs(vectors) < np.array(least)[:, None]] = 0
        up, down = (vectors > 0).sum(axis=0), (vectors < 0).sum(axis=0)
        moved += int((up + down >= 2).sum())
        against += int(((up > 0) & (down > 0)).sum())
        products += vectors @ vectors.T
        size += float(zero @ zero)
    return _Counts(moved, against, products, size, n)


def _threshold(tensor: Array, base: Array, density: float) -> float:
    if density >= 1 or not tensor.size:
        return 0.0
    kept = max(1, int(density * tensor.size))
    return float(np.partition(np.abs(tensor.astype(np.float64) - base), tensor.size - kept)[tensor.size - kept])


# --- LoRA ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Extraction:
    """What an adapter holds: for each matrix, the share of the task vector's energy |BA|^2 / |v|^2 that it keeps."""

    out: Path
    rank: int
    kept: Mapping[str, float]
    left_out: tuple[str, ...]  # tensors that differ and are no matrices of a layer: the adapter does not hold them

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "out": str(self.out), "kept": dict(self.kept), "left_out": list(self.left_out)}


def extract_lora(base: str, tuned: str, out: str | Path, rank: int = 16, beside: Path | None = None) -> Extraction:
    """Writes the best approximation of rank `rank` to every matrix of `tuned` - `base` as a PEFT adapter.

    Eckart and Young: the truncated singular value decomposition. It is found from the eigenvectors of v v^T on the
    smaller side, in float64. Embeddings, heads and norms are not part of an adapter: those that differ are named.
    """
    first, second = open_folder(base, beside), open_folder(tuned, beside)
    made: dict[str, Array] = {}
    kept: dict[str, float] = {}
    left_out = []
    for tensor, vector in _differences(first, second):
        if vector.ndim != 2 or not tensor.endswith(".weight") or ".layers." not in tensor:
            left_out.append(tensor)
            continue
        down, up, share = factors(vector, rank)
        module = tensor.removesuffix(".weight")
        made[f"{PREFIX}{module}.lora_A.weight"], made[f"{PREFIX}{module}.lora_B.weight"] = down, up
        kept[tensor] = share
    if not made:
        raise CheckpointError("no matrix of a layer differs from the base", where=tuned)
    _write_adapter(Path(out), made, rank, first, sorted({name.rsplit(".", 2)[-2] for name in kept}))
    return Extraction(Path(out), rank, kept, tuple(left_out))


def _differences(base: Folder, tuned: Folder) -> Iterator[tuple[str, Array]]:
    for tensor, spec in base.tensors.items():
        if spec.dtype in FLOATS:
            vector = _flat(tuned, tensor, spec).astype(np.float64) - _flat(base, tensor, spec)
            if vector.any():
                yield tensor, vector.reshape(spec.shape)


def factors(vector: Array, rank: int) -> tuple[Array, Array, float]:
    """A [rank, in] and B [out, rank] with BA the best approximation of that rank, and the share of energy it has."""
    tall = vector.shape[0] > vector.shape[1]
    wide = vector.T if tall else vector
    squares, vectors = np.linalg.eigh(wide @ wide.T)
    rank = min(rank, len(squares))
    left = vectors[:, ::-1][:, :rank]
    values = np.sqrt(np.maximum(squares[::-1][:rank], 0))
    scale = np.sqrt(np.where(values > 0, values, 1))
    first, second = left * scale, (left.T @ wide) / scale[:, None]
    share = float(np.maximum(squares[::-1][:rank], 0).sum() / np.maximum(squares, 0).sum())
    down, up = (first.T, second.T) if tall else (second, first)
    return np.ascontiguousarray(down, np.float32), np.ascontiguousarray(up, np.float32), share


def _write_adapter(out: Path, tensors: dict[str, Array], rank: int, base: Folder, modules: list[str]) -> None:
    from safetensors.numpy import save

    if out.exists() and any(out.iterdir()):
        raise UsageError("there is something already", where=str(out), fix="name a folder that does not exist")
    out.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base.folder),
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": modules,
    }
    with atomic_write(out / "adapter_model.safetensors", "wb") as file:
        file.write(save(tensors, {"format": "pt"}))
    with atomic_write(out / "adapter_config.json") as file:
        json.dump(config, file, indent=2)


@dataclass
class _Adapted:
    """A model with an adapter's products added to its matrices as they are asked for."""

    name: str
    model: Folder
    parts: Mapping[str, tuple[Array, Array]]
    scale: float

    def __post_init__(self) -> None:
        self.config, self.tensors, self.folder = self.model.config, self.model.tensors, self.model.folder

    def bytes_of(self, tensor: str) -> memoryview:
        data = self.model.bytes_of(tensor)
        if tensor not in self.parts:
            return data
        down, up = (part.astype(np.float64) for part in self.parts[tensor])
        spec = self.tensors[tensor]
        total = as_floats(data, spec).astype(np.float64) + self.scale * (up @ down)
        return memoryview(rounded_bytes(total, spec.dtype))


def rounded_bytes(x: Array, dtype: str) -> bytes:
    """Float64 numbers in a stored type, rounded once (see `exact.rounded`)."""
    if dtype in ("F64", "F32"):
        return bytes(x.astype("<f8" if dtype == "F64" else "<f4").tobytes())
    near = x.astype("<f4")
    back, bits = near.astype(np.float64), near.view("<u4")
    away = np.where(np.abs(x) > np.abs(back), 1, -1)
    odd = np.where((x != back) & (bits & 1 == 0), bits + away, bits).astype("<u4")
    if dtype == "F16":
        return bytes(odd.view("<f4").astype("<f2").tobytes())
    return bytes(((odd + 0x7FFF + (odd >> 16 & 1)) >> 16).astype("<u2").tobytes())


def apply_lora(
    base: str, adapter: str | Path, out: str | Path, scale: float = 1.0, threads: int = 1, beside: Path | None = None
) -> MergeReport:
    """Writes the model `base` + scale * adapter, as `merge` writes: atomically, in the base's own types.

    Raises CheckpointError for an adapter whose matrices do not fit the base's, naming the tensor.
    """
    folder = open_folder(base, beside)
    parts, own = _read_adapter(Path(adapter), folder)
    layers = {"model": base}
    recipe = parse_recipe({"merge_method": "passthrough", "models": [layers]})
    return merge(recipe, out, threads=threads, sources={base: _Adapted(base, folder, parts, scale * own)})


def _read_adapter(adapter: Path, base: Folder) -> tuple[dict[str, tuple[Array, Array]], float]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    config = read_json(adapter / "adapter_config.json")
    try:
        tensors = load_file(adapter / "adapter_model.safetensors")
        scale = config["lora_alpha"] / config["r"]
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise CheckpointError(f"the adapter cannot be read: {error}", where=str(adapter)) from error
    parts = {}
    for name, down in tensors.items():
        if not name.endswith(".lora_A.weight"):
            continue
        tensor = f"{name.removeprefix(PREFIX).removesuffix('.lora_A.weight')}.weight"
        up = tensors.get(name.replace(".lora_A.", ".lora_B."))
        spec = base.tensors.get(tensor)
        if up is None or spec is None or (up.shape[0], down.shape[1]) != spec.shape or up.shape[1] != down.shape[0]:
            raise CheckpointError(f"{name} does not fit {tensor} of the base", where=str(adapter))
        parts[tensor] = (down, up)
    return parts, float(scale)
