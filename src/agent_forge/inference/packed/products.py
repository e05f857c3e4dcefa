"""y = W x for a packed W: activations in int8 by the token's largest magnitude, sums in int32,
scales at the end.

Three implementations of the same numbers, chosen at run time: a C kernel (AVX-512 VNNI, AVX2, NEON
or plain C, as the machine's compiler builds `products.c`), a Triton kernel on CUDA (equal but for
the order of a few additions), and torch alone. torch's product of the integers as floats is exact
as long as every sum fits in float's 24 bits: the tests compare the C kernel with it bit for bit.
"""

from __future__ import annotations

import ctypes
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from agent_forge.errors import UsageError
from agent_forge.inference.packed.kernels import CMatrix, kernel
from agent_forge.inference.packed.layout import KINDS, LIMITS, ROWS, PackedShape
from agent_forge.inference.packed.trits import pack, scaled, unpack

MOST_PLAIN_TOKENS = 16  # without vector instructions: beyond, unpacking once and one float product is faster
TOKENS_PER_THREAD = 32  # fewer are not worth another thread
EXACT = 1 << 24  # integers below are exact in float32


@dataclass(frozen=True)
class PackedMatrix:
    """Small integers with scales: `packed` uint8 (see `trits`), `scales` [groups, rows rounded up to 16]."""

    shape: PackedShape
    packed: Tensor
    scales: Tensor

    @staticmethod
    def of(values: Tensor, scales: Tensor, kind: str, group: int | None = None) -> PackedMatrix:
        """Packs integers [rows, columns] with scales [rows, groups] (float32 or float16)."""
        rows, columns = values.shape
        shape = PackedShape(kind, rows, columns, min(group or columns, columns))
        if tuple(scales.shape) != (rows, shape.groups):
            raise UsageError(f"scales of shape {tuple(scales.shape)}, expected {(rows, shape.groups)}")
        padded = scales.new_zeros(shape.groups, shape.tiles * ROWS)
        padded[:, :rows] = scales.t()
        return PackedMatrix(shape, pack(values, shape), padded)

    def values(self) -> Tensor:
        """The integers, int8 [rows, columns]."""
        return unpack(self.packed, self.shape)

    def row_scales(self) -> Tensor:
        """[rows, groups], in the type they are stored in."""
        return self.scales[:, : self.shape.rows].t().contiguous()

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weights as floats."""
        return scaled(self.values(), self.row_scales().float(), self.shape.group).to(dtype)


def quantize_activations(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., columns] -> (integers -127..127 as float32, scale [..., 1]): x is about number * scale.

    >>> numbers, scale = quantize_activations(torch.tensor([[0.5, -1.0, 0.25]]))
    >>> numbers, scale
    (tensor([[  64., -127.,   32.]]), tensor([[0.0079]]))
    """
    wide = x.float()
    most = wide.abs().amax(dim=-1, keepdim=True)
    finite = most.isfinite()
    most = torch.where(finite, most, 1.0).clamp_min(1e-5)
    unit = most / 127.0
    return torch.where(finite, wide / unit, 0.0).round(), torch.where(finite, unit, torch.nan)


def product(x: Tensor, matrix: PackedMatrix, bias: Tensor | None = None) -> Tensor:
    """x [..., columns] -> [..., rows] in x's type, by the fastest implementation on this machine."""
    flat = x.reshape(-1, matrix.shape.columns)
    if matrix.packed.is_cuda:
        y = _cuda(flat, matrix, bias)
    elif (library := kernel()) is not None and worth_it(library, flat.shape[0]):
        y = native_product(flat, matrix, bias, library)
    else:
        y = torch_product(flat, matrix, bias)
    return y.to(x.dtype).view(*x.shape[:-1], matrix.shape.rows)


def _cuda(flat: Tensor, matrix: PackedMatrix, bias: Tensor | None) -> Tensor:
    from agent_forge.inference.packed import gpu

    fits = 0 < flat.shape[0] <= gpu.MOST_TOKENS and matrix.shape.columns <= gpu.MOST_COLUMNS
    if fits and gpu.available():
        return gpu.product(flat, matrix, bias)
    return torch_product(flat, matrix, bias)


def torch_product(x: Tensor, matrix: PackedMatrix, bias: Tensor | None = None) -> Tensor:
    """x [tokens, columns] -> float32 [tokens, rows], in torch alone."""
    shape = matrix.shape
    numbers, scale = quantize_activations(x)
    exact = torch.float32 if 127 * -LIMITS[shape.kind][0] * shape.group < EXACT else torch.float64
    values, numbers = matrix.values().to(exact), numbers.to(exact)
    scales = matrix.scales[:, : shape.rows].float()  # groups, rows
    y = torch.zeros(x.shape[0], shape.rows, device=x.device)
    for g in range(shape.groups):
        part = slice(g * shape.group, min((g + 1) * shape.group, shape.columns))
        y += F.linear(numbers[:, part], values[:, part]).float() * scales[g]
    y *= scale
    return y if bias is None else y + bias.float()


def describe(matrix: PackedMatrix, bias: Tensor | None = None) -> CMatrix:
    """The matrix as C sees it. It points into the tensors, which must stay alive."""
    shape = matrix.shape
    expected = math.prod(shape.packed), shape.groups * shape.tiles * ROWS
    if (matrix.packed.numel(), matrix.scales.numel()) != expected:
        raise UsageError(f"a packed matrix of {matrix.packed.numel()} bytes, expected {expected[0]}", where="describe")
    for tensor in (matrix.packed, matrix.scales, *(() if bias is None else (bias,))):
        if not tensor.is_contiguous() or tensor.device.type != "cpu":
            raise UsageError("the C kernel needs contiguous tensors in main memory", where="describe")
    return CMatrix(
        KINDS.index(shape.kind),
        matrix.scales.dtype == torch.float16,
        shape.rows,
        shape.columns,
        shape.group,
        matrix.packed.data_ptr(),
        matrix.scales.data_ptr(),
        None if bias is None else bias.data_ptr(),
    )


def worth_it(library: Any, tokens: int) -> bool:
    """Whether the kernel is the fastest for so many tokens: with vector instructions it always is."""
    return bool(tokens <= MOST_PLAIN_TOKENS or library.products_path() != b"plain")


def native_product(x: Tensor, matrix: PackedMatrix, bias: Tensor | None = None, library: Any = None) -> Tensor:
    """x [tokens, columns] -> float32 [tokens, rows], with the C kernel."""
    bias = None if bias is None else bias.float().contiguous()
    return call_kernel(x, describe(matrix, bias), library or kernel())


def call_kernel(x: Tensor, matrix: CMatrix, library: Any) -> Tensor:
    """Calls the kernel; `matrix` must point to living tensors. Many tokens are shared by torch's
    number of threads."""
    x = x.detach().to(torch.float32).contiguous()
    tokens = x.shape[0]
    y = torch.empty(tokens, matrix.rows)
    parts = max(1, min(torch.get_num_threads(), tokens // TOKENS_PER_THREAD))
    if parts == 1:
        _call(x, y, matrix, library)
        return y
    share = -(-tokens // parts)
    with ThreadPoolExecutor(parts) as pool:
        list(pool.map(lambda a, b: _call(a, b, matrix, library), x.split(share), y.split(share)))
    return y


def _call(x: Tensor, y: Tensor, matrix: CMatrix, library: Any) -> None:
    if x.shape[0] and library.products_linear(ctypes.byref(matrix), x.shape[0], x.data_ptr(), y.data_ptr()):
        raise MemoryError("out of memory for the activations of a packed product")
