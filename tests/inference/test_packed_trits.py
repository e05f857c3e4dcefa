"""Packing: exact round trips on any shape, against counting in base 3 and against ggml's own bytes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_forge.errors import CheckpointError, UsageError
from agent_forge.inference.packed import PackedMatrix, PackedShape, TernaryWeight, pack, unpack
from agent_forge.inference.packed.layout import KINDS, LIMITS, MOST_COLUMNS
from agent_forge.inference.packed.trits import unpack_rows

ALLOWED = {kind: tuple(range(low, high + 1)) for kind, (low, high) in LIMITS.items()} | {"4level": (-3, -1, 1, 3)}


def values_of(kind: str, rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    picks = np.random.default_rng(seed).choice(np.array(ALLOWED[kind]), (rows, columns))
    return torch.from_numpy(picks.astype(np.int8))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(KINDS), st.integers(1, 40), st.integers(1, 300), st.integers(1, 300), st.integers(0, 9))
def test_any_shape_and_group_comes_back(kind: str, rows: int, columns: int, group: int, seed: int) -> None:
    shape = PackedShape(kind, rows, columns, min(group, columns))
    values = values_of(kind, rows, columns, seed)
    packed = pack(values, shape)
    assert packed.numel() == shape.tiles * shape.chunks * 64
    assert torch.equal(unpack(packed, shape), values)
    chosen = torch.tensor([rows - 1, 0])
    assert torch.equal(unpack_rows(packed, shape, chosen), values[chosen])


def test_every_byte_of_five_trits_is_the_fraction_that_ggml_writes() -> None:
    """All 243 fives: the byte is ceil(256 v / 243) of the base-3 number v, the definition of TQ1_0."""
    fives = torch.tensor(list(itertools.product((-1, 0, 1), repeat=5)), dtype=torch.int8)  # most significant first
    columns = torch.zeros(243, 20, dtype=torch.int8)
    columns[:, ::4] = fives  # digit d of byte 0 is column 4 d
    packed = pack(columns, PackedShape("1.6bit", 243, 20, 20)).permute(0, 2, 1, 3).reshape(-1, 4)[:243, 0]
    numbers = [int("".join(str(int(trit) + 1) for trit in five), 3) for five in fives]
    assert packed.tolist() == [-(-256 * number // 243) for number in numbers]


def test_two_bit_codes_by_hand() -> None:
    packed = pack(torch.tensor([[-1, 0, 1, 1] + [0] * 4 + [1] * 4 + [-1] * 4]), PackedShape("2bit", 1, 16, 16))
    # byte b holds columns b, 4 + b, 8 + b, 12 + b, the first in the low bits
    assert packed[0, 0, 0].tolist() == [0b00_10_01_00, 0b00_10_01_01, 0b00_10_01_10, 0b00_10_01_10]


def test_the_size_is_what_is_promised() -> None:
    assert pack(values_of("1.6bit", 160, 2000), PackedShape("1.6bit", 160, 2000, 2000)).numel() == 160 * 2000 * 1.6 / 8
    assert pack(values_of("2bit", 160, 2000), PackedShape("2bit", 160, 2000, 2000)).numel() == 160 * 2000 * 2 / 8


@pytest.mark.parametrize(("kind", "byte"), [("2bit", 0b11), ("1.6bit", 1), ("int8", 0)])
def test_a_byte_that_stands_for_nothing_is_refused(kind: str, byte: int) -> None:
    shape = PackedShape(kind, 16, 20, 20)
    packed = pack(values_of(kind, 16, 20), shape)
    packed[0, 0, 3, 2] = byte
    with pytest.raises(CheckpointError, match="packed weights hold"):
        unpack(packed, shape)
    with pytest.raises(CheckpointError, match="expected"):
        unpack(packed[:, :0], shape)


@pytest.mark.parametrize(
    "call",
    [
        lambda: PackedShape("3bit", 1, 1, 1),
        lambda: PackedShape("2bit", 1, MOST_COLUMNS + 1, 1),
        lambda: PackedShape("2bit", 1, 8, 9),
        lambda: pack(torch.tensor([[2]]), PackedShape("2bit", 1, 1, 1)),
        lambda: pack(torch.tensor([[0, 0]]), PackedShape("2bit", 1, 1, 1)),
        lambda: TernaryWeight(torch.tensor([[2, 0]]), torch.ones(1)),
        lambda: TernaryWeight(torch.tensor([[1, 0, 3]]), torch.ones(1)),
        lambda: TernaryWeight(torch.zeros(2, 300), torch.ones(2, 7)),
        lambda: TernaryWeight(torch.zeros(2, 300), torch.ones(2, 3), group=10),
        lambda: PackedMatrix.of(torch.zeros(2, 4, dtype=torch.int8), torch.ones(2, 3), "2bit"),
    ],
)
def test_what_cannot_be_packed_is_refused(call: object) -> None:
    with pytest.raises(UsageError):
        call()  # type: ignore[operator]


def test_scales_may_be_given_in_every_way_that_makes_sense() -> None:
    trits = torch.randint(-1, 2, (3, 300))
    assert TernaryWeight(trits, torch.tensor(0.5)).scales.tolist() == [[0.5]] * 3
    assert TernaryWeight(trits, torch.ones(3)).group == 300
    assert TernaryWeight(trits, torch.ones(1, 3)).group == 128  # 128, 128, 44
    assert TernaryWeight(trits, torch.ones(3, 5)).group == 60
    assert TernaryWeight(trits, torch.ones(3, 6), group=50).scales.shape == (3, 6)
    assert TernaryWeight(trits, torch.ones(3).double()).scales.dtype == torch.float32
    assert TernaryWeight(trits, torch.ones(3).half()).scales.dtype == torch.float16
    four = TernaryWeight(torch.tensor([[-3, -1, 1, 3]]), torch.tensor(0.5))
    assert not four.is_ternary
    assert four.dense().tolist() == [[-1.5, -0.5, 0.5, 1.5]]


def test_dense_is_what_float64_says() -> None:
    trits, scales = torch.randint(-1, 2, (5, 300)), torch.rand(5, 3)
    expected = [[float(trits[r, c]) * float(scales[r, c // 128]) for c in range(300)] for r in range(5)]
    assert torch.equal(TernaryWeight(trits, scales).dense().double(), torch.tensor(expected, dtype=torch.float64))
