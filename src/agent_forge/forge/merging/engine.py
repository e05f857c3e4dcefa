"""A merge to disk: tensor by tensor, in several threads, resumed after a crash, and atomic.

The work happens in a hidden folder beside the output, which takes the output's name only when it is complete: there is
either no model or a whole one. A journal of the finished tensors lets the same merge resume where it was killed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_forge._version import __version__
from agent_forge.errors import MergeError, UsageError
from agent_forge.files import sync_folder
from agent_forge.forge.checkpoint import Card
from agent_forge.forge.gates import GateResult
from agent_forge.forge.merging.binding import library
from agent_forge.forge.merging.companions import copy_companions
from agent_forge.forge.merging.layout import Output
from agent_forge.forge.merging.prepared import PreparedRecipe, prepare
from agent_forge.forge.merging.recipe import Recipe
from agent_forge.forge.merging.settings import MergeSettings
from agent_forge.forge.merging.sources import ModelFolder
from agent_forge.forge.merging.writing import to_mapping, to_yaml
from agent_forge.inference.loading import INDEX
from agent_forge.inference.safetensors_file import BYTES_OF
from agent_forge.model_files import CARD, digest_of, tokenizer_digest
from agent_forge.platforms import lock

RECIPE = "recipe.yaml"
JOURNAL = ".merging.jsonl"
PAGE = 4096


@dataclass(frozen=True)
class MergeReport:
    """What a merge wrote."""

    out: Path
    method: str
    tensors: int
    parameters: int
    bytes: int
    shards: int
    resumed: int  # tensors that an earlier, killed run had written
    seconds: float
    kernel: str
    gate: GateResult | None = None  # where there was text to judge on: against the best input
    best_input: int = 0

    @property
    def digest(self) -> str:
        """Of the model in `out`; reads every byte of it."""
        return digest_of(self.out)

    def as_dict(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        gate = None if self.gate is None else self.gate.as_dict()
        return {**asdict(self), "out": str(self.out), "gate": gate}


@dataclass(frozen=True)
class _Shard:
    """One file of the output: its header, and where each tensor goes. All of it is known before the first write."""

    file: str
    header: bytes
    places: Mapping[str, int]  # tensor: first byte in the file
    size: int


def merge(
    recipe: Recipe,
    out: str | os.PathLike[str],
    settings: MergeSettings = MergeSettings(),  # noqa: B008 (frozen)
    *,
    progress: Callable[[int, int, str], None] | None = None,
    beside: Path | None = None,
    inputs: tuple[str, ...] = (),
    sources: Mapping[str, Any] | None = None,
    phase: str = "merge",
) -> MergeReport:
    """Merges into the folder `out`, which must be empty or not exist.

    All models are opened and everything is checked before anything is written. `progress(done, total, name)` is called
    after every tensor, with bytes. Models are also looked up relative to `beside`. `inputs` are the models' digests for
    the card, if known, and `phase` the name on it. `sources` gives open models by name, as for `merge_tensors`; such a
    merge is not resumed.
    Raises ConfigError, CheckpointError, MergeError.
    """
    started = time.monotonic()
    target = Path(os.path.realpath(out))  # a link stays, and what it points to is written
    _refuse_taken(target)  # before the models are opened, which takes longer
    prepared = prepare(recipe, sources, beside)
    shards = _shards(prepared, int(settings.shard_gb * 1e9))
    staging = target.parent / f".{target.name}.merging"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(staging, target):
            done = _begin(staging, _identity(prepared, shards), shards, settings.resume and not sources)
            resumed = len(done)
            _write_tensors(prepared, shards, staging, done, settings.threads or os.cpu_count() or 1, progress)
            _finish(prepared, shards, staging, target, settings.sync, inputs, phase)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        fix = f"Free some space and run it again to resume; or remove {staging}" if full else None
        fault = f"cannot be written: {error.strerror or error}"
        raise MergeError(fault, where=str(staging.parent), fix=fix) from error
    return MergeReport(
        out=Path(out),
        method=recipe.merge_method,
        tensors=len(prepared.layout.outputs),
        parameters=prepared.layout.parameters,
        bytes=sum(shard.size for shard in shards),
        shards=len(shards),
        resumed=resumed,
        seconds=time.monotonic() - started,
        kernel="C" if library() is not None else "torch",
    )


def _refuse_taken(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError("there is something already", where=str(target), fix="Name a folder that does not exist")


@contextmanager
def _locked(staging: Path, target: Path) -> Iterator[None]:
    """The staging folder, for one process at a time: two writers would make a model of neither recipe.

    The lock is on the folder itself, so it stays with it through the rename, and ends with the process.
    """
    while True:
        _refuse_taken(target)
        staging.mkdir(exist_ok=True)
        if os.name == "nt":  # where folders cannot be opened, and so not locked
            yield
            return
        descriptor = os.open(staging, os.O_RDONLY)
        try:
            taken = False
            with suppress(OSError):  # a file system on which folders cannot be locked (NFS)
                taken = not lock(descriptor)
            if taken:
                fix = "Wait for it, or name another folder"
                raise UsageError("another merge is writing to this output", where=str(staging), fix=fix)
            if not _is_at(descriptor, staging):
                continue  # it was renamed or removed before we had the lock
            yield
            return
        finally:
            os.close(descriptor)


def _is_at(descriptor: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except FileNotFoundError:
        return False


# --- the files -------------------------------------------------------------------------------------------------------


def _shards(prepared: PreparedRecipe, limit: int) -> list[_Shard]:
    groups: list[list[Output]] = [[]]
    used = 0
    for output in prepared.layout.outputs:
        if groups[-1] and used + output.spec.bytes > limit:
            groups.append([])
            used = 0
        groups[-1].append(output)
        used += output.spec.bytes
    count = len(groups)
    names = [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    names = names if count > 1 else ["model.safetensors"]
    return [_shard(name, group) for name, group in zip(names, groups, strict=True)]


def _shard(file: str, outputs: list[Output]) -> _Shard:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for output in sorted(outputs, key=lambda output: -BYTES_OF[output.spec.dtype]):  # wide first: all stay aligned
        end = at + output.spec.bytes
        spec = output.spec
        entries[output.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % PAGE)  # large tensors then start at a page: cheaper to write
    header = len(text).to_bytes(8, "little") + text
    places = {name: len(header) + entry["data_offsets"][0] for name, entry in entries.items() if "dtype" in entry}
    return _Shard(file, header, places, len(header) + at)


def _identity(prepared: PreparedRecipe, shards: list[_Shard]) -> str:
    """Equal for two runs exactly if the second may resume the first."""
    try:  # after a power cut, bytes in the journal may be missing on disk: another boot starts afresh
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    parts = [to_yaml(prepared.recipe), __version__, boot]
    parts += [repr((str(model.folder), model.identity())) for model in _folders(prepared)]
    parts += [shard.header[8:].decode() for shard in shards]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _folders(prepared: PreparedRecipe) -> Iterator[ModelFolder]:
    """The model folders of all stages."""
    for model in prepared.models.values():
        if isinstance(model, PreparedRecipe):
            yield from _folders(model)
        elif isinstance(model, ModelFolder):
            yield model


def _begin(staging: Path, identity: str, shards: list[_Shard], resume: bool) -> set[str]:
    """The tensors that are written already; if none can be used, makes room for all files first."""
    done = _read_journal(staging / JOURNAL, identity) if resume else None
    files = {staging / shard.file: shard for shard in shards}
    if done is not None and all(file.is_file() and file.stat().st_size == files[file].size for file in files):
        return done
    for leftover in staging.iterdir():
        leftover.unlink()
    for path, shard in files.items():
        with open(path, "wb") as file:
            _reserve(file.fileno(), shard.size, staging)
            file.write(shard.header)
    (staging / JOURNAL).write_text(json.dumps({"identity": identity}) + "\n", encoding="utf-8")
    return set()


def _reserve(descriptor: int, size: int, staging: Path) -> None:
    """Allocates the disk space now, so that a full disk shows before any work is done."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:
            os.ftruncate(descriptor, size)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
            os.ftruncate(descriptor, size)
            return
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _read_journal(journal: Path, identity: str) -> set[str] | None:
    try:
        lines = journal.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return None
    done: set[str] = set()
    for number, line in enumerate(lines[:-1]):  # after the last line break comes nothing, or half a line
        try:
            entry = json.loads(line)
        except ValueError:
            return None
        if number == 0 and entry.get("identity") != identity:
            return None
        if "done" in entry:
            done.add(entry["done"])
    return done if len(lines) > 1 else None


