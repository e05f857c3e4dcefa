"""The parents of an evolution: checked against the base before anything is done, projected on request.

Merging averages or adds weights that mean the same thing. So a parent must have the base's architecture, tensors,
tokenizer and configuration. A specialist with another one (Cognate's `adaptive`: two loops and a halting head) is
refused, unless `project` is set: then it is read as the base's architecture. Its layers came from the base's and also
answer after the first loop, so they have a task vector; the halting head is left out. What that costs is measured: the
report shows the projected parent beside the parent as it is, and the champion has to beat both.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agent_forge.errors import HandoffError
from agent_forge.forge import checkpoint as checkpoints
from agent_forge.forge.checkpoint import Card, Checkpoint, finish, staging
from agent_forge.forge.merging.sources import read_json
from agent_forge.inference.safetensors_file import read_header

# of config.json: how a model was saved, not what it computes
BOOKKEEPING = {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"}
RESERVED = ("base", "champion", "uniform average")
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Parent:
    """A model to merge. `original` is the checkpoint before projection, if it was projected."""

    name: str
    checkpoint: Checkpoint
    original: Checkpoint | None = None

    @property
    def path(self) -> Path:
        return self.checkpoint.path

    @property
    def original_path(self) -> Path:
        return (self.original or self.checkpoint).path


@dataclass(frozen=True)
class Parents:
    """The base and its parents."""

    base: Parent
    parents: tuple[Parent, ...]

    @property
    def members(self) -> tuple[Parent, ...]:
        """Base and parents, each once."""
        others = (parent for parent in self.parents if parent.checkpoint.digest != self.base.checkpoint.digest)
        return (self.base, *others)

    @property
    def varied(self) -> bool:
        """Whether there are two different models. A single one has nothing to recombine: what a search found would be
        a change to that model, not a merge."""
        return len(self.members) > 1

    def paths(self) -> dict[str, str]:
        """The absolute folders of the members by name: what a recipe on disk calls them."""
        return {member.name: str(member.path.absolute()) for member in (self.base, *self.parents)}

    def digests(self) -> dict[str, str]:
        """The digests of the members by name: what a recipe's result depends on besides the recipe."""
        return {member.name: member.checkpoint.digest for member in (self.base, *self.parents)}


def open_family(base: Checkpoint, parents: Sequence[Checkpoint], *, project: bool, models: Path) -> Parents:
    """Checks the parents against the base. Raises HandoffError naming what differs.

    Projections are written under `models` as checkpoints of their own.
    """
    names = [
        item.path.resolve().name if item.card.phase == "imported" else item.card.phase for item in parents
    ]  # the phase that made it, or its folder
    counts, shapes, checked = Counter(names), shapes_of(base.path), []
    for number, (name, item) in enumerate(zip(names, parents, strict=True), 1):
        unique = f"{name}-{number}" if counts[name] > 1 or name in RESERVED else name
        checked.append(_check(base, shapes, Parent(unique, item), project, models))
    own = next((parent for parent in checked if parent.checkpoint.digest == base.digest), None)
    return Parents(own or Parent("base", base), tuple(checked))


def _check(base: Checkpoint, shapes: Shapes, parent: Parent, project: bool, models: Path) -> Parent:
    """The parent, projected if it has to be. Raises HandoffError."""
    item, where = parent.checkpoint, str(parent.path)
    if item.card.tokenizer != base.card.tokenizer or base.card.tokenizer is None:
        fault = "has no tokenizer" if base.card.tokenizer is None else "has another tokenizer than the base"
        raise HandoffError(f"the parent {parent.name!r} {fault}", where=where)
    if item.card.architecture != base.card.architecture:
        fault = f"is a {item.card.architecture}, but the base is a {base.card.architecture}"
        raise HandoffError(f"the parent {parent.name!r} {fault}", where=where)
    own = shapes_of(item.path)
    faults = [f"it has no tensor {name}" for name in shapes if name not in own]
    faults += [
        f"{name} is {list(own[name])}, not {list(shape)}"
        for name, shape in shapes.items()
        if name in own and own[name] != shape
    ]
    if faults:
        raise HandoffError(f"the parent {parent.name!r} does not fit the base: {'; '.join(faults[:3])}", where=where)
    added, changed = [name for name in own if name not in shapes], _changed_fields(base, item)
    if not added and not changed:
        return parent
    if not project:
        listed = ", ".join([*changed, *(f"the tensor {name}" for name in added[:3])])
        raise HandoffError(
            f"the parent {parent.name!r} differs from the base in {listed}: its weights mean something else",
            where=where,
            fix="Leave it out, or set `project: true` to read it as the base's architecture",
        )
    notes = f"{parent.name} read as the architecture of its base; left out: {', '.join([*changed, *added])}"
    return replace(parent, checkpoint=_project(base, shapes, item, notes, models), original=item)


def shapes_of(folder: Path) -> Shapes:
    """The names and shapes of a model's tensors, from the headers alone."""
    headers = [read_header(shard) for shard in sorted(folder.glob("*.safetensors"))]
    return {name: tuple(tensor["shape"]) for header in headers for name, tensor in header.items()}


def _changed_fields(base: Checkpoint, parent: Checkpoint) -> list[str]:
    ours, theirs = (read_json(item.path / "config.json") for item in (base, parent))
    return [
        f"{name} ({theirs.get(name)!r}, not {ours.get(name)!r})"
        for name in sorted(ours.keys() | theirs.keys())
        if name not in BOOKKEEPING and ours.get(name) != theirs.get(name)
    ]


def _project(base: Checkpoint, shapes: Shapes, parent: Checkpoint, notes: str, models: Path) -> Checkpoint:
    """A checkpoint of the parent's weights under the base's names and configuration."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    with staging(models) as folder:
        for file in checkpoints.files_of(base.path):
            weights_file = file.suffix == ".safetensors" or file.name.endswith(".index.json")
            if not weights_file and file.name != checkpoints.CARD:
                shutil.copy(file, folder / file.name)
        weights = {}
        for shard in sorted(parent.path.glob("*.safetensors")):
            with safe_open(shard, framework="pt") as tensors:
                weights.update({key: tensors.get_tensor(key) for key in tensors.keys() if key in shapes})  # noqa: SIM118
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        card = Card(phase="projected", config={}, inputs=(parent.digest, base.digest), notes=notes)
        return finish(folder, card, models)
