"""Task vectors x_i - x_0: extracted as a LoRA adapter, applied to a base, and compared for interference."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from agent_forge.errors import CheckpointError, UsageError
from agent_forge.files import atomic_write
from agent_forge.forge.merging.engine import MergeReport, merge
from agent_forge.forge.merging.layout import LAYER
from agent_forge.forge.merging.recipe import parse_recipe
from agent_forge.forge.merging.settings import MergeSettings
from agent_forge.forge.merging.sources import FLOATS, ModelFolder, Spec, TensorSource, open_folder
from agent_forge.forge.merging.vocabulary import as_floats
from agent_forge.inference.adapter_file import CONFIG, PREFIX, WEIGHTS, Adapter

Array = Any
TRANSPOSED = ("gpt2", "openai-gpt")  # architectures that store matrices as [in, out]; PEFT: fan_in_fan_out


# --- interference ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interference:
    """How the task vectors of a tensor (or of all tensors) agree.

    `conflict` is the share of sign conflicts among the elements that at least two vectors change; `cosine` is the mean
    over pairs of vectors; `norms` are |x_i - x_0| / |x_0|.
    """

    name: str
    conflict: float | None
    cosine: float | None
    norms: tuple[float, ...]
    elements: int


@dataclass
class _ConflictSums:
    """What `Interference` is computed from; it adds up over tensors."""

    changed: int  # elements that two vectors or more change
    conflicts: int
    products: Array  # [models, models]: <v_i, v_j>
    base: float  # |x_0|^2
    elements: int

    def __add__(self, other: _ConflictSums) -> _ConflictSums:
        return _ConflictSums(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))

    def interference(self, name: str) -> Interference:
        norms = np.sqrt(np.diag(self.products))
        pairs = list(combinations(range(len(norms)), 2))
        cosines = [self.products[i, j] / (norms[i] * norms[j]) for i, j in pairs if norms[i] > 0 and norms[j] > 0]
        size = self.base**0.5
        return Interference(
            name,
            self.conflicts / self.changed if self.changed else None,
            float(np.mean(cosines)) if cosines else None,
            tuple(float(norm / size) if size else 0.0 for norm in norms),
            self.elements,
        )


def interference(
    base: str, models: Sequence[str], density: float = 1.0, beside: Path | None = None
) -> list[Interference]:
    """How far the task vectors of `models` conflict, per tensor; the last row is over all tensors.

    With a `density` below 1, only that share of each vector with the largest |x| counts, as after TIES' trim.
    Raises UsageError for fewer than two models, CheckpointError for tensors that do not fit.
    """
    if len(models) < 2:
        raise UsageError("interference takes two models or more")
    opened = [open_folder(name, beside) for name in (base, *models)]
    rows, whole = [], _ConflictSums(0, 0, np.zeros((len(models), len(models))), 0.0, 0)
    for tensor, spec in opened[0].tensors.items():
        if spec.dtype not in FLOATS:
            continue
        sums = _conflicts([_flat(model, tensor, spec) for model in opened], density)
        rows.append(sums.interference(tensor))
        whole = whole + sums
    return [*rows, whole.interference("all")]


def _flat(model: TensorSource, tensor: str, spec: Spec) -> Array:
    own = model.tensors.get(tensor)
    if own is None or own.shape != spec.shape:
        raise CheckpointError(f"{tensor} is missing or has another shape", where=model.name)
    return as_floats(model.bytes_of(tensor), own).reshape(-1)


def _conflicts(tensors: Sequence[Array], density: float, chunk: int = 1 << 20) -> _ConflictSums:
    """The base and its experts, flat. In chunks, so that a large tensor takes no more memory than a small one."""
    count, n = len(tensors) - 1, tensors[0].size
    least = [_threshold(tensor, tensors[0], density) for tensor in tensors[1:]]
    changed = conflicts = 0
    products, size = np.zeros((count, count)), 0.0
    for start in range(0, n, chunk):
        zero = tensors[0][start : start + chunk].astype(np.float64)
        vectors = np.stack([tensor[start : start + chunk].astype(np.float64) - zero for tensor in tensors[1:]])
        vectors[np.abs(vectors) < np.array(least)[:, None]] = 0
        up, down = (vectors > 0).sum(axis=0), (vectors < 0).sum(axis=0)
        changed += int((up + down >= 2).sum())
        conflicts += int(((up > 0) & (down > 0)).sum())
        products += vectors @ vectors.T
        size += float(zero @ zero)
    return _ConflictSums(changed, conflicts, products, size, n)


def _threshold(tensor: Array, base: Array, density: float) -> float:
    if density >= 1 or not tensor.size:
        return 0.0
    rank = tensor.size - max(1, int(density * tensor.size))
    return float(np.partition(np.abs(tensor.astype(np.float64) - base), rank)[rank])


# --- LoRA ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Extraction:
    """An adapter on disk, and how well it approximates: the share of energy |BA|^2 / |v|^2 per matrix."""

    out: Path
    rank: int
    energy: Mapping[str, float]
    left_out: tuple[str, ...]  # tensors that differ but are not matrices of a layer, so the adapter lacks them

    def document(self) -> dict[str, Any]:
        return {"rank": self.rank, "out": str(self.out), "kept": dict(self.energy), "left_out": list(self.left_out)}


def extract_lora(base: str, tuned: str, out: str | Path, rank: int = 16, beside: Path | None = None) -> Extraction:
    """Writes the best approximation of rank `rank` to every matrix of `tuned` - `base` as a PEFT adapter.

    That is the truncated singular value decomposition (Eckart and Young), from the eigenvectors of v v^T on the smaller
    side, in float64. Embeddings, heads and norms are not part of an adapter; those that differ are listed.
    """
    if Path(out).exists() and not (Path(out).is_dir() and not any(Path(out).iterdir())):
        raise UsageError("there is something already", where=str(out), fix="Name a folder that does not exist")
    first, second = open_folder(base, beside), open_folder(tuned, beside)
    factored: dict[str, Array] = {}
    energy: dict[str, float] = {}
    left_out = []
    transposed = first.config.get("model_type") in TRANSPOSED
    for tensor, vector in _differences(first, second):
        if vector.ndim != 2 or not tensor.endswith(".weight") or not LAYER.fullmatch(tensor):
            left_out.append(tensor)
            continue
        down, up, share = factors(vector.T if transposed else vector, rank)
        module = tensor.removesuffix(".weight")
        short = rank - len(down)  # PEFT has one rank for all, so a smaller matrix is padded with zeros
        factored[f"{PREFIX}{module}.lora_A.weight"] = np.pad(down, ((0, short), (0, 0)))
        factored[f"{PREFIX}{module}.lora_B.weight"] = np.pad(up, ((0, 0), (0, short)))
        energy[tensor] = share
    if not factored:
        raise CheckpointError("no matrix of a layer differs from the base", where=tuned)
    modules = sorted({name.rsplit(".", 2)[-2] for name in energy})
    write_adapter(Path(out), factored, rank, str(first.folder), modules, transposed)
    return Extraction(Path(out), rank, energy, tuple(left_out))


def _differences(base: ModelFolder, tuned: ModelFolder) -> Iterator[tuple[str, Array]]:
    for tensor, spec in base.tensors.items():
        if spec.dtype in FLOATS:
            vector = _flat(tuned, tensor, spec).astype(np.float64) - _flat(base, tensor, spec)
            if vector.any():
                yield tensor, vector.reshape(spec.shape)


def factors(vector: Array, rank: int) -> tuple[Array, Array, float]:
    """A [rank, in] and B [out, rank] with BA the best approximation of that rank, and its share of the energy."""
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


def write_adapter(
    out: Path,
    tensors: dict[str, Array],
    rank: int,
    base: str,
    modules: list[str],
    transposed: bool,
    alpha: float | None = None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Writes matrices A and B by their PEFT names; `alpha` is the rank where none is given (the product as it is),
    `more` are other settings of PEFT."""
    from safetensors.numpy import save

    out.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": rank if alpha is None else alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": modules,
        "fan_in_fan_out": transposed,
        **(more or {}),
    }
    with atomic_write(out / WEIGHTS, "wb") as file:
        file.write(save(tensors, {"format": "pt"}))
    with atomic_write(out / CONFIG) as file:
        json.dump(config, file, indent=2)


