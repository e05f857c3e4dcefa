"""The codecs, one file each: `encode(weight, cost, **settings) -> Encoded` and `decode(encoded) -> Tensor`.

Decoding uses numpy and elementwise operations only, so a container decodes to the same bits on
every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from torch import Tensor

from agent_forge.errors import CheckpointError
from agent_forge.forge.compression.codecs import grid, integer, raw, rtn, ternary
from agent_forge.forge.compression.container import Encoded
from agent_forge.forge.compression.feedback import Cost

CODECS: dict[str, ModuleType] = {"grid": grid, "integer": integer, "raw": raw, "rtn": rtn, "ternary": ternary}
REMOVED = ("hyper", "lowrank", "seedlm", "vptq")  # worse than the grid at every rate (docs/results/compression.md)


def encode(codec: str, weight: Tensor, cost: Cost | None = None, **settings: Any) -> Encoded:
    """A matrix as the codec stores it; any other tensor goes as `raw`.

    >>> import torch
    >>> encoded = encode("integer", torch.linspace(-1, 1, 64).view(2, 32), bits=8)
    >>> float((decode(encoded) - torch.linspace(-1, 1, 64).view(2, 32)).abs().max()) < 0.01
    True
    """
    if weight.dim() != 2 or codec == "raw":
        return raw.encode(weight, Cost())
    encoded: Encoded = CODECS[codec].encode(weight, cost or Cost(), **settings)
    return encoded


def encode_all(codec: str, weight: Tensor, cost: Cost, options: Sequence[Mapping[str, Any]]) -> Iterator[Encoded]:
    """The matrix with each of the codec's settings in turn, as `encode` stores it."""
    if codec == "grid" and weight.dim() == 2 and all(list(settings) == ["step"] for settings in options):
        return grid.encode_all(weight, cost, [settings["step"] for settings in options])
    return (encode(codec, weight, cost, **settings) for settings in options)


def decode(encoded: Encoded) -> Tensor:
    """The tensor in float32. Raises CheckpointError for a codec that this version cannot read."""
    if encoded.codec in REMOVED:
        raise CheckpointError(
            f"a weight is stored with the codec {encoded.codec!r}, which was removed",
            fix="Compress the original model again, without --codecs",
        )
    if encoded.codec not in CODECS:
        raise CheckpointError(
            f"a weight is stored with the codec {encoded.codec!r}, which this version does not know",
            fix="Update agent-forge",
        )
    decoded: Tensor = CODECS[encoded.codec].decode(encoded)
    return decoded


__all__ = ["CODECS", "REMOVED", "decode", "encode", "encode_all"]
