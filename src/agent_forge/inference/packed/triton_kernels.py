# mypy: ignore-errors
"""The Triton functions of `gpu`. Importing this needs Triton."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def dot4(codes, x, total):
    """Four unsigned bytes times four signed ones, added to a sum."""
    return tl.inline_asm_elementwise(
        "dp4a.u32.s32 $0, $1, $2, $3;", "=r,r,r,r", [codes, x, total], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def nearest(x):
    """The nearest integer, halves to even, as torch.round does."""
    return tl.inline_asm_elementwise("cvt.rni.s32.f32 $0, $1;", "=r,f", [x], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def unit_of(x):
    """The unit that puts the largest magnitude at 127; NaN if something is not finite, so that the
    product is NaN."""
    unit = tl.div_rn(tl.maximum(tl.max(tl.abs(x), axis=0), 1e-5), 127.0)
    strange = tl.max(tl.where(tl.abs(x) <= 3.4028234e38, 0, 1), axis=0)
    return tl.where(strange > 0, float("nan"), unit)


@triton.jit
def next_codes(word, even, odd, digit: tl.constexpr, DIGITS: tl.constexpr, TRITS: tl.constexpr):
    """The codes of one digit, a byte each, and what is left of the even and the odd bytes."""
    if TRITS:  # a byte is a fraction in base 3: times 3, and the digit is what overflows
        even = even * 3
        odd = odd * 3
        codes = ((even >> 8) & 0x00030003) | (odd & 0x03000300)
        even = even & 0x00FF00FF
        odd = odd & 0x00FF00FF
    elif DIGITS == 1:
        codes = word
    elif DIGITS == 2:
        codes = (word >> (4 * digit)) & 0x0F0F0F0F
    else:
        codes = (word >> (2 * digit)) & 0x03030303
    return codes, even, odd


@triton.jit
def quantize_kernel(x_at, numbers_at, units_at, columns, padded, group, width, BLOCK: tl.constexpr) -> None:
    """One token per program: the largest magnitude becomes 127; the numbers lie where the packed
    columns are."""
    token = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    x = tl.load(x_at + token * columns + column, mask=column < columns, other=0.0).to(tl.float32)
    unit = unit_of(x)
    numbers = nearest(tl.div_rn(x, unit))
    place = (column // group) * width + column % group
    tl.store(numbers_at + token * padded + place, numbers.to(tl.int8), mask=column < columns)
    tl.store(units_at + token, unit)


@triton.jit
def product_kernel(
    packed_at,  # int32 [tiles, chunks, 16]
    x_at,  # int32 [tokens, chunks * DIGITS]
    units_at,  # float32 [tokens]
    scales_at,  # float [groups, width]
    bias_at,  # float [rows]
    y_at,  # float32 [tokens, rows]
    rows,
    chunks,
    width,  # rows rounded up to 16
    group_chunks,
    tokens,
    DIGITS: tl.constexpr,
    TRITS: tl.constexpr,
    OFFSET: tl.constexpr,
    STEP: tl.constexpr,
    GROUPED: tl.constexpr,
    BIAS: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    tile = tl.program_id(0).to(tl.int64)
    row = tile * 16 + tl.arange(0, 16)
    token = tl.arange(0, TOKENS)
    exact = tl.zeros([TOKENS, 16], dtype=tl.int32)
    total = tl.zeros([TOKENS, 16], dtype=tl.float32)
    for start in range(0, chunks, BLOCK):
        chunk = start + tl.arange(0, BLOCK)
        there = chunk < chunks
        line = packed_at + tile * chunks * 16 + chunk[:, None] * 16 + tl.arange(0, 16)[None, :]
        word = tl.load(line, mask=there[:, None], other=0)  # [BLOCK, 16]
        even = word & 0x00FF00FF
        odd = (word >> 8) & 0x00FF00FF
        part = tl.zeros([TOKENS, BLOCK, 16], dtype=tl.int32)
        plain = tl.zeros([TOKENS, BLOCK], dtype=tl.int32)
        for digit in tl.static_range(DIGITS):
            at = x_at + token[:, None] * (chunks * DIGITS) + chunk[None, :] * DIGITS + digit
            x = tl.load(at, mask=(token < tokens)[:, None] & there[None, :], other=0)  # [TOKENS, BLOCK]
            codes, even, odd = next_codes(word, even, odd, digit, DIGITS, TRITS)
            part = dot4(codes[None, :, :], x[:, :, None], part)
            plain = dot4(tl.full([TOKENS, BLOCK], 0x01010101, dtype=tl.int32), x, plain)
        part = part * STEP - (plain * OFFSET)[:, :, None]
        if GROUPED:
            scale_at = scales_at + (chunk // group_chunks)[:, None] * width + row[None, :]
            scale = tl.load(scale_at, mask=there[:, None], other=0.0).to(tl.float32)
            total += tl.sum(part.to(tl.float32) * scale[None, :, :], axis=1)
        else:
            exact += tl.sum(part, axis=1)
    if not GROUPED:
        total = exact.to(tl.float32) * tl.load(scales_at + row).to(tl.float32)[None, :]
    unit = tl.load(units_at + token, mask=token < tokens, other=0.0)
    total = total * unit[:, None]
    if BIAS:
        total += tl.load(bias_at + row, mask=row < rows, other=0.0).to(tl.float32)[None, :]
    inside = (token < tokens)[:, None] & (row < rows)[None, :]
    tl.store(y_at + token[:, None] * rows + row[None, :], total, mask=inside)


@triton.jit
def batch_kernel(
    packed_at,  # int32 [tiles, chunks, 16]
    x_at,  # int8 [tokens, DIGITS * 4, chunks]
    units_at,  # float32 [tokens]
    sums_at,  # int32 [tokens]
    scales_at,  # float [1, rows rounded up]
    bias_at,
    y_at,
    rows,
    chunks,
    tokens,
    DIGITS: tl.constexpr,
    TRITS: tl.constexpr,
    OFFSET: tl.constexpr,
    STEP: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Three to sixteen tokens on the tensor cores. The order of the columns in a sum does not
    matter, so byte b of digit d of all chunks is one matrix of codes, and `x` has the same
    order."""
    tile = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, 16)
    row = tile * 16 + lane
    token = tl.arange(0, 16)
    total = tl.zeros([16, 16], dtype=tl.int32)
    for start in range(0, chunks, BLOCK):
        chunk = start + tl.arange(0, BLOCK)
        there = chunk < chunks
        line = packed_at + tile * chunks * 16 + chunk[:, None] * 16 + lane[None, :]
        word = tl.load(line, mask=there[:, None], other=0)  # [BLOCK, 16]
        even = word & 0x00FF00FF
        odd = (word >> 8) & 0x00FF00FF
        for digit in tl.static_range(DIGITS):
            codes, even, odd = next_codes(word, even, odd, digit, DIGITS, TRITS)
            for byte in tl.static_range(4):
                code = (codes >> (8 * byte)) & 0xFF
                if DIGITS == 1:
                    code = code - 128  # bytes are signed on the tensor cores: the value itself
                place = token[:, None] * (chunks * DIGITS * 4) + (digit * 4 + byte) * chunks + chunk[None, :]
                x = tl.load(x_at + place, mask=(token < tokens)[:, None] & there[None, :], other=0)  # [16, BLOCK]
                total = tl.dot(x, code.to(tl.int8), acc=total, out_dtype=tl.int32)
    if DIGITS > 1:
        total = total * STEP - (tl.load(sums_at + token, mask=token < tokens, other=0) * OFFSET)[:, None]
    unit = tl.load(units_at + token, mask=token < tokens, other=0.0)
    y = total.to(tl.float32) * tl.load(scales_at + row).to(tl.float32)[None, :] * unit[:, None]
    if BIAS:
        y += tl.load(bias_at + row, mask=row < rows, other=0.0).to(tl.float32)[None, :]
    inside = (token < tokens)[:, None] & (row < rows)[None, :]
    tl.store(y_at + token[:, None] * rows + row[None, :], y, mask=inside)


@triton.jit
def quantize_planes_kernel(
    x_at, numbers_at, units_at, sums_at, columns, chunks, BLOCK: tl.constexpr, DIGITS: tl.constexpr
) -> None:
    """As `quantize_kernel`, in the order that `batch_kernel` reads, with the sum of the numbers."""
    token = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    x = tl.load(x_at + token * columns + column, mask=column < columns, other=0.0).to(tl.float32)
    unit = unit_of(x)
    numbers = nearest(tl.div_rn(x, unit))
    place = (column % (4 * DIGITS)) * chunks + column // (4 * DIGITS)
    wide = chunks * 4 * DIGITS  # padding columns are written too: they are zeros here
    tl.store(numbers_at + token * wide + place, numbers.to(tl.int8), mask=column < wide)
    tl.store(units_at + token, unit)
    tl.store(sums_at + token, tl.sum(numbers, axis=0))
