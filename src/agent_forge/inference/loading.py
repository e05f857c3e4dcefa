"""The one place that loads a model folder with transformers; a folder may come from anyone.

No code from the folder ever runs: `auto_map` and kernels from elsewhere are refused, and weights come from safetensors,
never from a pickle. What the folder claims is checked against its files before anything of that size is built.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from agent_forge.errors import CheckpointError, MissingExtraError
from agent_forge.inference import architectures
from agent_forge.inference.safetensors_file import read_header

INDEX = "model.safetensors.index.json"
MOST_JSON = 64 << 20  # bytes
MOST_NESTING = 32
_SETTINGS = ("config.json", "tokenizer_config.json", "generation_config.json", "processor_config.json")
# Weights per byte on disk: the densest format we write has five or so.
_MOST_PER_BYTE = 100
# While transformers loads a model it replaces methods of its base class for the whole process. Two loads that overlap
# put back each other's replacements, and from then on no model ties its embeddings.
ONE_AT_A_TIME = threading.RLock()


def load_model(folder: str | Path, *, dtype: Any = None, config: Any = None) -> Any:
    """The causal language model in a folder, in the type of its file or as `dtype` says. Raises CheckpointError."""
    _transformers()  # what is not installed comes before what is wrong with the folder
    check_folder(folder)
    more = {"config": config} if config is not None else {}
    return _load("AutoModelForCausalLM", folder, use_safetensors=True, dtype=dtype or "auto", **more)


def load_tokenizer(folder: str | Path) -> Any:
    """The tokenizer in a folder. Raises CheckpointError."""
    _check_settings(Path(folder))
    return _load("AutoTokenizer", folder)


def load_config(folder: str | Path) -> Any:
    """The configuration in a folder, as transformers reads it. Raises CheckpointError."""
    _check_settings(Path(folder))
    return _load("AutoConfig", folder)


def _transformers() -> Any:
    try:
        transformers = import_module("transformers")  # waits while another thread imports it: see agent_forge.forge
        architectures.register_all()
    except ImportError as error:
        raise MissingExtraError("a model in this process", "forge") from error
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _load(name: str, folder: str | Path, **options: Any) -> Any:
    transformers = _transformers()
    try:
        with ONE_AT_A_TIME:
            return getattr(transformers, name).from_pretrained(
                folder, trust_remote_code=False, local_files_only=True, **options
            )
    except Exception as error:  # a foreign library on foreign files: it raises whatever its parts raise
        what = f"the {'tokenizer' if 'Tok' in name else 'model'} cannot be loaded: {str(error)[:300]}"
        raise CheckpointError(what, where=str(folder)) from error


def check_folder(folder: str | Path) -> None:
    """Raises CheckpointError for a model folder that brings code, is damaged, or claims sizes that its files belie."""
    folder = Path(folder)
    config = _check_settings(folder)
    shards = weight_files(folder)
    names = [name for shard in shards for name in read_header(shard)]
    if len(set(names)) != len(names):
        raise CheckpointError("two files hold a tensor of the same name", where=str(folder))
    _check_sizes(config, len(names), sum(shard.stat().st_size for shard in shards), str(folder))


def weight_files(folder: Path) -> list[Path]:
    """The weight files: those of the index, else model.safetensors, else every safetensors file.

    Raises CheckpointError if there are none, and for an index that names a file that is missing or elsewhere.
    """
    if (folder / INDEX).is_file():
        weight_map = read_json(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError("has no weight_map", where=str(folder / INDEX))
        names = list(dict.fromkeys(str(name) for name in weight_map.values()))
        for name in names:
            if Path(name).name != name or not (folder / name).is_file():
                raise CheckpointError(f"the index names {name[:200]!r}, which is not there", where=str(folder))
        return [folder / name for name in names]
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise CheckpointError("no safetensors weights (pickled weights are never read)", where=str(folder))
    return shards


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a model folder. Raises CheckpointError."""
    try:
        if file.stat().st_size > MOST_JSON:
            raise ValueError(f"it is larger than {MOST_JSON >> 20} MiB")
        document = json.loads(file.read_text(encoding="utf-8"))
        if _depth(document) > MOST_NESTING:
            raise ValueError("it is nested too deeply")
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot be read: {error}", where=str(file)) from error
    if not isinstance(document, dict):
        raise CheckpointError("is not a JSON object", where=str(file))
    return document


def _check_settings(folder: Path) -> dict[str, Any]:
    documents = {name: read_json(folder / name) for name in _SETTINGS if (folder / name).is_file()}
    for name, document in documents.items():
        for key, value in _fields(document):
            if key == "auto_map" and value:
                raise CheckpointError(
                    f"{name} asks for code of its own (auto_map), which is never run",
                    where=str(folder),
                    fix="Use a model whose architecture transformers knows, and delete auto_map from the file",
                )
            if key.endswith("_implementation") and isinstance(value, str) and "/" in value:
                raise CheckpointError(
                    f"{name} asks for kernels from {value[:100]!r}, which are never run", where=str(folder)
                )
    return documents.get("config.json", {})


def _check_sizes(config: Mapping[str, Any], tensors: int, size: int, where: str) -> None:
    """Building what an absurd config asks for could take all memory before its weights turn out not to fit."""
    most_weights = _MOST_PER_BYTE * size
    limits = {"layers": max(64, tensors), "experts": max(64, tensors), "size": most_weights, "dim": most_weights}
    for key, value in _fields(config):
        if isinstance(value, int) and not -(1 << 31) < value <= limits.get(key.rpartition("_")[2], 1 << 62):
            raise CheckpointError(f"{key} is {value}, but there are {tensors} tensors of {size} bytes", where=where)
    for part in (config, config.get("text_config")):
        for one, other in (("hidden_size", "vocab_size"), ("hidden_size", "intermediate_size")):
            width, height = (part.get(one), part.get(other)) if isinstance(part, dict) else (0, 0)
            if isinstance(width, int) and isinstance(height, int) and width * height > most_weights:
                what = f"{one} and {other} are {width} and {height}, but the weights have {size} bytes"
                raise CheckpointError(what, where=where)


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield key, each
            yield from _fields(each)
    elif isinstance(value, list):
        for each in value:
            yield from _fields(each)


def _depth(value: Any) -> int:
    """How deeply lists and objects are nested, up to the limit."""
    level, depth = [value] if isinstance(value, (dict, list)) else [], 0
    while level and depth <= MOST_NESTING + 1:
        level = [
            each
            for part in level
            for each in (part.values() if isinstance(part, dict) else part)
            if isinstance(each, (dict, list))
        ]
        depth += 1
    return depth
