"""The parents of an evolution: checked against the base before anything is done, projected where that is asked for.

Merging averages or adds up weights that mean the same thing. So a parent must have the base's architecture, the same
tensors, the same tokenizer and the same configuration. A specialist with another one (Cognate's `adaptive`: two loops
and a halting head) is refused, unless `project` is set: then it is read as the base's architecture. Its layers came
from the base's and answer after the first loop as well, so they have a task vector; the halting head is left out. What
that costs is measured: the projected parent stands in the report beside the parent as it is, and the champion has to
beat both.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_forge.errors import CheckpointError, HandoffError
from agent_forge.forge import checkpoint as checkpoints
from agent_forge.forge.checkpoint import Card, Checkpoint, finish, read_header, staging
from agent_forge.forge.evolution.genome import DELTA, INTERP

# of config.json: what says how a model was saved, not what it computes
BOOKKEEPING = {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"}
LAYER = re.compile(r"^(.*?(?:^|\.)(?:layers|h|blocks|block))\.(\d+)\.(.+)$")
TAKEN = ("base", "champion", INTERP, DELTA)


@dataclass(frozen=True)
class Parent:
    """A model to breed from. `original` is the checkpoint as it was given, if this is a projection of it."""

    name: str
    checkpoint: Checkpoint
    original: Checkpoint | None = None

    @property
    def path(self) -> Path:
        return self.checkpoint.path

    @property
    def given(self) -> Checkpoint:
        return self.original or self.checkpoint


@dataclass(frozen=True)
class Family:
    """The base, its parents-to-be, and what their layers are called and made of."""

    base: Parent
    parents: tuple[Parent, ...]
    layer_prefix: str
    kinds: tuple[str, ...]  # of each layer: the names and shapes of its tensors

    @property
    def members(self) -> tuple[Parent, ...]:
        """Base and parents, each once."""
        known = {self.base.checkpoint.digest}
        return (self.base, *(parent for parent in self.parents if parent.checkpoint.digest not in known))

    @property
    def varied(self) -> bool:
        """Whether there are two different models among them. One alone has nothing to recombine: what a search found
        would be a change to that model, not a merge."""
        return len({member.checkpoint.digest for member in (self.base, *self.parents)}) > 1

    def paths(self) -> dict[str, str]:
        """Where each is, from anywhere: what a recipe on disk calls it."""
        return {member.name: str(member.path.absolute()) for member in (self.base, *self.parents)}

    def context(self) -> dict[str, str]:
        """What a recipe's result depends on besides the recipe."""
        return {member.name: member.checkpoint.digest for member in (self.base, *self.parents)}


def open_family(
    base: Checkpoint, parents: Sequence[Checkpoint], *, names: Sequence[str] | None, project: bool, models: Path
) -> Family:
    """Checks the parents against the base. Raises HandoffError naming what differs.

    Projections are written under `models` as checkpoints of their own.
    """
    ready = [_ready(base, parent, project, models) for parent in _named(parents, names)]
    prefix, kinds = layers_of(tensors_of(base.path))
    if not kinds:
        raise HandoffError("no layers were found among the tensors of the base", where=str(base.path))
    own = next((parent for parent in ready if parent.checkpoint.digest == base.digest), None)
    return Family(own or Parent("base", base), tuple(ready), prefix, kinds)


def _named(parents: Sequence[Checkpoint], names: Sequence[str] | None) -> list[Parent]:
    wanted = list(names) if names is not None else [_name(item) for item in parents]
    counts = Counter(wanted)
    unique = [
        f"{name}-{number}" if counts[name] > 1 or name in TAKEN else name for number, name in enumerate(wanted, 1)
    ]
    return [Parent(name, item) for name, item in zip(unique, parents, strict=True)]


def _name(item: Checkpoint) -> str:
    """The phase that made it, or its folder."""
    return item.path.resolve().name if item.card.phase == "imported" else item.card.phase