# --- the work --------------------------------------------------------------------------------------------------------


def _write_tensors(
    prepared: PreparedRecipe,
    shards: list[_Shard],
    staging: Path,
    done: set[str],
    threads: int,
    progress: Callable[[int, int, str], None] | None,
) -> None:
    outputs = prepared.layout.outputs
    total = sum(output.spec.bytes for output in outputs)
    written = sum(output.spec.bytes for output in outputs if output.name in done)
    lock, stop = threading.Lock(), threading.Event()
    places = {name: (number, at) for number, shard in enumerate(shards) for name, at in shard.places.items()}
    files = [os.open(staging / shard.file, os.O_WRONLY) for shard in shards]
    journal = open(staging / JOURNAL, "a", encoding="utf-8")  # noqa: SIM115

    def write(output: Output) -> None:
        nonlocal written
        if stop.is_set():
            return
        try:
            number, at = places[output.name]
            prepared.write(output, files[number], at)
            with lock:
                journal.write(json.dumps({"done": output.name}) + "\n")
                journal.flush()
                written += output.spec.bytes
                if progress is not None:
                    progress(written, total, output.name)
        except BaseException:
            stop.set()
            raise

    pending = [output for output in outputs if output.name not in done]
    try:
        if threads <= 1:
            for output in pending:
                write(output)
        else:
            with ThreadPoolExecutor(threads) as pool:
                for _ in pool.map(write, sorted(pending, key=lambda output: -output.spec.bytes)):
                    pass
    finally:
        journal.close()
        for descriptor in files:
            os.close(descriptor)


