"""Several adapters on one model in memory, chosen row by row: one batch may use all of them.

    bank = AdapterBank(model)            # the model's own layers, their weights where they were
    bank.add("qa@1", "policies/qa")      # PEFT's files
    bank.use(["qa@1", None, "ops@3"])    # the rows of the next call; None is the base

A layer keeps the matrices of all adapters in two stacks, padded to the highest rank with zeros, which change nothing;
place 0 holds zeros, for the base. A step gathers those of its rows: the same few kernels however many adapters.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agent_forge.errors import ModelError
from agent_forge.inference.adapter_file import Adapter
from agent_forge.inference.packed.modules import PackedLinear


class RowChoice:
    """Which adapter each row of the next call uses: one number for all rows, or a number a row."""

    def __init__(self) -> None:
        self.places: int | Tensor = 0


class AdaptedLinear(nn.Module):
    """x W^T + (x A_i^T) B_i^T, where i is the row's adapter and B holds its scale."""

    def __init__(self, base: nn.Module, choice: RowChoice) -> None:
        super().__init__()
        self.base = base
        self._choice = choice
        self.stacks: tuple[Tensor, Tensor] | None = None  # [adapters, r, in], [adapters, out, r]; replaced as one

    def put(self, place: int, down: Tensor, up: Tensor) -> None:
        """Puts A [r, in] and B [out, r] at a place, which is the next one or has none of this layer yet."""
        old = self.stacks or (down.new_zeros(1, 0, down.shape[1]), up.new_zeros(1, up.shape[0], 0))
        rank = max(old[0].shape[1], len(down))
        downs, ups = down.new_zeros(place + 1, rank, down.shape[1]), up.new_zeros(place + 1, up.shape[0], rank)
        for index, (one, other) in enumerate(zip(*old, strict=True)):
            downs[index, : len(one)], ups[index, :, : len(one)] = one, other
        downs[place, : len(down)], ups[place, :, : len(down)] = down, up
        self.stacks = downs, ups

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.base(x)
        places = self._choice.places
        assert self.stacks is not None
        downs, ups = self.stacks
        if isinstance(places, Tensor):
            places = torch.where(places < len(downs), places, 0)  # a later adapter leaves this layer alone
            return output + torch.bmm(torch.bmm(x, downs[places].mT), ups[places].mT)
        if places == 0 or places >= len(downs):
            return output
        return output + nn.functional.linear(nn.functional.linear(x, downs[places]), ups[places])


class AdapterBank:
    """The adapters of one torch model. Adding is safe while another thread computes; choosing is for that thread."""

    def __init__(self, model: Any) -> None:
        """Raises ModelError for a model whose layers take no adapter, such as a packed one."""
        self._model = model
        self._choice = RowChoice()
        self._places: dict[str, int] = {}
        self._adding = threading.Lock()
        modules = dict(model.named_modules()) if isinstance(model, nn.Module) else {}
        self._shapes = {
            f"{name}.weight": tuple(module.weight.shape)
            for name, module in modules.items()
            if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"  # of GPT-2, [in, out]
        }
        if not self._shapes or any(isinstance(module, PackedLinear) for module in modules.values()):
            raise ModelError("a packed model takes no adapters", fix="Use the dense model that it was packed from")

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def add(self, name: str, folder: str | Path) -> None:
        """Reads an adapter from PEFT's files; one that is there stays. Raises CheckpointError for one that does not
        fit."""
        with self._adding:
            if name in self._places:
                return
            adapter = Adapter.open(Path(folder), self._shapes)
            place = 1 + len(self._places)
            for tensor in adapter.modules:
                self._put(tensor.removesuffix(".weight"), place, *adapter.parts(tensor))
            self._places[name] = place

    def _put(self, name: str, place: int, down: Any, up: Any, scale: float) -> None:
        module = self._model.get_submodule(name)
        layer = module if isinstance(module, AdaptedLinear) else AdaptedLinear(module, self._choice)
        like: Any = layer.base.weight
        layer.put(place, torch.from_numpy(down.copy()).to(like), torch.from_numpy(up * scale).to(like))
        if layer is not module:  # only now, since another thread may be computing with it
            self._model.set_submodule(name, layer)

    def use(self, adapters: Sequence[str | None]) -> None:
        """Chooses the adapter of each row of the next calls; one name stands for any number of rows."""
        places = [0 if name is None else self._places[name] for name in adapters]
        same = len(set(places)) == 1
        self._choice.places = places[0] if same else torch.tensor(places, device=self._model.device)