def _ready(base: Checkpoint, parent: Parent, project: bool, models: Path) -> Parent:
    item = parent.checkpoint
    if item.card.tokenizer != base.card.tokenizer or base.card.tokenizer is None:
        found = "no tokenizer" if base.card.tokenizer is None else "another tokenizer than the base"
        raise HandoffError(f"the parent {parent.name!r} comes with {found}", where=str(item.path))
    if item.card.architecture != base.card.architecture:
        raise HandoffError(
            f"the parent {parent.name!r} is a {item.card.architecture}, and the base a {base.card.architecture}",
            where=str(item.path),
        )
    wrong = _other_shapes(base, item)
    if wrong:
        raise HandoffError(
            f"the parent {parent.name!r} does not fit the base: {'; '.join(wrong[:3])}", where=str(item.path)
        )
    added, changed = _added(base, item), _changed_fields(base, item)
    if not added and not changed:
        return parent
    what = ", ".join([*changed, *(f"the tensor {name}" for name in added[:3])])
    if not project:
        raise HandoffError(
            f"the parent {parent.name!r} differs from the base in {what}: its weights do not mean the same",
            where=str(item.path),
            fix="leave it out, or set `project: true` to read it as the base's architecture",
        )
    return replace(parent, checkpoint=_projected(base, item, parent.name, models), original=item)


def tensors_of(folder: Path) -> dict[str, tuple[int, ...]]:
    """The names and shapes of a model's tensors, from the headers alone."""
    headers = [read_header(shard) for shard in sorted(folder.glob("*.safetensors"))]
    return {name: tuple(tensor["shape"]) for header in headers for name, tensor in header.items()}


def layers_of(tensors: dict[str, tuple[int, ...]]) -> tuple[str, tuple[str, ...]]:
    """What the layers are called, and the kind of each: layers with the same tensors are of one kind.

    >>> layers_of({"model.layers.0.w": (2,), "model.layers.1.w": (2,), "model.layers.1.m": (1,), "norm": (2,)})[0]
    'model.layers'
    """
    parts: dict[tuple[str, int], list[str]] = {}
    for name, shape in sorted(tensors.items()):
        if match := LAYER.match(name):
            parts.setdefault((match[1], int(match[2])), []).append(f"{match[3]}{list(shape)}")
    if not parts:
        return "", ()
    (prefix, _), _ = Counter(dict.fromkeys(parts, 1)).most_common(1)[0]
    places = sorted(place for found, place in parts if found == prefix)
    if places != list(range(len(places))):
        raise HandoffError(f"the layers of {prefix!r} are not numbered from 0 without a gap")
    return prefix, tuple(" ".join(parts[prefix, place]) for place in places)


def _other_shapes(base: Checkpoint, parent: Checkpoint) -> list[str]:
    theirs, ours = tensors_of(parent.path), tensors_of(base.path)
    faults = [f"it has no tensor {name}" for name in ours if name not in theirs]
    return faults + [
        f"{name} is {list(theirs[name])} and not {list(shape)}"
        for name, shape in ours.items()
        if name in theirs and theirs[name] != shape
    ]


def _added(base: Checkpoint, parent: Checkpoint) -> list[str]:
    known = tensors_of(base.path)
    return [name for name in tensors_of(parent.path) if name not in known]


def _changed_fields(base: Checkpoint, parent: Checkpoint) -> list[str]:
    ours, theirs = (_config(item.path) for item in (base, parent))
    return [
        f"{name} ({theirs.get(name)!r} and not {ours.get(name)!r})"
        for name in sorted(ours.keys() | theirs.keys())
        if name not in BOOKKEEPING and ours.get(name) != theirs.get(name)
    ]


def _config(folder: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"config.json cannot be read: {error}", where=str(folder)) from error
    return document


def _projected(base: Checkpoint, parent: Checkpoint, name: str, models: Path) -> Checkpoint:
    """The parent's weights under the base's names and configuration, as a checkpoint."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    wanted = tensors_of(base.path)
    with staging(models) as folder:
        for file in checkpoints.files_of(base.path):
            if (
                file.suffix != ".safetensors"
                and not file.name.endswith(".index.json")
                and file.name != checkpoints.CARD
            ):
                shutil.copy(file, folder / file.name)
        weights = {}
        for shard in sorted(parent.path.glob("*.safetensors")):
            with safe_open(shard, framework="pt") as tensors:
                weights.update({key: tensors.get_tensor(key) for key in tensors.keys() if key in wanted})  # noqa: SIM118
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        changed = _changed_fields(base, parent)
        notes = f"{name} read as the architecture of its base; left out: {', '.join([*changed, *_added(base, parent)])}"
        card = Card(phase="projected", config={}, inputs=(parent.digest, base.digest), notes=notes)
        return finish(folder, card, models)
