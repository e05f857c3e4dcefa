"""The packed product on CUDA, in Triton: the packed bytes are read once for up to 16 tokens.

A program computes one tile of 16 rows. Four packed bytes of a row are one 32-bit word, so a word
holds, digit by digit, four codes in its four bytes. For one or two tokens `dp4a` multiplies them
with four int8 activations and adds, in one instruction; more tokens go to the tensor cores, except
where a row has several scales.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agent_forge.inference.packed.layout import DIGITS, OFFSET, ROWS, STEP

if TYPE_CHECKING:
    from agent_forge.inference.packed.products import PackedMatrix

MOST_TOKENS = 16
TENSOR_CORES = 3  # tokens from which the tensor cores are used
MOST_COLUMNS = 16384  # of a token, which one program quantises


@cache
def available() -> bool:
    return torch.cuda.is_available() and find_spec("triton") is not None


@cache
def kernels() -> Any:
    """The compiled functions; Triton is imported here, because most machines do not have it."""
    from agent_forge.inference.packed import triton_kernels

    return triton_kernels


def product(x: Tensor, matrix: PackedMatrix, bias: Tensor | None = None) -> Tensor:
    """x [tokens, columns] on CUDA -> float32 [tokens, rows]; at most MOST_TOKENS tokens."""
    if x.shape[0] >= TENSOR_CORES and matrix.shape.groups == 1:
        return multiply_batch(*quantize_planes(x, matrix), matrix, bias)
    numbers, units = quantize(x, matrix)
    return multiply(numbers, units, matrix, bias)


def quantize_planes(x: Tensor, matrix: PackedMatrix) -> tuple[Tensor, Tensor, Tensor]:
    """The arguments of `multiply_batch`: int8 [tokens, digits and bytes, chunks], unit and sum of
    each token."""
    shape, x = matrix.shape, x.contiguous()
    digits = DIGITS[shape.kind]
    numbers = torch.empty(x.shape[0], 4 * digits, shape.chunks, dtype=torch.int8, device=x.device)
    units = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    sums = torch.empty(x.shape[0], dtype=torch.int32, device=x.device)
    block = max(16, 1 << (shape.chunks * shape.chunk - 1).bit_length())
    kernels().quantize_planes_kernel[(x.shape[0],)](
        x, numbers, units, sums, shape.columns, shape.chunks, BLOCK=block, DIGITS=digits
    )
    return numbers, units, sums


def multiply_batch(
    numbers: Tensor, units: Tensor, sums: Tensor, matrix: PackedMatrix, bias: Tensor | None = None
) -> Tensor:
    """The product on the tensor cores, for one scale per row."""
    shape, tokens = matrix.shape, numbers.shape[0]
    y = torch.empty(tokens, shape.rows, dtype=torch.float32, device=numbers.device)
    kernels().batch_kernel[(shape.tiles,)](
        matrix.packed.view(torch.int32),
        numbers,
        units,
        sums,
        matrix.scales,
        bias if bias is not None else matrix.scales,
        y,
        shape.rows,
        shape.chunks,
        tokens,
        DIGITS=DIGITS[shape.kind],
        TRITS=shape.kind == "1.6bit",
        OFFSET=OFFSET[shape.kind],
        STEP=STEP[shape.kind],
        BIAS=bias is not None,
        BLOCK=64 if shape.chunks > 32 else 32,
        num_warps=4,
    )
    return y


def quantize(x: Tensor, matrix: PackedMatrix) -> tuple[Tensor, Tensor]:
    """int8 [tokens, padded columns] in the order of the chunks, and the unit of each token."""
    shape = matrix.shape
    x = x.contiguous()
    width = -(-shape.group // shape.chunk) * shape.chunk  # a group, padded
    padded = shape.chunks * shape.chunk
    make = torch.empty if padded == shape.columns else torch.zeros
    numbers = make(x.shape[0], padded, dtype=torch.int8, device=x.device)
    units = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    block = 1 << (shape.columns - 1).bit_length()
    kernels().quantize_kernel[(x.shape[0],)](
        x, numbers, units, shape.columns, padded, shape.group, width, BLOCK=max(block, 16)
    )
    return numbers, units


def multiply(numbers: Tensor, units: Tensor, matrix: PackedMatrix, bias: Tensor | None = None) -> Tensor:
    """The product of the activations that `quantize` returns."""
    shape, tokens = matrix.shape, numbers.shape[0]
    y = torch.empty(tokens, shape.rows, dtype=torch.float32, device=numbers.device)
    block, warps = _launch(shape.chunks, tokens)
    kernels().product_kernel[(shape.tiles,)](
        matrix.packed.view(torch.int32),
        numbers.view(torch.int32),
        units,
        matrix.scales,
        bias if bias is not None else matrix.scales,
        y,
        shape.rows,
        shape.chunks,
        shape.tiles * ROWS,
        shape.chunks_of_groups[0],
        tokens,
        DIGITS=DIGITS[shape.kind],
        TRITS=shape.kind == "1.6bit",
        OFFSET=OFFSET[shape.kind],
        STEP=STEP[shape.kind],
        GROUPED=shape.groups > 1,
        BIAS=bias is not None,
        TOKENS=1 << (tokens - 1).bit_length(),
        BLOCK=block,
        num_warps=warps,
    )
    return y


def _launch(chunks: int, tokens: int) -> tuple[int, int]:
    """(chunks per step, warps): many bytes in flight for one token, few enough sums in registers
    for sixteen."""
    most = {1: 256, 2: 128, 4: 64, 8: 32, 16: 16}[1 << (tokens - 1).bit_length()]
    return min(most, max(16, 1 << (chunks - 1).bit_length())), 8 if chunks >= 128 else 4
