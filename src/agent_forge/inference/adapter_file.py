"""LoRA adapters (2106.09685) as PEFT writes them (adapter_config.json, adapter_model.safetensors), read and checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agent_forge.errors import CheckpointError
from agent_forge.inference.loading import read_json
from agent_forge.inference.safetensors_file import read_arrays

Array = Any
PREFIX = "base_model.model."  # of the names in a PEFT adapter
WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
# The adapter's author wrote these patterns, and one such as `(a+)+` could take for ever.
_HARMLESS = re.compile(r"(?:[\w.|-]|\\\.|\[0-9\]|\\d\+?){1,200}")


@dataclass(frozen=True)
class Adapter:
    """What an adapter adds to each matrix of a base."""

    arrays: Mapping[str, Array]
    modules: Mapping[str, str]  # tensor of the base: its module in the adapter
    config: Mapping[str, Any]
    where: str

    @classmethod
    def open(
        cls,
        folder: Path,
        shapes: Mapping[str, tuple[int, ...]],
        is_copy: Callable[[str, Array], bool] = lambda tensor, values: False,
    ) -> Adapter:
        """Opens an adapter to a base with tensors of these `shapes`.

        PEFT stores a copy of an embedding or head that it adapts: `is_copy` says whether an array equals that tensor of
        the base. Raises CheckpointError for an adapter that is damaged, does not fit, or holds more than products.
        """
        config, where = read_json(folder / CONFIG), str(folder)
        if config.get("peft_type") != "LORA":
            raise CheckpointError(f"the adapter has the type {config.get('peft_type')!r}, not LORA", where=where)
        if not (folder / WEIGHTS).is_file():
            raise CheckpointError("there is no such file", where=str(folder / WEIGHTS))
        arrays, modules = read_arrays(folder / WEIGHTS), {}
        for name, values in arrays.items():
            module, _, end = name.removeprefix(PREFIX).rpartition(".lora_")
            if end in ("A.weight", "B.weight") and values.dtype.kind == "f":
                modules[f"{module}.weight"] = name.rpartition(".lora_")[0]
            elif not is_copy(name.removeprefix(PREFIX).replace(".base_layer.", "."), values):
                fix = "Merge it with PEFT's merge_and_unload"
                raise CheckpointError(f"{name} is not part of a product of two matrices", where=where, fix=fix)
        adapter = cls(arrays, modules, config, where)
        for tensor, module in modules.items():
            if not adapter._fits(tensor, shapes.get(tensor)):
                raise CheckpointError(f"{module}.lora_A and B do not fit {tensor} of the base", where=where)
        if not modules or not all(isinstance(adapter._alpha(module), (int, float)) for module in modules.values()):
            raise CheckpointError("the adapter has no products, or no lora_alpha", where=where)
        return adapter

    def _fits(self, tensor: str, shape: tuple[int, ...] | None) -> bool:
        ends = [self.arrays.get(f"{self.modules[tensor]}.lora_{end}.weight") for end in "AB"]
        sizes: list[tuple[int, ...]] = [() if values is None else values.shape for values in ends]
        down, up = sizes
        if shape is None or not len(down) == len(up) == 2 or up[1] != down[0] or not down[0]:
            return False
        return (up[0], down[1]) == (shape[::-1] if self.config.get("fan_in_fan_out") else shape)

    def _alpha(self, module: str) -> Any:
        """As in PEFT, the first of `alpha_pattern` that matches the end of the name, else `lora_alpha`."""
        patterns = self.config.get("alpha_pattern") or {}
        if not isinstance(patterns, dict) or not all(map(_HARMLESS.fullmatch, patterns)):
            raise CheckpointError("alpha_pattern may hold names of layers, `.` and `|` only", where=self.where)
        matches = (alpha for end, alpha in patterns.items() if re.match(rf"(.*\.)?({end})$", module))
        return next(matches, self.config.get("lora_alpha"))

    def __contains__(self, tensor: str) -> bool:
        return tensor in self.modules

    def parts(self, tensor: str) -> tuple[Array, Array, float]:
        """A [r, in], B [out, r] and the scale of their product: alpha / r, or alpha / sqrt(r) for rank-stabilised LoRA;
        r is the matrix's own (`rank_pattern`)."""
        module = self.modules[tensor]
        down, up = (self.arrays[f"{module}.lora_{end}.weight"] for end in "AB")
        down, up = (x.astype(np.float32) if x.dtype.itemsize < 8 else x for x in (down, up))
        rank = len(down) ** 0.5 if self.config.get("use_rslora") else len(down)
        return down, up, self._alpha(module) / rank

    def product(self, tensor: str) -> Array:
        """B A times its scale, as the base stores the matrix."""
        down, up, scale = self.parts(tensor)
        whole = scale * (up.astype(np.float64) @ down.astype(np.float64))
        return whole.T if self.config.get("fan_in_fan_out") else whole
