"""The codecs, one file each. A codec is `encode(weight, cost, **settings) -> Encoded` and `decode(encoded) -> Tensor`.

Decoding uses numpy and elementwise operations only, so a container decodes to the same bits on every machine.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torch import Tensor

from agent_forge.errors import CheckpointError
from agent_forge.forge.compression.codecs import grid, hyper, integer, lowrank, raw, rtn, seedlm, ternary, vptq
from agent_forge.forge.compression.container import Encoded
from agent_forge.forge.compression.feedback import Cost

CODECS: dict[str, ModuleType] = {
    "grid": grid,
    "hyper": hyper,
    "integer": integer,
    "lowrank": lowrank,
    "raw": raw,
    "rtn": rtn,
    "seedlm": seedlm,
    "ternary": ternary,
    "vptq": vptq,
}


def encode(codec: str, weight: Tensor, cost: Cost | None = None, **settings: Any) -> Encoded:
    """A matrix as a codec stores it; any other tensor goes as `raw`.

    >>> import torch
    >>> encoded = encode("integer", torch.linspace(-1, 1, 64).view(2, 32), bits=8)
    >>> float((decode(encoded) - torch.linspace(-1, 1, 64).view(2, 32)).abs().max()) < 0.01
    True
    """
    if weight.dim() != 2 or codec == "raw":
        return raw.encode(weight, Cost())
    found: Encoded = CODECS[codec].encode(weight, cost or Cost(), **settings)
    return found


def decode(encoded: Encoded) -> Tensor:
    """The tensor, in float32. Raises CheckpointError for a codec that this version does not have."""
    if encoded.codec not in CODECS:
        raise CheckpointError(f"there is no codec {encoded.codec!r} here", fix="update agent-forge")
    decoded: Tensor = CODECS[encoded.codec].decode(encoded)
    return decoded


__all__ = ["CODECS", "decode", "encode"]
