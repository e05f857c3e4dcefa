"""Experts on disk and in use: a small file of vectors per domain, beside the weights that they belong to.

    bank = ExpertBank.open("models/mine", model)       # model: as loaded from the same weights
    bank.switch("arithmetic")                          # from here on the model is that expert
    bank.switch({"arithmetic": 0.5, "retrieval": 0.5})
    bank.switch(["arithmetic", None, "retrieval"])     # one per row of the next batch; None is the base

Vectors fit one set of weights only. Their file names it by its digest, and is refused with any other.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agent_forge.config import nearest
from agent_forge.errors import CheckpointError, UsageError
from agent_forge.files import file_digest
from agent_forge.forge.experts.svf import Vectors, add_scales, fold_vectors, scaled_layers
from agent_forge.inference.loading import weight_files

FOLDER = "experts"  # inside a checkpoint
FORMAT = "agent_forge_experts"

Mixture = Mapping[str, float]
Choice = str | Mixture | None


def weights_digest(folder: str | os.PathLike[str]) -> str:
    """The digest of a model folder's weights alone, which experts beside them do not change."""
    lines = (f"{file_digest(file)}  {file.name}\n" for file in weight_files(Path(folder)))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def write_expert(file: Path, domain: str, vectors: Vectors, base: str) -> None:
    """Writes one expert for the weights of the digest `base`."""
    from safetensors.torch import save_file

    file.parent.mkdir(parents=True, exist_ok=True)
    about = {"format": FORMAT, "version": "1", "domain": domain, "base": base}
    save_file({name: z.float().contiguous() for name, z in vectors.items()}, file, about)


def read_expert(file: Path, base: str) -> tuple[str, dict[str, Tensor]]:
    """The domain and vectors of one expert. Raises CheckpointError if the file is damaged or for other weights."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as handle:
            about = handle.metadata() or {}
            vectors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 (it is no mapping)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"the expert cannot be read: {error}", where=str(file)) from error
    if about.get("format") != FORMAT or about.get("version") != "1":
        raise CheckpointError("this is not a file of expert vectors that this version reads", where=str(file))
    if about["base"] != base:
        what = f"the expert belongs to the weights {about['base'][:12]}, and these are {base[:12]}"
        raise CheckpointError(what, where=str(file), fix="Use it with its own model, or train one for this model")
    for name, z in vectors.items():
        if z.dim() != 1 or not bool(torch.isfinite(z).all()):
            raise CheckpointError(f"the vector of {name} is not a list of finite numbers", where=str(file))
    return about["domain"], vectors


def read_experts(folder: str | os.PathLike[str]) -> dict[str, dict[str, Tensor]]:
    """The experts beside a model's weights, by domain. Raises CheckpointError."""
    base = weights_digest(folder)
    return dict(read_expert(file, base) for file in sorted((Path(folder) / FOLDER).glob("*.expert.safetensors")))


def fold_expert(model: Any, folder: str | os.PathLike[str], choice: str | Mixture) -> None:
    """Makes a freshly loaded model one of its experts, or a mixture of them, for good. Raises UsageError."""
    experts = read_experts(folder)
    weights = mixture_weights(choice, list(experts))
    vectors = {name: mix(weights, [z[name] for z in experts.values()]) for name in next(iter(experts.values()))}
    fold_vectors(model, vectors)


def mix(weights: Tensor, vectors: Sequence[Tensor]) -> Tensor:
    """1 + sum of weight (z - 1): no weight at all is the base."""
    return 1 + weights.to(vectors[0]) @ (torch.stack(list(vectors)) - 1)


def mixture_weights(choice: Choice, domains: Sequence[str]) -> Tensor:
    """[K]. Raises UsageError for an expert that does not exist."""
    weights = torch.zeros(len(domains))
    for name, weight in ({} if choice is None else {choice: 1.0} if isinstance(choice, str) else choice).items():
        if name not in domains:
            close = nearest(name, domains)
            fix = f"Did you mean {close!r}?" if close else f"There are {', '.join(domains) or 'none'}"
            raise UsageError(f"there is no expert {name!r}", fix=fix)
        weights[domains.index(name)] = weight
    return weights


class ExpertBank:
    """A model and its experts, which share its weights. One thread at a time may switch and use it."""

    def __init__(self, model: Any, experts: Mapping[str, Vectors]) -> None:
        self.model, self.domains = model, list(experts)
        first: Vectors = next(iter(experts.values()), {})
        layers = dict(scaled_layers(model))
        if not layers:
            add_scales(model)
            layers = dict(scaled_layers(model))
        self.shifts: dict[str, Tensor] = {}  # by layer: z - 1 of every expert, [K, R]
        for name in first:
            if name not in layers:
                raise UsageError(f"the experts change {name}, which the model does not have")
            stacked = torch.stack([vectors[name] for vectors in experts.values()]) - 1
            self.shifts[name] = stacked.to(layers[name].shift_R)
            if stacked.shape[1] != len(layers[name].shift_R):
                raise UsageError(f"the experts have {stacked.shape[1]} numbers for {name}, which has a different rank")
        self.layers = [(layers[name], shift) for name, shift in self.shifts.items()]
        self.switch(None)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], model: Any) -> ExpertBank:
        """The experts in a folder, put into a model that was loaded from it. Raises CheckpointError, UsageError."""
        return cls(model, read_experts(folder))

    def switch(self, choice: Choice | Sequence[Choice]) -> None:
        """Makes the model the base (None), an expert, or a mixture; a list has one for each row of the batch."""
        if not choice:
            self.weigh(None)
        elif isinstance(choice, (str, Mapping)):
            self.weigh(mixture_weights(choice, self.domains))
        else:
            rows = torch.stack([mixture_weights(one, self.domains) for one in choice])
            self.weigh(rows if any(choice) else None)

    @torch.no_grad()
    def weigh(self, weights: Tensor | None) -> None:
        """By weights: [K] for all rows, or [B, K]; None is the base without the cost of the added term."""
        for layer, shifts in self.layers:
            layer.learning = False
            if weights is None:
                layer.chosen = None
            else:
                mixed = weights.to(shifts) @ shifts
                layer.chosen = mixed if weights.dim() == 1 else mixed[:, None]  # [B, 1, R]: alike for all tokens

    @contextmanager
    def using(self, choice: Choice | Sequence[Choice]) -> Iterator[Any]:
        """The model as that expert within the block, and the base after it."""
        self.switch(choice)
        try:
            yield self.model
        finally:
            self.switch(None)

    def __len__(self) -> int:
        return len(self.domains)


def expert_file(folder: Path, domain: str) -> Path:
    """Where an expert is in a checkpoint. A family of one's own may have any name, so it is written as JSON would."""
    safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in json.dumps(domain).strip('"'))
    return folder / FOLDER / f"{safe}.expert.safetensors"
