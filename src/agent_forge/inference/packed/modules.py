"""Layers whose weights stay packed: a linear layer, an embedding, and a head that shares the embedding's table.

The packed bytes and the scales are buffers. Scales are stored as the bits of their floats, because
loading a model in another precision casts every float buffer, and a rounded scale would change the
model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent_forge.inference.packed import products
from agent_forge.inference.packed.layout import ROWS, PackedShape
from agent_forge.inference.packed.products import CMatrix, PackedMatrix
from agent_forge.inference.packed.trits import scaled, unpack_rows

BITS_OF = {torch.float32: torch.int32, torch.float16: torch.int16}
FLOAT_OF = {bits: kind for kind, bits in BITS_OF.items()}


class PackedTable(nn.Module):
    """What the layers share: the packed matrix as buffers, and its description for the C kernel."""

    packed: Tensor
    scales: Tensor

    def __init__(self, shape: PackedShape, scale_type: torch.dtype) -> None:
        super().__init__()
        self.shape = shape
        self.register_buffer("packed", torch.empty(shape.packed, dtype=torch.uint8))
        width = shape.tiles * ROWS
        self.register_buffer("scales", torch.empty(shape.groups, width, dtype=BITS_OF[scale_type]))
        self._described: tuple[tuple[int, ...], CMatrix, Any] | None = None

    def hold(self, matrix: PackedMatrix) -> Any:
        """Stores the matrix, and returns the layer."""
        self.packed, self.scales = matrix.packed, matrix.scales.view(BITS_OF[matrix.scales.dtype])
        return self

    @property
    def matrix(self) -> PackedMatrix:
        return PackedMatrix(self.shape, self.packed, self.scales.view(FLOAT_OF[self.scales.dtype]))

    @property
    def weight(self) -> Tensor:
        """The weights as floats, computed at every access."""
        return self.matrix.dense()

    def multiply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """The product with int8 activations, [..., columns] -> [..., rows]. Called per layer and
        token: the path to C is short."""
        tokens = x.numel() // self.shape.columns
        if x.device.type == "cpu" and self.packed.device.type == "cpu":
            described, library = self._description(bias)
            if library is not None and products.worth_it(library, tokens):
                y = products.call_kernel(x.reshape(tokens, -1), described, library)
                return y.to(x.dtype).view(*x.shape[:-1], self.shape.rows)
        return products.product(x, self.matrix, bias)

    def _description(self, bias: Tensor | None) -> tuple[CMatrix, Any]:
        """Cached for as long as the tensors stay where they are."""
        at = (self.packed.data_ptr(), self.scales.data_ptr(), 0 if bias is None else bias.data_ptr())
        if self._described is None or self._described[0] != at:
            floats = None if bias is None else bias.detach().float().contiguous()
            described = products.describe(self.matrix, floats)
            described.bias_tensor = floats  # what it points to must live as long as it does
            self._described = at, described, products.kernel()
        return self._described[1:]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_described": None}  # pointers mean nothing in another process or a copy


class PackedLinear(PackedTable):
    """A linear layer with a packed weight. `activations` is "int8", or None to multiply with the
    floats as they are."""

    bias: nn.Parameter | None

    def __init__(
        self,
        shape: PackedShape,
        scale_type: torch.dtype = torch.float32,
        bias: bool = False,
        activations: str | None = "int8",
        sub_norm: bool = False,
    ) -> None:
        super().__init__(shape, scale_type)
        self.in_features, self.out_features = shape.columns, shape.rows
        self.activations, self.sub_norm = activations, sub_norm
        self.register_parameter("bias", nn.Parameter(torch.empty(shape.rows)) if bias else None)

    def forward(self, x: Tensor) -> Tensor:
        if self.sub_norm:
            x = F.rms_norm(x.float(), x.shape[-1:], eps=1e-6).to(x.dtype)
        if self.activations == "int8":
            return self.multiply(x, self.bias)
        return F.linear(x, self.weight.to(x.dtype), self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, kind={self.shape.kind}, group={self.shape.group}"


class PackedEmbedding(PackedTable):
    """An embedding that unpacks the rows that are looked up."""

    like: nn.Parameter  # empty: it carries the model's type and device, also where no other weight is a float

    def __init__(self, shape: PackedShape, scale_type: torch.dtype = torch.float16) -> None:
        super().__init__(shape, scale_type)
        self.num_embeddings, self.embedding_dim = shape.rows, shape.columns
        self.like = nn.Parameter(torch.empty(0), requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        rows = ids.reshape(-1)
        matrix = self.matrix
        values = unpack_rows(matrix.packed, self.shape, rows)
        looked_up = scaled(values, matrix.scales[:, rows].t().float(), self.shape.group)
        return looked_up.to(self.like.dtype).view(*ids.shape, self.embedding_dim)


class PackedHead(nn.Module):
    """A head tied to a packed embedding: it has no weights of its own."""

    bias: nn.Parameter | None

    def __init__(self, table: PackedTable, bias: bool = False, activations: str | None = "int8") -> None:
        super().__init__()
        self._table = (table,)  # in a tuple, so that it is not a submodule and is not stored twice
        self.activations = activations
        self.in_features, self.out_features = table.shape.columns, table.shape.rows
        self.register_parameter("bias", nn.Parameter(torch.empty(table.shape.rows)) if bias else None)

    @property
    def table(self) -> PackedTable:
        return self._table[0]

    @property
    def weight(self) -> Tensor:
        return self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        if self.activations == "int8":
            return self.table.multiply(x, self.bias)
        return F.linear(x, self.weight.to(x.dtype), self.bias)