@dataclass
class _AdaptedModel:
    """A model whose matrices have the products of an adapter added as they are read."""

    name: str
    model: ModelFolder
    adapter: Adapter
    scale: float

    def __post_init__(self) -> None:
        self.config, self.tensors, self.folder = self.model.config, self.model.tensors, self.model.folder

    def bytes_of(self, tensor: str) -> memoryview:
        data = self.model.bytes_of(tensor)
        if tensor not in self.adapter:
            return data
        spec = self.tensors[tensor]
        total = as_floats(data, spec).astype(np.float64) + self.scale * self.adapter.product(tensor)
        return memoryview(rounded_bytes(total, spec.dtype))


def rounded_bytes(x: Array, dtype: str) -> bytes:
    """A float64 array in a stored type, rounded once (see `exact.rounded`)."""
    if dtype in ("F64", "F32"):
        return bytes(x.astype("<f8" if dtype == "F64" else "<f4").tobytes())
    single = x.astype("<f4")
    back, bits = single.astype(np.float64), single.view("<u4")
    away = np.where(np.abs(x) > np.abs(back), 1, -1)
    odd = np.where((x != back) & (bits & 1 == 0), bits + away, bits).astype("<u4")
    if dtype == "F16":
        return bytes(odd.view("<f4").astype("<f2").tobytes())
    return bytes(((odd + 0x7FFF + (odd >> 16 & 1)) >> 16).astype("<u2").tobytes())


def apply_lora(
    base: str,
    adapter: str | Path,
    out: str | Path,
    scale: float = 1.0,
    settings: MergeSettings = MergeSettings(),  # noqa: B008 (frozen)
    beside: Path | None = None,
) -> MergeReport:
    """Writes the model `base` + scale * adapter atomically, as `merge` does, in the base's types.

    Raises CheckpointError, naming the tensor, for an adapter whose matrices do not fit the base, or that holds more
    than products of two matrices (DoRA's magnitudes, whole layers, biases, embeddings).
    """
    model = open_folder(base, beside)
    adapted = _AdaptedModel(base, model, _open_adapter(Path(adapter), model), scale)
    recipe = parse_recipe({"merge_method": "passthrough", "models": [{"model": base}]})
    return merge(recipe, out, settings, sources={base: adapted})


def _open_adapter(folder: Path, base: ModelFolder) -> Adapter:
    def is_copy(tensor: str, values: Array) -> bool:
        spec = base.tensors.get(tensor)
        if spec is None or spec.shape != values.shape or spec.dtype not in FLOATS or values.dtype.kind != "f":
            return False
        return np.array_equal(as_floats(base.bytes_of(tensor), spec), values)

    return Adapter.open(folder, {tensor: spec.shape for tensor, spec in base.tensors.items()}, is_copy)