def _finish(
    prepared: PreparedRecipe,
    shards: list[_Shard],
    staging: Path,
    target: Path,
    sync: bool,
    inputs: tuple[str, ...],
    phase: str,
) -> None:
    """Writes the files beside the weights, then gives the folder its name."""
    if len(shards) > 1:
        weight_map = {name: shard.file for shard in shards for name in shard.places}
        total = sum(output.spec.bytes for output in prepared.layout.outputs)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (staging / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True), encoding="utf-8")
    (staging / "config.json").write_text(json.dumps(dict(prepared.config), indent=2), encoding="utf-8")
    copy_companions(prepared, staging)
    (staging / RECIPE).write_text(to_yaml(prepared.recipe), encoding="utf-8")
    (staging / CARD).write_text(_card(prepared, staging, inputs, phase).to_json(), encoding="utf-8")
    (staging / JOURNAL).unlink()
    if sync:
        for file in staging.iterdir():
            with open(file, "rb") as handle:
                os.fsync(handle.fileno())
    staging.rename(target)  # replaces an empty folder of that name
    sync_folder(target.parent)


def _card(prepared: PreparedRecipe, staging: Path, inputs: tuple[str, ...], phase: str) -> Card:
    architectures = prepared.config.get("architectures") or [None]
    return Card(
        phase=phase,
        config={"stages": [to_mapping(recipe) for recipe in (*prepared.recipe.stages, prepared.recipe)]},
        inputs=inputs,
        architecture=architectures[0],
        parameters=prepared.layout.parameters,
        tokenizer=tokenizer_digest(staging),
        notes=f"{prepared.recipe.merge_method} of {', '.join(prepared.recipe.models_on_disk())}",
    )
