"""A merge to disk: tensor by tensor, in several threads, resumed after a crash, and atomic.

Work goes on in a hidden folder beside the output. It takes the output's name only when everything is in it, so whoever
looks sees nothing or a complete model. A note of every finished tensor lets the same merge go on where it was killed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent_forge._version import __version__
from agent_forge.errors import AgentForgeError, MergeError, UsageError
from agent_forge.files import sync_folder
from agent_forge.forge.checkpoint import BYTES_OF, CARD, TOKENIZERS, Card, file_digest
from agent_forge.forge.merging.layout import Output
from agent_forge.forge.merging.recipe import Recipe
from agent_forge.forge.merging.sources import INDEX, Folder
from agent_forge.forge.merging.staging import Stage, prepare
from agent_forge.forge.merging.tensors import stage_bytes
from agent_forge.forge.merging.tokenizers import copy_companions
from agent_forge.forge.merging.writing import to_mapping, to_yaml

SHARD_BYTES = 5 * 10**9
RECIPE = "recipe.yaml"
NOTE = ".merging.jsonl"
PAGE = 4096
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class MergeReport:
    """What a merge came to."""

    out: Path
    method: str
    tensors: int
    parameters: int
    bytes: int
    shards: int
    resumed: int  # tensors that an earlier, killed run had finished
    seconds: float
    kernel: str

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "out": str(self.out)}


@dataclass
class _Shard:
    file: Path
    header: bytes
    places: dict[str, int] = field(default_factory=dict)  # tensor: first byte in the file
    size: int = 0


def merge(
    recipe: Recipe,
    out: str | os.PathLike[str],
    *,
    threads: int = 1,
    progress: Progress | None = None,
    resume: bool = True,
    shard_bytes: int = SHARD_BYTES,
    sync: bool = True,
    beside: Path | None = None,
    inputs: tuple[str, ...] = (),
    sources: Mapping[str, Any] | None = None,
) -> MergeReport:
    """Carries a recipe out into the folder `out`, which must not exist (or be empty).

    All models are opened and everything is checked before anything is written. `progress(done, total, name)` is told of
    every finished tensor, in bytes. `resume=False` throws away what a killed run of the same merge has left.
    `sync=False` leaves it to the system when the bytes reach the disk. `inputs` are digests for the card, if known.
    `sources` gives opened models by name, as for `merge_tensors`; such a merge starts afresh.
    Raises ConfigError, CheckpointError, MergeError.
    """
    started = time.monotonic()
    target = Path(os.path.realpath(out))  # a link stays, and what it points to is made
    _refuse_taken(target)  # before the models are opened, which takes longer
    stage = prepare(recipe, sources, beside)
    shards = _shards(stage, shard_bytes)
    staging = target.parent / f".{target.name}.merging"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _held(staging, target):
            done = _begin(staging, _identity(stage, shards), shards, resume and not sources)
            resumed = len(done)
            _write_all(stage, shards, staging, done, threads, progress)
            _finish(stage, shards, staging, target, sync, inputs)
    except OSError as error:
        raise _disk_fault(error, staging) from error
    from agent_forge.forge.merging.binding import library

    return MergeReport(
        out=Path(out),
        method=recipe.merge_method,
        tensors=len(stage.layout.outputs),
        parameters=stage.layout.parameters,
        bytes=sum(shard.size for shard in shards),
        shards=len(shards),
        resumed=resumed,
        seconds=time.monotonic() - started,
        kernel="C" if library() is not None else "torch",
    )


def _refuse_taken(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError("there is something already", where=str(target), fix="name a folder that does not exist")


@contextmanager
def _held(staging: Path, target: Path) -> Iterator[None]:
    """The folder, for one process at a time: two that write to it at once would make a model of neither recipe.

    The lock is on the folder itself, so it goes with it when it takes its name, and with the process when that dies.
    """
    while True:
        _refuse_taken(target)
        staging.mkdir(exist_ok=True)
        descriptor = os.open(staging, os.O_RDONLY)
        try:
            _lock(descriptor, staging)
            if not _is(descriptor, staging):
                continue  # it took its name, or was removed, before the lock was had
            yield
            return
        finally:
            os.close(descriptor)


def _lock(descriptor: int, staging: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        fix = "wait for it, or name another folder"
        raise UsageError("another merge is writing to this output", where=str(staging), fix=fix) from error
    except OSError:
        return  # a file system on which folders cannot be locked (NFS)


def _is(descriptor: int, folder: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), folder.stat())
    except FileNotFoundError:
        return False


def _disk_fault(error: OSError, staging: Path) -> AgentForgeError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    fix = f"make room and run it again: it goes on; or remove {staging}" if full else None
    return MergeError(f"cannot be written: {error.strerror or error}", where=str(staging.parent), fix=fix)


# --- the files -------------------------------------------------------------------------------------------------------


def _shards(stage: Stage, limit: int) -> list[_Shard]:
    """The output's files with their headers: where every byte goes is known before the first is written."""
    groups: list[list[Output]] = [[]]
    used = 0
    for output in stage.layout.outputs:
        if groups[-1] and used + output.spec.bytes > limit:
            groups.append([])
            used = 0
        groups[-1].append(output)
        used += output.spec.bytes
    count = len(groups)
    names = [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    return [
        _shard(Path(name if count > 1 else "model.safetensors"), group)
        for name, group in zip(names, groups, strict=True)
    ]


def _shard(file: Path, outputs: list[Output]) -> _Shard:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for output in sorted(outputs, key=lambda output: -BYTES_OF[output.spec.dtype]):  # keeps wide types aligned
        end = at + output.spec.bytes
        entries[output.name] = {
            "dtype": output.spec.dtype,
            "shape": list(output.spec.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % PAGE)  # tensors of whole pages then begin at one, which are cheaper to write
    header = len(text).to_bytes(8, "little") + text
    places = {name: len(header) + entry["data_offsets"][0] for name, entry in entries.items() if "dtype" in entry}
    return _Shard(file, header, places, len(header) + at)


def _identity(stage: Stage, shards: list[_Shard]) -> str:
    """The same for two runs exactly if the second may go on with what the first has left."""
    folders = [model for model in _all_models(stage) if isinstance(model, Folder)]
    parts = [to_yaml(stage.recipe), __version__, _boot()]
    parts += [repr((str(folder.folder), folder.identity())) for folder in folders]
    parts += [shard.header[8:].decode() for shard in shards]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _all_models(stage: Stage) -> Iterator[Any]:
    for model in stage.models.values():
        yield model
        if isinstance(model, Stage):
            yield from _all_models(model)


def _boot() -> str:
    """After a power cut, bytes that were noted as written may be missing: another boot starts afresh."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _begin(staging: Path, identity: str, shards: list[_Shard], resume: bool) -> set[str]:
    """The tensors that are finished already; otherwise a fresh folder with room for all files."""
    done = _read_note(staging / NOTE, identity) if resume else None
    if done is not None and all(_right_size(staging / shard.file, shard.size) for shard in shards):
        return done
    for left in staging.iterdir():
        left.unlink()
    for shard in shards:
        with open(staging / shard.file, "wb") as file:
            _reserve(file.fileno(), shard.size, staging)
            file.write(shard.header)
    (staging / NOTE).write_text(json.dumps({"identity": identity}) + "\n", encoding="utf-8")
    return set()


def _right_size(file: Path, size: int) -> bool:
    return file.is_file() and file.stat().st_size == size


def _reserve(descriptor: int, size: int, staging: Path) -> None:
    """Takes the room on the disk now, so that a full one is found before any work is done."""
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


def _read_note(note: Path, identity: str) -> set[str] | None:
    try:
        lines = note.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return None
    done: set[str] = set()
    for number, line in enumerate(lines[:-1]):  # after the last line break stands nothing, or half a line
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


def _write_all(
    stage: Stage, shards: list[_Shard], staging: Path, done: set[str], threads: int, progress: Progress | None
) -> None:
    total = sum(output.spec.bytes for output in stage.layout.outputs)
    finished = sum(output.spec.bytes for output in stage.layout.outputs if output.name in done)
    lock = threading.Lock()
    stop = threading.Event()
    places = {name: (number, at) for number, shard in enumerate(shards) for name, at in shard.places.items()}
    files = [os.open(staging / shard.file, os.O_WRONLY) for shard in shards]
    note = open(staging / NOTE, "a", encoding="utf-8")  # noqa: SIM115

    def work(output: Output) -> None:
        nonlocal finished
        if stop.is_set():
            return
        try:
            number, at = places[output.name]
            write_output(stage, output, files[number], at)
        except BaseException:
            stop.set()
            raise
        with lock:
            note.write(json.dumps({"done": output.name}) + "\n")
            note.flush()
            finished += output.spec.bytes
            if progress is not None:
                progress(finished, total, output.name)

    waiting = [output for output in stage.layout.outputs if output.name not in done]
    try:
        if threads <= 1:
            for output in waiting:
                work(output)
        else:
            with ThreadPoolExecutor(threads) as pool:
                for _ in pool.map(work, sorted(waiting, key=lambda output: -output.spec.bytes)):
                    pass
    finally:
        note.close()
        for descriptor in files:
            os.close(descriptor)


def write_output(stage: Stage, output: Output, descriptor: int, at: int) -> None:
    """Computes a tensor and writes it to its place in the file."""
    from agent_forge.forge.merging import native

    if native.can(output):
        native.write(stage, output, descriptor, at)
    else:
        write_bytes(descriptor, stage_bytes(stage, output.name), at)


def write_bytes(descriptor: int, data: memoryview, at: int) -> None:
    while data:
        written = os.pwrite(descriptor, data[: 1 << 26], at)
        data, at = data[written:], at + written


def _finish(
    stage: Stage, shards: list[_Shard], staging: Path, target: Path, sync: bool, inputs: tuple[str, ...]
) -> None:
    """What stands beside the weights; then the folder takes its name."""
    if len(shards) > 1:
        weight_map = {name: shard.file.name for shard in shards for name in shard.places}
        total = sum(output.spec.bytes for output in stage.layout.outputs)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (staging / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True), encoding="utf-8")
    (staging / "config.json").write_text(json.dumps(dict(stage.config), indent=2), encoding="utf-8")
    copy_companions(stage, staging)
    (staging / RECIPE).write_text(to_yaml(stage.recipe), encoding="utf-8")
    (staging / CARD).write_text(_card(stage, staging, inputs).to_json(), encoding="utf-8")
    (staging / NOTE).unlink()
    if sync:
        for file in staging.iterdir():
            with open(file, "rb") as handle:
                os.fsync(handle.fileno())
    staging.rename(target)  # an empty folder of that name gives way
    sync_folder(target.parent)


def _card(stage: Stage, staging: Path, inputs: tuple[str, ...]) -> Card:
    tokenizer = next((staging / name for name in TOKENIZERS if (staging / name).is_file()), None)
    architectures = stage.config.get("architectures") or [None]
    return Card(
        phase="merge",
        config={"stages": [to_mapping(recipe) for recipe in (*stage.recipe.stages, stage.recipe)]},
        inputs=inputs,
        architecture=architectures[0],
        parameters=stage.layout.parameters,
        tokenizer=None if tokenizer is None else file_digest(tokenizer),
        notes=f"{stage.recipe.merge_method} of {', '.join(stage.recipe.models_on_disk())}",
    )
