"""The products: every path gives the same bits, and all of them what float64 says; no accumulator overflows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from agent_forge import native
from agent_forge.errors import UsageError
from agent_forge.inference.packed import PackedMatrix, product, quantize_activations
from agent_forge.inference.packed.layout import KINDS, LIMITS, MOST_COLUMNS
from agent_forge.inference.packed.products import describe, kernel, native_product, torch_product

PATHS = {"native": (), "avx2": ("-mno-avx512f",), "plain": ("-DPLAIN",)}
SHAPES = [(1, 1, None), (16, 16, None), (33, 70, None), (48, 576, 128), (17, 300, 32), (5, 129, 128), (20, 333, 7)]


def library(path: str) -> Any:
    compiled = kernel(*PATHS[path])
    if compiled is None:
        pytest.skip("there is no C compiler here (or it does not know these flags)")
    return compiled


def matrix(kind: str, rows: int, columns: int, group: int | None = None, half: bool = False) -> PackedMatrix:
    draw = np.random.default_rng(rows * columns)
    low, high = LIMITS[kind]
    values = draw.integers(low, high + 1, (rows, columns))
    if kind == "4level":
        values = draw.choice([-3, -1, 1, 3], (rows, columns))
    groups = -(-columns // min(group or columns, columns))
    scales = torch.from_numpy(draw.uniform(0.01, 2, (rows, groups)).astype(np.float16 if half else np.float32))
    return PackedMatrix.of(torch.from_numpy(values.astype(np.int8)), scales, kind, group)


def reference(x: torch.Tensor, packed: PackedMatrix, bias: torch.Tensor) -> np.ndarray[Any, Any]:
    """Straight from the definition, in float64."""
    wide = x.double().numpy()
    unit = np.maximum(np.abs(wide).max(1, keepdims=True), 1e-5) / 127
    weights = (
        packed.values().double()
        * packed.row_scales().double().repeat_interleave(packed.shape.group, 1)[:, : packed.shape.columns]
    )
    return np.rint(wide / unit) * unit @ weights.numpy().T + bias.double().numpy()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_path_gives_the_same_bits_as_torch(kind: str, path: str) -> None:
    compiled = library(path)
    for rows, columns, group in SHAPES:
        for half in (False, True):
            packed = matrix(kind, rows, columns, group, half)
            for tokens in (1, 2, 3, 4, 5, 9):
                draw = torch.Generator().manual_seed(tokens)
                x, bias = torch.randn(tokens, columns, generator=draw), torch.randn(rows, generator=draw)
                expected = torch_product(x, packed, bias)
                actual = native_product(x, packed, bias, compiled)
                assert torch.equal(actual, expected), (rows, columns, group, half, tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_the_product_is_what_float64_says(kind: str) -> None:
    for rows, columns, group in SHAPES:
        packed = matrix(kind, rows, columns, group)
        x, bias = torch.randn(3, columns), torch.randn(rows)
        expected = reference(x, packed, bias)
        np.testing.assert_allclose(
            product(x, packed, bias).numpy(), expected, rtol=1e-5, atol=1e-5 * abs(expected).max()
        )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_sum_overflows_at_the_largest_width_there_is(kind: str, path: str) -> None:
    """All weights and activations at their largest: bitnet.cpp's int16 sums are wrong here from 4,096 columns on."""
    low, high = LIMITS[kind]
    compiled = library(path)
    for columns in (4096, MOST_COLUMNS):
        for value, sign in ((high, 1.0), (low, 1.0), (high, -1.0)):
            values = torch.full((16, columns), value, dtype=torch.int8)
            packed = PackedMatrix.of(values, torch.ones(16, 1), kind)
            x = torch.full((5, columns), sign)  # quantised to 127, its unit is 1 / 127
            expected = torch.tensor(127.0 * sign * value * columns) * (torch.tensor(1.0) / 127)
            assert torch.equal(native_product(x[:1], packed, None, compiled), expected.expand(1, 16))
            assert torch.equal(native_product(x, packed, None, compiled), expected.expand(5, 16))


@pytest.mark.parametrize("path", PATHS)
def test_a_damaged_code_cannot_overflow_either(path: str) -> None:
    """A code of 3 is no trit, but the kernel must not wrap on it: the sums are those of plain integers."""
    packed = PackedMatrix.of(torch.ones(16, 4096, dtype=torch.int8), torch.ones(16, 1), "2bit")
    packed.packed.fill_(255)
    actual = native_product(torch.ones(1, 4096), packed, None, library(path))
    assert torch.allclose(actual, torch.full((1, 16), 2.0 * 4096))


def test_what_is_not_finite_stays_so_and_zero_stays_zero() -> None:
    packed = matrix("2bit", 5, 40)
    x = torch.randn(4, 40)
    x[0, 3], x[1, 7], x[2] = torch.nan, -torch.inf, 0.0
    for way in (torch_product, native_product) if kernel() else (torch_product,):
        y = way(x, packed)
        assert y[:2].isnan().all()
        assert not y[2].any()
        assert y[3].isfinite().all()


def test_activations_are_rounded_to_even_by_the_largest() -> None:
    numbers, unit = quantize_activations(torch.tensor([[127.0, 0.5, 1.5, -2.5, -127.0]]))
    assert numbers.tolist() == [[127, 0, 2, -2, -127]]
    assert unit.item() == 1.0
    numbers, unit = quantize_activations(torch.randn(7, 33, dtype=torch.float64) * 1e-3)
    assert numbers.abs().amax(1).tolist() == [127.0] * 7


def test_many_tokens_none_and_other_types() -> None:
    packed = matrix("1.6bit", 30, 50)
    x = torch.randn(2, 40, 50)
    together = product(x, packed)
    assert together.shape == (2, 40, 30)
    assert torch.equal(together[1, 7], product(x[1, 7], packed))
    assert product(x[:0], packed).shape == (0, 40, 30)
    assert product(x.bfloat16(), packed).dtype == torch.bfloat16


def test_threads_share_the_tokens() -> None:
    packed, x = matrix("2bit", 40, 100, 32), torch.randn(131, 100)
    expected = torch_product(x, packed)
    torch.set_num_threads(2)
    try:
        assert torch.equal(product(x, packed), expected)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(product(x, packed), expected)


def test_without_a_compiler_the_numbers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    packed, x = matrix("2bit", 40, 100), torch.randn(3, 100)
    expected = product(x, packed)
    monkeypatch.setenv(native.SWITCH, "0")
    assert kernel() is None
    assert torch.equal(product(x, packed), expected)


def test_the_kernel_refuses_tensors_it_cannot_read() -> None:
    packed = matrix("2bit", 32, 64)
    with pytest.raises(UsageError, match="contiguous"):
        describe(PackedMatrix(packed.shape, packed.packed.transpose(0, 1), packed.scales))
    with pytest.raises(UsageError, match="expected"):
        describe(PackedMatrix(packed.shape, packed.packed[:1], packed.scales))


def test_the_gpu_functions_do_the_same_arithmetic() -> None:
    """Where there is a GPU; the sums over groups may be taken in another order there."""
    pytest.importorskip("triton")
    if not torch.cuda.is_available():
        pytest.skip("benchmarks/ternary_gpu.py checks the kernel on a GPU; there is none here")
    from agent_forge.inference.packed import gpu

    for kind in KINDS:
        packed = matrix(kind, 33, 300, 128)
        x = torch.randn(3, 300)
        there = PackedMatrix(packed.shape, packed.packed.cuda(), packed.scales.cuda())
        torch.testing.assert_close(gpu.product(x.cuda(), there).cpu(), torch_product(x, packed), rtol=1e-5, atol=1e-4)
